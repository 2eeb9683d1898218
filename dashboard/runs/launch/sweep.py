"""Sweeps: runs of one form in which some settings have several values."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from dashboard.project.errors import UserError, code_of
from dashboard.project.schema_forms import SchemaField
from dashboard.runs.config.fields import Problems, all_fields
from dashboard.runs.launch.draft import LaunchDraft
from dashboard.runs.launch.launching import LONGEST_NAME, Launch, check_draft

NUM_ROWS = 4  # settings that may have several values
MAX_RUNS = 50
MAX_VALUES = 2 * MAX_RUNS  # of a setting, before duplicates are reported
RANGE = re.compile(r"(-?\d{1,9})\s*\.\.\s*(-?\d{1,9})")
GRID, PAIRS = "grid", "pairs"
MODES = (
    (GRID, "Every combination"),
    (PAIRS, "Paired: first values together, then second values"),
)


@cache
def sweep_settings() -> dict[str, SchemaField]:
    """Return the settings by title in lower case, in its order."""
    by_title = {setting.title.lower(): setting for setting in all_fields().values()}
    return dict(sorted(by_title.items()))


def _path_of(text: str) -> str:
    """Return the path of a setting that was typed by title, or the text."""
    setting = sweep_settings().get(text.strip().lower())
    return setting.path if setting else text.strip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A setting and its values, as they were typed.

    >>> Row(path="seed", text="0..2, 7").values
    ['0', '1', '2', '7']
    """

    path: str = ""
    text: str = ""

    @property
    def setting(self) -> SchemaField | None:
        return all_fields().get(self.path)

    @property
    def title(self) -> str:
        """The setting's, or what was typed."""
        return self.setting.title if self.setting else self.path

    @property
    def values(self) -> list[str]:
        """UserError if there are more than a sweep may have."""
        values: list[str] = []
        for part in filter(None, map(str.strip, self.text.split(","))):
            span = RANGE.fullmatch(part)
            if span and self.setting and self.setting.kind == "whole":
                first, last = int(span[1]), int(span[2])
                if last - first >= MAX_RUNS:
                    raise _too_many(last - first + 1)
                values += map(str, range(first, last + 1))
            else:
                values.append(part)
            if len(values) > MAX_VALUES:
                raise _too_many(None)
        return values


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    name: str
    values: list[str]
    launch: Launch


@dataclass(kw_only=True, slots=True)
class SweepPlan:
    """The form's section Sweep, and the runs that it plans."""

    rows: list[Row] = field(default_factory=list)
    mode: str = GRID
    problem: str = ""
    problem_code: str = ""
    runs: list[Planned] = field(default_factory=list)

    @classmethod
    def read(cls, post: Mapping[str, Any]) -> SweepPlan:
        return cls(
            rows=[
                Row(
                    path=_path_of(post.get(f"sweep-{n}-path", "")),
                    text=post.get(f"sweep-{n}-values", "").strip().replace("\x00", ""),
                )
                for n in range(1, NUM_ROWS + 1)
            ],
            mode=PAIRS if post.get("sweep_mode") == PAIRS else GRID,
        )

    @property
    def used(self) -> list[Row]:
        return [row for row in self.rows if row.path or row.text]

    @property
    def titles(self) -> list[str]:
        return [row.setting.title for row in self.used if row.setting]

    def plan(self, form: LaunchDraft) -> None:
        """Find its runs, or the problem; each is checked like a single run."""
        self.runs = []
        if not self.used:
            return
        try:
            self.runs = [
                self._planned(form, number, values)
                for number, values in enumerate(self._combine(), 1)
            ]
        except ValueError as error:
            self.problem, self.problem_code = str(error), code_of(error)

    def _combine(self) -> list[tuple[str, ...]]:
        columns = [_values(row) for row in self.used]
        paths = [row.path for row in self.used]
        if twice := next((path for path in paths if paths.count(path) > 1), ""):
            raise UserError(
                "sweeps.duplicate_setting",
                f"{all_fields()[twice].title} is selected twice. Put all its values in "
                "one row.",
            )
        if self.mode == PAIRS and len({len(column) for column in columns}) > 1:
            counts = ", ".join(str(len(column)) for column in columns)
            raise UserError(
                "sweeps.unequal_values",
                f"Paired settings need the same number of values; got {counts}. Add or "
                "remove values, or choose every combination.",
            )
        together = itertools.product if self.mode == GRID else zip
        combinations = list(itertools.islice(together(*columns), MAX_RUNS + 1))
        if len(combinations) > MAX_RUNS:
            raise _too_many(None)
        return combinations

    def _planned(
        self, form: LaunchDraft, number: int, values: tuple[str, ...]
    ) -> Planned:
        name = f"{form.name[: LONGEST_NAME - 3]}-{number}"
        changed = dict(zip((row.path for row in self.used), values, strict=True))
        draft = replace(
            form,
            name=name,
            texts=form.texts | {path: _text(path, v) for path, v in changed.items()},
            eval_sets=deepcopy(form.eval_sets),
            problems=Problems(),
        )
        launch = check_draft(draft)
        if launch is None:
            message = ", ".join(
                f"{all_fields()[path].title} {value}" for path, value in changed.items()
            )
            raise UserError(
                "sweeps.bad_run",
                f"With {message}: {' '.join(draft.problems.messages[:3])}",
            )
        return Planned(name=name, values=list(values), launch=launch)


def _values(row: Row) -> list[str]:
    if row.setting is None:
        raise UserError(
            "sweeps.no_setting",
            f"No setting is called “{row.path[:60]}”. Choose one of the list."
            if row.path
            else f"Choose a setting for the values “{row.text[:60]}”.",
        )
    values = row.values
    if len(values) < 2:
        raise UserError(
            "sweeps.too_few_values",
            f"{row.setting.title} needs at least two values, such as 1e-6, 3e-6 or "
            f"0..4; got “{row.text[:60]}”.",
        )
    same = [
        (value, other)
        for value, other in itertools.combinations(values[: MAX_RUNS + 1], 2)
        if row.setting.is_same(value, other)
    ]
    if same:
        raise UserError(
            "sweeps.duplicate_value",
            f"{row.setting.title} has the value {same[0][1]} twice. Remove one.",
        )
    return values


def _text(path: str, value: str) -> str:
    """Return it as the form's own control would send it."""
    if all_fields()[path].kind != "switch":
        return value
    if value not in ("on", "off"):
        raise UserError(
            "sweeps.not_a_switch",
            f"{all_fields()[path].title} must be on or off; got “{value}”.",
        )
    return "on" if value == "on" else ""


def _too_many(count: int | None) -> UserError:
    seen = f"{count:,} runs" if count else f"more than {MAX_RUNS} runs"
    return UserError(
        "sweeps.too_many_runs",
        f"The sweep has {seen}; at most {MAX_RUNS} are allowed. Use fewer values.",
    )


def describe_sweep(post: Mapping[str, Any], form: LaunchDraft) -> dict[str, Any]:
    sweep = SweepPlan.read(post)
    if sweep.used and not form.problems:
        sweep.plan(form)
    return {
        "sweep": sweep,
        "sweep_settings": sweep_settings(),
        "sweep_modes": MODES,
        "sweep_limit": MAX_RUNS,
    }
