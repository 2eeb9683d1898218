"""A process that holds a rollout engine for one run at a time, over HTTP.

A run holds the server with a connection that stays open, so the server is free again
when the run ends, however it ends.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

import torch

from trainer.adapter_weights import AdapterWeights
from trainer.failures import explain
from trainer.rollout.engine import SamplingParams
from trainer.rollout.sampled import Sampled, SeededPrompt
from trainer.rollout.wire import (
    HOLD,
    HOLD_HEADER,
    LOAD,
    MODEL,
    PLACES,
    SAMPLE,
    WEIGHTS,
    pack_answer,
    read_tensors,
    unpack_question,
)
from trainer.serving.door import BINARY, Door, ModelServer

_Result = TypeVar("_Result")


class Sampler(Protocol):
    """What a server serves; `VllmSampler` is one."""

    max_length: int
    lora_rank: int

    def sample(
        self,
        prompts: list[SeededPrompt],
        params: SamplingParams,
        *,
        eos_ids: tuple[int, ...],
    ) -> list[Sampled]: ...

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None: ...

    def can_take(self, names: Iterable[str]) -> bool: ...

    def load_adapters(self, adapters: AdapterWeights) -> None: ...


class Broken(Exception):
    """The engine failed halfway; what it would sample from is not known."""


class RolloutServer(ModelServer):
    """GET /healthz, and with the token what `trainer.rollout.wire` names."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        sampler: Sampler,
        fingerprint: str,
        vocabulary: int,
        token: str,
        max_request_bytes: int,
        max_weights_bytes: int,
    ) -> None:
        self.vocabulary = vocabulary
        self.fingerprint = fingerprint
        self.max_weights_bytes = max_weights_bytes
        self._sampler = sampler
        self._turns = ThreadPoolExecutor(1, thread_name_prefix="sampler")
        self._fault: str | None = None
        self._lock = threading.Lock()
        self._holder: tuple[str, socket.socket] | None = None
        self._parts: dict[str, torch.Tensor] = {}
        self._version: int | None = None
        # Versions of two lives of a server are not mistaken for one another.
        self._last_version = secrets.randbelow(2**48)
        super().__init__(
            address, _Door, token=token, max_request_bytes=max_request_bytes
        )

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "fingerprint": self.fingerprint,
            "max_length": self._sampler.max_length,
            "lora_rank": self._sampler.lora_rank,
        }

    def hold(self, connection: socket.socket) -> str | None:
        """A word for the run behind a connection; None while another run is there."""
        with self._lock:
            if self._holder is not None:
                return None
            self._holder = (secrets.token_urlsafe(16), connection)
            self._parts, self._version = {}, None
            return self._holder[0]

    def release(self, word: str) -> None:
        with self._lock:
            if self._holder is not None and self._holder[0] == word:
                self._holder, self._parts = None, {}

    def is_held_by(self, word: str | None) -> bool:
        with self._lock:
            return self._holder is not None and self._holder[0] == word

    def add_weights(self, tensors: dict[str, torch.Tensor]) -> None:
        """Keep some weights until all are there.

        Raises:
            ValueError: they are more than the model has.
        """
        with self._lock:
            parts = self._parts | tensors
            size = sum(tensor.nbytes for tensor in parts.values())
            if size > self.max_weights_bytes:
                raise ValueError(
                    f"{size} bytes are more than this server's model has weights."
                )
            self._parts = parts

    def load(self, order: dict[str, Any]) -> int:
        """Sample with the weights that came; the version that they have from now on.

        Raises:
            ValueError: they are not all there.
            Broken: the engine failed.
        """
        with self._lock:
            parts, self._parts = self._parts, {}
            if not parts or sorted(parts) != sorted(order["names"]):
                raise ValueError(
                    f"{len(order['names'])} weights were announced, and {len(parts)} "
                    "came. Send them again."
                )
            self._version = None
        if order["rank"]:
            adapters = AdapterWeights(
                tensors=tuple(parts.items()), rank=order["rank"], alpha=order["alpha"]
            )
            self._in_turn(lambda: self._sampler.load_adapters(adapters))
        else:
            self._in_turn(lambda: self._sampler.load_weights(iter(parts.items())))
        with self._lock:
            self._last_version += 1
            self._version = self._last_version
            return self._version

    def can_take(self, names: list[str]) -> bool:
        return self._in_turn(lambda: self._sampler.can_take(names))

    def sample(self, body: bytes) -> bytes | None:
        """The answer to a question; None when it asks for other weights.

        Raises:
            ValueError: it is no question.
            Broken: the engine failed.
        """
        question = unpack_question(body, vocabulary=self.vocabulary)
        longest = max(len(prompt.token_ids) for prompt in question.prompts)
        if longest + question.params.max_new_tokens > self._sampler.max_length:
            raise ValueError(
                f"A prompt of {longest} tokens and a completion of "
                f"{question.params.max_new_tokens} are more than this server's "
                f"{self._sampler.max_length}. Start it with a larger --max-length."
            )

        def sampled() -> list[Sampled] | None:
            # looked at in turn, so that no loading comes between
            if question.version != self._version:
                return None
            return self._sampler.sample(
                list(question.prompts), question.params, eos_ids=question.eos_ids
            )

        found = self._in_turn(sampled)
        return None if found is None else pack_answer(found, version=question.version)

    def server_close(self) -> None:
        with self._lock:
            if self._holder is not None:
                self._holder[1].shutdown(socket.SHUT_RDWR)
        super().server_close()
        self._turns.shutdown()

    def _in_turn(self, act: Callable[[], _Result]) -> _Result:
        """Do something with the engine, in its thread, after what came before."""

        def turn() -> _Result:
            if self._fault is not None:
                raise Broken(self._fault)
            try:
                return act()
            except Exception as error:
                self._fault = explain(error)
                raise Broken(self._fault) from error

        return self._turns.submit(turn).result()


class _Door(Door):
    server: RolloutServer
    server_version = "rollout"

    def answer_get(self) -> None:
        if self.path == MODEL:
            self.reply(HTTPStatus.OK, self.server.facts)
        else:
            self.refuse_page()

    def answer_post(self, body: bytes) -> None:
        if self.path == HOLD:
            return self._hold()
        if self.path not in (WEIGHTS, LOAD, PLACES, SAMPLE):
            return self.refuse_page()
        if not self.server.is_held_by(self.headers.get(HOLD_HEADER)):
            return self.refuse(HTTPStatus.LOCKED, "This run does not hold the server.")
        try:
            return self._answer(body)
        except Broken as error:
            return self.refuse(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                f"its engine failed: {error} Start it again.",
            )
        except (ValueError, KeyError, TypeError) as error:
            return self.refuse(HTTPStatus.BAD_REQUEST, explain(error))

    def _answer(self, body: bytes) -> None:
        server = self.server
        if self.path == WEIGHTS:
            server.add_weights(read_tensors(body))
            self.reply(HTTPStatus.OK, {})
        elif self.path == PLACES:
            self.reply(HTTPStatus.OK, {"can_take": server.can_take(json.loads(body))})
        elif self.path == LOAD:
            self.reply(HTTPStatus.OK, {"version": server.load(json.loads(body))})
        elif (answer := server.sample(body)) is None:
            self.refuse(HTTPStatus.CONFLICT, "This server has other weights now.")
        else:
            self.send(HTTPStatus.OK, BINARY, answer)

    def _hold(self) -> None:
        word = self.server.hold(self.connection)
        if word is None:
            return self.refuse(HTTPStatus.LOCKED, "Another run holds this server.")
        try:
            self.send_response(HTTPStatus.OK)
            self.end_headers()  # without a length: the answer ends with the run
            self.wfile.write(json.dumps({"hold": word}).encode() + b"\n")
            self.wfile.flush()
            self.connection.settimeout(None)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            while self.rfile.read(1):  # until the other end is gone
                pass
        except OSError:
            pass  # gone in another way
        finally:
            self.server.release(word)
