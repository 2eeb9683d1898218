"""Each parser with what it is given, and what may come of it: nothing but its errors."""

from __future__ import annotations

import contextlib
import io
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from pydantic import ValidationError

from dashboard.accounts.models import User
from dashboard.datasets.parsing.records import Record
from dashboard.datasets.parsing.refusals import Refusal
from dashboard.exchange.formats.crc32c import masked_crc32c
from dashboard.exchange.formats.tfevents import (
    read_scalars,
    write_scalars,
    write_version,
)
from dashboard.exchange.imports.items import Point, Sample, as_tree, from_tree
from dashboard.exchange.imports.samples import read_sample, tool_of
from dashboard.exchange.imports.scalars import layout_of, read_point
from dashboard.live.messages import parse_request
from dashboard.reports.markdown import render_prose
from dashboard.rewards.code_text import find_code_fault
from dashboard.rewards.formulas import FormulaError, read_formula
from dashboard.rewards.recipe_text import read_recipe, write_json
from dashboard.runs.config.toml_text import read_toml
from dashboard.runs.table.conditions import condition
from dashboard.runs.table.syntax import parse
from dashboard.runs.table.tree import QueryError
from dashboard.samples.rendering import render_text
from dashboard.training.follow import Lines
from dashboard.training.logs.search import make_pattern
from dashboard.training.reading import read_events
from tests.dashboard.datasets.parsing.test_parsing_properties import (
    FRAGMENTS,
    check_answers,
)
from tests.dashboard.training.logs import LogBuilder
from tests.dashboard.training.outside.sending import lines_of
from trainer.config import RunConfig
from trainer.rewards.patterns import compile_pattern
from trainer.rewards.rules import RULES
from trainer.rewards.spec import Recipe

ANY_TEXT = st.text(st.characters(), max_size=80)  # lone surrogates among them
NUMBERS = st.integers() | st.floats() | st.sampled_from([10**400, -(2**63), 2**31])
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | ANY_TEXT,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4)
    ),
    max_leaves=12,
)


def of(alphabet: str, *words: str) -> st.SearchStrategy[str]:
    """Texts of a language's own signs and words, and of anything else."""
    pieces = st.sampled_from([*alphabet, *words]) | st.text(max_size=3)
    return st.lists(pieces, max_size=30).map("".join)


def shaped(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with these fields, of the right kind or of any, or without them."""
    return st.fixed_dictionaries(
        {}, optional={name: kind | JSON for name, kind in fields.items()}
    )


def dumped(tree: Any) -> str:
    with contextlib.suppress(ValueError):  # a number that is too long to write
        return json.dumps(tree)
    return "[]"


KINDS = st.sampled_from(sorted(RULES))
RULE = shaped(
    name=st.sampled_from(["a", "b", "right"]),
    kind=KINDS,
    weight=st.floats(-10, 10),
    params=st.just({}),
)
RECIPES = shaped(
    rules=st.lists(RULE, max_size=4), combine=st.sampled_from(["sum", "product"])
)
CONFIGS = st.fixed_dictionaries(
    {}, optional={name: JSON | shaped(path=ANY_TEXT, num_steps=NUMBERS, learning_rate=NUMBERS, group_size=NUMBERS) for name in RunConfig.model_fields}
)  # fmt: skip
EVENTS = [json.loads(line) for line in lines_of(LogBuilder().started().stepped(1))]
CHANGED_EVENTS = st.builds(
    lambda event, changes: dumped(event | changes).encode(),
    st.sampled_from(EVENTS),
    st.dictionaries(
        st.sampled_from(sorted({n for e in EVENTS for n in e})) | ANY_TEXT, JSON
    ),
)
SAMPLES = st.builds(
    lambda tool, row: tool | row,
    st.sampled_from(
        [
            {"step": 1, "prompt": "a", "completion": "b"},
            {"input": "a", "output": "b", "score": 1.0, "step": 1},
            {"step": 1, "prompt": "a", "completion": "b", "prompt_index": 0,
             "position": 0, "rules": {}},
        ]
    ),
    st.dictionaries(
        st.sampled_from(
            ["step", "prompt", "completion", "reward", "advantage", "input", "output",
             "gts", "score", "rules", "num_tokens", "end_reason", "answer"]
        )
        | st.text("abc", min_size=1),
        JSON,
    ),
)  # fmt: skip
SOUND_EVENTS = write_version(1.0) + write_scalars(1, 2.0, {"loss": 0.5}) * 3
SPOILT_EVENTS = st.builds(
    lambda at, by, end: (SOUND_EVENTS[:at] + by + SOUND_EVENTS[at + len(by) :])[:end],
    st.integers(0, len(SOUND_EVENTS)),
    st.binary(max_size=8),
    st.integers(0, 2 * len(SOUND_EVENTS)),
)


def as_record(data: bytes) -> bytes:
    """A record whose checks pass, so that the message itself is read."""
    length = struct.pack("<Q", len(data))
    checks = [struct.pack("<I", masked_crc32c(each)) for each in (length, data)]
    return length + checks[0] + data + checks[1]


def check_recipe(text: str) -> None:
    with contextlib.suppress(ValueError):
        recipe = read_recipe(text)
        assert read_recipe(write_json(recipe)) == recipe


def check_config(tree: dict[str, Any]) -> None:
    with contextlib.suppress(ValidationError):
        config = RunConfig.model_validate(tree)
        assert RunConfig.model_validate_json(config.model_dump_json()) == config


def check_toml(text: str) -> None:
    with contextlib.suppress(ValueError):
        check_config(read_toml(text))


def check_events(lines: list[bytes]) -> None:
    events = read_events(Lines(first=1, texts=tuple(lines), end=0), epoch=1)

    assert [event.line for event in events] == list(range(1, len(lines) + 1))
    for event in events:
        event.model_dump_json()


def check_query(text: str) -> None:
    if error := _query_error(text):
        assert 0 <= error.start <= error.end <= len(text) + 1
        assert str(error).endswith(".")


def _query_error(text: str) -> QueryError | None:
    try:
        condition(parse(text), User(username="somebody"))
    except QueryError as error:
        return error
    return None


def check_formula(text: str) -> None:
    rules = Recipe.model_validate({"rules": [{"name": "right", "kind": "length"}]})
    try:
        tree = read_formula(text, rules.rules)
    except FormulaError:
        return
    with contextlib.suppress(ValidationError):
        Recipe.model_validate(tree)


def check_pattern(text: str) -> None:
    with contextlib.suppress(ValueError):
        compile_pattern(text).search("a" * 1_000)


def check_log_pattern(text: str) -> None:
    with contextlib.suppress(ValueError):
        make_pattern(text, is_pattern=True, ignore_case=True)


def check_markup(text: str) -> None:
    for shown in (render_prose(text), render_text(text).html):
        assert "<script" not in shown.lower()
        assert 'href="javascript:' not in shown.lower()


def check_sample(row: dict[str, Any]) -> None:
    tool = tool_of(row)
    assert tool
    found = read_sample(tool, Record(1, row))

    if isinstance(found, Sample):
        assert from_tree(json.loads(json.dumps(as_tree(found)))) == found
        json.dumps(as_tree(found), ensure_ascii=False).encode()
    else:
        assert found.problem.endswith(".")
        assert found.remedy.endswith(".")


def check_point(row: dict[str, Any]) -> None:
    layout = layout_of(row)
    if layout:
        found = read_point(layout, None, Record(1, row))
        assert found is None or isinstance(found, Point | Refusal)


def check_scalars(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        for scalars in read_scalars(io.BytesIO(data)):
            assert isinstance(scalars.step, int)


def check_scalars_again(given: tuple[int, dict[str, float]]) -> None:
    step, values = given
    data = write_version(0.0) + write_scalars(step, 1.0, values)
    _, found = read_scalars(io.BytesIO(data))

    assert (found.step, found.values.keys()) == (step, values.keys())


def check_request(text: str) -> None:
    with contextlib.suppress(ValueError, RecursionError):
        assert parse_request(text).seq >= 0


@dataclass(frozen=True, slots=True)
class Parser:
    name: str
    inputs: st.SearchStrategy[Any]
    check: Callable[[Any], None]


def dataset(kind: str) -> Parser:
    inputs = st.binary(min_size=1, max_size=200) | FRAGMENTS.filter(bool)
    return Parser(f"datasets, {kind}", inputs, lambda data: check_answers(kind, data))


PARSERS = [
    *map(dataset, ("jsonl", "json", "csv", "tsv")),
    Parser("gzip", st.binary(max_size=99).map(lambda d: b"\x1f\x8b\x08" + d),
           lambda data: check_answers("jsonl", data, "gzip")),
    Parser("zstd", st.binary(max_size=99).map(lambda d: b"\x28\xb5\x2f\xfd" + d),
           lambda data: check_answers("jsonl", data, "zstd")),
    Parser("recipes, any JSON", JSON.map(dumped), check_recipe),
    Parser("recipes, nearly right", RECIPES.map(dumped), check_recipe),
    Parser("recipes, any text", of('{}[]",:', "rules", "kind", "NaN", "1e999"), check_recipe),
    Parser("run configurations", CONFIGS, check_config),
    Parser("TOML", of('[]=".\n# {}', "optim", "num_steps", "1", "inf", "0x", "'''"), check_toml),
    Parser("events, any bytes", st.lists(st.binary(max_size=60), max_size=4), check_events),
    Parser("events, nearly right", st.lists(CHANGED_EVENTS, max_size=3), check_events),
    Parser("the run table's queries",
           of(' "()-:=<>~!,\\', "state", "running", "config.", "or", "not", "1e9", "7d"), check_query),
    Parser("formulas", of("+-*·()0123456789.e", "right", "min", "clip", "→"), check_formula),
    Parser("patterns", of("()[]{}|*+?.^$\\", "(?P<n>", "(?=", "\\p{L}", "{1000}", "a"), check_pattern),
    Parser("patterns of a log", of("()[]{}|*+?.^$\\", "(?i)", "\\1", "{9}", "a"), check_log_pattern),
    Parser("code", of("()[]{}:=\n\t '\"\\", "def ", "reward", "lambda", "f'", "class"), find_code_fault),
    Parser("markup and formulas", of("$\\{}[]()<>*_`#|\n-!&^", "\\frac", "<script>", "javascript:",
           "\\begin{", "|-|", "https://a.b", "::chart"), check_markup),
    Parser("completions of other tools", SAMPLES, check_sample),
    Parser("rows of W&B", st.dictionaries(
        st.sampled_from(["_step", "Step", "_timestamp", "a - loss", "loss"]), JSON), check_point),
    Parser("event files, spoilt", SPOILT_EVENTS, check_scalars),
    Parser("event files, any message",
           st.binary(max_size=60).map(lambda d: SOUND_EVENTS + as_record(d)), check_scalars),
    Parser("event files, again", st.tuples(st.integers(0, 2**31 - 1), st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=9), st.floats(width=32), max_size=4)),
        check_scalars_again),
    Parser("requests of a page", JSON.map(dumped) | ANY_TEXT
           | shaped(type=st.just("after"), seq=st.integers(), epoch=st.integers()).map(dumped),
           check_request),
]  # fmt: skip
