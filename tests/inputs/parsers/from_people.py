"""What people type, paste and upload: files, forms, addresses, queries."""

import contextlib
import io
import json
import struct
import tempfile
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from pydantic import ValidationError

from cohort.commands import setting
from dashboard.accounts.models import User
from dashboard.analysis.reports.rendering import render_prose
from dashboard.api.problems import Problem
from dashboard.api.schemas import read_cursor
from dashboard.completions.rendering import render_text
from dashboard.datasets.analysis.statistics import answer_type
from dashboard.datasets.parsing.detection import detect
from dashboard.datasets.parsing.records import Record, Refusal
from dashboard.live.messages import parse_request
from dashboard.rewards.recipe_text import read_recipe, read_schedule, write_json
from dashboard.rewards.rule_editor import find_code_fault, param_fields
from dashboard.runs.config.toml import read_phases, read_toml
from dashboard.runs.table.columns import read_columns
from dashboard.runs.table.grouping import read_open
from dashboard.runs.table.parser import QueryError, parse
from dashboard.runs.table.sql import condition
from dashboard.supervision.log_search import make_pattern
from dashboard.transfers.import_formats import (
    Point,
    Sample,
    as_tree,
    from_tree,
    read_sample,
    tool_of,
)
from dashboard.transfers.import_reader import layout_of, read_point
from dashboard.transfers.tensorboard import (
    masked_crc32c,
    read_scalars,
    write_scalars,
    write_version,
)
from tests.dashboard.datasets.parsing.test_parsing_properties import (
    FRAGMENTS,
    check_answers,
)
from tests.inputs.parsers.row import (
    ANY_TEXT,
    DEEP,
    JSON,
    NUMBERS,
    Parser,
    dumped,
    of,
    shaped,
    spoilt,
)
from trainer.config import RunConfig, read_config
from trainer.rewards.rule import compile_pattern
from trainer.rewards.rules import RULES
from trainer.rewards.terms import Schedule

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


def check_file(given: tuple[str, str]) -> None:
    text, suffix = given
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(ValueError):
        file = Path(folder) / f"run.{suffix}"
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        read_config(file)


def check_toml(text: str) -> None:
    with contextlib.suppress(ValueError):
        check_config(read_toml(text))


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


def check_schedule(text: str) -> None:
    with contextlib.suppress(ValueError):
        Schedule.model_validate(read_schedule(text))


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


def check_columns(text: str) -> None:
    assert all(column.title for column in read_columns(text))


def check_open(token: str) -> None:
    for values in read_open([token], 1):
        assert len(values) == 1


def check_cursor(text: str) -> None:
    with contextlib.suppress(Problem):
        assert 0 <= read_cursor(text) < 2**63


def check_phases(text: str) -> None:
    with contextlib.suppress(ValueError):
        phases = read_phases(text)
        check_config({"phases": phases})
        json.dumps(phases).encode()


def check_param(text: str) -> None:
    for field in param_fields("code_tests"):
        with contextlib.suppress(ValueError):
            field.read(text)


def check_answer(text: str) -> None:
    assert answer_type(text)


def check_name(given: tuple[str, bytes]) -> None:
    filename, content = given
    with tempfile.NamedTemporaryFile() as file, contextlib.suppress(ValueError):
        file.write(content)
        file.flush()
        assert detect(filename, Path(file.name)).format


def check_setting(text: str) -> None:
    with contextlib.suppress(ArgumentTypeError):
        name, value = setting(text)
        assert name
        assert value is None or isinstance(value, str | bool | int | float)


DATASETS = "dashboard.datasets.parsing"


def dataset(kind: str, module: str) -> Parser:
    inputs = st.binary(min_size=1, max_size=200) | FRAGMENTS.filter(bool)
    modules = (f"{DATASETS}.{module}", "dashboard.datasets.mapping")
    return Parser(
        f"datasets, {kind}", inputs, lambda data: check_answers(kind, data), modules
    )


SCALARS = ("dashboard.transfers.tensorboard",)
RECIPE = ("dashboard.rewards.recipe_text", "dashboard.rewards.recipe_text")
TYPED = ("dashboard.runs.config.toml", "dashboard.runs.config.toml")
PARSERS = [
    dataset("jsonl", "jsonl"),
    dataset("json", "json_file"),
    dataset("csv", "csv_file"),
    dataset("tsv", "csv_file"),
    Parser("gzip", st.binary(max_size=99).map(lambda d: b"\x1f\x8b\x08" + d),
           lambda data: check_answers("jsonl", data, "gzip"), (f"{DATASETS}.source",)),
    Parser("zstd", st.binary(max_size=99).map(lambda d: b"\x28\xb5\x2f\xfd" + d),
           lambda data: check_answers("jsonl", data, "zstd"), (f"{DATASETS}.source",)),
    Parser("names and beginnings of files", st.tuples(of("./", "rows", "csv", "json", "parquet", "gz"),
           st.binary(max_size=99) | FRAGMENTS), check_name, (f"{DATASETS}.detection",)),
    Parser("types of answers", ANY_TEXT | JSON.map(dumped) | DEEP, check_answer,
           ("dashboard.datasets.analysis.statistics",)),
    Parser("recipes, any JSON", JSON.map(dumped) | DEEP, check_recipe, RECIPE),
    Parser("recipes, nearly right", RECIPES.map(dumped), check_recipe, RECIPE),
    Parser("recipes, any text", of('{}[]",:', "rules", "kind", "NaN", "1e999"), check_recipe, RECIPE),
    Parser("parameters of a rule", JSON.map(dumped) | ANY_TEXT | DEEP, check_param,
           ("dashboard.project.schema_forms",)),
    Parser("run configurations", CONFIGS, check_config, ("trainer.config.run",)),
    Parser("files of run configurations", st.tuples(CONFIGS.map(dumped) | DEEP
           | of('[]=".\n# {}', "optim", "num_steps", "1"), st.sampled_from(["toml", "json"])), check_file,
           ("trainer.config.reading",)),
    Parser("TOML", of('[]=".\n# {}', "optim", "num_steps", "1", "inf", "0x", "'''"), check_toml, TYPED),
    Parser("phases", of('[]{}=":,.\n', "[[phases]]\n", "name", "num_steps", "1", "changes.loss", "null")
           | JSON.map(dumped) | DEEP, check_phases, ("dashboard.runs.config.toml",)),
    Parser("the run table's queries",
           of(' "()-:=<>~!,\\', "state", "running", "config.", "created", "2026-11-01", "or", "not",
              "1e9", "7d"), check_query, ("dashboard.runs.table.parser",)),
    Parser("the run table's columns", of('",. \n', "name", "config.", "loss", "last") | ANY_TEXT,
           check_columns, ("dashboard.runs.table.columns",)),
    Parser("the run table's open groups", JSON.map(dumped) | DEEP | ANY_TEXT, check_open,
           ("dashboard.runs.table.rows",)),
    Parser("cursors", ANY_TEXT | st.text("djE6MTIz=-_", max_size=24), check_cursor, ("dashboard.api.schemas",)),
    Parser("settings of a command", of("=.[]{}\"\'0123456789e-", "optim.num_steps", "null", "NaN") | DEEP.map(
           lambda text: f"a={text}"), check_setting, ("cohort.commands",)),
    Parser("schedules", of("0123456789.e+-−", "to ", "then ", " at step "), check_schedule,
           ("dashboard.rewards.recipe_text",)),
    Parser("patterns", of("()[]{}|*+?.^$\\", "(?P<n>", "(?=", "\\p{L}", "{1000}", "a"), check_pattern,
           ("trainer.rewards.rule",)),
    Parser("patterns of a log", of("()[]{}|*+?.^$\\", "(?i)", "\\1", "{9}", "a"), check_log_pattern,
           ("dashboard.supervision.log_search",)),
    Parser("code", of("()[]{}:=\n\t '\"\\", "def ", "reward", "lambda", "f'", "class"), find_code_fault,
           ("dashboard.rewards.rule_editor",)),
    Parser("markup and formulas", of("$\\{}[]()<>*_`#|\n-!&^", "\\frac", "<script>", "javascript:",
           "\\begin{", "|-|", "https://a.b", "::chart"), check_markup,
           ("dashboard.completions.rendering", "dashboard.analysis.reports.rendering")),
    Parser("completions of other tools", SAMPLES, check_sample, ("dashboard.transfers.import_formats",)),
    Parser("rows of W&B", st.dictionaries(
        st.sampled_from(["_step", "Step", "_timestamp", "a - loss", "loss"]), JSON), check_point,
        ("dashboard.transfers.import_reader",)),
    Parser("event files, spoilt", spoilt(SOUND_EVENTS), check_scalars, SCALARS),
    Parser("event files, any message",
           st.binary(max_size=60).map(lambda d: SOUND_EVENTS + as_record(d)), check_scalars, SCALARS),
    Parser("event files, again", st.tuples(st.integers(0, 2**31 - 1), st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=9), st.floats(width=32), max_size=4)),
        check_scalars_again, SCALARS),
    Parser("requests of a page", JSON.map(dumped) | ANY_TEXT | DEEP
           | shaped(type=st.just("after"), seq=st.integers(), attempt=st.integers()).map(dumped),
           check_request, ("dashboard.live.messages",)),
]  # fmt: skip
