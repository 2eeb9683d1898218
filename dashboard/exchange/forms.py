"""What an import's page asks before a run is made."""

from __future__ import annotations

import math
from pathlib import PurePath
from typing import Any

from django import forms

from dashboard.exchange.imports.rewards import default_weights
from dashboard.exchange.models import RunImport

WEIGHT = "weight:"


def _input(**attrs: str) -> forms.NumberInput:
    return forms.NumberInput(attrs={"class": "form-control", "step": "any", **attrs})


class MakeForm(forms.Form):
    """The run's name, which columns are rules, what is right, what is left out."""

    name = forms.CharField(
        max_length=80,
        label="Name",
        widget=forms.TextInput(attrs={"class": "form-control"}),
    )
    model = forms.CharField(
        max_length=200,
        required=False,
        label="Model",
        help_text="As the lists of runs show it; the files do not tell.",
        widget=forms.TextInput(attrs={"class": "form-control"}),
    )
    wandb_run = forms.ChoiceField(
        required=False,
        label="Run",
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    right_from = forms.FloatField(
        required=False,
        label="Right from reward",
        help_text="A completion with this reward or more counts as right in pass rates "
        "and prompts. Empty: nobody can tell.",
        widget=_input(),
    )
    computes_advantages = forms.BooleanField(
        required=False,
        label="Compute advantages, which the files lack",
        help_text="(reward − mean) ÷ (deviation + 0.0001) within each group. Otherwise "
        "they are shown as –.",
        widget=forms.CheckboxInput(attrs={"class": "form-check-input"}),
    )
    leave_out = forms.BooleanField(
        required=False, widget=forms.CheckboxInput(attrs={"class": "form-check-input"})
    )

    def __init__(self, run_import: RunImport, data: Any = None) -> None:
        found = run_import.findings
        self.found = found
        self.weights = {
            one["name"]: default_weights(one["tool"], [one["name"]])[one["name"]]
            for one in found["scores"]
        }
        initial = {"name": _proposed_name(found), "right_from": found["highest"]}
        super().__init__(data, initial=initial)
        for name, weight in self.weights.items():
            self.fields[WEIGHT + name] = forms.FloatField(
                required=False,
                label=name,
                initial=weight,
                widget=_input(**{"aria-label": f"Weight of {name}"}),
            )
        self._keep_what_is_asked()

    def _keep_what_is_asked(self) -> None:
        found = self.found
        if not found["num_samples"]:
            del self.fields["right_from"]
        if not found["num_samples"] or found["num_advantages"]:
            del self.fields["computes_advantages"]
        runs = found["wandb_runs"]
        if len(runs) < 2:
            del self.fields["wandb_run"]
        else:
            field = self.fields["wandb_run"]
            assert isinstance(field, forms.ChoiceField)
            field.choices = [(run, run or "(without a name)") for run in runs]
        if found["num_refused"]:
            num, is_one = f"{found['num_refused']:,}", found["num_refused"] == 1
            rows = "row or file that was" if is_one else "rows or files that were"
            self.fields["leave_out"].label = f"Leave out the {num} {rows} refused"
        else:
            del self.fields["leave_out"]

    @property
    def rules(self) -> list[tuple[dict[str, Any], forms.BoundField]]:
        return [(one, self[WEIGHT + one["name"]]) for one in self.found["scores"]]

    def clean(self) -> None:
        for name, value in self.cleaned_data.items():
            if isinstance(value, float) and not math.isfinite(value):
                self.add_error(name, f"Give a finite number; got {value}.")
        if self.found["num_refused"] and not self.cleaned_data.get("leave_out"):
            self.add_error(
                "leave_out",
                f"{self.found['num_refused']:,} rows or files were refused. Correct "
                "them and start again, or leave them out.",
            )

    @property
    def choices(self) -> dict[str, Any]:
        """As the making reads them."""
        given = self.cleaned_data
        runs = self.found["wandb_runs"]
        return {
            "name": given["name"],
            "model": given.get("model") or "not known",
            # Pairs, as JSON in the database keeps no order of names.
            "weights": [[name, given.get(WEIGHT + name)] for name in self.weights],
            "computes_advantages": bool(given.get("computes_advantages")),
            "right_from": given.get("right_from"),
            "leave_out": self.found["num_refused"],
            "wandb_run": given.get("wandb_run") if len(runs) > 1 else None,
        }


def _proposed_name(found: dict[str, Any]) -> str:
    if len(found["wandb_runs"]) == 1 and found["wandb_runs"][0]:
        return str(found["wandb_runs"][0])[:80]
    names = [PurePath(file["name"]).parts[0] for file in found["files"]]
    first = PurePath(names[0]).stem if names else "run"
    return f"{' and '.join(found['tools'])} {first}"[:80]
