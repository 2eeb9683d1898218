"""HTTP server of a reference model. Requests of several runs share forward passes."""

from __future__ import annotations

import argparse
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import torch

from trainer.config import ModelConfig
from trainer.errors import explain
from trainer.model.loading import model_fingerprint
from trainer.model.logprobs import token_logprobs
from trainer.model.policy import Policy, load_policy
from trainer.serving.client import BINARY
from trainer.serving.reference_client import (
    LOGPROBS,
    MODEL,
    MODEL_HEADER,
    Question,
    pack_answer,
    unpack_question,
)
from trainer.serving.server import (
    ModelServer,
    RequestHandler,
    add_server_arguments,
    gpus_of,
    serve,
)

_MAX_WAITING = 256


class Busy(Exception):
    """More questions wait already than can be kept."""


@dataclass(frozen=True)
class _Job:
    question: Question
    answer: Future[torch.Tensor] = field(default_factory=Future)


class Answerer:
    """Answers questions in the order they came, several in one forward pass.

    What came while the model was busy goes through it together, as far as rows times
    the longest sequence stay within `max_tokens` and the temperature is the same.
    """

    def __init__(self, model: Policy, *, max_tokens: int) -> None:
        self._model = model
        self._max_tokens = max_tokens
        self._waiting: queue.Queue[_Job | None] = queue.Queue(_MAX_WAITING)
        self._held: _Job | None = None  # did not fit the batch before it
        self._thread = threading.Thread(target=self._work, name="answerer")
        self._thread.start()

    def ask(self, question: Question) -> torch.Tensor:
        """Return log-probs [N] on the CPU; waits for them.

        Raises:
            Busy: ask again later.
            ValueError: the model could not answer.
        """
        job = _Job(question)
        try:
            self._waiting.put_nowait(job)
        except queue.Full:
            raise Busy from None
        return job.answer.result()

    def end(self) -> None:
        """Answer what waits, then end."""
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        while True:
            first = self._held or self._waiting.get()
            self._held = None
            if first is None:
                return
            jobs = self._with_others(first)
            try:
                questions = [job.question for job in jobs]
                values = self._logprobs(join(questions))
                answers = values.split([len(q.places) for q in questions])
            except Exception as error:  # noqa: BLE001 - told to those who asked
                for job in jobs:
                    job.answer.set_exception(ValueError(explain(error)))
            else:
                for job, answer in zip(jobs, answers, strict=True):
                    job.answer.set_result(answer)

    def _with_others(self, first: _Job) -> list[_Job]:
        jobs = [first]
        rows, longest = first.question.input_ids.shape
        while True:
            try:
                job = self._waiting.get_nowait()
            except queue.Empty:
                return jobs
            if job is None:
                self._waiting.put(None)  # the next turn ends
                return jobs
            more, length = job.question.input_ids.shape
            rows, longest = rows + more, max(longest, length)
            same = job.question.temperature == first.question.temperature
            if not same or rows * longest > self._max_tokens:
                self._held = job
                return jobs
            jobs.append(job)

    @torch.inference_mode()
    def _logprobs(self, question: Question) -> torch.Tensor:
        """Return log-probs [N] of a question, a few rows at a time where it is too
        large.
        """
        model, length = self._model, question.input_ids.shape[1]
        size = max(1, self._max_tokens // length)
        values = torch.zeros(len(question.places))
        row = question.places // length
        for first in range(0, len(question.input_ids), size):
            mine = ((row >= first) & (row < first + size)).nonzero().squeeze(1)
            ids = question.input_ids[first : first + size].to(model.device)
            hidden = model.body(input_ids=ids, use_cache=False)[0].flatten(0, 1)
            places = (question.places[mine] - first * length).to(model.device)
            logprobs, _ = token_logprobs(
                hidden.index_select(0, places),
                model.head,
                question.targets[mine].to(model.device),
                temperature=question.temperature,
                logit_map=model.logit_map,
            )
            values[mine] = logprobs.float().cpu()
        return values


def join(questions: Sequence[Question]) -> Question:
    """Questions of one temperature as one, its sequences padded to the longest."""
    longest = max(question.input_ids.shape[1] for question in questions)
    ids, places, num_rows = [], [], 0
    for question in questions:
        rows, length = question.input_ids.shape
        ids.append(torch.nn.functional.pad(question.input_ids, (0, longest - length)))
        row, column = question.places // length, question.places % length
        places.append((row + num_rows) * longest + column)
        num_rows += rows
    return Question(
        input_ids=torch.cat(ids),
        places=torch.cat(places),
        targets=torch.cat([question.targets for question in questions]),
        temperature=questions[0].temperature,
    )


class ReferenceServer(ModelServer):
    """GET /healthz, and with the token GET /model and POST /logprobs."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        model: Policy,
        fingerprint: str,
        token: str,
        max_batch_tokens: int,
        max_request_bytes: int,
    ) -> None:
        self.fingerprint = fingerprint
        self.vocabulary = model.head.weight.shape[0]
        config: Any = model.model.config.get_text_config()
        self.max_length = int(getattr(config, "max_position_embeddings", None) or 2**20)
        self.answerer = Answerer(model, max_tokens=max_batch_tokens)
        self.gpus = gpus_of(model.device)
        self.num_requests, self.counting = 0, threading.Lock()
        super().__init__(
            address, _Door, token=token, max_request_bytes=max_request_bytes
        )

    @property
    def status(self) -> dict[str, Any]:
        return {
            "fingerprint": self.fingerprint,
            "gpus": self.gpus,
            "num_requests": self.num_requests,  # of all runs
        }

    def server_close(self) -> None:
        super().server_close()
        self.answerer.end()


class _Door(RequestHandler):
    server: ReferenceServer
    server_version = "reference"
    remedy = (
        "Lower optim.micro_batch_tokens, or start the server with a larger "
        "--max-request-mib."
    )

    def answer_get(self) -> None:
        if self.path == MODEL:
            self.reply(HTTPStatus.OK, self.server.status)
        else:
            self.refuse_page()

    def answer_post(self, body: bytes) -> None:
        if self.path != LOGPROBS:
            return self.refuse_page()
        if self.headers.get(MODEL_HEADER) != self.server.fingerprint:
            return self.refuse(HTTPStatus.CONFLICT, "This server has another model.")
        try:
            question = unpack_question(
                body,
                vocabulary=self.server.vocabulary,
                max_length=self.server.max_length,
            )
        except ValueError as error:
            return self.refuse(HTTPStatus.BAD_REQUEST, str(error))
        try:
            answer = pack_answer(self.server.answerer.ask(question))
        except Busy:
            return self.refuse(
                HTTPStatus.SERVICE_UNAVAILABLE, "Too many requests are waiting."
            )
        except ValueError as error:
            return self.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        with self.server.counting:
            self.server.num_requests += 1
        return self.send(HTTPStatus.OK, BINARY, answer)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser, port=8600, max_request_mib=64)
    parser.add_argument(
        "--device",
        default="auto",
        choices=["auto", "cpu", "cuda"],
        help="device of the model",
    )
    parser.add_argument(
        "--max-batch-tokens",
        type=int,
        default=16_384,
        help="tokens per forward pass, padding included (default: %(default)s)",
    )


def main(args: argparse.Namespace) -> int:
    return serve(args, _server, counts=("max_batch_tokens",))


def _server(args: argparse.Namespace, token: str) -> ReferenceServer:
    model = load_policy(
        ModelConfig(
            path=args.model,
            revision=args.revision,
            device=args.device,
            dtype=args.dtype,
        )
    )
    model.model.requires_grad_(requires_grad=False)
    if model.fix_longest(1):
        raise ValueError(
            f"{args.model} rotates a text by the length of the run's longest, which a "
            'shared server does not know. Set reference.kind = "frozen" instead.'
        )
    return ReferenceServer(
        (args.host, args.port),
        model=model,
        fingerprint=model_fingerprint(args.model, revision=args.revision),
        token=token,
        max_batch_tokens=args.max_batch_tokens,
        max_request_bytes=args.max_request_mib * 2**20,
    )
