"""Retries and errors of the client."""

import json

import pytest

from cohort import Refused, Unreachable
from cohort.__main__ import main
from cohort.api import connection as module
from tests.client.api.scripted import IMPORT, VERSION, Scripted, run_tree


@pytest.fixture(autouse=True)
def waits(monkeypatch) -> list[float]:
    """Seconds of each wait, without waiting."""
    seconds: list[float] = []
    monkeypatch.setattr(module.time, "sleep", seconds.append)
    return seconds


NO_RECIPES = (200, {}, {"items": [], "next_cursor": None, "total": 0})


def test_it_waits_for_retry_after_else_backs_off(waits, caplog):
    busy = (429, {"Retry-After": "7"}, {"detail": "Too many."})
    with Scripted(busy, (503, {}, b"away"), NO_RECIPES) as server:
        assert [*server.client().iterate("/recipes")] == []

    assert waits[0] == 7
    assert 0.7 < waits[1] < 1.3  # twice the first wait
    assert "HTTP 429" in caplog.text
    assert "7 s" in caplog.text


def test_an_unreachable_server_is_retried_and_named(waits, monkeypatch, capsys):
    monkeypatch.setenv("COHORT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("COHORT_TOKEN", "t")

    assert main(["runs", "list"]) == 5

    output = capsys.readouterr()
    assert len(waits) == 4
    assert output.out == ""
    assert "http://127.0.0.1:9" in output.err
    assert "Connection refused" in output.err


def test_it_gives_up_when_retry_after_is_too_long(waits):
    busy = (429, {"Retry-After": "3000"}, {"detail": "Too many."})
    with Scripted(busy) as server, pytest.raises(Unreachable, match="Too many"):
        list(server.client().iterate("/recipes"))

    assert waits == []


def test_a_refused_request_is_not_repeated(waits):
    none = (404, {}, {"detail": "No such run."})
    with Scripted(none) as server, pytest.raises(Refused, match=r"Run 7") as refused:
        server.client().runs.get(7)

    assert refused.value.status == 404
    assert waits == []


def test_a_repeated_post_has_the_same_idempotency_key(tmp_path):
    file = tmp_path / "sums.jsonl"
    file.write_bytes(b'{"prompt": "1"}\n')
    begun = {"id": 9, "num_received": 0, "is_whole": False}
    done = IMPORT | {"state": "done", "version": VERSION}
    away = (500, {}, {"detail": "Oh."})
    sent = [(200, {}, begun), away, (200, {}, begun | {"num_received": 16})]
    with Scripted(away, *sent, away, (202, {}, IMPORT), (200, {}, done)) as server:
        version = server.client().datasets.push(file, columns=["x", "y"])

    assert (version.dataset, version.number) == ("sums", 2)
    paths = [
        path.removeprefix("/api/v1/dataset-uploads") for path, _, _ in server.requests
    ]
    part, job = "/9/parts?offset=0", "/9/import"
    assert paths == ["", "", part, part, job, job, "/api/v1/imports/3"]
    keys = [headers.get("Idempotency-Key") for _, headers, _ in server.requests]
    assert keys[0] == keys[1] != keys[4] == keys[5]
    assert None not in (keys[0], keys[4])
    bodies = [body for _, _, body in server.requests]
    assert bodies[2] == bodies[3] == file.read_bytes()
    assert json.loads(bodies[5])["columns"] == ["x", "y"]


def test_a_failed_import_raises_with_a_remedy(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"{}\n")
    begun = {"id": 9, "num_received": 3, "is_whole": False}
    refused = IMPORT | {"state": "refused", "refusals": {"count": 2}}
    answers = [(200, {}, begun), (202, {}, refused)]
    with Scripted(*answers) as server, pytest.raises(ValueError, match="leave_out=2"):
        server.client().datasets.push(file)


def test_an_empty_file_is_not_sent(tmp_path):
    (tmp_path / "a.jsonl").touch()

    with Scripted() as server, pytest.raises(ValueError, match=r"a\.jsonl"):
        server.client().datasets.push(tmp_path / "a.jsonl")

    assert server.requests == []


def test_an_incomplete_download_is_retried_and_never_kept(tmp_path):
    run = run_tree()
    half = (200, {"Content-Length": "9"}, b"step\n")
    with Scripted((200, {}, run), half, (200, {}, b"step\n1\n")) as server:
        server.client().runs.get(7).export(tmp_path / "a.csv")
    with Scripted((200, {}, run), half) as server, pytest.raises(Unreachable):
        server.client(retries=0).runs.get(7).export(tmp_path / "b.csv")

    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
    assert (tmp_path / "a.csv").read_text() == "step\n1\n"


def test_a_server_that_is_not_cohort_is_reported():
    for response, fragment in [
        ((200, {}, b"<html>"), "JSON"),
        ((301, {"Location": "https://there/"}, b""), "https://there/"),
        ((200, {}, {"person": {}, "team": {}}), "'username'"),
    ]:
        errors = (Unreachable, Refused, ValueError)
        with Scripted(response) as server, pytest.raises(errors, match=fragment):
            _ = server.client(retries=0).me
