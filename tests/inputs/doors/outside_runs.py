"""What an outside trainer sends: the opening of a run, lines of its log, lives."""

from __future__ import annotations

import gzip
import json
from typing import Any
from uuid import UUID

from dashboard.runs.models import Run, RunEvent, Step
from dashboard.training.outside.opening import Opening, open_run
from tests.dashboard.api.asking import BASE
from tests.dashboard.training.logs import LogBuilder
from tests.dashboard.training.outside.sending import lines_of
from tests.inputs.cases import (
    Answer,
    Case,
    Door,
    World,
    in_one_line,
    told_as_text,
    told_by_problem,
)

KEY = UUID(int=9)
GOOD = [json.loads(line) for line in lines_of(LogBuilder().stepped(1))]


def open_outside(world: World) -> Run:
    opening = Opening(key=KEY, name="theirs", tool="TRL")
    return open_run(opening, team=world.team, user=world.user)[0]


def send_opening(world: World, tree: Any) -> Answer:
    return told_by_problem(world.program.post("/outside-runs", tree))


def send_line(world: World, line: bytes) -> Answer:
    """The warning that stands for the line; the line before it was good."""
    run = open_outside(world)
    first = json.dumps(GOOD[1] | {"line": 1}).encode()
    answer = _post(world, run, first + b"\n" + line + b"\n")
    if answer.status_code != 200:
        return told_by_problem(answer)
    told = RunEvent.objects.filter(run=run).order_by("pk").last()
    assert told
    return Answer(answer.status_code, in_one_line(str(told.body)))


def send_batch(world: World, sent: dict[str, Any]) -> Answer:
    answer = _post(world, open_outside(world), **sent)
    if answer.status_code < 400:
        return told_as_text(answer)
    return told_by_problem(answer)


def send_life(world: World, tree: Any) -> Answer:
    run = open_outside(world)
    return told_by_problem(world.program.post(f"/outside-runs/{run.pk}/lives", tree))


def _post(
    world: World,
    run: Run,
    body: bytes = b"",
    query: str = "epoch=1&first=1",
    **headers: str,
) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return world.program.client.post(
        f"{BASE}/outside-runs/{run.pk}/events?{query}",
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
    Case("no key", opening(key="absent"), says=("body.key: Field required body.key: Field required",)),
    Case("a key that is no UUID", opening(key="7"), says=("body.key: Input should be a valid UUID, invalid length: found 1;", "got \"7\" body.key: Input should be a valid UUID, invalid length: found", "got \"7\"")),
    Case("a name that is empty", opening(name=""), says=("name must have 1 to 80 characters;", "it has 0.", "body.name: name must have 1 to 80 characters;")),
    Case("a name of 5,000 characters", opening(name="x" * 5_000), says=("name must have 1 to 80 characters;", "it has 5,000.", "body.name: name must have 1 to 80 characters;")),
    Case("a name with a NUL", opening(name="a\0b"), says=("body: name: a text holds a NUL character, 'a\\x00b';", "remove it body: name: a text holds a NUL character, 'a\\x00b';", "remove it")),
    Case("a name with a surrogate", opening(name="\ud800"), says=("body: name: a text holds half of a surrogate pair (U+D800), '\\ud800';", "remove it body: name: a text holds half of a surrogate pair (U+D800),", "remove it")),
    Case("a name of two lines", opening(name="a\nb"), says=("name must be one line;", "got 'a\\nb'.", "body.name: name must be one line;")),
    Case("a name that is a number", opening(name=5), says=("body.name: Input should be a valid string;", "got 5 body.name: Input should be a valid string;", "got 5")),
    Case("a tool with a NUL", opening(tool="T\0RL"), says=("body: tool: a text holds a NUL character, 'T\\x00RL';", "remove it body: tool: a text holds a NUL character, 'T\\x00RL';", "remove it")),
    Case("a tool without an end", opening(tool="x" * 5_000), says=("tool must have 1 to 40 characters;", "it has 5,000.", "body.tool: tool must have 1 to 40 characters;")),
    Case("a model with a NUL", opening(model="org/\0model"), says=("body: model: a text holds a NUL character, 'org/\\x00model';", "remove it body: model: a text holds a NUL character, 'org/\\x00model';", "remove it")),
    Case("a model without an end", opening(model="x" * 5_000), says=("model must have 0 to 200 characters;", "it has 5,000.", "body.model: model must have 0 to 200 characters;")),
    Case("steps below one", opening(num_steps=-1), says=("body.num_steps: Input should be greater than or equal to 1;", "got -1 body.num_steps: Input should be greater than or equal to 1;", "got -1")),
    Case("steps beyond the database", opening(num_steps=2**31), says=("body.num_steps: Input should be less than or equal to 2147483647;", "got 2147483648 body.num_steps: Input should be less than or equal to", "got 2147483648")),
    Case("steps that are half", opening(num_steps=1.5), says=("body.num_steps: Input should be a valid integer, got a number with a", "got 1.5 body.num_steps: Input should be a valid integer, got a number", "got 1.5")),
    Case("settings that are a list", opening(settings=[1]), says=("body.settings: Input should be a valid dictionary body.settings:",)),
    Case("settings with a NUL in a name", opening(settings={"a\0": 1}), says=("body: settings: a text holds a NUL character, 'a\\x00';", "remove it body: settings: a text holds a NUL character, 'a\\x00';", "remove it")),
    Case("settings with a NUL in a value", opening(settings={"a": ["\0"]}), says=("body: settings.a.0: a text holds a NUL character, '\\x00';", "remove it body: settings.a.0: a text holds a NUL character, '\\x00';", "remove it")),
    Case("settings with a surrogate", opening(settings={"a": "\udc00"}), says=("body: settings.a: a text holds half of a surrogate pair (U+DC00),", "remove it body: settings.a: a text holds half of a surrogate pair", "remove it")),
    Case("settings 500 deep", opening(settings=json.loads('{"a":' * 500 + "1" + "}" * 500)), says=("body: settings.a.a.a: it is nested more than 64 deep;", "flatten it body: settings.a.a.a: it is nested more than 64 deep;", "flatten it")),
    Case("a weight that is a word", opening(rules={"right": "much"}), says=("body.rules.right: Input should be a valid number, unable to parse", "got \"much\" body.rules.right: Input should be a valid number, unable", "got \"much\"")),
    Case("a weight that is no number", opening(rules={"right": float("nan")}), says=("rules: the weight of 'right' must be finite.", "body.rules: rules: the weight of 'right' must be finite.")),
    Case("a rule's name with a NUL", opening(rules={"a\0": 1.0}), says=("body: rules: a text holds a NUL character, 'a\\x00';", "remove it body: rules: a text holds a NUL character, 'a\\x00';", "remove it")),
    Case("more rules than a run has", opening(rules={f"r{n}": 1.0 for n in range(65)}), says=("rules may be 64 at most;", "there are 65.", "body.rules: rules may be 64 at most;")),
    Case("right from infinity", opening(right_from=float("inf")), says=("right_from must be a finite number, or left out.", "body.right_from: right_from must be a finite number, or left out.")),
    Case("a tag with a quote", opening(tags=['a"b']), says=("A tag holds no comma, quote, backslash or control character;", "got '\"' in 'a\"b'.", "body: A tag holds no comma, quote, backslash or control character;")),
    Case("tags that are a text", opening(tags="a"), says=("body.tags: Input should be a valid list;", "got \"a\" body.tags: Input should be a valid list;", "got \"a\"")),
    Case("more tags than a run has", opening(tags=[f"t{n}" for n in range(200)]), says=("A run has at most 20 tags;", "got 200.", "body: A run has at most 20 tags;")),
    Case("notes with a NUL", opening(notes="\0"), says=("body: notes: a text holds a NUL character, '\\x00';", "remove it body: notes: a text holds a NUL character, '\\x00';", "remove it")),
    Case("notes without an end", opening(notes="x" * 200_000), says=("notes must have 0 to 20,000 characters;", "it has 200,000.", "body.notes: notes must have 0 to 20,000 characters;")),
    Case("a field of no meaning", opening(colour="red"), says=("body.colour: Extra inputs are not permitted;", "got \"red\" body.colour: Extra inputs are not permitted;", "got \"red\"")),
    Case("a body that is a list", [1], says=("body: Input should be a valid dictionary or object to extract fields",)),
    Case("a body that is null", None, says=("body: Field required body: Field required",)),
]  # fmt: skip
LINES = [
    Case("no JSON", b"{'type': 1}", says=("{'code': 'unreadable_line', 'value': None, 'message': 'Line 2 of the", "got b\"{\\'type\\': 1}\".", "It begins: \"{\\'type\\': 1}\".', 'threshold': None}")),
    Case("nothing", b"", says=("{'code': 'unreadable_line', 'value': None, 'message': \"Line 2 of the", "got b''.", "It begins: ''.\", 'threshold': None}")),
    Case("a list", b"[]", says=("{'code': 'unreadable_line', 'value': None, 'message': \"Line 2 of the", "got [].", "It begins: '[]'.\", 'threshold': None}")),
    Case("a number", b"5", says=("{'code': 'unreadable_line', 'value': None, 'message': \"Line 2 of the", "got 5.", "It begins: '5'.\", 'threshold': None}")),
    Case("bytes that are no UTF-8", b'{"type": "\xff"}', says=("{'code': 'unreadable_line', 'value': None, 'message': 'Line 2 of the", "got b\\'{\"type\": \"\\\\xff\"}\\'.", "It begins: \\'{\"type\": \"�\"}\\'.', 'threshold': None}")),
    Case("a surrogate alone", b'{"type": "\\ud800"}', says=("{'code': 'unreadable_line', 'value': None, 'message': 'Line 2 of the", "got b\\'{\"type\": \"\\\\\\\\ud800\"}\\'.", "It begins: \\'{\"type\": \"\\\\\\\\ud800\"}\\'.', 'threshold': None}")),
    Case("lists 5,000 deep", b"[" * 5_000 + b"]" * 5_000, says=("{'code': 'unreadable_line', 'value': None, 'message': \"Line 2 of the", "got b'[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[.", "It begins:")),
    Case("a number of 5,000 digits", b'{"type": "StepFinished", "step": ' + b"9" * 5_000 + b"}", says=("{'code': 'unreadable_line', 'value': None, 'message': 'Line 2 of the", "got b\\'{\"type\": \"StepFinished\", \"step\": 9999999999999999999999999.", "It begins: \\'{\"type\": \"StepFinished\", \"step\":")),
    Case("no type", event(GROUP, type="absent"), says=("{'code': 'unreadable_line', 'value': None, 'message': 'Line 2 of the", "got {\\'line\\': 2, \\'epoch\\': 1, \\'time\\': 1700001001.0, \\'step\\': 1,", "It begins: \\'{\"line\": 2, \"epoch\": 1, \"time\": 1700001001.0, \"step\": 1,")),
    Case("a type that is unknown", event(GROUP, type="Exploded"), says=("{'code': 'unknown_event', 'value': None, 'message':", "Line 2 of the event log was left out: Events of type 'Exploded' are")),
    Case("another line's number", event(GROUP, line=7), says=("{'code': 'unreadable_line', 'value': None, 'message': 'Line 2 of the", "It begins: \\'{\"line\": 7, \"epoch\": 1, \"time\": 1700001001.0, \"step\": 1,")),
    Case("another epoch", event(GROUP, epoch=3), says=("{'code': 'unreadable_line', 'value': None, 'message': 'Line 2 of the", "It begins: \\'{\"line\": 2, \"epoch\": 3, \"time\": 1700001001.0, \"step\": 1,")),
    Case("a time before 1970", event(GROUP, time=-1.0), says=("{'code': 'unreadable_line', 'value': None, 'message': 'Line 2 of the", "It begins: \\'{\"line\": 2, \"epoch\": 1, \"time\": -1.0, \"step\": 1, \"type\":")),
    Case("a time that is no number", event(GROUP, time=float("nan")), says=("{'code': 'unreadable_line', 'value': None, 'message': 'Line 2 of the", "It begins: \\'{\"line\": 2, \"epoch\": 1, \"time\": NaN, \"step\": 1, \"type\":")),
    Case("a time beyond any calendar", event(GROUP, time=1e300), says=("{'code': 'unreadable_line', 'value': None, 'message': 'Line 2 of the", "It begins: \\'{\"line\": 2, \"epoch\": 1, \"time\": 1e+300, \"step\": 1,")),
    Case("a step below zero", event(GROUP, step=-1), says=("{'code': 'unreadable_line', 'value': None, 'message': 'Line 2 of the", "got -1.", "It begins: \\'{\"line\": 2, \"epoch\": 1, \"time\": 1700001001.0, \"step\":")),
    Case("a step beyond the database", event(GROUP, step=2**31), says=("{'code': 'not_taken', 'value': None, 'message': 'Line 2 was left out:",)),
    Case("no completions", event(GROUP, completions=[]), says=("{'code': 'not_taken', 'value': None, 'message': 'Line 2 was left out:", "it has 0.', 'threshold': None}")),
    Case("completions that are a text", event(GROUP, completions="abc"), says=("{'code': 'unreadable_line', 'value': None, 'message': 'Line 2 of the", "got \\'abc\\'.", "It begins: \\'{\"line\": 2, \"epoch\": 1, \"time\": 1700001001.0, \"step\": 1,")),
    Case("a prompt's number below zero", event(GROUP, prompt_index=-1), says=("{'code': 'unreadable_line', 'value': None, 'message': 'Line 2 of the", "got -1.", "It begins: \\'{\"line\": 2, \"epoch\": 1, \"time\": 1700001001.0, \"step\": 1,")),
    Case("a prompt's number beyond the database", event(GROUP, prompt_index=2**63), says=("{'code': 'not_taken', 'value': None, 'message': \"Line 2 was left out:",)),
    Case("a completion without a text", completion(text=None), says=("{'code': 'unreadable_line', 'value': None, 'message': 'Line 2 of the", "got None.", "It begins: \\'{\"line\": 2, \"epoch\": 1, \"time\": 1700001001.0, \"step\": 1,")),
    Case("tokens below zero", completion(num_tokens=-5), says=("{'code': 'not_taken', 'value': None, 'message': \"Line 2 was left out:",)),
    Case("tokens beyond the database", completion(num_tokens=2**40), says=("{'code': 'not_taken', 'value': None, 'message': \"Line 2 was left out:",)),
    Case("an end of no meaning", completion(end_reason="tired"), says=("{'code': 'unreadable_line', 'value': None, 'message': 'Line 2 of the", "got \\'tired\\'.", "It begins: \\'{\"line\": 2, \"epoch\": 1, \"time\": 1700001001.0, \"step\": 1,")),
    Case("a reward that is a word", completion(reward="high"), says=("{'code': 'unreadable_line', 'value': None, 'message': 'Line 2 of the", "got \\'high\\'.", "It begins: \\'{\"line\": 2, \"epoch\": 1, \"time\": 1700001001.0, \"step\": 1,")),
    Case("rules that are a list", completion(rules=[1.0]), says=("{'code': 'unreadable_line', 'value': None, 'message': 'Line 2 of the", "got [1.0].", "It begins: \\'{\"line\": 2, \"epoch\": 1, \"time\": 1700001001.0, \"step\": 1,")),
    Case("metrics that are a list", event(STEP, metrics=[1.0]), says=("{'code': 'unreadable_line', 'value': None, 'message': 'Line 2 of the", "got [1.0].", "It begins: \\'{\"line\": 2, \"epoch\": 1, \"time\": 1700001003.0, \"step\": 1,")),
    Case("a metric that is a word", event(STEP, metrics={"loss": "low"}), says=("{'code': 'unreadable_line', 'value': None, 'message': 'Line 2 of the", "got \\'low\\'.", "It begins: \\'{\"line\": 2, \"epoch\": 1, \"time\": 1700001003.0, \"step\": 1,")),
    Case("a metric without a name", event(STEP, metrics={"": 1.0}), says=("{'code': 'not_taken', 'value': None, 'message': \"Line 2 was left out:", "got ''.\", 'threshold': None}")),
]  # fmt: skip
BATCHES = [
    Case("no first line", {"query": "epoch=1"}, says=("query.first: Field required query.first: Field required",)),
    Case("no epoch", {"query": "first=1"}, says=("query.epoch: Field required query.epoch: Field required",)),
    Case("a first line of zero", {"query": "epoch=1&first=0"}, says=("query.first: Input should be greater than or equal to 1;", "got \"0\" query.first: Input should be greater than or equal to 1;", "got \"0\"")),
    Case("a first line that is a word", {"query": "epoch=1&first=x"}, says=("query.first: Input should be a valid integer, unable to parse string", "got \"x\" query.first: Input should be a valid integer, unable to parse", "got \"x\"")),
    Case("a first line of 5,000 digits", {"query": "epoch=1&first=" + "9" * 5_000}, says=("query.first: Unable to parse input string as an integer, exceeded", "got \"9999999999999999999999999999999999999999999999999999999999…")),
    Case("a first line behind a gap", {"query": "epoch=1&first=9", "body": b"{}\n"}, status=409, says=("Line 9 came, but the last one stored is 0.", "Send on from line 1.")),
    Case("an epoch to come", {"query": "epoch=7&first=1", "body": b"{}\n"}, status=409, says=("These lines are of epoch 7, but the run is at epoch 1: another life", "Nothing was stored.")),
    Case("gzip that is none", {"body": b"{}", "Content_Encoding": "gzip"}, says=("The body is no gzip: Error -3 while decompressing data: incorrect", "body: The body is no gzip: Error -3 while decompressing data:")),
    Case("gzip cut short", {"body": gzip.compress(b"{}" * 99)[:-9], "Content_Encoding": "gzip"}, says=("The gzipped body ends too early.", "Send it again.", "body: The gzipped body ends too early.")),
    Case("an encoding that is unknown", {"body": b"{}", "Content_Encoding": "br"}, says=("It may be gzip or none;", "got 'br'.", "header.Content-Encoding: It may be gzip or none;")),
    Case("more lines than a batch has", {"body": b"\n" * 5_001}, says=("A batch has 5,000 lines at most;", "got 5,001.", "Send fewer.", "body: A batch has 5,000 lines at most;")),
]  # fmt: skip
LIVES = [
    Case("no step", {}, says=("body.from_step: Field required body.from_step: Field required",)),
    Case("a step below zero", {"from_step": -1}, says=("body.from_step: Input should be greater than or equal to 0;", "got -1 body.from_step: Input should be greater than or equal to 0;", "got -1",)),
    Case("a step that is not there yet", {"from_step": 5}, says=("from_step must be from 0 to 0, the last step that is stored;", "got 5.", "Send the lines before it first.", "body.from_step: from_step must be from 0 to 0, the last step that is",)),
    Case("a step beyond the database", {"from_step": 2**63}, says=("body.from_step: Input should be less than or equal to 2147483647;", "got 9223372036854775808 body.from_step: Input should be less than or", "got 9223372036854775808",)),
    Case("a host with a NUL", {"from_step": 0, "host": "a\0b"}, says=("body: host: a text holds a NUL character, 'a\\x00b';", "remove it body: host: a text holds a NUL character, 'a\\x00b';", "remove it",)),
    Case("a host without an end", {"from_step": 0, "host": "x" * 500}, says=("body.host: String should have at most 120 characters;", 'got "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…',)),
]  # fmt: skip
DOORS = [
    Door("opening an outside run", send_opening, OPENINGS, leaves=Run.objects.count),
    Door(
        "lines of a log",
        send_line,
        LINES,
        status=200,
        leaves=Step.objects.count,
        is_slow=True,
    ),
    Door("batches of lines", send_batch, BATCHES, leaves=RunEvent.objects.count),
    Door("lives of an outside run", send_life, LIVES),
]
