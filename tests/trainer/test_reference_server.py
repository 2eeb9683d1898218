"""A reference in a process of its own: its answers, its door, and its absence."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.samples import cut, make_batch
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    start_trainer,
    write_config,
    write_model,
)
from trainer.batch import MicroBatch
from trainer.config import RunConfig
from trainer.fingerprint import model_fingerprint
from trainer.policy import Policy
from trainer.reference import make_reference
from trainer.references.addresses import is_private
from trainer.references.batching import Answerer, Busy
from trainer.references.client import ServerReference
from trainer.references.token import read_or_make_token, read_token
from trainer.references.wire import Question, pack_question, unpack_question


class Server:
    """A real server process on loopback."""

    def __init__(self, model: Path, token_file: Path, *, port: int = 0) -> None:
        self._arguments = (
            *("reference", "--model", model, "--token-file", token_file),
            *("--threads", 1, "--max-request-mib", 1, "--device", "cpu"),
        )
        self.start(port)
        self.token = read_token(token_file)

    def start(self, port: int) -> None:
        self.process = start_trainer(*self._arguments, "--port", port)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        assert found, line + self.process.stdout.read()
        self.port = int(found[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self, method: str, path: str, body: bytes = b"", **headers: str
    ) -> tuple[int, bytes]:
        named = {"Authorization": f"Bearer {self.token}"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body=body, headers=named)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("token") / "token"


@pytest.fixture(scope="module")
def server(model_folder: Path, token_file: Path) -> Iterator[Server]:
    server = Server(model_folder, token_file)
    yield server
    server.end()


def config_of(
    model_folder: Path, rows_path: Path, *, url: str, token_file: Path, **parts: Any
) -> dict[str, Any]:
    reference = {"kind": "server", "url": url, "token_file": str(token_file)}
    return config_tree(
        model_folder, rows_path, loss={"kl_coef": 0.05}, reference=reference, **parts
    )


def test_its_log_probs_are_those_of_the_model_in_this_process(
    server: Server, model_folder: Path, rows_path: Path, policy: Policy
) -> None:
    tree = config_of(
        model_folder,
        rows_path,
        url=server.url,
        token_file=server_token(server),
        model={"device": "cpu", "dtype": "float32"},
    )
    reference = make_reference(RunConfig.model_validate(tree), policy)
    assert isinstance(reference, ServerReference)
    batches = cut(make_batch(13), policy, max_tokens=40)

    reference.add_logprobs(batches, temperature=0.7)

    assert len(batches) > 2
    for micro in batches:
        with torch.no_grad():
            expected, _ = policy.logprobs(micro, temperature=0.7)
        assert micro.reference_logprobs is not None
        torch.testing.assert_close(
            micro.reference_logprobs, expected, atol=1e-6, rtol=0
        )


def server_token(server: Server) -> Path:
    return Path(server._arguments[4])


def test_anyone_may_ask_whether_it_is_well(server: Server) -> None:
    status, body = server.ask("GET", "/healthz", Authorization="")

    assert (status, json.loads(body)) == (200, {"status": "ok"})


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer ", "Bearer wrong", "Basic x", "Bearer é"]
)
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/model"), ("POST", "/logprobs"), ("GET", "/other")]
)
def test_everything_else_needs_the_token(
    server: Server, method: str, path: str, given: str
) -> None:
    status, body = server.ask(
        method, path, Authorization=given.encode().decode("latin")
    )

    assert status == 401
    assert server.token.encode() not in body


def test_a_token_that_only_begins_right_is_refused(server: Server) -> None:
    for given in (server.token[:-1], server.token + "x"):
        assert server.ask("GET", "/model", Authorization=f"Bearer {given}")[0] == 401


def test_it_tells_which_model_it_holds(server: Server, model_folder: Path) -> None:
    status, body = server.ask("GET", "/model")

    assert status == 200
    assert json.loads(body)["fingerprint"] == model_fingerprint(str(model_folder))


@pytest.mark.parametrize(
    ("body", "headers", "status", "words"),
    [
        (b"{}", {}, 409, "another model"),
        (b"{}", {"X_Model": "right"}, 400, "not safetensors"),
        (b"", {"X_Model": "right"}, 400, "not safetensors"),
        (b"x" * 2**25, {"X_Model": "right"}, 413, "larger than this server"),
        (b"x", {"X_Model": "right", "Content_Length": "ten"}, 411, "Content-Length"),
        (b"x", {"X_Model": "right", "Content_Length": "-1"}, 411, "Content-Length"),
        (b"x", {"X_Model": "right", "Content_Length": "9" * 40}, 411, "Content-Length"),
    ],
)
def test_what_is_no_question_is_answered_with_a_sentence(
    server: Server,
    model_folder: Path,
    body: bytes,
    headers: dict[str, str],
    status: int,
    words: str,
) -> None:
    if headers.get("X_Model") == "right":
        headers = headers | {"X_Model": model_fingerprint(str(model_folder))}

    found, reply = server.ask("POST", "/logprobs", body, **headers)

    assert found == status
    assert words in json.loads(reply)["error"]


def question(**changes: Any) -> Question:
    fields: dict[str, Any] = {
        "input_ids": torch.tensor([[2, 3, 4]]),
        "places": torch.tensor([0, 1]),
        "targets": torch.tensor([3, 4]),
        "temperature": 1.0,
    }
    return Question(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"input_ids": torch.tensor([[2, 36, 4]])}, "input_ids must be at least 0 and"),
        ({"input_ids": torch.tensor([[2, -1, 4]])}, "below 36; got -1 to 4"),
        ({"input_ids": torch.tensor([2, 3, 4])}, "must be [B, L]"),
        ({"input_ids": torch.zeros(0, 3)}, "must be [B, L] and not empty"),
        ({"input_ids": torch.zeros(1, 9)}, "longer than this model's 8"),
        ({"places": torch.tensor([0, 3])}, "places must be at least 0 and below 3"),
        ({"targets": torch.tensor([3, 99])}, "targets must be at least 0"),
        ({"targets": torch.tensor([3])}, "places and targets [N]"),
        ({"places": torch.tensor([0.0, 1.0])}, "must be whole numbers"),
        ({"temperature": 0.0}, "temperature must be one number above 0"),
        ({"temperature": float("nan")}, "temperature must be one number above 0"),
        ({"temperature": float("inf")}, "temperature must be one number above 0"),
    ],
)
def test_a_question_the_model_cannot_take_is_refused(
    changes: dict[str, Any], words: str
) -> None:
    body = pack_question(question(**changes))

    with pytest.raises(ValueError, match=re.escape(words)):
        unpack_question(body, vocabulary=36, max_length=8)


def test_a_question_arrives_as_it_was_sent() -> None:
    sent = question(temperature=0.1)

    got = unpack_question(pack_question(sent), vocabulary=36, max_length=8)

    assert torch.equal(got.input_ids, sent.input_ids)
    assert torch.equal(got.places, sent.places)
    assert torch.equal(got.targets, sent.targets)
    assert got.temperature == sent.temperature


class SlowModel:
    """A model that waits in its first pass until it is let go."""

    def __init__(self, policy: Policy) -> None:
        self.head, self.logit_scale = policy.head, policy.logit_scale
        self.device = policy.device
        self.shapes: list[tuple[int, ...]] = []
        self.is_in, self.may_go = threading.Event(), threading.Event()
        self._policy = policy

    def body(self, input_ids: torch.Tensor, **options: Any) -> Any:
        self.shapes.append(tuple(input_ids.shape))
        self.is_in.set()
        assert self.may_go.wait(20)
        return self._policy.body(input_ids=input_ids, **options)


def ask_together(
    policy: Policy, questions: list[Question], *, max_tokens: int
) -> tuple[list[torch.Tensor], list[tuple[int, ...]]]:
    """Answers and shapes of passes when all but the first wait at the same time."""
    model = SlowModel(policy)
    answerer = Answerer(model, max_tokens=max_tokens)
    answers: dict[int, torch.Tensor] = {}
    threads = [
        threading.Thread(target=lambda k=k, q=q: answers.update({k: answerer.ask(q)}))
        for k, q in enumerate(questions)
    ]
    try:
        threads[0].start()
        assert model.is_in.wait(20)
        for waiting, thread in enumerate(threads[1:], start=1):
            thread.start()
            wait_until(lambda n=waiting: answerer._waiting.qsize() >= n)
        model.may_go.set()
        for thread in threads:
            thread.join(20)
    finally:
        model.may_go.set()
        answerer.end()
    return [answers[k] for k in range(len(questions))], model.shapes


def cut_batch(policy: Policy) -> list[MicroBatch]:
    return cut(make_batch(12), policy, max_tokens=40)


def questions_of(policy: Policy) -> list[Question]:
    return [
        Question(
            input_ids=micro.input_ids,
            places=micro.places,
            targets=micro.targets,
            temperature=0.8,
        )
        for micro in cut_batch(policy)
    ]


def test_questions_that_wait_together_go_through_the_model_together(
    policy: Policy,
) -> None:
    questions = questions_of(policy)
    assert len(questions) > 3

    answers, shapes = ask_together(policy, questions, max_tokens=10_000)

    rows = sum(len(q.input_ids) for q in questions[1:])
    longest = max(q.input_ids.shape[1] for q in questions[1:])
    assert shapes == [tuple(questions[0].input_ids.shape), (rows, longest)]
    for micro, answer in zip(cut_batch(policy), answers, strict=True):
        with torch.no_grad():
            logprobs, _ = policy.logprobs(micro, temperature=0.8)
        expected = logprobs.flatten()[micro.slots]
        torch.testing.assert_close(answer, expected, atol=1e-6, rtol=0)


def test_no_pass_is_larger_than_allowed(policy: Policy) -> None:
    questions = questions_of(policy)

    answers, shapes = ask_together(policy, questions, max_tokens=48)
    wide, _ = ask_together(policy, questions, max_tokens=10_000)

    assert all(rows * length <= 48 for rows, length in shapes)
    assert len(shapes) > 2
    for one, other in zip(answers, wide, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def test_a_short_question_is_not_padded_to_a_long_one_beyond_the_budget(
    policy: Policy,
) -> None:
    long = question(input_ids=torch.full((1, 40), 3))

    _, shapes = ask_together(policy, [question(), question(), long], max_tokens=48)

    assert shapes == [(1, 3), (1, 3), (1, 40)]


def test_a_question_larger_than_a_pass_is_cut_by_rows(policy: Policy) -> None:
    (asked, *_) = questions_of(policy)
    num_rows, length = asked.input_ids.shape
    assert num_rows > 1

    (answer,), shapes = ask_together(policy, [asked], max_tokens=1)

    assert shapes == [(1, length)] * num_rows
    (whole,), _ = ask_together(policy, [asked], max_tokens=10_000)
    torch.testing.assert_close(answer, whole, atol=1e-6, rtol=0)


def test_questions_of_different_temperature_are_not_mixed(policy: Policy) -> None:
    first, second = question(temperature=0.5), question(temperature=2.0)

    answers, shapes = ask_together(policy, [first, first, second], max_tokens=10_000)

    assert len(shapes) == 3
    assert not torch.allclose(answers[1], answers[2])
    assert torch.equal(answers[0], answers[1])


def test_more_questions_than_can_wait_are_sent_away(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.references.batching._MAX_WAITING", 1)
    model = SlowModel(policy)
    answerer = Answerer(model, max_tokens=100)
    threads = [
        threading.Thread(target=answerer.ask, args=(question(),)) for _ in range(2)
    ]
    try:
        threads[0].start()
        assert model.is_in.wait(20)
        threads[1].start()
        wait_until(lambda: answerer._waiting.qsize() >= 1)
        with pytest.raises(Busy):
            answerer.ask(question())
    finally:
        model.may_go.set()
        for thread in threads:
            thread.join(20)
        answerer.end()


def test_a_model_that_fails_says_so_and_goes_on(policy: Policy) -> None:
    model = SlowModel(policy)
    model.may_go.set()
    whole, model.body = model.body, None
    answerer = Answerer(model, max_tokens=100)
    try:
        with pytest.raises(ValueError, match="TypeError"):
            answerer.ask(question())
        model.body = whole
        assert answerer.ask(question()).shape == (2,)
    finally:
        answerer.end()


def test_another_model_is_refused_before_the_run_starts(
    tmp_path: Path, server: Server, rows_path: Path, policy: Policy
) -> None:
    other = write_model(tmp_path / "other", seed=9)
    tree = config_of(other, rows_path, url=server.url, token_file=server_token(server))

    with pytest.raises(ValueError, match="holds another model than the one"):
        make_reference(RunConfig.model_validate(tree), policy)


def test_another_model_in_the_servers_place_is_refused_in_the_middle_of_a_run(
    tmp_path: Path, model_folder: Path, rows_path: Path, policy: Policy
) -> None:
    token_file = tmp_path / "token"
    server = Server(model_folder, token_file)
    tree = config_of(model_folder, rows_path, url=server.url, token_file=token_file)
    (micro,) = cut(make_batch(2), policy, max_tokens=1_000)
    try:
        reference = make_reference(RunConfig.model_validate(tree), policy)
        assert reference is not None
        reference.add_logprobs([micro], temperature=1.0)
        port = server.port
        server.end()
        other = write_model(tmp_path / "other", seed=9)
        server = Server(other, token_file, port=port)

        with pytest.raises(ValueError, match="holds another model than the one"):
            reference.add_logprobs([micro], temperature=1.0)
    finally:
        server.end()


def test_another_token_is_refused_before_the_run_starts(
    tmp_path: Path, server: Server, model_folder: Path, rows_path: Path, policy: Policy
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("0123456789abcdef0123")
    tree = config_of(model_folder, rows_path, url=server.url, token_file=wrong)

    with pytest.raises(ValueError, match="does not accept the token"):
        make_reference(RunConfig.model_validate(tree), policy)


def test_a_server_needs_a_token_file(
    model_folder: Path, rows_path: Path, policy: Policy
) -> None:
    tree = config_of(
        model_folder, rows_path, url="http://127.0.0.1:1", token_file=Path("x")
    )
    tree["reference"]["token_file"] = None

    with pytest.raises(ValueError, match=r"Set reference\.token_file"):
        make_reference(RunConfig.model_validate(tree), policy)


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def client(url: str, *, patience: float = 1.0) -> ServerReference:
    return ServerReference(
        url, token="0123456789abcdef", fingerprint="x", patience_seconds=patience
    )


def test_a_server_that_stays_away_is_waited_for_and_then_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = f"http://127.0.0.1:{unused_port()}"
    started = time.monotonic()

    with pytest.raises(ValueError, match=r"has been away for \d+ s \(Connection") as e:
        client(url).check_model()

    assert time.monotonic() - started > 0.4
    assert "Start it again with `python -m trainer reference`" in str(e.value)
    assert capsys.readouterr().out.count("waiting for the reference server") == 1


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhalf",
        b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
def test_half_answers_are_asked_for_again(said: bytes) -> None:
    with talker(said) as url, pytest.raises(ValueError, match="has been away for"):
        client(url).check_model()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "is no reference server"),
        (b"HTTP/1.1 302 Go\r\nLocation: http://e.org\r\n\r\n", "refused with 302"),
        (b"HTTP/1.1 500 No\r\n\r\n{", "refused with 500: it gave no reason"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n" + b"x" * 999_999,
            "larger than",
        ),
    ],
)
def test_other_answers_are_refused_at_once(said: bytes, words: str) -> None:
    with talker(said) as url, pytest.raises(ValueError, match=words):
        client(url, patience=60).check_model()


class talker:
    """Something on loopback that says the same to everyone."""

    def __init__(self, said: bytes) -> None:
        self._said = said
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._talk)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __exit__(self, *args: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(20)

    def _talk(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.recv(65_536)
                connection.sendall(self._said)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("127.0.0.1:8600", "must look like"),
        ("ftp://127.0.0.1", "must look like"),
        ("http://", "must look like"),
        ("http://127.0.0.1:99999", "must look like"),
        ("http://127.0.0.1:8600/path", "must look like"),
        ("http://me:secret@127.0.0.1:8600", "must look like"),
        ("http://8.8.8.8:8600", "leads out of the private network"),
        ("https://8.8.8.8:8600", "leads out of the private network"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        client(url)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("10.1.2.3", True),
        ("192.168.0.9", True),
        ("fd00::1", True),
        ("8.8.8.8", False),
        ("0.0.0.0", False),  # noqa: S104 - that is what is refused
        ("::", False),
        ("169.254.169.254", False),
        ("fe80::1", False),
    ],
)
def test_what_a_private_address_is(host: str, expected: bool) -> None:
    assert is_private(host) is expected


def test_a_server_does_not_listen_to_the_world(tmp_path: Path) -> None:
    done = run_trainer(
        *("reference", "--model", tmp_path, "--token-file", tmp_path / "token"),
        *("--host", "0.0.0.0"),  # noqa: S104 - that is what is refused
    )

    assert done.returncode == 2
    assert "not an address of this machine or of a private network" in done.stderr
    assert not (tmp_path / "token").exists()


def test_a_port_in_use_is_named(
    tmp_path: Path, server: Server, model_folder: Path
) -> None:
    done = run_trainer(
        *("reference", "--model", model_folder, "--token-file", tmp_path / "token"),
        *("--port", server.port),
    )

    assert done.returncode == 2
    assert f"Cannot listen on 127.0.0.1:{server.port}" in done.stderr


def test_a_new_token_is_long_and_its_owners_alone(tmp_path: Path) -> None:
    token = read_or_make_token(tmp_path / "token")

    assert len(token) >= 32
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert read_or_make_token(tmp_path / "token") == token
    assert read_or_make_token(tmp_path / "other") != token


@pytest.mark.parametrize(
    "content", ["", "short", "two words of enough letters", "é" * 20]
)
def test_a_file_that_holds_no_token_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)

    with pytest.raises(ValueError, match="must hold one word of at least 16"):
        read_or_make_token(tmp_path / "token")


def test_a_terminated_server_ends_in_order(tmp_path: Path, model_folder: Path) -> None:
    server = Server(model_folder, tmp_path / "token")

    server.process.send_signal(signal.SIGTERM)
    out, _ = server.process.communicate(timeout=30)

    assert server.process.returncode == 0
    assert out == "stopped\n"


@pytest.mark.faults
def test_a_run_waits_while_its_server_is_killed_and_goes_on(
    tmp_path: Path, model_folder: Path, rows_path: Path
) -> None:
    server = Server(model_folder, tmp_path / "token")
    tree = config_of(
        model_folder,
        rows_path,
        url=server.url,
        token_file=tmp_path / "token",
        optim={"num_steps": 12},
        evaluation={"every_steps": 0},
    )
    out = tmp_path / "out"
    run = start_trainer("run", write_config(tmp_path, tree), "--out", out)
    try:
        wait_for(out / "events.jsonl", '"type":"step_finished"')
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.communicate()
        seen = _num_steps(out)
        time.sleep(1.5)  # many steps long, were it not waiting
        assert run.poll() is None  # it waits, it has neither failed nor finished
        assert _num_steps(out) <= seen + 1

        server.start(server.port)
        said, _ = run.communicate(timeout=90)
    finally:
        run.kill()
        run.communicate()
        server.end()

    assert run.returncode == 0, said
    assert f"waiting for the reference server at {server.url}" in said
    assert _num_steps(out) == 12
    in_process = _metrics_without_server(tmp_path, tree)
    assert [e["metrics"]["kl/mean"] for e in _steps(out)] == pytest.approx(
        in_process, abs=1e-6
    )


def _metrics_without_server(folder: Path, tree: dict[str, Any]) -> list[float]:
    tree = tree | {"reference": {"kind": "frozen"}}
    config = write_config(folder / "frozen", tree)
    done = run_trainer("run", config, "--out", folder / "frozen-out")
    assert done.returncode == 0, done.stderr
    return [event["metrics"]["kl/mean"] for event in _steps(folder / "frozen-out")]


def _steps(out: Path) -> list[dict[str, Any]]:
    return only(read_events(out / "events.jsonl"), "step_finished")


def _num_steps(out: Path) -> int:
    text = (out / "events.jsonl").read_text()
    return text.count('"type":"step_finished"')


def wait_for(path: Path, text: str) -> None:
    wait_until(lambda: path.exists() and text in path.read_text())


def wait_until(condition: Callable[[], bool]) -> None:
    """Look often: nothing tells of another process's file or a queue's length."""
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)
