"""What a block's options may say, each with its default and its sentence of refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dashboard.insights.points import AXES
from dashboard.reports.block_lines import Block
from dashboard.runs.models import REWARD
from dashboard.samples.forms import COMPLETION_ORDERS

MAX_RUNS = 10  # more lines of a chart are told apart by nobody
MAX_COMPLETIONS = 16
MAX_METRICS = 6
MAX_NAME = 120
Reader = Callable[[str], Any]


def read_runs(text: str) -> list[int]:
    words = [word for word in text.split(",") if word]
    runs = list(dict.fromkeys(words))
    if not 1 <= len(runs) <= MAX_RUNS or not all(map(_is_count, words)):
        raise ValueError(f"1 to {MAX_RUNS} numbers of runs, such as 3,5")
    return [int(word) for word in runs]


def read_count(text: str) -> int:
    if not _is_count(text):
        raise ValueError("a whole number")
    return int(text)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


def read_num_completions(text: str) -> int:
    number = read_count(text)
    if not 1 <= number <= MAX_COMPLETIONS:
        raise ValueError(f"a number from 1 to {MAX_COMPLETIONS}")
    return number


def read_metric(text: str) -> str:
    if not 0 < len(text) <= MAX_NAME:
        raise ValueError("the name of a metric, such as reward/mean")
    return text


def read_metrics(text: str) -> list[str]:
    names = list(dict.fromkeys(name for name in text.split(",") if name))
    if not 1 <= len(names) <= MAX_METRICS:
        raise ValueError(f"1 to {MAX_METRICS} names of metrics, such as reward/mean")
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
}
EXAMPLES = {
    "chart": "::chart runs=3,5 metric=reward/mean",
    "group": "::group run=3 step=40 prompt=7",
    "compare": "::compare runs=3,5",
    "table": "::table runs=3,5 metrics=reward/mean,kl/mean",
}


def read_options(block: Block) -> dict[str, Any]:
    """Every option of the block's kind; a ValueError says which cannot be, and why."""
    if block.problem:
        raise ValueError(block.problem)
    known = OPTIONS[block.kind]
    for name in block.options:
        if name not in known:
            raise ValueError(
                f"::{block.kind} has no option {name[:40]!r}, but {', '.join(known)}."
            )
    return {
        name: _read(block, name, reader, default)
        for name, (reader, default) in known.items()
    }


def _read(block: Block, name: str, reader: Reader, default: str | None) -> Any:
    text = block.options.get(name, default)
    example = f"For example: {EXAMPLES[block.kind]}"
    if text is None:
        raise ValueError(f"::{block.kind} needs {name}. {example}")
    if text == "" and default == "":
        return ""
    try:
        return reader(text)
    except ValueError as error:
        said = f"{name} takes {error}; got {text[:60]!r}."
        raise ValueError(f"{said} {example}") from None
