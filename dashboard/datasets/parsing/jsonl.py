"""JSON lines: one object on each line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dashboard.datasets.parsing.lines import Line, read_lines
from dashboard.datasets.parsing.records import Parsed, Record, refuse_names
from dashboard.datasets.parsing.strict_json import read_json
from dashboard.datasets.parsing.values import Unusable
from dashboard.datasets.refusals import Refusal, quote


def read_jsonl(path: Path) -> Iterator[Parsed]:
    for line in read_lines(path, newline=None):
        if isinstance(line, Refusal):
            yield line
        elif line.text.strip():
            yield _record(line)


def _record(line: Line) -> Parsed:
    try:
        tree = read_json(line.text)
    except Unusable as error:
        return Refusal(
            line=line.number,
            value=quote(error.value),
            problem=error.problem,
            remedy=_remedy(line, error),
        )
    if not isinstance(tree, dict):
        return Refusal(
            line=line.number,
            value=quote(tree),
            problem="The line is not a JSON object.",
            remedy='Write it as an object with named columns, {"prompt": …}.',
        )
    return refuse_names(line.number, list(tree)) or Record(line.number, tree)


def _remedy(line: Line, error: Unusable) -> str:
    if line.number == 1 and line.text.strip() in ("[", "{"):
        return (
            "Write each row on a line of its own; jq -c '.[]' turns a list into such "
            "lines."
        )
    return error.remedy
