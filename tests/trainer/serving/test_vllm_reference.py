"""A vLLM server as the teacher: what is asked of it, and what it may answer."""

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

from tests.trainer.samples import cut, make_batch
from tests.trainer.tiny import config_tree
from trainer.config import PhaseConfig, RunConfig
from trainer.model.packing import MicroBatch
from trainer.model.policy import Policy
from trainer.model.reference import make_reference
from trainer.serving import client as serving_client
from trainer.serving.vllm_reference import VllmReference

TOKEN = "0123456789abcdef"
HUGE = {"logprob": -(10**400)}


class Fake:
    """A server with vLLM's addresses, whose answers follow from the policy."""

    def __init__(self, policy: Policy, *, max_sequences: int = 99) -> None:
        self.models: list[dict[str, Any]] = [{"id": "teacher", "max_model_len": 256}]
        self.sizes: list[int] = []  # of questions
        self.changed: dict[str, Any] = {}  # of each choice
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._reply(200, {"data": fake.models})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                asked = json.loads(body)
                assert self.headers["Authorization"] == f"Bearer {TOKEN}"
                assert (asked["model"], asked["max_tokens"]) == ("teacher", 1)
                fake.sizes.append(len(asked["prompt"]))
                if len(asked["prompt"]) > max_sequences:
                    return self._reply(500, {"error": {"message": "out of memory"}})
                choices = [
                    {"index": n, "prompt_logprobs": prompt_logprobs(policy, ids)}
                    | fake.changed
                    for n, ids in enumerate(asked["prompt"])
                ]
                return self._reply(200, {"choices": choices[::-1]})

            def _reply(self, status: int, tree: Any) -> None:
                body = json.dumps(tree).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever)
        self._thread.start()

    def end(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def prompt_logprobs(policy: Policy, ids: list[int]) -> list[dict[str, Any] | None]:
    with torch.no_grad():
        logits = policy.model(torch.tensor([ids])).logits[0]
    values = logits.log_softmax(-1)
    places = enumerate(ids[1:])
    return [
        None,
        *({str(i): {"logprob": values[at, i].item(), "rank": 1}} for at, i in places),
    ]


@pytest.fixture
def start(policy) -> Iterator[Any]:
    servers: list[Fake] = []

    def started(**options: Any) -> Fake:
        servers.append(Fake(policy, **options))
        return servers[-1]

    yield started
    for server in servers:
        server.end()


def client(server: Fake, *, longest: int = 24) -> VllmReference:
    return VllmReference(
        server.url, token=TOKEN, model="teacher", longest=longest, patience_seconds=1
    )


def check(policy: Policy, micros: list[MicroBatch]) -> None:
    for micro in micros:
        with torch.no_grad():
            expected, _ = policy.logprobs(micro, temperature=1.0)
        assert micro.reference_logprobs is not None
        torch.testing.assert_close(
            micro.reference_logprobs, expected, atol=1e-5, rtol=1e-5
        )


@pytest.fixture
def phase_at(model_folder, rows_path, tmp_path) -> Callable[..., PhaseConfig]:
    """A run's phase whose reference a server has."""

    def make(server: Fake, **changes: Any) -> PhaseConfig:
        token_file = tmp_path / "token"
        token_file.write_text(TOKEN)
        reference = {
            "kind": "server",
            "protocol": "vllm",
            "model": str(model_folder),
            "url": server.url,
            "token_file": str(token_file),
        }
        tree = config_tree(
            model_folder,
            rows_path,
            reference=reference | changes,
            data={"rows": str(rows_path), "max_prompt_tokens": 16},
        )
        (phase,) = RunConfig.model_validate(tree).phase_configs
        return phase

    return make


def test_a_run_reads_the_servers_logprobs_and_counts_its_hours(start, policy, phase_at):
    server = start()
    micros = cut(make_batch(20), policy, max_tokens=1_000)

    made = make_reference(phase_at(server), policy)
    made.add_logprobs(micros, temperature=1.0)

    check(policy, micros)
    assert max(server.sizes) == 8
    assert list(serving_client.server_metrics()) == ["server/reference/unknown/hours"]


def test_the_server_must_take_a_policys_prompt_that_is_longer_than_the_context(
    start, policy, phase_at
):
    """A completion without a context is asked about behind the policy's prompt."""
    server = start()
    phase = phase_at(server, context="best_of_group", max_prompt_tokens=8)
    server.models[0]["max_model_len"] = phase.config.longest_sequence

    with pytest.raises(ValueError, match="max-model-len"):
        make_reference(phase, policy)


def test_a_question_is_halved_where_the_server_fails(start, policy):
    server = start(max_sequences=2)
    reference = client(server)
    reference.check_model()
    micros = cut(make_batch(9), policy, max_tokens=1_000)

    reference.add_logprobs(micros, temperature=1.0)

    check(policy, micros)
    assert server.sizes == [8, 4, 2, 2, 2, 2, 1]


def test_a_fault_of_a_single_sequence_ends_the_question(start, policy):
    reference = client(start(max_sequences=0))
    reference.check_model()

    with pytest.raises(ValueError, match=r"500.*out of memory"):
        reference.add_logprobs(
            cut(make_batch(2), policy, max_tokens=1_000), temperature=1.0
        )


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ([], "does not serve teacher"),
        ([{"id": "a"}, {"id": "b"}], "a, b"),
        ([{"id": "teacher", "max_model_len": 24}], "max-model-len 25"),
        (["teacher"], "does not serve teacher"),
    ],
)
def test_a_server_without_the_model_is_refused(start, models, words):
    server = start()
    server.models = models

    with pytest.raises(ValueError, match=words):
        client(server).check_model()


@pytest.mark.parametrize(
    "models",
    [
        [{"id": "only"}],
        [{"id": "x"}, {"id": "teacher", "max_model_len": 25}],
        [{"id": "x"}, {"id": "y", "root": "teacher"}],
    ],
)
def test_the_model_is_the_only_one_or_the_one_of_that_name(start, models):
    server = start()
    server.models = models

    client(server).check_model()


@pytest.mark.parametrize(
    "changed",
    [
        {"prompt_logprobs": None},
        {"prompt_logprobs": [None]},
        {"prompt_logprobs": [None] * 30},
        {"index": "x"},
        {"prompt_logprobs": [None, dict.fromkeys(map(str, range(36)), HUGE)]},
    ],
)
def test_an_answer_without_logprobs_is_refused(start, policy, changed):
    server = start()
    server.changed = changed
    reference = client(server)
    reference.check_model()

    with pytest.raises(ValueError, match="no log-probs"):
        reference.add_logprobs(
            cut(make_batch(3), policy, max_tokens=1_000), temperature=1.0
        )


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"rollout": {"temperature": 0.7}}, "temperature"),
        ({"reference": {"model": None}}, "reference.model"),
    ],
)
def test_what_the_protocol_cannot_tell_is_refused(parts, words):
    reference = {
        "kind": "server",
        "protocol": "vllm",
        "model": "m",
        "url": "http://127.0.0.1:1",
        "token_file": "t",
    } | parts.pop("reference", {})
    tree = config_tree(Path("m"), Path("r"), reference=reference, **parts)

    with pytest.raises(ValueError, match=words):
        RunConfig.model_validate(tree)
