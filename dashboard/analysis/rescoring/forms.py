"""The forms of rescorings: every field is a query parameter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms

from dashboard.accounts.models import Team
from dashboard.completions.forms import FilterForm
from dashboard.project.forms import (
    LARGEST,
    number_field,
    row_field,
    select_field,
    set_choices,
)
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.models import Run

OWN = "own"
SORTS = [
    ("rank", "largest rank change first"),
    ("advantage", "largest advantage change first"),
    ("reward", "largest reward change first"),
]
SHOWN = [("moved", "rank changed"), ("all", "all")]
FIELDS = ("first_step", "last_step", "every")


class ChoiceForm(forms.Form):
    """The run and the recipe."""

    run = row_field("Run", "Choose a run", required=False)
    recipe = select_field("Reward", required=False)

    def __init__(self, team: Team, data: Mapping[str, Any]) -> None:
        super().__init__({name: data.get(name, "") for name in self.base_fields})
        set_choices(self, "run", Run.objects.kept().filter(team=team).order_by("-id"))
        self._versions = RecipeVersion.objects.filter(recipe__team=team)
        versions = [
            (str(version.pk), str(version))
            for version in self._versions.select_related("recipe").order_by(
                "recipe__name", "-number"
            )
        ]
        set_choices(self, "recipe", [(OWN, "The run's reward"), *versions])

    @property
    def chosen_run(self) -> Run | None:
        self.is_valid()
        run: Run | None = self.cleaned_data.get("run")
        return run

    @property
    def version(self) -> RecipeVersion | None:
        self.is_valid()
        choice = self.cleaned_data.get("recipe") or OWN
        return None if choice == OWN else self._versions.get(pk=choice)


class StepsForm(FilterForm):
    """The steps to score, and every how many of them."""

    first_step = number_field(
        "First step", 0, required=False, help_text="Empty: the first stored step."
    )
    last_step = number_field(
        "Last step", 0, required=False, help_text="Empty: the last stored step."
    )
    every = number_field(
        "Step interval",
        1,
        required=False,
        help_text="1: every stored step. 10: every tenth.",
    )

    def __init__(self, data: Mapping[str, Any]) -> None:
        super().__init__({"every": "1"} | {n: data[n] for n in FIELDS if n in data})

    @property
    def chosen(self) -> dict[str, int | None]:
        """Invalid fields are None, as if empty."""
        self.is_valid()
        data = self.cleaned_data
        return {
            "first_step": data.get("first_step"),
            "last_step": data.get("last_step"),
            "every": data.get("every") or 1,
        }

    @property
    def params(self) -> dict[str, int]:
        """Query parameters that differ from the defaults."""
        return {
            name: value
            for name, value in self.chosen.items()
            if value is not None and (name, value) != ("every", 1)
        }


class ChangesForm(forms.Form):
    """The completions that the result's table shows."""

    show = forms.ChoiceField(label="Completions", required=False, choices=SHOWN)
    sort = forms.ChoiceField(label="Order", required=False, choices=SORTS)
    page = forms.IntegerField(required=False, min_value=1, max_value=LARGEST)

    def __init__(self, data: Mapping[str, Any]) -> None:
        defaults: dict[str, Any] = {"show": "moved", "sort": "rank", "page": 1}
        super().__init__({name: data.get(name) or defaults[name] for name in defaults})
        for name in ("show", "sort"):
            attrs = self.fields[name].widget.attrs
            attrs["class"] = "form-select form-select-sm"
        self.is_valid()
        self.chosen = defaults | self.cleaned_data  # invalid fields have their defaults
