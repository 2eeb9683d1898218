"""A reference behind a server: its answers, its refusals, and its absence."""

import http.client
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
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
from tests.trainer.waiting import wait_until
from trainer.config import ModelConfig, RunConfig
from trainer.model.loading import model_fingerprint
from trainer.model.policy import load_policy
from trainer.model.reference import make_reference
from trainer.serving.client import read_or_make_token
from trainer.serving.reference_client import ServerReference
from trainer.serving.reference_server import ReferenceServer


class Server:
    """A server on loopback, in this process, where torch is loaded."""

    def __init__(self, model: Path, token_file: Path) -> None:
        self.token = read_or_make_token(token_file)
        policy = load_policy(ModelConfig(path=str(model), device="cpu"))
        policy.model.requires_grad_(requires_grad=False)
        self._server = ReferenceServer(
            ("127.0.0.1", 0),
            model=policy,
            fingerprint=model_fingerprint(str(model)),
            token=self.token,
            max_batch_tokens=16_384,
            max_request_bytes=2**20,
        )
        self.port = self._server.server_port
        self._thread = Thread(target=self._server.serve_forever)
        self._thread.start()

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
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class ServerProcess:
    """The command in a process of its own."""

    def __init__(self, model: Path, token_file: Path, *, port: int = 0) -> None:
        self._arguments = (
            *("reference", "--model", model, "--token-file", token_file),
            *("--threads", 1, "--max-request-mib", 1, "--device", "cpu"),
        )
        self.start(port)

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

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def token_file(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("token") / "token"


@pytest.fixture(scope="module")
def server(model_folder, token_file) -> Iterator[Server]:
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


def status_of(server) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(server.ask("GET", "/model")[1])
    return status


def test_its_log_probs_are_those_of_the_model_in_this_process(
    server, token_file, model_folder, rows_path, policy
):
    tree = config_of(
        model_folder,
        rows_path,
        url=server.url,
        token_file=token_file,
        model={"device": "cpu", "dtype": "float32"},
    )
    reference = make_reference(RunConfig.model_validate(tree).phase_configs[0], policy)
    assert isinstance(reference, ServerReference)
    batches = cut(make_batch(13), policy, max_tokens=40)
    before = status_of(server)

    reference.add_logprobs(batches, temperature=0.7)

    assert len(batches) > 2
    after = status_of(server)
    assert after["num_requests"] - before["num_requests"] == len(batches)
    assert after["gpus"] == {"name": "cpu", "count": 0}
    for micro in batches:
        with torch.no_grad():
            expected, _ = policy.logprobs(micro, temperature=0.7)
        assert micro.reference_logprobs is not None
        # the server has padding, so the last bits may differ
        torch.testing.assert_close(
            micro.reference_logprobs, expected, atol=1e-6, rtol=1e-6
        )


def test_anyone_may_ask_whether_it_is_well(server):
    status, body = server.ask("GET", "/healthz", Authorization="")

    assert (status, json.loads(body)) == (200, {"status": "ok"})


def test_everything_else_needs_the_token(server):
    wrong = ["", "Bearer", "Bearer ", "Bearer wrong", "Basic x", "Bearer é"]
    wrong += [f"Bearer {each}" for each in (server.token[:-1], server.token + "x")]
    let_in = []
    for path, method in (("/model", "GET"), ("/logprobs", "POST"), ("/other", "GET")):
        for given in wrong:
            status, body = server.ask(
                method, path, Authorization=given.encode().decode("latin")
            )
            if status != 401 or server.token.encode() in body:
                let_in.append((path, given, status))

    assert let_in == []


def test_it_tells_which_model_it_holds(server, model_folder):
    status, body = server.ask("GET", "/model")

    assert status == 200
    assert json.loads(body)["fingerprint"] == model_fingerprint(str(model_folder))


@pytest.mark.parametrize(
    ("body", "headers", "status", "words"),
    [
        (b"{}", {}, 409, "another model"),
        (b"{}", {"X_Model": "right"}, 400, "safetensors file"),
        (b"", {"X_Model": "right"}, 400, "safetensors file"),
        (b"x" * 2**25, {"X_Model": "right"}, 413, "exceeds this server"),
        (b"x", {"X_Model": "right", "Content_Length": "ten"}, 411, "Content-Length"),
        (b"x", {"X_Model": "right", "Content_Length": "-1"}, 411, "Content-Length"),
        (b"x", {"X_Model": "right", "Content_Length": "9" * 40}, 411, "Content-Length"),
    ],
)
def test_an_invalid_request_is_refused_with_a_reason(
    server, model_folder, body, headers, status, words
):
    if headers.get("X_Model") == "right":
        headers = headers | {"X_Model": model_fingerprint(str(model_folder))}

    found, reply = server.ask("POST", "/logprobs", body, **headers)

    assert found == status
    assert words in json.loads(reply)["error"]


def test_another_model_is_refused_before_the_run_starts(
    tmp_path, server, token_file, rows_path, policy
):
    other = write_model(tmp_path / "other", seed=9)
    tree = config_of(other, rows_path, url=server.url, token_file=token_file)

    with pytest.raises(ValueError, match="another model"):
        make_reference(RunConfig.model_validate(tree).phase_configs[0], policy)


@pytest.mark.slow
def test_another_model_in_the_servers_place_is_refused_in_the_middle_of_a_run(
    tmp_path, model_folder, rows_path, policy
):
    token_file = tmp_path / "token"
    server = ServerProcess(model_folder, token_file)
    tree = config_of(model_folder, rows_path, url=server.url, token_file=token_file)
    (micro,) = cut(make_batch(2), policy, max_tokens=1_000)
    try:
        reference = make_reference(
            RunConfig.model_validate(tree).phase_configs[0], policy
        )
        assert reference is not None
        reference.add_logprobs([micro], temperature=1.0)
        port = server.port
        server.end()
        other = write_model(tmp_path / "other", seed=9)
        server = ServerProcess(other, token_file, port=port)

        with pytest.raises(ValueError, match="another model"):
            reference.add_logprobs([micro], temperature=1.0)
    finally:
        server.end()


def test_another_token_is_refused_before_the_run_starts(
    tmp_path, server, model_folder, rows_path, policy
):
    wrong = tmp_path / "wrong"
    wrong.write_text("0123456789abcdef0123")
    tree = config_of(model_folder, rows_path, url=server.url, token_file=wrong)

    with pytest.raises(ValueError, match="token"):
        make_reference(RunConfig.model_validate(tree).phase_configs[0], policy)


def test_a_server_needs_a_token_file(model_folder, rows_path, policy):
    tree = config_of(
        model_folder, rows_path, url="http://127.0.0.1:1", token_file=Path("x")
    )
    tree["reference"]["token_file"] = None

    with pytest.raises(ValueError, match=r"reference\.token_file"):
        make_reference(RunConfig.model_validate(tree).phase_configs[0], policy)


def test_a_server_does_not_listen_to_the_world(tmp_path):
    done = run_trainer(
        *("reference", "--model", tmp_path, "--token-file", tmp_path / "token"),
        *("--host", "0.0.0.0"),  # noqa: S104 - that is what is refused
    )

    assert done.returncode == 2
    assert "0.0.0.0" in done.stderr  # noqa: S104
    assert not (tmp_path / "token").exists()


def test_a_port_in_use_is_named(tmp_path, server, model_folder):
    done = run_trainer(
        *("reference", "--model", model_folder, "--token-file", tmp_path / "token"),
        *("--port", server.port),
    )

    assert done.returncode == 2
    assert f"Cannot listen on 127.0.0.1:{server.port}" in done.stderr


def test_a_new_token_is_long_and_its_owners_alone(tmp_path):
    token = read_or_make_token(tmp_path / "token")

    assert len(token) >= 32
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert read_or_make_token(tmp_path / "token") == token
    assert read_or_make_token(tmp_path / "other") != token


@pytest.mark.parametrize(
    "content", ["", "short", "two words of enough letters", "é" * 20]
)
def test_a_file_that_holds_no_token_is_refused(tmp_path, content):
    (tmp_path / "token").write_text(content)

    with pytest.raises(ValueError, match="at least 16"):
        read_or_make_token(tmp_path / "token")


@pytest.mark.slow
def test_a_terminated_server_ends_in_order(tmp_path, model_folder):
    server = ServerProcess(model_folder, tmp_path / "token")

    server.process.send_signal(signal.SIGTERM)
    out, _ = server.process.communicate(timeout=30)

    assert server.process.returncode == 0
    assert out == "stopped\n"


@pytest.mark.faults
def test_a_run_waits_while_its_server_is_killed_and_continues(
    tmp_path, model_folder, rows_path
):
    server = ServerProcess(model_folder, tmp_path / "token")
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
        message, _ = run.communicate(timeout=90)
    finally:
        run.kill()
        run.communicate()
        server.end()

    assert run.returncode == 0, message
    assert f"server at {server.url}" in message
    assert _num_steps(out) == 12
    in_process = _metrics_without_server(tmp_path, tree)
    assert [e["metrics"]["kl/mean"] for e in _steps(out)] == pytest.approx(
        # the server's pass has padding: its last bits differ, and learning adds to it
        in_process,
        rel=1e-4,
        abs=1e-6,
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
