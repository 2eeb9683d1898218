"""A process that holds a rollout engine for one run at a time, over HTTP.

A run holds the server with a connection that stays open, so the server is free again
when the run ends, however it ends.
"""

from __future__ import annotations

import argparse
import json
import secrets
import socket
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from typing import Any, TypeVar

import torch

from trainer.config import ModelConfig
from trainer.errors import explain
from trainer.model.loading import (
    AdapterWeights,
    model_fingerprint,
    num_parameters,
    pick_device,
    pick_dtype,
    read_settings,
)
from trainer.rollout import wire
from trainer.rollout.engine import (
    Sampled,
    longest_of,
)
from trainer.rollout.vllm import SamplerSettings
from trainer.rollout.vllm_worker import VllmSampler
from trainer.rollout.wire import (
    HOLD_HEADER,
    LOAD,
    MODEL,
    PLACES,
    SAMPLE,
    WEIGHTS,
    Adapted,
    Order,
    pack_answer,
    unpack_question,
)
from trainer.serving.client import BINARY, notice_silence, unpack
from trainer.serving.server import (
    ModelServer,
    RequestHandler,
    add_server_arguments,
    gpus_of,
    serve,
)


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
        self._lock = threading.RLock()
        self._holder: tuple[str, socket.socket] | None = None
        self._is_closed = False
        self._parts: dict[str, torch.Tensor] = {}
        self._version: int | None = None
        # Random, so that versions differ after a restart of the server.
        self._last_version = secrets.randbelow(2**48)

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

    def add_weights(self, word: str | None, tensors: dict[str, torch.Tensor]) -> None:
        """Keep some weights until all are there.

        Raises:
            NotLeased: the word is not the holder's.
            ValueError: they are more than the model has.
        """
        with self._lock:
            self.check(word)
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
            self.check(word)
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
            self.check(word)
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

    def check(self, word: str | None) -> None:
        """Raises NotLeased unless the word is the holder's."""
        with self._lock:
            if (
                self._holder is None
                or word is None
                or not secrets.compare_digest(self._holder[0].encode(), word.encode())
            ):
                raise NotLeased


_LOCKED = (HTTPStatus.LOCKED, "This run does not hold the server's lease.")
_Result = TypeVar("_Result")


class Broken(Exception):
    """The engine failed halfway; what it would sample from is not known."""


class RolloutServer(ModelServer):
    """GET /healthz, and with the token what `trainer.rollout.wire` names."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        sampler: VllmSampler,
        fingerprint: str,
        vocabulary: int,
        token: str,
        max_request_bytes: int,
        max_weights_bytes: int,
        gpus: dict[str, Any] | None = None,
    ) -> None:
        self.gpus = gpus
        self.vocabulary = vocabulary
        self.fingerprint = fingerprint
        self.holding = Lease(max_bytes=max_weights_bytes)
        self._sampler = sampler
        self._turns = ThreadPoolExecutor(1, thread_name_prefix="sampler")
        self._fault: str | None = None
        super().__init__(
            address, _Door, token=token, max_request_bytes=max_request_bytes
        )

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "fingerprint": self.fingerprint,
            "max_length": self._sampler.max_length,
            "lora_rank": self._sampler.lora_rank,
            "gpus": self.gpus,
        }

    def load(self, word: str | None, order: Order) -> int:
        """Sample with the weights that came; the version that they have from now on.

        Raises:
            NotLeased: the word is not the holder's.
            Incomplete: they are not all there.
            Broken: the engine failed.
        """
        parts = self.holding.collect_weights(word, order.names)

        def load() -> None:
            # looked at in turn, so that another run's weights stay
            self.holding.check(word)
            if order.rank:
                tensors = tuple(parts.items())
                self._sampler.load_adapters(
                    AdapterWeights(tensors=tensors, rank=order.rank, alpha=order.alpha)
                )
            else:
                self._sampler.load_weights(iter(parts.items()))

        self._in_turn(load)
        return self.holding.next_version(word)

    def can_take(self, adapters: Adapted) -> bool:
        """Return whether adapters like these are sampled with beside the weights."""
        if adapters.rank > self._sampler.lora_rank:
            return False
        return self._in_turn(lambda: self._sampler.can_take(adapters.layers))

    def sample(self, body: bytes) -> bytes | None:
        """Return the answer to a question; None when it asks for other weights.

        Raises:
            ValueError: it is no question.
            Broken: the engine failed.
        """
        question = unpack_question(body, vocabulary=self.vocabulary)
        length, num_new = longest_of(question.prompts, question.params)
        if length + num_new > self._sampler.max_length:
            raise ValueError(
                f"A prompt of {length} tokens and a completion of {num_new} exceed "
                f"this server's limit of {self._sampler.max_length}. Start it with a "
                "larger --max-length."
            )

        def sampled() -> list[Sampled] | None:
            # looked at in turn, so that no loading comes between
            if question.version != self.holding.version:
                return None
            return self._sampler.sample(
                list(question.prompts), question.params, eos_ids=question.eos_ids
            )

        results = self._in_turn(sampled)
        return (
            None if results is None else pack_answer(results, version=question.version)
        )

    def server_close(self) -> None:
        self.holding.close()
        super().server_close()
        self._turns.shutdown()
        self._sampler.close()

    def _in_turn(self, act: Callable[[], _Result]) -> _Result:
        """Do something with the engine, in its thread, after what came before."""

        def turn() -> _Result:
            if self._fault is not None:
                raise Broken(self._fault)
            try:
                return act()
            except NotLeased:
                raise  # nothing was done to the engine
            except Exception as error:
                self._fault = explain(error)
                raise Broken(self._fault) from error

        return self._turns.submit(turn).result()


class _Door(RequestHandler):
    server: RolloutServer
    server_version = "rollout"

    def answer_get(self) -> None:
        if self.path == MODEL:
            self.reply(HTTPStatus.OK, self.server.facts)
        else:
            self.refuse_page()

    def objection(self) -> tuple[HTTPStatus, str] | None:
        if self.path in (WEIGHTS, LOAD, PLACES, SAMPLE):
            try:
                self.server.holding.check(self.headers.get(HOLD_HEADER))
            except NotLeased:
                return _LOCKED
        return None

    def answer_post(self, body: bytes) -> None:
        try:
            server, word = self.server, self.headers.get(HOLD_HEADER)
            match self.path:
                case wire.HOLD:
                    self._lease(word)
                case wire.WEIGHTS:
                    server.holding.add_weights(word, unpack(body))
                    self.reply(HTTPStatus.OK, {})
                case wire.PLACES:
                    self.reply(
                        HTTPStatus.OK, {"can_take": server.can_take(Adapted.read(body))}
                    )
                case wire.LOAD:
                    self.reply(
                        HTTPStatus.OK, {"version": server.load(word, Order.read(body))}
                    )
                case wire.SAMPLE:
                    if (answer := server.sample(body)) is None:
                        self.refuse(
                            HTTPStatus.CONFLICT, "This server has other weights now."
                        )
                    else:
                        self.send(HTTPStatus.OK, BINARY, answer)
                case _:
                    self.refuse_page()
        except NotLeased:
            self.refuse(*_LOCKED)
        except Incomplete as error:
            self.refuse(HTTPStatus.CONFLICT, str(error))
        except Broken as error:
            self.refuse(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                f"its engine failed: {error} Restart it.",
            )
        except (ValueError, KeyError, TypeError) as error:
            self.refuse(HTTPStatus.BAD_REQUEST, explain(error))

    def _lease(self, old_word: str | None) -> None:
        word = self.server.holding.take(self.connection, word=old_word)
        if word is None:
            return self.refuse(HTTPStatus.LOCKED, "Another run uses this server.")
        try:
            self.send_response(HTTPStatus.OK)
            self.end_headers()  # without a length: the answer ends with the run
            self.wfile.write(json.dumps({"hold": word}).encode() + b"\n")
            self.wfile.flush()
            self.connection.settimeout(None)
            notice_silence(self.connection)
            while self.rfile.read(1):  # until the other end is gone
                pass
        except OSError:
            pass  # gone in another way
        finally:
            self.server.holding.release(word)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser, port=8700, max_request_mib=4096)
    parser.add_argument(
        "--cache-gib",
        type=float,
        default=4.0,
        help="GPU memory for the KV cache, per GPU, in GiB (default: %(default)s)",
    )
    parser.add_argument(
        "--tensor-parallel-size",
        type=int,
        default=1,
        help="tensor parallel size (default: %(default)s)",
    )
    parser.add_argument(
        "--max-length",
        type=int,
        default=8192,
        help="maximum tokens of a prompt with its completion, at most the model's own "
        "limit (default: %(default)s)",
    )
    parser.add_argument(
        "--max-rows",
        type=int,
        default=512,
        help=(
            "maximum number of completions sampled at the same time (default: "
            "%(default)s)"
        ),
    )
    parser.add_argument(
        "--lora-rank",
        type=int,
        default=0,
        help="largest LoRA rank that is served as adapters; for larger ranks the run "
        "sends merged weights (default: %(default)s)",
    )


def main(args: argparse.Namespace) -> int:
    return serve(
        args, _server, counts=("max_length", "max_rows", "tensor_parallel_size")
    )


def _server(args: argparse.Namespace, token: str) -> RolloutServer:
    if not 0 < args.cache_gib < 10_000:
        raise ValueError(f"--cache-gib must be above 0; got {args.cache_gib:g}.")
    fingerprint = model_fingerprint(args.model, revision=args.revision)
    config = ModelConfig(path=args.model, revision=args.revision, dtype=args.dtype)
    device = pick_device(config)
    settings: Any = read_settings(args.model, revision=args.revision).get_text_config()
    longest = getattr(settings, "max_position_embeddings", None) or args.max_length
    sampler = VllmSampler(
        SamplerSettings(
            model=args.model,
            revision=args.revision,
            dtype=pick_dtype(config, device),
            max_length=min(args.max_length, longest),
            max_rows=args.max_rows,
            cache_gib=args.cache_gib,
            lora_rank=args.lora_rank,
            tensor_parallel_size=args.tensor_parallel_size,
        )
    )
    num_bytes = torch.float32.itemsize * num_parameters(
        args.model, revision=args.revision
    )
    return RolloutServer(
        (args.host, args.port),
        sampler=sampler,
        fingerprint=fingerprint,
        vocabulary=settings.vocab_size,
        token=token,
        max_request_bytes=args.max_request_mib * 2**20,
        # Adapters of a high rank and what a file leaves out fit too.
        max_weights_bytes=2 * num_bytes + 2**26,
        gpus=gpus_of(device, number=args.tensor_parallel_size),
    )
