"""External runs over HTTP, sent by the client that trainers use."""

import gzip
import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.urls import reverse

from dashboard.api import external_runs
from dashboard.api.problems import Problem
from dashboard.completions.models import Group
from dashboard.runs.models import Run, RunState
from dashboard.supervision import external_events
from tests.dashboard.api.asking import BASE, Program, make_token
from tests.dashboard.supervision.logs import LogBuilder
from tests.dashboard.supervision.sending import lines_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def program(alice) -> Program:
    return Program(make_token(alice, "ingest"))


def open_one(program: Program, **changes: Any) -> Any:
    tree = {"key": str(uuid4()), "name": "theirs", "tool": "TRL", **changes}
    return program.post("/external-runs", tree)


def send_events(
    program: Program, run: int, body: bytes, *, first: int = 1, **headers: str
) -> Any:
    return program.client.post(
        f"{BASE}/external-runs/{run}/events?attempt=1&first={first}",
        data=body,
        content_type="application/x-ndjson",
        headers=program.headers | {n.replace("_", "-"): v for n, v in headers.items()},
    )


def body_of(log: LogBuilder) -> bytes:
    return b"".join(line + b"\n" for line in lines_of(log))


def test_a_run_is_opened_once(program):
    key = str(uuid4())

    first = open_one(program, key=key)
    again = open_one(program, key=key)

    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    run = Run.objects.get()
    page = reverse("run", args=["alpha", run.pk])
    assert first.json()["address"] == f"http://testserver{page}"


def test_an_invalid_opening_names_its_field(program):
    for changes, field in [
        ({"name": ""}, "body.name"),
        ({"key": "7"}, "body.key"),
        ({"num_steps": 0}, "body.num_steps"),
        ({"mystery": 1}, "body.mystery"),
        ({"settings": {"a": "x" * 70_000}}, "body.settings"),
        ({"tags": ["x" * 41]}, "body"),
    ]:
        found = open_one(program, **changes)

        assert found.status_code == 422, changes
        assert field in {error["field"] for error in found.json()["errors"]}, changes


@pytest.mark.parametrize("is_zipped", [False, True])
def test_lines_are_taken_zipped_or_not(program, is_zipped):
    run = open_one(program).json()["id"]
    body = body_of(LogBuilder().stepped(1))

    if is_zipped:
        found = send_events(program, run, gzip.compress(body), Content_Encoding="gzip")
    else:
        found = send_events(program, run, body)

    place = {"state": "running", "attempt": 1, "line": 3, "step": 1, "num_prompts": 2}
    place |= {"num_left_out": 0, "left_out": ""}
    assert (found.status_code, found.json()) == (200, place)
    assert program.get(f"/external-runs/{run}/events").json() == place


@pytest.mark.parametrize("cut", [0, 1, 50, -1])
def test_every_member_of_a_gzip_is_read(program, cut):
    """As `cat a.gz b.gz` and programs that compress as they go make them."""
    run = open_one(program).json()["id"]
    body = body_of(LogBuilder().stepped(1).stepped(2))
    packed = b"".join(map(gzip.compress, (body[:cut], body[cut:], b"")))

    found = send_events(program, run, packed, Content_Encoding="gzip")

    assert (found.status_code, found.json()["line"]) == (200, 6)


def test_a_member_behind_a_large_one_is_read():
    """A large member takes several calls, each of which leaves a tail."""
    large = b"a" * (3 * external_runs.UNZIPPED_BYTES)
    packed = gzip.compress(large) + gzip.compress(b"b\n") + gzip.compress(b"c")

    assert b"".join(external_runs._unzip(packed)) == large + b"b\nc"


def test_lines_are_joined_from_pieces_and_bounded_while_they_come():
    pieces = (b"a", b"b\n", b"\nc\n\n", b"", b"d")
    most = external_events.MAX_LINE_BYTES
    num_read = 0

    def endless() -> Iterator[bytes]:
        nonlocal num_read
        while True:
            num_read += 1
            yield b"x" * (most // 4)

    assert external_runs._split_lines(pieces) == [b"ab", b"", b"c", b"", b"d"]
    with pytest.raises(Problem) as refused:
        external_runs._split_lines(endless())
    assert (refused.value.status, refused.value.code) == (413, "events.line_too_large")
    assert num_read == 5


@pytest.mark.parametrize("behind", [b"garbage", b"\x1f", b"\x1f\x8b", b"\0"])
def test_bytes_after_a_gzip_are_rejected_and_nothing_is_stored(program, behind):
    run = open_one(program).json()["id"]
    packed = gzip.compress(body_of(LogBuilder().stepped(1)))

    found = send_events(program, run, packed + behind, Content_Encoding="gzip")

    assert (found.status_code, found.json()["type"]) == (
        400,
        "urn:cohort:problem:bad_request",
    )
    assert not Run.objects.get(pk=run).steps.exists()


def test_a_gzips_members_are_limited_to_a_batchs_lines(program):
    run = open_one(program).json()["id"]
    packed = gzip.compress(b"") * (external_events.MAX_LINES + 2)

    assert send_events(program, run, packed, Content_Encoding="gzip").status_code == 400


def test_events_with_the_fields_that_the_reference_names_are_a_run(program):
    run = open_one(program).json()["id"]
    completion = {
        "text": "2",
        "reward": 1.0,
        "rules": {"accuracy": 1.0},
        "num_tokens": None,
        "end_reason": "unknown",
        "advantage": None,
        "mean_logprob": None,
    }
    group = {
        "type": "group_scored",
        "prompt_index": 0,
        "prompt": "1 + 1 =",
        "answer": "2",
        "reward_mean": 0.5,
        "reward_std": 0.71,
        "signal": "mixed",
        "completions": [completion, completion | {"text": "3", "reward": 0.0}],
    }
    events = [
        group,
        {"type": "step_finished", "metrics": {"loss": 0.1}},
        {"type": "run_finished"},
    ]
    lines = [
        json.dumps({"line": n, "attempt": 1, "time": 1.8e9, "step": 1, **event})
        for n, event in enumerate(events, start=1)
    ]

    found = send_events(program, run, "\n".join(lines).encode() + b"\n")

    assert found.json() == {
        "state": "finished",
        "attempt": 1,
        "line": 3,
        "step": 1,
        "num_prompts": 1,
        "num_left_out": 0,
        "left_out": "",
    }
    stored = Group.objects.get(run_id=run)
    assert stored.reward_mean == 0.5


def test_a_gap_and_a_fence_are_conflicts(program):
    run = open_one(program).json()["id"]
    send_events(program, run, body_of(LogBuilder().stepped(1)))

    gap = send_events(program, run, b"{}\n", first=9)
    life = program.post(f"/external-runs/{run}/attempts", {"from_step": 1})
    fenced = send_events(program, run, b"{}\n", first=4)
    ahead = program.post(f"/external-runs/{run}/attempts", {"from_step": 5})

    assert (gap.status_code, fenced.status_code) == (409, 409)
    assert "line 4" in gap.json()["detail"]
    assert life.json() == {"attempt": 2}
    assert ahead.json()["errors"][0]["field"] == "body.from_step"


def test_oversized_bodies_are_rejected_before_parsing(program, monkeypatch):
    from dashboard.api import external_runs

    run = open_one(program).json()["id"]
    bomb = gzip.compress(b"\n" * (external_events.MAX_BATCH_BYTES + 10))
    monkeypatch.setattr(external_runs, "MAX_LINE_BYTES", 100)

    large = send_events(program, run, bomb, Content_Encoding="gzip")
    long = send_events(program, run, b"x" * 101)
    broken = send_events(program, run, b"no zip", Content_Encoding="gzip")
    cut = send_events(
        program, run, gzip.compress(b"{}" * 9)[:-9], Content_Encoding="gzip"
    )
    odd = send_events(program, run, b"{}", Content_Encoding="br")
    pieces = external_runs._unzip(gzip.compress(bytes(external_events.MAX_BATCH_BYTES)))

    assert [large.status_code, long.status_code] == [413, 413]
    assert [broken.status_code, cut.status_code, odd.status_code] == [400, 400, 422]
    assert max(map(len, pieces)) == external_runs.UNZIPPED_BYTES
    assert Run.objects.get().seq == 0


@pytest.mark.django_db(transaction=True)
def test_the_clients_reporter_works(live_server, alice, tmp_path):
    from cohort.http import Server
    from cohort.reporter import Completion, Reporter

    server = Server(live_server.url, make_token(alice, "ingest"))
    folder = tmp_path / "run"
    with Reporter("mine", server=server, folder=folder, num_steps=3) as cohort:
        for step in (1, 2):
            some = [
                Completion(text="é\u2028", reward=r, rules={"a": r}) for r in (0, 1)
            ]
            cohort.group(step, "1 + 1 =", some, answer="2")
            cohort.step(step, {"loss": 0.5, "train/custom": 3})
            cohort.evaluated(step, "dev", {"mean": 0.25}, num_prompts=8)

    run = Run.objects.get()
    assert (run.state, run.last_step, run.num_steps) == (RunState.FINISHED, 2, 3)
    assert run.summary["last"]["reward/mean"] == 0.5
    assert run.summary["last"]["custom"] == 3.0
    assert run.summary["last"]["eval/dev/mean"] == 0.25
    assert not run.events.filter(type="warned").exists()
    assert run.dataset_version
    assert (
        cohort.address == f"{live_server.url}{reverse('run', args=['alpha', run.pk])}"
    )
    with Reporter("mine", server=server, folder=folder, from_step=1) as cohort:
        cohort.step(2, {"loss": 0.25})
    run.refresh_from_db()
    assert (run.state, run.attempt, run.last_step) == (RunState.FINISHED, 2, 2)
    assert run.summary["last"]["loss"] == 0.25
