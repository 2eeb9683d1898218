"""External trainers: openings of runs, event lines and attempts."""

import gzip
import json
from typing import Any
from uuid import UUID

from dashboard.runs.models import Run, RunEvent, Step
from dashboard.supervision.external_runs import Opening, open_run
from tests.dashboard.api.asking import BASE
from tests.dashboard.supervision.logs import LogBuilder
from tests.dashboard.supervision.sending import lines_of
from tests.inputs.cases import (
    Case,
    Endpoint,
    Response,
    World,
    in_one_line,
    message_of_problem,
    shown_as_text,
)

KEY = UUID(int=9)
GOOD = [json.loads(line) for line in lines_of(LogBuilder().stepped(1))]


def open_external(world: World) -> Run:
    opening = Opening(key=KEY, name="theirs", tool="TRL")
    return open_run(opening, team=world.team, user=world.user)[0]


def send_opening(world: World, tree: Any) -> Response:
    return message_of_problem(world.program.post("/external-runs", tree))


def send_line(world: World, line: bytes) -> Response:
    """The warning that stands for the line; the line before it was good."""
    run = open_external(world)
    first = json.dumps(GOOD[1] | {"line": 1}).encode()
    answer = _post(world, run, first + b"\n" + line + b"\n")
    if answer.status_code != 200:
        return message_of_problem(answer)
    stored = RunEvent.objects.filter(run=run).order_by("pk").last()
    assert stored
    return Response(answer.status_code, in_one_line(str(stored.body)))


def send_batch(world: World, sent: dict[str, Any]) -> Response:
    answer = _post(world, open_external(world), **sent)
    if answer.status_code < 400:
        return shown_as_text(answer)
    return message_of_problem(answer)


def send_attempt(world: World, tree: Any) -> Response:
    run = open_external(world)
    return message_of_problem(
        world.program.post(f"/external-runs/{run.pk}/attempts", tree)
    )


def _post(
    world: World,
    run: Run,
    body: bytes = b"",
    query: str = "attempt=1&first=1",
    **headers: str,
) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return world.program.client.post(
        f"{BASE}/external-runs/{run.pk}/events?{query}",
        data=body,
        content_type="application/x-ndjson",
        headers=world.program.headers | named,
    )


def opening(**changes: Any) -> dict[str, Any]:
    tree = {"key": str(KEY), "name": "theirs", "tool": "TRL", **changes}
    return {name: value for name, value in tree.items() if value != "absent"}


def event(place: int, **changes: Any) -> bytes:
    """The event of the good log, as line 2, changed."""
    tree = GOOD[place] | {"line": 2} | changes
    return json.dumps({n: v for n, v in tree.items() if v != "absent"}).encode()


def completion(**changes: Any) -> bytes:
    (first, *others) = GOOD[0]["completions"]
    return event(0, completions=[first | changes, *others])


GROUP, STEP = 0, -1
OPENINGS = [
    Case("no key", opening(key="absent")),
    Case("a key that is no UUID", opening(key="7")),
    Case("a name that is empty", opening(name="")),
    Case("a name of 5,000 characters", opening(name="x" * 5_000)),
    Case("a name with a NUL", opening(name="a\0b")),
    Case("a name with a surrogate", opening(name="\ud800")),
    Case("a name of two lines", opening(name="a\nb")),
    Case("a name that is a number", opening(name=5)),
    Case("a tool with a NUL", opening(tool="T\0RL")),
    Case("a tool without an end", opening(tool="x" * 5_000)),
    Case("a model with a NUL", opening(model="org/\0model")),
    Case("a model without an end", opening(model="x" * 5_000)),
    Case("steps below one", opening(num_steps=-1)),
    Case("steps beyond the database", opening(num_steps=2**31)),
    Case("steps that are half", opening(num_steps=1.5)),
    Case("settings that are a list", opening(settings=[1])),
    Case("settings with a NUL in a name", opening(settings={"a\0": 1})),
    Case("settings with a NUL in a value", opening(settings={"a": ["\0"]})),
    Case("settings with a surrogate", opening(settings={"a": "\udc00"})),
    Case("settings 500 deep", opening(settings=json.loads('{"a":' * 500 + "1" + "}" * 500))),
    Case("a weight that is a word", opening(rules={"right": "much"})),
    Case("a weight that is no number", opening(rules={"right": float("nan")})),
    Case("a rule's name with a NUL", opening(rules={"a\0": 1.0})),
    Case("more rules than a run has", opening(rules={f"r{n}": 1.0 for n in range(65)})),
    Case("right from infinity", opening(right_from=float("inf"))),
    Case("a tag with a quote", opening(tags=['a"b'])),
    Case("tags that are a text", opening(tags="a")),
    Case("more tags than a run has", opening(tags=[f"t{n}" for n in range(200)])),
    Case("notes with a NUL", opening(notes="\0")),
    Case("notes without an end", opening(notes="x" * 200_000)),
    Case("a field of no meaning", opening(colour="red")),
    Case("a body that is a list", [1]),
    Case("a body that is null", None),
]  # fmt: skip
LINES = [
    Case("no JSON", b"{'type': 1}"),
    Case("nothing", b""),
    Case("a list", b"[]"),
    Case("a number", b"5"),
    Case("bytes that are no UTF-8", b'{"type": "\xff"}'),
    Case("a surrogate alone", b'{"type": "\\ud800"}'),
    Case("lists 5,000 deep", b"[" * 5_000 + b"]" * 5_000),
    Case("a number of 5,000 digits", b'{"type": "StepFinished", "step": ' + b"9" * 5_000 + b"}"),
    Case("no type", event(GROUP, type="absent")),
    Case("a type that is unknown", event(GROUP, type="Exploded")),
    Case("another line's number", event(GROUP, line=7)),
    Case("another attempt", event(GROUP, attempt=3)),
    Case("a time before 1970", event(GROUP, time=-1.0)),
    Case("a time that is no number", event(GROUP, time=float("nan"))),
    Case("a time beyond any calendar", event(GROUP, time=1e300)),
    Case("a step below zero", event(GROUP, step=-1)),
    Case("a step beyond the database", event(GROUP, step=2**31)),
    Case("no completions", event(GROUP, completions=[])),
    Case("completions that are a text", event(GROUP, completions="abc")),
    Case("a prompt's number below zero", event(GROUP, prompt_index=-1)),
    Case("a prompt's number beyond the database", event(GROUP, prompt_index=2**63)),
    Case("a completion without a text", completion(text=None)),
    Case("tokens below zero", completion(num_tokens=-5)),
    Case("tokens beyond the database", completion(num_tokens=2**40)),
    Case("an end of no meaning", completion(end_reason="tired")),
    Case("a reward that is a word", completion(reward="high")),
    Case("rules that are a list", completion(rules=[1.0])),
    Case("metrics that are a list", event(STEP, metrics=[1.0])),
    Case("a metric that is a word", event(STEP, metrics={"loss": "low"})),
    Case("a metric without a name", event(STEP, metrics={"": 1.0})),
]  # fmt: skip
BATCHES = [
    Case("no first line", {"query": "attempt=1"}),
    Case("no attempt", {"query": "first=1"}),
    Case("a first line of zero", {"query": "attempt=1&first=0"}),
    Case("a first line that is a word", {"query": "attempt=1&first=x"}),
    Case("a first line of 5,000 digits", {"query": "attempt=1&first=" + "9" * 5_000}),
    Case("a first line behind a gap", {"query": "attempt=1&first=9", "body": b"{}\n"}, status=409),
    Case("an attempt to come", {"query": "attempt=7&first=1", "body": b"{}\n"}, status=409),
    Case("gzip that is none", {"body": b"{}", "Content_Encoding": "gzip"}, status=400),
    Case("gzip cut short", {"body": gzip.compress(b"{}" * 99)[:-9], "Content_Encoding": "gzip"}, status=400),
    Case("garbage behind gzip", {"body": gzip.compress(b"{}") + b"garbage", "Content_Encoding": "gzip"}, status=400),
    Case("a byte behind gzip", {"body": gzip.compress(b"{}") + b"\x1f", "Content_Encoding": "gzip"}, status=400),
    Case("a second member cut short", {"body": gzip.compress(b"{}") * 2 + gzip.compress(b"{}")[:-2], "Content_Encoding": "gzip"}, status=400),
    Case("members without end", {"body": gzip.compress(b"") * 6_000, "Content_Encoding": "gzip"}, status=400),
    Case("an encoding that is unknown", {"body": b"{}", "Content_Encoding": "br"}),
    Case("more lines than a batch has", {"body": b"\n" * 5_001}),
]  # fmt: skip
ATTEMPTS = [
    Case("no step", {}),
    Case("a step below zero", {"from_step": -1}),
    Case("a step that is not there yet", {"from_step": 5}),
    Case("a step beyond the database", {"from_step": 2**63}),
    Case("a host with a NUL", {"from_step": 0, "host": "a\0b"}),
    Case("a host without an end", {"from_step": 0, "host": "x" * 500}),
]  # fmt: skip
ENDPOINTS = [
    Endpoint(
        "opening an outside run", send_opening, OPENINGS, leaves=Run.objects.count
    ),
    Endpoint(
        "lines of a log",
        send_line,
        LINES,
        status=200,
        leaves=Step.objects.count,
    ),
    Endpoint("batches of lines", send_batch, BATCHES, leaves=RunEvent.objects.count),
    Endpoint("attempts of an external run", send_attempt, ATTEMPTS),
]
