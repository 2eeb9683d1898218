"""What other programs send over a wire: hubs, judges, model servers, trainers."""

import contextlib
import gzip
import io
import math
from collections.abc import Callable
from email.message import Message
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from urllib.error import HTTPError

import torch
from hypothesis import strategies as st
from safetensors.torch import save

from cohort.http import Refused, Server, Unreachable
from dashboard.api import external_runs
from dashboard.api.problems import Problem
from dashboard.datasets.fetching import hub
from dashboard.datasets.fetching.http import NotFetched
from tests.inputs.parsers.row import (
    ANY_TEXT,
    BODIES,
    JSON,
    NUMBERS,
    TREES,
    Parser,
    dumped,
    shaped,
    spoilt,
)
from trainer.internet import HostAllowlist, Target
from trainer.model.packing import TrainingSample
from trainer.rewards.model_judge import client as judge
from trainer.rollout import wire as rollout_wire
from trainer.rollout.engine import Sampled, SamplingParams, SeededPrompt
from trainer.rollout.server_engine import RolloutClient
from trainer.serving import reference_client
from trainer.serving.client import Connection, _sentence
from trainer.serving.reference_client import ServerReference
from trainer.serving.vllm_reference import VllmReference

HUB = HostAllowlist(action="A hub is asked", variable="X")

ENTRY = shaped(
    type=st.just("file"), path=ANY_TEXT, size=NUMBERS, oid=ANY_TEXT, lfs=JSON
)

COMMIT = st.fixed_dictionaries(
    {"sha": st.just("0" * 40) | JSON}, optional={"id": st.just("a/b") | JSON,
                                                 "cardData": JSON}
)  # fmt: skip

HUB_ANSWERS = st.tuples(
    COMMIT.map(dumped) | TREES,
    st.lists(ENTRY, max_size=4).map(dumped) | TREES,
    ANY_TEXT | st.sampled_from(['<https://huggingface.co/x?cursor=1>; rel="next"']),
)


def check_hub(given: tuple[str, str, str]) -> None:
    commit, entries, link = given
    answers = [(commit, ""), (entries, link), ("[]", "")]

    def ask(target: Target, *_: Any, **__: Any) -> Any:
        text, follows = answers.pop(0)
        body = io.BytesIO(text.encode("utf-8", "surrogatepass"))
        return SimpleNamespace(
            target=target, read=body.read, headers={"Link": follows}, close=body.close
        )

    asked = hub.Hub(HUB, None, on_wait=lambda: None)
    with patch.object(hub, "fetch", ask), contextlib.suppress(NotFetched):
        for file in asked.find("a/b", "main").files:
            file.path.encode()
            assert file.num_bytes >= 0


TENSORS = st.builds(
    lambda shape, dtype, low: torch.full(shape, low, dtype=dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([torch.int64, torch.int32, torch.float32, torch.float64, torch.bool]),
    st.sampled_from([0, 1, 2, -1, 99]),
)  # fmt: skip


def tensors(*names: str) -> st.SearchStrategy[bytes]:
    every = st.fixed_dictionaries(dict.fromkeys(names, TENSORS))
    return every.map(save) | st.dictionaries(st.sampled_from(names), TENSORS).map(save)


ASKED = rollout_wire.Question(
    prompts=[SeededPrompt(token_ids=(1, 2), seed=3)] * 2,
    params=SamplingParams(max_new_tokens=3, temperature=1.0),
    eos_ids=(0,),
    version=1,
)

QUESTION = rollout_wire.pack_question(ASKED)

ANSWER = rollout_wire.pack_answer(
    [Sampled(token_ids=(1, 0), logprobs=(-0.5, -1.0))] * 2, version=1
)


def check_rollout(body: bytes) -> None:
    with contextlib.suppress(ValueError):
        found = rollout_wire.unpack_question(body, vocabulary=9)
        assert all(0 <= t < 9 for prompt in found.prompts for t in prompt.token_ids)
    with contextlib.suppress(ValueError):
        sampled = rollout_wire.unpack_answer(body, ASKED)
        assert len(sampled) == len(ASKED.prompts)


def check_order(body: bytes) -> None:
    for message in (rollout_wire.Order, rollout_wire.Adapted):
        with contextlib.suppress(ValueError):
            assert message.read(body).rank >= 0


SCORED = reference_client.pack_question(
    reference_client.Question(
        input_ids=torch.tensor([[1, 2, 3]]),
        places=torch.tensor([0, 1]),
        targets=torch.tensor([2, 3]),
        temperature=1.0,
    )
)


def check_reference(body: bytes) -> None:
    with contextlib.suppress(ValueError):
        found = reference_client.unpack_question(body, vocabulary=9, max_length=3)
        assert found.targets.shape == found.places.shape
    with contextlib.suppress(ValueError):
        assert reference_client.unpack_answer(body, count=2).shape == (2,)


CHOICE = shaped(message=shaped(content=ANY_TEXT), finish_reason=st.just("length"))

COMPLETIONS = shaped(
    choices=st.lists(CHOICE, max_size=2),
    usage=shaped(total_tokens=NUMBERS),
    error=shaped(message=ANY_TEXT),
)

DATES = st.builds(
    "{} {} Jan {} {}:00:00 {}".format,
    st.sampled_from(["Mon,", ""]),
    st.integers(-1, 40),
    st.integers(0, 10**12),
    st.integers(-1, 30),
    st.sampled_from(["GMT", "+0100", "+9999", "-99999", "+" + "9" * 17, ""]),
)


def check_judge(given: tuple[str, str]) -> None:
    text, wait = given
    body = text.encode("utf-8", "surrogatepass")
    with contextlib.suppress(judge.NoReply):
        reply = judge._read_reply(body, about_tokens=1)
        assert reply.num_tokens > 0
    judge._error_message(body).encode()
    seconds = judge._wait_seconds({"Retry-After": wait})
    assert seconds is None or (seconds >= 0 and not math.isnan(seconds))


SERVER = Server("https://cohort.example.org", "t")


def check_client(given: tuple[bytes, int, str]) -> None:
    body, status, wait = given
    headers = Message()
    headers["Retry-After"] = wait
    refused = HTTPError(SERVER.url, status, "No", headers, io.BytesIO(body))
    for opened in (lambda *_: io.BytesIO(body), _raising(refused)):
        with (
            patch.object(Server, "_open", opened),
            contextlib.suppress(Unreachable, Refused),
        ):
            SERVER.get("/runs")


def _raising(error: Exception) -> Callable[..., Any]:
    def opened(*_: Any) -> Any:
        raise error

    return opened


def check_model_servers(body: bytes) -> None:
    reference = ServerReference("http://127.0.0.1:1", token="t", fingerprint="f")
    rollout = RolloutClient(
        "http://127.0.0.1:1", token="t", fingerprint="f", patience_seconds=0
    )
    teacher = VllmReference("http://127.0.0.1:1", token="t", model="f", longest=9)
    sample = TrainingSample(
        prompt_ids=(1,), completion_ids=(2, 3), sampling_logprobs=(0.0, 0.0)
    )
    acts: list[Callable[[], object]] = [
        reference.check_model,
        teacher.check_model,
        lambda: teacher._ask_once([sample], [1]),
        rollout._check_model,
        lambda: rollout.check_adapters(["a"], rank=1),
        lambda: rollout.load(["a"], rank=1, alpha=1.0),
    ]
    with patch.object(Connection, "ask", lambda *_, **__: body):
        for act in acts:
            with contextlib.suppress(ValueError):
                act()
    held = SimpleNamespace(line=body, close=lambda: None)
    with (
        patch.object(rollout, "_check_model"),
        patch.object(Connection, "open", lambda *_: held),
        contextlib.suppress(ValueError),
    ):
        rollout.hold()
    assert isinstance(rollout._version, int)
    assert len(_sentence(body).encode()) <= 2_000


def check_batch(body: bytes) -> None:
    with contextlib.suppress(Problem):
        sizes = [len(piece) for piece in external_runs._unzip(body)]
        assert sum(sizes) <= external_runs.MAX_BATCH_BYTES


PARSERS = [
    Parser("a hub's answers", HUB_ANSWERS, check_hub, ("dashboard.datasets.fetching.hub",)),
    Parser("a rollout server's bodies", spoilt(QUESTION) | spoilt(ANSWER)
           | tensors("tokens", "lengths", "seeds", "eos_ids", "max_new_tokens", "temperature", "version")
           | tensors("tokens", "logprobs", "lengths", "version") | st.binary(max_size=99),
           check_rollout, ("trainer.rollout.wire",)),
    Parser("a rollout server's orders", BODIES | shaped(names=JSON, layers=JSON, rank=NUMBERS,
           alpha=NUMBERS).map(lambda tree: dumped(tree).encode()), check_order, ("trainer.rollout.wire",)),
    Parser("a reference server's bodies", spoilt(SCORED)
           | tensors("input_ids", "places", "targets", "temperature") | tensors("logprobs")
           | st.binary(max_size=99), check_reference, ("trainer.serving.reference_client",)),
    Parser("a judge's answers", st.tuples(COMPLETIONS.map(dumped) | TREES, DATES | ANY_TEXT | NUMBERS.map(str)),
           check_judge, ("trainer.rewards.model_judge.client",)),
    Parser("what a server tells the client", st.tuples(
           BODIES | shaped(title=JSON, detail=JSON, status=JSON).map(lambda tree: dumped(tree).encode()),
           st.sampled_from([307, 409, 503]), NUMBERS.map(str) | st.sampled_from(["²", "1" * 400, ""])),
           check_client, ("cohort.http",)),
    Parser("what a model's server answers", BODIES | shaped(fingerprint=st.just("f"), max_length=NUMBERS,
           can_take=JSON, version=NUMBERS, error=JSON).map(lambda tree: dumped(tree).encode())
           | shaped(data=st.lists(shaped(id=JSON, root=JSON, max_model_len=JSON) | JSON, max_size=3),
                    choices=st.lists(shaped(index=NUMBERS, prompt_logprobs=JSON) | JSON, max_size=2)
                    ).map(lambda tree: dumped(tree).encode()),
           check_model_servers, ("trainer.serving.reference_client", "trainer.rollout.server_engine",
                                 "trainer.serving.client", "trainer.serving.vllm_reference")),
    Parser("batches of an outside trainer", st.binary(max_size=99).map(gzip.compress)
           | spoilt(gzip.compress(b"{}\n" * 99, mtime=0)) | st.binary(max_size=99), check_batch,
           ("dashboard.api.external_runs",)),
]  # fmt: skip
