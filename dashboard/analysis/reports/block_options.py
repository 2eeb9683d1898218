"""Blocks in a report's Markdown: their lines, options and runs.

`::chart runs=3,5 metric=reward/mean` is a live block. `pin=2` at its end shows the data
pinned under that number; `pin` pins the current data when the report is saved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from urllib.parse import quote, unquote

from django import forms

from dashboard.accounts.models import Team
from dashboard.analysis.compare.points import AXES
from dashboard.analysis.compare.selection import line_styles
from dashboard.completions.forms import COMPLETION_ORDERS, FilterForm
from dashboard.project.database import read_whole
from dashboard.runs.models import REWARD, Run

KINDS = ("chart", "group", "compare", "table", "mismatch")
LINE = re.compile(r"^::([a-z]+)(?:\s+(.*?))?\s*$")
FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
WRITTEN_PLAIN = "/,.:+-_@$()"  # characters that are not percent-encoded
MAX_PIN = 10**6
MAX_RUNS = 10  # more lines are not distinguishable in a chart
MAX_COMPLETIONS = 16
MAX_METRICS = 6
MAX_NAME = 120
Reader = Callable[[str], Any]
EXAMPLES = {
    "chart": "::chart runs=3,5 metric=reward/mean",
    "group": "::group run=3 step=40 prompt=7",
    "compare": "::compare runs=3,5",
    "table": "::table runs=3,5 metrics=reward/mean,kl/mean",
    "mismatch": "::mismatch run=3 step=40",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    kind: str
    options: dict[str, str] = field(default_factory=dict)
    pin: int | None = None  # the number of the pinned data; None: current data
    wants_pin: bool = False
    problem: str = ""  # why the block cannot be shown

    @property
    def line(self) -> str:
        """The line in the text."""
        words = [f"::{self.kind}"]
        words += [
            f"{k}={quote(v, safe=WRITTEN_PLAIN)}" for k, v in self.options.items()
        ]
        if self.pin is not None:
            words.append(f"pin={self.pin}")
        elif self.wants_pin:
            words.append("pin")
        return " ".join(words)

    @property
    def live(self) -> Block:
        return replace(self, pin=None, wants_pin=False)


def split_text(text: str) -> Iterator[str | Block]:
    """Text and blocks in turn; lines inside fenced code are text.

    >>> [str(part) for part in split_text("a\\nb")]
    ['a\\nb']
    """
    prose: list[str] = []
    for line, is_code in read_lines(text):
        block = None if is_code else read_block(line)
        if block is None:
            prose.append(line)
            continue
        if any(prose):
            yield "\n".join(prose)
        prose = []
        yield block
    if any(prose):
        yield "\n".join(prose)


def list_blocks(text: str) -> list[Block]:
    return [part for part in split_text(text) if isinstance(part, Block)]


def replace_blocks(text: str, blocks: list[Block]) -> str:
    """Replace the text's blocks, in order."""
    rest = iter(blocks)
    lines = []
    for line, is_code in read_lines(text):
        if is_code or read_block(line) is None:
            lines.append(line)
        else:
            block = next(rest)
            lines.append(line if block.problem else block.line)
    assert next(rest, None) is None
    return "\n".join(lines)


def read_lines(text: str) -> Iterator[tuple[str, bool]]:
    """Read each line, and whether it belongs to fenced code."""
    fence = ""
    for line in text.split("\n"):
        match = FENCE.match(line)
        if fence:
            yield line, True
            closes = match and match[1].startswith(fence) and not line.strip("`~ ")
            fence = "" if closes else fence
        else:
            fence = match[1] if match else ""
            yield line, bool(match)


def read_block(line: str) -> Block | None:
    match = LINE.match(line)
    if match is None:
        return None
    kind, words = match[1], (match[2] or "").split()
    if kind not in KINDS:
        kinds = ", ".join(f"::{name}" for name in KINDS)
        return Block(kind=kind, problem=f"Unknown block ::{kind}. Use one of {kinds}.")
    options: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and name != "pin":
            return Block(
                kind=kind,
                problem=f"{word!r} is not an option. Write options as name=value.",
            )
        options[name] = unquote(value)
    return _with_pin(kind, options)


def _with_pin(kind: str, options: dict[str, str]) -> Block:
    pin = options.pop("pin", None)
    if not pin:
        return Block(kind=kind, options=options, wants_pin=pin is not None)
    if not (pin.isascii() and pin.isdigit() and 0 < int(pin[:9]) < MAX_PIN):
        return Block(
            kind=kind,
            problem=f"pin={pin[:20]} is not a pin. Write pin to pin the current data.",
        )
    return Block(kind=kind, options=options, pin=int(pin[:9]))


def read_runs(text: str) -> list[int]:
    words = dict.fromkeys(word for word in text.split(",") if word)
    runs = [run for run in map(read_whole, words) if run is not None]
    if not 1 <= len(words) <= MAX_RUNS or len(runs) < len(words):
        raise ValueError(f"1 to {MAX_RUNS} run IDs, such as 3,5")
    return runs


def read_count(text: str) -> int:
    number = read_whole(text)
    if number is None:
        raise ValueError("a whole number")
    return number


def read_num_completions(text: str) -> int:
    number = read_count(text)
    if not 1 <= number <= MAX_COMPLETIONS:
        raise ValueError(f"a number from 1 to {MAX_COMPLETIONS}")
    return number


def read_metric(text: str) -> str:
    if not 0 < len(text) <= MAX_NAME:
        raise ValueError("a metric name, such as reward/mean")
    return text


def read_metrics(text: str) -> list[str]:
    names = list(dict.fromkeys(name for name in text.split(",") if name))
    if not 1 <= len(names) <= MAX_METRICS:
        raise ValueError(f"1 to {MAX_METRICS} metric names, such as reward/mean")
    return [read_metric(name) for name in names]


def read_smoothing(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = -1.0
    if not 0 <= weight <= 0.99:
        raise ValueError("a number from 0 to 0.99")
    return weight


def one_of(*choices: str) -> Reader:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return text

    return read


# By kind: the reader of each option and its default; None: it must be given.
CURVE: dict[str, tuple[Reader, str | None]] = {
    "x": (one_of(*AXES), "step"),
    "smooth": (read_smoothing, "0.6"),
    "y": (one_of("linear", "log"), "linear"),
}
OPTIONS: dict[str, dict[str, tuple[Reader, str | None]]] = {
    "chart": {"runs": (read_runs, None), "metric": (read_metric, REWARD), **CURVE},
    "group": {
        "run": (read_count, None),
        "step": (read_count, None),
        "prompt": (read_count, None),
        "completions": (read_num_completions, "8"),
        "sort": (one_of(*(value for value, _ in COMPLETION_ORDERS)), "position"),
    },
    "compare": {"runs": (read_runs, None), "metric": (read_metric, ""), **CURVE},
    "table": {
        "runs": (read_runs, None),
        "metrics": (read_metrics, f"{REWARD},kl/mean,completion/mean_length"),
    },
    "mismatch": {
        "run": (read_count, None),
        "step": (read_count, ""),
        "show": (one_of("table", "chart"), "table"),
    },
}


def read_options(block: Block) -> dict[str, Any]:
    """Read every option of the block's kind; ValueError names the invalid one."""
    if block.problem:
        raise ValueError(block.problem)
    options = OPTIONS[block.kind]
    for name in block.options:
        if name not in options:
            raise ValueError(
                f"::{block.kind} has no option {name[:40]!r}. Its options are "
                f"{', '.join(options)}."
            )
    return {
        name: _read(block, name, reader, default)
        for name, (reader, default) in options.items()
    }


def _read(block: Block, name: str, reader: Reader, default: str | None) -> Any:
    text = block.options.get(name, default)
    example = f"For example: {EXAMPLES[block.kind]}"
    if text is None:
        raise ValueError(f"::{block.kind} requires {name}. {example}")
    if text == "" and default == "":
        return ""
    try:
        return reader(text)
    except ValueError as error:
        message = f"{name} must be {error}; got {text[:60]!r}."
        raise ValueError(f"{message} {example}") from None


# The runs that a block names.


def find_runs(team: Team, ids: Sequence[int]) -> tuple[list[Run], list[str]]:
    """Find the team's runs in this order, and write a message for each missing one.
    Three queries.
    """
    by_id = (
        Run.objects.kept()
        .filter(team=team)
        .select_related("dataset_version__dataset", "recipe_version__recipe")
        .prefetch_related("evaluation_sets__dataset_version__dataset")
        .in_bulk(ids)
    )
    missing = [f"Run {pk} was not found in this team." for pk in ids if pk not in by_id]
    return [by_id[pk] for pk in ids if pk in by_id], missing


def describe_runs(runs: Sequence[Run]) -> list[dict[str, Any]]:
    styles = line_styles(run.pk for run in runs)
    return [
        {
            "id": run.pk,
            "name": run.name,
            "colour": styles[run.pk].colour,
            "dash": styles[run.pk].dash,
            "state": run.state,
            "step": run.last_step,
            "num_steps": run.num_steps,
        }
        for run in runs
    ]


def newest_of(runs: Sequence[Run]) -> dict[str, Any]:
    """Tell how new what a block shows is."""
    return {
        "newest_step": max((run.last_step for run in runs), default=None),
        "is_going_on": any(not run.has_ended for run in runs),
    }


class InsertForm(FilterForm):
    """The block that is to be written, as far as it is chosen."""

    defaults: ClassVar[dict[str, Any]] = {"kind": "chart", "metric": REWARD, "q": ""}

    kind = forms.ChoiceField(required=False, choices=[(kind, kind) for kind in KINDS])
    q = forms.CharField(required=False, max_length=200)
    metric = forms.CharField(required=False, max_length=120)
    step = forms.IntegerField(required=False, min_value=0, max_value=2**31 - 1)
    group = forms.CharField(required=False, max_length=40)
    pinned = forms.BooleanField(required=False)
