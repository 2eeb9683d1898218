"""JSON lines: one object on each line."""

from __future__ import annotations

from collections.abc import Iterator

from dashboard.datasets.parsing.lines import Line, read_lines
from dashboard.datasets.parsing.records import Parsed, Record, refuse_names
from dashboard.datasets.parsing.refusals import Refusal, quote
from dashboard.datasets.parsing.source import Source
from dashboard.datasets.parsing.strict_json import read_json
from dashboard.datasets.parsing.values import Unusable


def read_jsonl(source: Source) -> Iterator[Parsed]:
    for line in read_lines(source, newline=None):
        if line.refusal:
            yield line.refusal
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
            remedy=error.remedy,
        )
    if not isinstance(tree, dict):
        return Refusal(
            line=line.number,
            value=quote(tree),
            problem="The line is not a JSON object.",
            remedy='Write it as an object with named columns, {"prompt": …}.',
        )
    return refuse_names(line.number, list(tree)) or Record(line.number, tree)
