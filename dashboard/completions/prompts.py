"""The prompts of a run: filtered, and as rows of a table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from django.db.models.functions import Right
from django.utils.safestring import SafeString

from dashboard.completions.models import Group
from dashboard.completions.pass_rates import (
    KINDS,
    NONE,
    Counts,
    Kind,
    Tallies,
    count_bins,
    count_prompts,
    select,
    select_kind,
    sort,
    tally,
)
from dashboard.completions.prompt_forms import PromptFilterForm
from dashboard.completions.prompt_visits import (
    NUM_LAST,
    Span,
    Visits,
    find_span,
    grade,
    read_visits,
)
from dashboard.completions.rewards import correct_if, why_nothing_is_right
from dashboard.completions.sparklines import Scale, draw_sparkline
from dashboard.datasets.models import DatasetRow
from dashboard.datasets.selections import source_of
from dashboard.project.database import FixedQuery
from dashboard.runs.models import Run

MAX_BARS = 40
SNIPPET_CHARS = 160
SHARES = Scale(low=0.0, high=1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptLine:
    row: DatasetRow | None  # None: deleted in the database
    position: int
    num_seen: int
    last_step: int
    num_scored: int
    num_right: int
    change: float | None  # in percentage points
    solved_at: int | None
    forgotten_at: int | None
    kind: Kind
    strip: SafeString

    @property
    def text(self) -> str:
        assert self.row
        return shorten(self.row.question)

    @property
    def percent(self) -> str:
        return percent(self.num_right, self.num_scored)

    @property
    def share(self) -> float:
        return self.num_right / self.num_scored if self.num_scored else 0.0


class Prompted(Protocol):
    """A group, or another object with its prompt."""

    @property
    def prompt_index(self) -> int: ...
    @property
    def prompt(self) -> str: ...


def read_snippets(run: Run, groups: Iterable[Prompted]) -> dict[int, str]:
    """Read one line of each group's prompt, by prompt. One query.

    A prompt as sampled begins with the chat template's special tokens and its system
    message, which are equal in all rows: without the dataset's row, show its end.
    """
    prompts = {group.prompt_index: group.prompt for group in groups}
    version = run.dataset_version
    stored = version.rows.filter(position__in=prompts) if version else ()
    questions = {row.position: row.question for row in stored}
    return {
        index: _end_of(prompt)
        if questions.get(index, prompt) == prompt
        else shorten(questions[index])
        for index, prompt in prompts.items()
    }


_row_at = FixedQuery(
    lambda version, position: DatasetRow.objects.filter(
        version=version, position=position
    )
)


def read_question(run: Run, group: Prompted) -> str:
    """Read the prompt as the dataset has it, or else as it was sampled. One query."""
    version = run.dataset_version_id
    row = _row_at.first(version, group.prompt_index) if version else None
    return row.question if row else group.prompt


class _Prompted(NamedTuple):
    prompt_index: int
    prompt: str


def read_snippets_of(run: Run, group_ids: Iterable[int]) -> dict[int, str]:
    """Read snippets by prompt, of groups without their prompts. Two queries."""
    end = Right("prompt", 8 * SNIPPET_CHARS)
    ends = Group.objects.filter(pk__in=group_ids).values_list("prompt_index", end)
    return read_snippets(run, [_Prompted(*end) for end in ends])


def shorten(text: str) -> str:
    """Cut to the beginning, on one line."""
    line = " ".join(text[: 8 * SNIPPET_CHARS].split())
    return line if len(line) <= SNIPPET_CHARS else f"{line[: SNIPPET_CHARS - 1]}…"


def _end_of(text: str) -> str:
    line = " ".join(text[-8 * SNIPPET_CHARS :].split())
    return line if len(line) <= SNIPPET_CHARS else f"…{line[1 - SNIPPET_CHARS :]}"


def percent(num_right: int, num_scored: int) -> str:
    return f"{100 * num_right / num_scored:.3g}"


def make_lines(run: Run, tallies: Sequence[Any], visits: Visits) -> list[PromptLine]:
    """Describe prompts in lines. One query. `visits` by prompt and step."""
    positions = [int(tally_["prompt"]) for tally_ in tallies]
    version = run.dataset_version
    stored = version.rows.filter(position__in=positions) if version else ()
    rows = {row.position: row for row in stored}
    starts = np.searchsorted(visits["prompt"], positions)
    ends = np.searchsorted(visits["prompt"], positions, side="right")
    return [
        _make_line(tally_, rows.get(position), visits[start:end])
        for tally_, position, start, end in zip(
            tallies, positions, starts, ends, strict=True
        )
    ]


def _make_line(tally: Any, row: DatasetRow | None, visits: Visits) -> PromptLine:
    change = float(tally["change"])
    # One bar per visit, of the height of its pass rate; many visits are pooled.
    counts = [
        (int(p["num_right"].sum()), int(p["num_scored"].sum()))
        for p in np.array_split(visits, min(len(visits), MAX_BARS))
    ]
    shares = [right / scored if scored else None for right, scored in counts]
    return PromptLine(
        row=row,
        position=int(tally["prompt"]),
        num_seen=int(tally["num_seen"]),
        last_step=int(tally["last_step"]),
        num_scored=int(tally["num_scored"]),
        num_right=int(tally["num_right"]),
        change=None if math.isnan(change) else 100 * change,
        solved_at=_step(tally["solved_at"]),
        forgotten_at=_step(tally["forgotten_at"]),
        kind=KINDS[tally["kind"]],
        strip=draw_sparkline(shares, [False] * len(shares), SHARES).svg(
            _describe(visits)
        ),
    )


def _step(step: Any) -> int | None:
    return None if step == NONE else int(step)


def _describe(visits: Visits) -> str:
    scored = visits[visits["num_scored"] > 0]
    if not len(scored):
        return "Pass rate: correctness unknown"
    shares = scored["num_right"] / scored["num_scored"]
    if len(scored) == 1:
        return f"Pass rate in 1 group: {100 * shares[0]:.3g}%"
    named = {
        "first": shares[0],
        "last": shares[-1],
        "lowest": shares.min(),
        "highest": shares.max(),
    }
    message = ", ".join(f"{name} {100 * share:.3g}%" for name, share in named.items())
    return f"Pass rate in {len(scored):,} groups: {message}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    span: Span | None = None
    visits: Visits | None = None
    counts: Counts | None = None
    bins: list[tuple[float, float, int]] = field(default_factory=list)
    chosen: Tallies | None = None  # None: no prompt matches
    correct_if: str = ""
    problem: str = ""


def find_prompts(run: Run, form: PromptFilterForm) -> Found:
    span = find_span(run, first=form.value("first_step"), last=form.value("last_step"))
    if span is None or form.errors or run.dataset_version is None:
        return Found(span=span)
    visits = read_visits(run, span)
    # An external trainer may number its prompts freely.
    visits = visits[: np.searchsorted(visits["prompt"], run.dataset_version.num_rows)]
    tallies = tally(visits, num_last=form.value("visits"))
    chosen = _choose(tallies, form)
    return Found(
        span=span,
        visits=visits,
        counts=count_prompts(tallies),
        bins=count_bins(tallies),
        chosen=sort(chosen, form.value("sort")) if len(chosen) else None,
        correct_if=correct_if(run, span.last),
        problem=why_nothing_is_right(run, span.last),
    )


def pass_rate_lines(run: Run) -> Iterator[str]:
    """Write the pass rate of each prompt's last groups, for a curriculum to start."""
    span = find_span(run, first=None, last=None)
    if span is None:
        return
    rates = tally(grade(run, read_visits(run, span)), num_last=NUM_LAST)
    columns = rates[rates["num_scored"] > 0][["prompt", "num_right", "num_scored"]]
    for row, num_right, num_scored in columns.tolist():
        right = round(num_right, 4)
        rate = {"row": row, "num_right": right, "num_scored": num_scored}
        yield json.dumps(rate) + "\n"


def _choose(tallies: Tallies, form: PromptFilterForm) -> Tallies:
    if form.kind:
        return select_kind(tallies, form.kind)
    if form.bounds is None:
        return tallies
    low, high = form.bounds
    return select(tallies, low=low, high=high)


def source_of_prompts(run: Run, form: PromptFilterForm, found: Found) -> dict[str, Any]:
    assert found.span
    assert run.dataset_version
    return source_of(
        run.dataset_version,
        kind="run",
        query=form.query_of(found.span),
        how=f"{form.words} in {run.name}, {form.span_words(found.span)}",
        run_id=run.pk,
        run=run.name,
        first_step=found.span.first,
        last_step=found.span.last,
    )
