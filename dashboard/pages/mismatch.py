"""The gap between a run's sampler and trainer, and what a correction would do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import urlencode

import numpy as np
from django import forms
from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe
from pydantic import ValidationError

from dashboard.accounts.access import get_membership, look_up
from dashboard.accounts.models import Team
from dashboard.analysis.mismatch.advice import Lab, read_lab
from dashboard.analysis.mismatch.counterfactuals import (
    CANDIDATES,
    TRAINERS,
    Candidate,
    options_elsewhere,
)
from dashboard.analysis.mismatch.figures import (
    draw_completions,
    draw_positions,
    draw_probabilities,
    draw_steps,
)
from dashboard.completions.forms import FilterForm
from dashboard.pages.requests import Request
from dashboard.project.forms import float_field
from dashboard.project.schema_forms import message_of
from dashboard.runs.config.fields import all_fields
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run, settings_of
from trainer.config import LossConfig

CORRECTION = "importance_correction"
SHARES = {
    "masked": "tokens masked",
    "changed": "tokens with another weight",
    "masked_sequences": "completions masked",
}


class MismatchForm(FilterForm):
    """The step and bounds of the page."""

    defaults: ClassVar[dict[str, Any]] = {"share": "masked"}

    step = forms.IntegerField(required=False, min_value=0, max_value=2**31 - 1)
    share = forms.ChoiceField(
        required=False, label="Share of", choices=list(SHARES.items())
    )
    # As the settings of the loss are called.
    importance_correction = forms.ChoiceField(
        required=False,
        label="Correction",
        choices=all_fields()[f"loss.{CORRECTION}"].options,
    )
    importance_cap = float_field("Upper bound", required=False)
    importance_floor = float_field("Lower bound", required=False)
    geometric_mask = float_field("Geometric mask, nats", required=False)
    off_policy_mask = float_field("Off-policy mask, nats", required=False)

    def clean(self) -> dict[str, Any] | None:
        """Refuse bounds that the loss refuses."""
        data = super().clean()
        try:
            LossConfig(**self.changes)
        except ValidationError as error:
            [*_, name] = error.errors()[0]["loc"] or [CORRECTION]
            self.add_error(str(name), message_of(error.errors()[0]))
        if "importance_floor" in self.changes and CORRECTION not in self.changes:
            self.add_error(CORRECTION, "Choose a correction for the lower bound.")
        return data

    @property
    def changes(self) -> dict[str, Any]:
        """Settings of the loss that the address has."""
        names = [name for name in self.fields if name in LossConfig.model_fields]
        values = {name: self.cleaned_data.get(name) for name in names}
        return {
            name: value for name, value in values.items() if value not in (None, "")
        }

    @property
    def own(self) -> list[Candidate]:
        """The correction that the address describes, if it describes one."""
        if self.errors or not self.changes.keys() - {"importance_cap"}:
            return []
        return [Candidate(key="own", title="Own bounds", changes=self.changes)]


@require_safe
@look_up(get_membership, run=get_run)
def run_mismatch(request: Request, team: Team, run: Run) -> HttpResponse:
    """?step=, ?share= and settings of the loss reproduce a view."""
    form = MismatchForm.read(request.GET)
    lab = read_lab(run, form.value("step"), form.own)
    context = {"team": team, "run": run, "tab": "mismatch", "form": form, "lab": lab}
    if lab is None:
        return render(request, "health/mismatch.html", context | {"why": _why(run)})
    loss = LossConfig(**({} if form.errors else form.changes))
    evidence, advised = lab.evidence, lab.advice.candidate
    is_known = evidence.least_rounding == evidence.rounding
    share = form.value("share")
    candidates = [*([advised] if advised else []), *CANDIDATES, *form.own]
    context |= {
        "figures": {
            "steps": draw_steps(
                lab.totals,
                lab.mismatch.ages,
                rounding=evidence.rounding if is_known else None,
            ),
            "positions": draw_positions(lab.mismatch),
            "probabilities": draw_probabilities(lab.mismatch),
            "completions": draw_completions(
                lab.of_step,
                cap=loss.importance_cap,
                geometric=loss.geometric_mask or 0.01,
            ),
        },
        "num_completions": np.count_nonzero(lab.of_step.completions["num_tokens"]),
        "rows": [(row, _launch(team, run, lab, row.settings)) for row in lab.rows],
        "splits": [
            (row.title, [getattr(part, share) for part in row.parts])
            for row in lab.rows
        ],
        "trainers": TRAINERS,
        "elsewhere": {each.title: options_elsewhere(each) for each in candidates},
        "advised_url": _launch(team, run, lab, advised.settings) if advised else "",
    }
    return render(request, "health/mismatch.html", context)


def _launch(team: Team, run: Run, lab: Lab, settings: Mapping[str, Any]) -> str:
    """Write the address of a launch form with the settings changed."""
    today = lab.today or LossConfig()
    former: dict[str, Any] = {}
    if f"loss.{CORRECTION}" in settings:
        # Another surrogate than DPPO's has its ratio against the old policy.
        former["loss.old_logprobs"] = "policy"
    if former and today.is_dppo:
        former["loss.surrogate"] = "clip"
        former |= {"loss.clip_low": 0.2, "loss.clip_high": 0.2}
    changed = {
        path: "" if value is None else value
        for path, value in (former | dict(settings)).items()
        if value != getattr(today, path.removeprefix("loss."))
    }
    if not settings or not changed:
        return ""
    start = {} if run.is_imported else {"clone": run.pk}
    return f"{reverse('run_new', args=[team.slug])}?{urlencode(start | changed)}"


def _why(run: Run) -> str:
    """Say why no step was measured, and what to do about it."""
    config = settings_of(run)
    if config is None:
        return (
            "This run's trainer has not reported the gap. Report it with log_mismatch "
            "of Cohort's client."
        )
    if config.rollout.source == "dataset":
        return "This run samples no completions, so it has no sampler to compare with."
    if not config.logging.mismatch:
        return (
            "This run does not record the gap. Clone it and turn on Log sampler "
            "mismatch, in the section Logging."
        )
    return "No step of this run has been measured yet."
