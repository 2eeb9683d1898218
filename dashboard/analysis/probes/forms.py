"""Which samples the reward editor shows: every field is a parameter of its address."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.db.models import QuerySet

from dashboard.accounts.models import Team
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.queries import list_versions
from dashboard.project.forms import (
    LARGEST,
    float_field,
    number_field,
    row_field,
    select_field,
    set_choices,
    text_input,
)
from dashboard.rewards.checks import reads_row
from dashboard.rewards.models import RewardRecipe
from dashboard.runs.launch.base_models import StarterModel
from dashboard.runs.models import Run
from trainer.config import AdvantageConfig
from trainer.rewards.spec import Recipe

AS_SET = "Empty: the model's setting."
MAX_TOKENS = 131_072
MAX_ROWS = 12
MAX_READ = 10  # dataset versions whose first row is read for a default
MAX_OFFERED = 100  # runs, datasets or tests in a menu
DEFAULT_ROWS = "0-3"
PASTED, FROM_RUN, FROM_PROBE, OWN = "pasted", "run", "probe", "own"
RANGES = re.compile(
    r"\s*\d{1,10}(\s*-\s*\d{1,10})?(\s*,\s*\d{1,10}(\s*-\s*\d{1,10})?)*\s*"
)
STEPS = re.compile(r"\s*(\d{1,10})(?:\s*-\s*(\d{1,10}))?\s*")


def _text_field(label: str, max_length: int, hint: str) -> forms.CharField:
    return forms.CharField(
        label=label,
        required=False,
        max_length=max_length,
        widget=text_input(autocomplete="off", placeholder=hint),
    )


class ChoiceForm(forms.Form):
    """The rows, whose completions, and how they are compared."""

    dataset = row_field("Dataset", None, required=False)
    source = select_field(
        "Samples",
        required=False,
        choices=[
            (FROM_RUN, "A run"),
            (FROM_PROBE, "A test"),
            (PASTED, "Dataset rows"),
            (OWN, "Your own row"),
        ],
    )
    rows = _text_field("Rows", 200, f"0-3, 17 (up to {MAX_ROWS})")
    run = row_field("Run", "Choose a run", required=False)
    steps = _text_field("Steps", 24, "last, 40 or 40-60")
    probe = row_field("Test", "Choose a test", required=False)
    baseline = select_field(
        "Baseline",
        required=False,
        choices=[
            ("mean", "the group's mean"),
            ("leave_one_out", "leave-one-out mean"),
            ("none", "none"),
        ],
    )
    scale = select_field(
        "Scale by",
        required=False,
        choices=[
            ("group_std", "group standard deviation"),
            ("batch_std", "batch standard deviation"),
            ("mean", "the group's mean"),
            ("none", "none"),
        ],
    )

    def __init__(self, team: Team, data: Mapping[str, Any]) -> None:
        # A link may have only a run or a probe, which implies the source.
        implied = FROM_RUN if data.get("run") else PASTED
        implied = FROM_PROBE if data.get("probe") else implied
        values = {name: data[name] for name in self.base_fields if name in data}
        super().__init__({**values, "source": data.get("source") or implied})
        versions, runs = list_versions(team), Run.objects.kept().filter(team=team)
        probes = team.probes.filter(checkpoint=None)
        self._offer("dataset", versions)
        self._offer("run", runs.order_by("-id"), "name")
        self._offer("probe", probes.order_by("-id"), "id")
        self.newest = versions.first()

    def _offer(self, name: str, rows: QuerySet[Any], *columns: str) -> None:
        """Any of them may be chosen; the menu has the newest and the chosen one."""
        set_choices(self, name, rows)
        field = self.fields[name]
        assert isinstance(field, forms.ModelChoiceField)

        def offered() -> list[tuple[Any, str]]:
            newest = list(
                rows.only("id", *columns)[:MAX_OFFERED]
                if columns
                else rows[:MAX_OFFERED]
            )
            chosen = self.chosen.get(name)
            others = [chosen] if chosen and chosen not in newest else []
            empty = [("", str(field.empty_label))] if field.empty_label else []
            return [*empty, *((row.pk, str(row)) for row in (*newest, *others))]

        field.choices = offered  # asked for when it is drawn

    def clean_rows(self) -> list[int]:
        """Positions; [] where none are named."""
        text: str = self.cleaned_data["rows"]
        if not text.strip():
            return []
        if not RANGES.fullmatch(text):
            raise forms.ValidationError(
                f"Rows must be numbers or ranges such as 0-3, 17; got “{text}”."
            )
        positions: list[int] = []
        for part in text.split(","):
            first, _, last = part.partition("-")
            low, high = int(first), int(last or first)
            if max(low, high) > LARGEST:
                raise forms.ValidationError(f"Row {max(low, high):,} does not exist.")
            positions += range(low, min(high, low + MAX_ROWS) + 1)
        return sorted(set(positions))

    def clean_steps(self) -> tuple[int, int] | None:
        """Return the first and the last step; None where none are named."""
        text: str = self.cleaned_data["steps"]
        if not text.strip():
            return None
        match = STEPS.fullmatch(text)
        if match is None or int(match[2] or match[1]) > LARGEST:
            raise forms.ValidationError(
                f"Steps must be a number or a range such as 40-60; got “{text}”."
            )
        return int(match[1]), int(match[2] or match[1])

    @property
    def chosen(self) -> dict[str, Any]:
        """The choices, with defaults where nothing is chosen."""
        self.is_valid()  # invalid fields are missing from cleaned_data
        data = self.cleaned_data
        run, probe = data.get("run"), data.get("probe")
        source = data.get("source") or PASTED
        of_source = {FROM_RUN: run, FROM_PROBE: probe}.get(source)
        version = of_source.dataset_version if of_source else data.get("dataset")
        return {
            "dataset": version or self.newest,
            "source": source,
            "rows": data.get("rows") or [],
            "run": run,
            "steps": data.get("steps"),
            "probe": probe,
            "baseline": data.get("baseline") or "mean",
            "scale": data.get("scale") or "group_std",
        }

    @property
    def named(self) -> set[str]:
        """The fields with a valid value of their own."""
        self.is_valid()
        return {name for name, value in self.cleaned_data.items() if value}

    @property
    def rows_of(self) -> DatasetVersion | None:
        """The dataset that the samples are of; a row of one's own is of none."""
        chosen = self.chosen
        version: DatasetVersion | None = chosen["dataset"]
        return None if chosen["source"] == OWN else version

    @property
    def advantage(self) -> AdvantageConfig:
        chosen = self.chosen
        return AdvantageConfig(baseline=chosen["baseline"], scale=chosen["scale"])

    def address(self, **changes: object) -> str:
        """Return the parameters that reproduce the view, without a question mark."""
        chosen = {**self.chosen, **changes}
        source, rows, steps = chosen["source"], chosen["rows"], chosen["steps"]
        shows_rows = chosen["dataset"] is not None and source != OWN
        params = {
            "dataset": chosen["dataset"].pk if shows_rows else "",
            "source": source,
            "rows": ",".join(map(str, rows)),
            "run": chosen["run"].pk if source == FROM_RUN and chosen["run"] else "",
            "steps": "-".join(map(str, steps)) if source == FROM_RUN and steps else "",
            "probe": (
                chosen["probe"].pk if source == FROM_PROBE and chosen["probe"] else ""
            ),
            "baseline": chosen["baseline"],
            "scale": chosen["scale"],
        }
        defaults = {"source": PASTED, "baseline": "mean", "scale": "group_std"}
        return urlencode(
            {
                name: value
                for name, value in params.items()
                if value not in ("", defaults.get(name))
            }
        )


def default_choice(
    team: Team, recipe: RewardRecipe | None, draft: Recipe | None
) -> dict[str, str]:
    """Return what a form without a choice shows, as its fields.

    The newest run that trained with the recipe; else a dataset whose first row the
    rules can read; else a row of one's own.
    """
    run = (
        Run.objects.kept()
        .filter(
            team=team,
            recipe_version__recipe=recipe,
            last_step__gt=0,
            completions_deleted_at=None,
        )
        .only("id")
        .order_by("-id")
        .first()
        if recipe
        else None
    )
    if run is not None:
        return {"source": FROM_RUN, "run": str(run.pk)}
    newest: dict[int, DatasetVersion] = {}
    for version in list_versions(team)[:MAX_READ]:
        newest.setdefault(version.dataset_id, version)
    for version in newest.values():
        row = version.rows.order_by("position").first()
        if row is not None and (draft is None or reads_row(draft, row)):
            return {"source": PASTED, "dataset": str(version.pk)}
    return {"source": OWN}


class SampleForm(forms.Form):
    """A sampling request: the model, how much, and from where the settings are."""

    model = select_field("Model", required=False)
    model_other = forms.CharField(
        label="Folder or Hub ID",
        required=False,
        max_length=500,
        widget=text_input(css="form-control mono", autocomplete="off"),
    )
    samples = number_field("Completions per row", 1, 64, initial=8)
    prompts = number_field("Prompts per test", 1, 256, initial=32)
    max_new_tokens = number_field(
        "Max new tokens", 1, MAX_TOKENS, required=False, help_text=AS_SET
    )
    temperature = float_field("Temperature", 0.01, 5, required=False, help_text=AS_SET)
    prefix = "sample"

    def __init__(self, starters: list[StarterModel], given: Mapping[str, Any]) -> None:
        super().__init__(given if ("sample-samples" in given) else None)
        titles = [(starter.path, starter.title) for starter in starters]
        choices = [*titles, ("", "Folder or Hub ID")]
        self.fields["model"].initial = choices[0][0]
        set_choices(self, "model", choices)
