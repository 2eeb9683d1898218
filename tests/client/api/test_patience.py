"""What the client does where the network or a server is at fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.client.api.scripted import IMPORT, VERSION, Scripted, run_tree
from trainer.client import Refused, Unreachable
from trainer.client.__main__ import main
from trainer.client.api import client as patience


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that were waited for, without waiting."""
    found: list[float] = []
    monkeypatch.setattr(patience.time, "sleep", found.append)
    return found


NO_RECIPES = (200, {}, {"items": [], "next_cursor": None, "total": 0})


def test_a_server_that_asks_to_wait_is_waited_for(
    waits: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    busy = (429, {"Retry-After": "7"}, {"detail": "Too many."})
    with Scripted(busy, (503, {}, b"away"), NO_RECIPES) as server:
        assert [*server.client().iterate("/recipes")] == []

    assert waits[0] == 7
    assert 0.7 < waits[1] < 1.3  # the second try waits twice as long as the first
    assert "HTTP 429" in caplog.text
    assert "7 s" in caplog.text


def test_a_server_that_is_not_there_is_tried_and_named(
    waits: list[float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COHORT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("COHORT_TOKEN", "t")

    assert main(["runs", "list"]) == 5

    said = capsys.readouterr()
    assert len(waits) == 4
    assert said.out == ""
    assert "http://127.0.0.1:9" in said.err
    assert "Connection refused" in said.err


def test_it_gives_up_where_it_is_asked_to_wait_for_hours(waits: list[float]) -> None:
    busy = (429, {"Retry-After": "3000"}, {"detail": "Too many."})
    with Scripted(busy) as server, pytest.raises(Unreachable, match="Too many"):
        list(server.client().iterate("/recipes"))

    assert waits == []


def test_what_is_refused_is_not_sent_again(waits: list[float]) -> None:
    none = (404, {}, {"detail": "No such run."})
    says = r"has no run 7\. \(HTTP 404\)"
    with Scripted(none) as server, pytest.raises(Refused, match=says):
        server.client().runs.get(7)

    assert waits == []


def test_a_post_names_the_same_key_each_time(tmp_path: Path) -> None:
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
        path.removeprefix("/api/v1/dataset-uploads") for path, _, _ in server.asked
    ]
    part, job = "/9/parts?offset=0", "/9/import"
    assert paths == ["", "", part, part, job, job, "/api/v1/imports/3"]
    keys = [asked.get("Idempotency-Key") for _, asked, _ in server.asked]
    assert keys[0] == keys[1] != keys[4] == keys[5]
    assert None not in (keys[0], keys[4])
    bodies = [body for _, _, body in server.asked]
    assert bodies[2] == bodies[3] == file.read_bytes()
    assert json.loads(bodies[5])["columns"] == ["x", "y"]


def test_a_file_that_was_not_imported_says_why(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"{}\n")
    begun = {"id": 9, "num_received": 3, "is_whole": False}
    refused = IMPORT | {"state": "refused", "refusals": {"count": 2}}
    answers = [(200, {}, begun), (202, {}, refused)]
    with Scripted(*answers) as server, pytest.raises(ValueError, match="leave_out=2"):
        server.client().datasets.push(file)


def test_a_file_that_cannot_be_pushed_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()

    with Scripted() as server, pytest.raises(ValueError, match="is empty"):
        server.client().datasets.push(tmp_path / "a.jsonl")

    assert server.asked == []


def test_a_file_that_breaks_off_is_taken_again_and_never_half(tmp_path: Path) -> None:
    run = run_tree()
    half = (200, {"Content-Length": "9"}, b"step\n")
    with Scripted((200, {}, run), half, (200, {}, b"step\n1\n")) as server:
        server.client().runs.get(7).export(tmp_path / "a.csv")
    with Scripted((200, {}, run), half) as server, pytest.raises(Unreachable):
        server.client(retries=0).runs.get(7).export(tmp_path / "b.csv")

    assert [one.name for one in tmp_path.iterdir()] == ["a.csv"]
    assert (tmp_path / "a.csv").read_text() == "step\n1\n"


def test_an_address_that_is_not_cohorts_is_told() -> None:
    for answer, says in [
        ((200, {}, b"<html>"), "JSON"),
        ((301, {"Location": "https://there/"}, b""), "https://there/"),
        ((200, {}, {"person": {}, "team": {}}), "'username'"),
    ]:
        faults = (Unreachable, Refused, ValueError)
        with Scripted(answer) as server, pytest.raises(faults, match=says):
            _ = server.client(retries=0).me
