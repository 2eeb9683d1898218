"""A checkpoint test: a checkpoint and its base model answer the same prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.http import Http404

from dashboard.accounts.models import User
from dashboard.analysis.probes.forms import MAX_TOKENS
from dashboard.analysis.probes.models import Probe
from dashboard.analysis.probes.services import (
    config_of_checkpoint,
    settings_at,
    start_probe,
)
from dashboard.datasets.models import DatasetRow, DatasetVersion
from dashboard.project.forms import (
    float_field,
    number_field,
    select_field,
    set_choices,
)
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.checkpoints.listing import list_checkpoints
from dashboard.runs.checkpoints.retention import keep_best
from dashboard.runs.models import Checkpoint, Run
from trainer.rewards.spec import Recipe

MAX_SAMPLES = 16
MAX_CHARS = 50_000
OWN, UNSCORED = "", "none"  # choices in place of a recipe version


class CheckpointTestForm(forms.Form):
    """A checkpoint, a prompt and sampling settings. The query fills it in."""

    checkpoint = select_field("Checkpoint")
    row = number_field("Row", 0, required=False)
    prompt = forms.CharField(
        label="Own prompt",
        required=False,
        max_length=MAX_CHARS,
        strip=False,
        widget=forms.Textarea(
            attrs={
                "class": "form-control mono",
                "rows": 2,
                "placeholder": "Your own prompt, in place of the row",
            }
        ),
    )
    num_samples = number_field("Completions per model", 1, MAX_SAMPLES)
    temperature = float_field("Temperature", 0.01, 5)
    max_new_tokens = number_field("Max new tokens", 1, MAX_TOKENS)
    seed = number_field("Seed", 0, 2**32 - 1)
    recipe = select_field("Reward", required=False)

    def __init__(
        self, run: Run, given: Mapping[str, Any], *, is_sent: bool = True
    ) -> None:
        """Fill it in; a link to a deleted checkpoint gets the best in its place."""
        self.version = tested_version(run)
        self._run = run
        listing = list_checkpoints(run)
        there = {row.checkpoint.name: row for row in listing.kept}
        named = given.get("checkpoint") or ""
        gone = {row.checkpoint.name for row in listing.gone}
        self.deleted = named if named in gone else ""
        best = next((name for name, row in there.items() if row.is_best), None)
        is_kept = named in there or (named and is_sent)
        chosen = named if is_kept else best or next(iter(there), "")
        row = there.get(chosen)
        defaults = _default_settings(run, row.checkpoint) if row else {}
        if "row" not in given and not given.get("prompt"):
            defaults["row"] = 0
        kept = {n: given[n] for n in self.base_fields if given.get(n, "") != ""}
        super().__init__({**defaults, **kept, "checkpoint": chosen})
        self.offered = {
            name: f"step {row.checkpoint.step}{', best' if row.is_best else ''}"
            for name, row in there.items()
        }
        set_choices(self, "checkpoint", list(self.offered.items()))
        self._recipes = RecipeVersion.objects.filter(recipe__team=run.team_id)
        versions = [
            (str(version.pk), str(version))
            for version in self._recipes.select_related("recipe").order_by(
                "recipe__name", "-number"
            )
        ]
        set_choices(
            self,
            "recipe",
            [(OWN, "The run's reward"), (UNSCORED, "None: no scores"), *versions],
        )

    @property
    def row_shown(self) -> DatasetRow | None:
        """The row that is sampled without a prompt; one query."""
        text = str(self.data.get("row", ""))
        return self.version.rows.filter(
            position=int(text) if text.isdecimal() and len(text) < 10 else -1
        ).first()

    @property
    def settings(self) -> list[forms.BoundField]:
        return [field for field in self if field.name not in ("row", "prompt")]

    @property
    def has_wrong_settings(self) -> bool:
        return any(field.errors for field in self.settings)

    @property
    def summary(self) -> list[str]:
        """The settings, in words."""
        data = self.data
        return [
            self.offered.get(str(data.get("checkpoint")), ""),
            f"{data.get('num_samples')} completions a model",
            f"temperature {data.get('temperature')}",
            f"at most {data.get('max_new_tokens')} tokens",
        ]

    def clean_prompt(self) -> str:
        text: str = self.cleaned_data["prompt"]
        return text.replace("\r\n", "\n") if text.strip() else ""

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        row = data.get("row")
        if data.get("prompt") or "row" in self.errors or "prompt" in self.errors:
            return data
        last = self.version.num_rows - 1
        if row is None:
            message = f"Enter a row from 0 to {last:,}, or your own prompt."
            self.add_error("row", forms.ValidationError(message, code="required"))
        elif row > last:
            message = f"{self.version} has rows 0 to {last:,}; got {row:,}."
            self.add_error("row", forms.ValidationError(message, code="no_row"))
        return data

    def start(self, user: User) -> Probe:
        """Queue the probe of a valid form.

        Raises:
            ValueError: as `start_probe`; or the recipe does not suit the run.
        """
        data = self.cleaned_data
        checkpoint = self._run.checkpoints.select_related(
            "run__team", "run__recipe_version"
        ).get(name=data["checkpoint"])
        chosen = None
        if data["recipe"] not in (OWN, UNSCORED):
            chosen = self._recipes.get(pk=data["recipe"])
        config = config_of_checkpoint(
            checkpoint,
            Recipe.model_validate(chosen.spec) if chosen else None,
            seed=data["seed"],
            rollout={n: data[n] for n in ("max_new_tokens", "temperature")},
        )
        probe = start_probe(
            team=checkpoint.run.team,
            user=user,
            config=config,
            dataset_version=self.version,
            positions=[] if data["prompt"] else [data["row"]],
            num_samples=data["num_samples"],
            recipe_version=chosen,
            is_sample=True,
            checkpoint=checkpoint,
            prompt=data["prompt"],
            is_scored=data["recipe"] != UNSCORED,
        )
        # The trainer could delete the checkpoint before a worker is free.
        keep_best(checkpoint.run_id)
        return probe


def _default_settings(run: Run, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the sampling settings of the checkpoint's phase."""
    checkpoint.run = run
    own = settings_at(checkpoint)
    return {
        "num_samples": min(own.rollout.group_size, MAX_SAMPLES),
        "temperature": own.rollout.temperature,
        "max_new_tokens": own.rollout.max_new_tokens,
        "seed": own.seed,
    }


def tested_version(run: Run) -> DatasetVersion:
    """Raise 404 for an imported run: it has no checkpoints."""
    if run.is_imported or run.dataset_version is None:
        raise Http404(f"{run} is an imported run and has no checkpoints.")
    return run.dataset_version


def settings_of(probe: Probe) -> dict[str, Any]:
    """Return what fills the form with the settings of this test, and with its row."""
    assert probe.checkpoint is not None
    config = probe.config
    recipe = str(probe.recipe_version_id or OWN) if probe.is_scored else UNSCORED
    return {
        "checkpoint": probe.checkpoint.name,
        "num_samples": probe.num_samples,
        "temperature": config["rollout"]["temperature"],
        "max_new_tokens": config["rollout"]["max_new_tokens"],
        "seed": config["seed"],
        "recipe": recipe,
        "row": next(iter(probe.positions), 0),
    }


def sides_of(probe: Probe) -> list[dict[str, Any]]:
    """List completions of the checkpoint and of its base model, with their means."""
    groups = {group.is_base: group.completions for group in probe.groups.all()}
    return [
        {"title": title, **_means(groups.get(is_base))}
        for is_base, title in ((False, "Checkpoint"), (True, "Base model"))
    ]


def _means(completions: list[dict[str, Any]] | None) -> dict[str, Any]:
    if completions is None:
        return {"completions": None}
    rewards = [
        completion["reward"]
        for completion in completions
        if completion["reward"] is not None
    ]
    tokens = [completion["num_tokens"] for completion in completions]
    return {
        "completions": completions,
        "num_scored": len(rewards),
        "reward": sum(rewards) / len(rewards) if rewards else None,
        "tokens": sum(tokens) / len(tokens),
        "num_cut": sum(
            completion["end_reason"] == "length" for completion in completions
        ),
    }
