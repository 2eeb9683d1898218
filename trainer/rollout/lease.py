"""Which run a rollout server samples for, and what that run has sent so far."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress

import torch


class NotHeld(Exception):
    """Who asks does not hold the server, or not any more."""


class Incomplete(Exception):
    """Not all weights are there that were announced."""


class Hold:
    """One run at a time, known by a word; another's late questions change nothing.

    Every method is one step to those of other threads: a run may lose its hold while a
    question of its own is read.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._holder: tuple[str, socket.socket] | None = None
        self._is_closed = False
        self._parts: dict[str, torch.Tensor] = {}
        self._version: int | None = None
        # Versions of two lives of a server are not mistaken for one another.
        self._last_version = secrets.randbelow(2**48)

    @property
    def is_free(self) -> bool:
        with self._lock:
            return self._holder is None

    @property
    def version(self) -> int | None:
        """Of the weights that are sampled with; None until a run's own are loaded."""
        with self._lock:
            return self._version

    def take(self, connection: socket.socket, *, word: str | None) -> str | None:
        """A new word for the run behind a connection; None while another is there.

        A run that comes again with its word takes the server over from its older
        connection, whose end may not have been noticed yet.
        """
        with self._lock:
            if self._is_closed or (self._holder and self._holder[0] != word):
                return None
            self._holder = (secrets.token_urlsafe(16), connection)
            self._parts, self._version = {}, None
            return self._holder[0]

    def release(self, word: str) -> None:
        with self._lock:
            if self._holder is not None and self._holder[0] == word:
                self._holder, self._parts = None, {}

    def check(self, word: str | None) -> None:
        """Raises NotHeld unless the word is the holder's."""
        with self._lock:
            self._check(word)

    def add_weights(self, word: str | None, tensors: dict[str, torch.Tensor]) -> None:
        """Keep some weights until all are there.

        Raises:
            NotHeld: the word is not the holder's.
            ValueError: they are more than the model has.
        """
        with self._lock:
            self._check(word)
            parts = self._parts | tensors
            size = sum(tensor.nbytes for tensor in parts.values())
            if size > self._max_bytes:
                raise ValueError(
                    f"{size} bytes are more than the weights of this server's model."
                )
            self._parts = parts

    def collect_weights(
        self, word: str | None, names: Iterable[str]
    ) -> dict[str, torch.Tensor]:
        """All that came, which must be these; until they have a version, none does.

        Raises:
            NotHeld: the word is not the holder's.
            Incomplete: they are others.
        """
        with self._lock:
            self._check(word)
            parts, self._parts = self._parts, {}
            wanted = sorted(names)
            if not parts or sorted(parts) != wanted:
                raise Incomplete(
                    f"{len(wanted)} weights were announced, but {len(parts)} arrived. "
                    "Send them again."
                )
            self._version = None
            return parts

    def next_version(self, word: str | None) -> int:
        """Of the weights that were collected last, from now on; raises NotHeld."""
        with self._lock:
            self._check(word)
            self._last_version += 1
            self._version = self._last_version
            return self._version

    def close(self) -> None:
        """Let go of the run, and take no other."""
        with self._lock:
            self._is_closed = True
            if self._holder is not None:
                with suppress(OSError):  # it is gone already
                    self._holder[1].shutdown(socket.SHUT_RDWR)

    def _check(self, word: str | None) -> None:
        if self._holder is None or word is None:
            raise NotHeld
        if not secrets.compare_digest(self._holder[0].encode(), word.encode()):
            raise NotHeld
