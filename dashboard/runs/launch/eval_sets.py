"""The evaluation sets of a launch form: dataset versions, and rows trained on."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from django.utils.text import slugify
from pydantic import ValidationError

from dashboard.datasets.analysis.leaks import KINDS, find_leak
from dashboard.datasets.models import DatasetVersion, VersionLeak
from dashboard.datasets.splits import other_split
from dashboard.project.database import read_whole
from dashboard.runs.models import EvaluationSet
from dashboard.runs.queries import eval_rows
from trainer.config import EvaluationConfig

MAX_SETS = 20
LONGEST_NAME = 40
PARTS = ("dataset", "name", "max_rows")  # of a control's name: eval-1-dataset
MOST_ROWS = 2**31 - 1
# Of leaked rows, by kind.
WORDS = {
    "exact": "with the same prompt",
    "words": "with the same words",
    "near": "nearly the same",
}


class Finder(Protocol):
    def find_dataset(self, pk: str) -> DatasetVersion | None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenSet:
    """A valid evaluation set of the form."""

    name: str
    version: DatasetVersion
    max_rows: int | None

    @property
    def num_rows(self) -> int:
        there = self.version.num_rows
        return there if self.max_rows is None else min(self.max_rows, there)


@dataclass(kw_only=True, slots=True)
class SetDraft:
    """A row of the form: its texts and their errors."""

    number: int  # from 1
    dataset: str = ""  # id of a version
    name: str = ""
    max_rows: str = ""
    version: DatasetVersion | None = None
    default_name: str = ""  # if none is typed
    errors: dict[str, list[str]] = field(default_factory=dict)

    @property
    def effective_name(self) -> str:
        return self.name or self.default_name

    @property
    def num_rows(self) -> int | None:
        """The rows used; None: nothing is chosen yet, or the number is invalid."""
        if self.version is None or (self.max_rows and not self._count):
            return None
        return min(self._count or self.version.num_rows, self.version.num_rows)

    @property
    def _count(self) -> int:
        number = read_whole(self.max_rows.replace(",", ""), digits=10)
        return min(number or 0, MOST_ROWS)

    @property
    def controls(self) -> dict[str, str]:
        return {
            f"eval-{self.number}-{part}": text
            for part in PARTS
            if (text := getattr(self, part))
        }

    def choose(self) -> ChosenSet | None:
        """Check it; None if invalid, with the errors kept."""
        self.errors = {}
        if self.version is None:
            self.errors["dataset"] = [
                "This dataset was deleted or is in the trash. Choose another one, or "
                "remove the set."
                if self.dataset
                else "Choose a dataset version, or remove the set."
            ]
        elif sentence := _refuse_name(self.effective_name):
            self.errors["name"] = [sentence]
        if self.max_rows and not self._count:
            self.errors["max_rows"] = [
                f"Max rows must be a whole number above 0; got “{self.max_rows}”."
            ]
        if self.version is None or self.errors:
            return None
        return ChosenSet(
            name=self.effective_name,
            version=self.version,
            max_rows=self._count or None,
        )


def _refuse_name(name: str) -> str:
    try:
        EvaluationConfig(sets={name: eval_rows(name)})
    except ValidationError as error:
        return str(error.errors()[0]["ctx"]["error"])
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Leak:
    held_out: DatasetVersion
    trained_on: DatasetVersion
    found: VersionLeak | None = None  # None: both are the same version

    @property
    def is_known(self) -> bool:
        return self.found is None or self.found.is_done

    @property
    def counts(self) -> dict[str, int]:
        if self.found is None:
            return {"exact": self.held_out.num_rows}
        result = self.found.result or {}
        return {kind: result.get(kind, 0) for kind in KINDS}

    @property
    def num_rows(self) -> int:
        return sum(self.counts.values())

    @property
    def sentence(self) -> str:
        total = self.held_out.num_rows
        if self.found is None:
            return f"{self.held_out} is the training dataset: all {total:,} rows leak."
        if not self.num_rows:
            return f"{self.trained_on} contains no row of {self.held_out}."
        named = [
            f"{count:,} {WORDS[kind]}" for kind, count in self.counts.items() if count
        ]
        return (
            f"{self.trained_on} contains {self.num_rows:,} of the {total:,} rows of "
            f"{self.held_out}: {', '.join(named)}."
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalRow:
    draft: SetDraft
    leak: Leak | None
    is_new: bool = False  # the focus goes there


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalSection:
    rows: list[EvalRow]
    suggestion: DatasetVersion | None  # the other half of a split
    was_removed: bool = False

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= MAX_SETS

    @property
    def max_sets(self) -> int:
        return MAX_SETS

    @property
    def is_held_out_half(self) -> bool:
        return bool(self.suggestion and self.suggestion.source.get("part") == "eval")


def read_drafts(form: Mapping[str, Any], choices: Finder) -> list[SetDraft]:
    """Return the rows of a form or an address, renumbered."""
    numbers = [n for n in range(1, MAX_SETS + 1) if f"eval-{n}-dataset" in form]
    texts = (
        {part: form.get(f"eval-{n}-{part}", "").strip() for part in PARTS}
        for n in numbers
    )
    return number_drafts([SetDraft(number=0, **row) for row in texts], choices)


def drafts_of(sets: Iterable[EvaluationSet], choices: Finder) -> list[SetDraft]:
    """Return the rows of a run that is cloned."""
    return number_drafts(
        [
            SetDraft(
                number=0,
                dataset=str(chosen.dataset_version_id),
                name=chosen.name,
                max_rows="" if chosen.max_rows is None else str(chosen.max_rows),
            )
            for chosen in sets
        ],
        choices,
    )


def number_drafts(drafts: list[SetDraft], choices: Finder) -> list[SetDraft]:
    taken: set[str] = {draft.name for draft in drafts if draft.name}
    for number, draft in enumerate(drafts, start=1):
        draft.number = number
        draft.version = choices.find_dataset(draft.dataset)
        if draft.version:
            draft.default_name = _free_name(draft.version.dataset.name, number, taken)
            taken.add(draft.effective_name)
    return drafts


def _free_name(dataset: str, number: int, taken: Collection[str]) -> str:
    """
    >>> _free_name("Sums, eval", 1, set())
    'sums_eval'
    """
    name = re.sub("_+", "_", slugify(dataset).replace("-", "_")).strip("_")
    name = name[:LONGEST_NAME]
    if name and name != "heldout" and name not in taken:
        return name
    end = f"_{number}"
    return (name or "set")[: LONGEST_NAME - len(end)] + end


def choose_sets(drafts: list[SetDraft], *, taken: Collection[str]) -> list[ChosenSet]:
    """Return the valid ones; `taken`: names of other evaluation sets of the run."""
    chosen: list[ChosenSet] = []
    names = set(taken)
    for draft in drafts:
        valid = draft.choose()
        if valid is None:
            continue
        if valid.name in names:
            draft.errors["name"] = [
                f"Two evaluation sets are named “{valid.name}”. Rename one."
            ]
            continue
        names.add(valid.name)
        chosen.append(valid)
    return chosen


def describe_sets(
    drafts: list[SetDraft], trained_on: DatasetVersion | None, action: str = ""
) -> EvalSection:
    """Check for leaks, which may take part of a second for each set."""
    return EvalSection(
        rows=[
            EvalRow(
                draft=draft,
                leak=check_leak(draft.version, trained_on)
                if draft.version and trained_on
                else None,
                is_new=action.startswith("add") and draft is drafts[-1],
            )
            for draft in drafts
        ],
        suggestion=suggest_set(drafts, trained_on),
        was_removed=action.startswith("remove"),
    )


def suggest_set(
    drafts: list[SetDraft], trained_on: DatasetVersion | None
) -> DatasetVersion | None:
    """Return the other half of the training dataset's split, if no set uses it yet."""
    if trained_on is None:
        return None
    half = other_split(trained_on)
    return None if half in {draft.version for draft in drafts} else half


def change_sets(
    drafts: list[SetDraft],
    trained_on: DatasetVersion | None,
    choices: Finder,
    action: str,
) -> list[SetDraft]:
    """Add one (the suggested set, else a blank row), or remove the one of a number."""
    verb, _, argument = action.partition(":")
    if verb == "add" and len(drafts) < MAX_SETS:
        half = suggest_set(drafts, trained_on)
        drafts = [*drafts, SetDraft(number=0, dataset=str(half.pk) if half else "")]
    elif verb == "remove":
        drafts = [draft for draft in drafts if str(draft.number) != argument]
    return number_drafts(drafts, choices)


def check_leak(held_out: DatasetVersion, trained_on: DatasetVersion) -> Leak:
    """Checks now if there are few rows, else queues a job."""
    if held_out == trained_on:
        return Leak(held_out=held_out, trained_on=trained_on)
    return Leak(
        held_out=held_out, trained_on=trained_on, found=find_leak(held_out, trained_on)
    )


def stored_leak(held_out: DatasetVersion, trained_on: DatasetVersion) -> Leak | None:
    """Find the stored result; one query."""
    if held_out == trained_on:
        return Leak(held_out=held_out, trained_on=trained_on)
    result = (
        VersionLeak.objects.defer(*KINDS)
        .filter(held_out=held_out, trained_on=trained_on, result__isnull=False)
        .first()
    )
    if result is None:
        return None
    return Leak(held_out=held_out, trained_on=trained_on, found=result)
