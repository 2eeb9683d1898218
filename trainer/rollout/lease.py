"""The run that a rollout server samples for, and the weights that it has sent."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress

import torch


class NotLeased(Exception):
    """The client has no lease, or has lost it."""


class Incomplete(Exception):
    """Announced weights are missing."""


class Lease:
    """Lease of one run at a time, identified by a word. Late requests change nothing.

    Every method is atomic: a run may lose its lease while its request is read.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._holder: tuple[str, socket.socket] | None = None
        self._is_closed = False
        self._parts: dict[str, torch.Tensor] = {}
        self._version: int | None = None
        # Random, so that versions differ after a restart of the server.
        self._last_version = secrets.randbelow(2**48)

    @property
    def is_free(self) -> bool:
        with self._lock:
            return self._holder is None

    @property
    def version(self) -> int | None:
        """Version of the weights that are sampled with; None until a run's own are
        loaded.
        """
        with self._lock:
            return self._version

    def take(self, connection: socket.socket, *, word: str | None) -> str | None:
        """Return a new word for the run of a connection; None while another has the
        lease.

        A run that returns with its word replaces its older connection, whose end may
        not have been noticed yet.
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
        """Raises NotLeased unless the word is the holder's."""
        with self._lock:
            self._check(word)

    def add_weights(self, word: str | None, tensors: dict[str, torch.Tensor]) -> None:
        """Keep some weights until all are there.

        Raises:
            NotLeased: the word is not the holder's.
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
        """Return the weights that arrived, which must be these. Clears the version.

        Raises:
            NotLeased: the word is not the holder's.
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
        """Number the weights that were collected last; raises NotLeased."""
        with self._lock:
            self._check(word)
            self._last_version += 1
            self._version = self._last_version
            return self._version

    def close(self) -> None:
        """End the lease, and grant no other."""
        with self._lock:
            self._is_closed = True
            if self._holder is not None:
                with suppress(OSError):  # it is gone already
                    self._holder[1].shutdown(socket.SHUT_RDWR)

    def _check(self, word: str | None) -> None:
        if self._holder is None or word is None:
            raise NotLeased
        if not secrets.compare_digest(self._holder[0].encode(), word.encode()):
            raise NotLeased
