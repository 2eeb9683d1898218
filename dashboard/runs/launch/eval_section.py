"""The launch form's section of evaluation sets: its rows, and what may be added."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.splits import other_half
from dashboard.runs.launch.eval_leaks import Leak, look_for_leak
from dashboard.runs.launch.eval_sets import MAX_SETS, SetDraft, number_drafts
from dashboard.runs.launch.forms import LaunchForm


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


def describe_sets(form: LaunchForm, action: str = "") -> EvalSection:
    """Looks for leaks, which may take part of a second for each set."""
    trained_on = form.dataset_version
    return EvalSection(
        rows=[
            EvalRow(
                draft=draft,
                leak=_leak(draft, trained_on),
                is_new=action.startswith("add") and draft is form.eval_sets[-1],
            )
            for draft in form.eval_sets
        ],
        suggestion=suggest(form),
        was_removed=action.startswith("remove"),
    )


def _leak(draft: SetDraft, trained_on: DatasetVersion | None) -> Leak | None:
    if draft.version is None or trained_on is None:
        return None
    return look_for_leak(draft.version, trained_on)


def suggest(form: LaunchForm) -> DatasetVersion | None:
    """The half that was split off what is trained on, where no set has it yet."""
    if form.dataset_version is None:
        return None
    half = other_half(form.dataset_version)
    used = {draft.version for draft in form.eval_sets}
    return None if half in used else half


def change_sets(form: LaunchForm, action: str) -> None:
    """add (what is suggested, else a blank row), or remove:<number>."""
    verb, _, argument = action.partition(":")
    if verb == "add" and len(form.eval_sets) < MAX_SETS:
        half = suggest(form)
        added = SetDraft(number=0, dataset=str(half.pk) if half else "")
        form.eval_sets = number_drafts([*form.eval_sets, added], form.choices)
    elif verb == "remove":
        kept = [one for one in form.eval_sets if str(one.number) != argument]
        form.eval_sets = number_drafts(kept, form.choices)
