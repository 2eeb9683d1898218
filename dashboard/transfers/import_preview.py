"""The page of an import before its run is made: what its files hold, and its form."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import PurePath
from typing import Any

from django import forms

from dashboard.datasets.limits import MAX_ROWS, SHOWN_REFUSALS
from dashboard.datasets.parsing.records import Refusal
from dashboard.datasets.row import as_json
from dashboard.project.forms import set_choices
from dashboard.transfers.import_formats import (
    LATEST_TIME,
    Point,
    Sample,
    default_weights,
    reward_of,
)
from dashboard.transfers.import_reader import SEPARATOR, WANDB, Found
from dashboard.transfers.models import RunImport

SHOWN_FILES = 200
SHOWN_COLUMNS = 300
MAX_SCORES = 300  # each has a field in MakeForm
WEIGHT = "weight:"  # what the names of these fields begin with


def digest_of(sample: Sample) -> bytes:
    """Compute a digest that identifies the prompt: its text, and its answer if
    given.
    """
    return blake2b(
        as_json([sample.prompt, sample.answer]).encode(), digest_size=16
    ).digest()


@dataclass(slots=True)
class FileFindings:
    name: str
    num_bytes: int
    tool: str = ""
    num_rows: int = 0
    num_refused: int = 0
    first_step: int | None = None
    last_step: int | None = None

    def take(self, step: int) -> None:
        first, last = self.first_step, self.last_step
        self.first_step = step if first is None else min(first, step)
        self.last_step = step if last is None else max(last, step)


@dataclass(slots=True)
class Findings:
    """The findings of all files, while they are read; memory grows with prompts and
    steps only.
    """

    files: dict[int, FileFindings] = field(default_factory=dict)
    columns: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    refusals: list[dict[str, Any]] = field(default_factory=list)
    num_refused: int = 0
    num_rows: int = 0
    num_samples: int = 0
    num_points: int = 0
    num_values: int = 0
    num_advantages: int = 0
    num_scored: int = 0
    first_time: float | None = None  # None: the files have no times
    scores: dict[str, int] = field(default_factory=dict)  # by rule: how many
    score_tools: dict[str, str] = field(default_factory=dict)
    highest: float | None = None
    lowest: float | None = None
    wandb_runs: dict[str, None] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)  # of a log of Cohort's
    steps: set[int] = field(default_factory=set)
    _prompts: set[bytes] = field(default_factory=set)
    _groups: set[bytes] = field(default_factory=set)
    _owners: dict[int, int] = field(default_factory=dict)  # of a step's completions

    def add(self, found: Found) -> Refusal | None:
        """Add an item; returns a refusal if the row is invalid."""
        file = self.files.setdefault(
            found.file.pk, FileFindings(found.file.filename, found.file.num_bytes)
        )
        file.tool = file.tool or found.tool
        self.facts |= found.facts
        item = found.item
        if isinstance(item, Sample):
            owner = self._owners.setdefault(item.step, found.file.pk)
            if owner != found.file.pk:
                item = Refusal(
                    value=f"step {item.step}",
                    problem=f"{self.files[owner].name} already has completions of "
                    "this step.",
                    remedy="Import training and validation separately, and each file "
                    "once.",
                )
        if isinstance(item, Refusal):
            file.num_refused += 1
            self.num_refused += 1
            if len(self.refusals) < SHOWN_REFUSALS:
                place = item.place[0].upper() + item.place[1:]
                where = {"file": file.name, "place": place}
                self.refusals.append(where | item.as_json())
            return item
        for column, meaning in found.columns.items():
            if len(self.columns) < SHOWN_COLUMNS:
                self.columns[found.tool, column, meaning] += 0
        if item is not None:
            file.num_rows += 1
            self.num_rows += 1
            file.take(item.step)
            self.steps.add(item.step)
            if isinstance(item, Point):
                self._take_point(found, item)
            else:
                self._take_sample(found, item)
        return None

    def _take_point(self, found: Found, point: Point) -> None:
        self.num_points += 1
        self.num_values += len(point.values)
        if point.time is not None and 0 <= point.time < LATEST_TIME:
            first = self.first_time
            self.first_time = point.time if first is None else min(first, point.time)
        names = set(point.values)
        for column, meaning in found.columns.items():
            key = (found.tool, column, meaning)
            if meaning in names and key in self.columns:
                self.columns[key] += 1
            if found.tool == WANDB:
                self.wandb_runs[column.rpartition(SEPARATOR)[0]] = None

    def _take_sample(self, found: Found, sample: Sample) -> None:
        self.num_samples += 1
        if self.num_samples > MAX_ROWS:
            raise ValueError(
                f"The files have more than {MAX_ROWS:,} completions. Import fewer "
                "steps."
            )
        self.num_advantages += sample.advantage is not None
        for name, score in sample.scores.items():
            self.scores[name] = self.scores.get(name, 0) + (score is not None)
            self.score_tools.setdefault(name, found.tool)
            if len(self.scores) > MAX_SCORES:
                raise ValueError(
                    f"{found.file.filename} has scores of more than {MAX_SCORES} "
                    "rules. Remove the columns that are not rules."
                )
            key = (found.tool, name, f"reward/{name}/mean")
            if key in self.columns:
                self.columns[key] += score is not None
        digest = digest_of(sample)
        self._prompts.add(digest)
        self._groups.add(digest + sample.step.to_bytes(4, "big"))
        reward = reward_of(sample, default_weights(found.tool, sample.scores))
        if reward is not None:
            self.num_scored += 1
            low, high = self.lowest, self.highest
            self.lowest = reward if low is None else min(low, reward)
            self.highest = reward if high is None else max(high, reward)

    def as_json(self) -> dict[str, Any]:
        files = list(self.files.values())
        counted = ("num_refused", "num_rows", "num_samples", "num_points", "num_values")
        names = ("num_advantages", "num_scored", "first_time", "highest", "lowest")
        return {name: getattr(self, name) for name in (*counted, *names)} | {
            "files": [asdict(file) for file in files[:SHOWN_FILES]],
            "num_files": len(files),
            "num_bytes": sum(file.num_bytes for file in files),
            "tools": list(dict.fromkeys(f.tool for f in files if f.tool)),
            "columns": [
                {"tool": tool, "column": column, "meaning": meaning, "num_values": num}
                for (tool, column, meaning), num in self.columns.items()
            ],
            "refusals": self.refusals,
            "scores": [
                {"name": name, "tool": self.score_tools[name], "num_scored": num}
                for name, num in self.scores.items()
                if num
            ],
            "num_steps": len(self.steps),
            "first_step": min(self.steps, default=None),
            "last_step": max(self.steps, default=None),
            "num_prompts": len(self._prompts),
            "num_groups": len(self._groups),
            "wandb_runs": list(self.wandb_runs),
            "facts": self.facts,
        }


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
        help_text="The run list shows this name.",
        widget=forms.TextInput(attrs={"class": "form-control"}),
    )
    wandb_run = forms.ChoiceField(
        required=False,
        label="Run",
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    right_from = forms.FloatField(
        required=False,
        label="Correct from reward",
        help_text="A completion with this reward or more counts as correct. Empty: "
        "unknown.",
        widget=_input(),
    )
    computes_advantages = forms.BooleanField(
        required=False,
        label="Compute missing advantages",
        help_text="(reward − mean) ÷ (standard deviation + 0.0001) within each group. "
        "Otherwise advantages show as –.",
        widget=forms.CheckboxInput(attrs={"class": "form-check-input"}),
    )
    leave_out = forms.BooleanField(
        required=False, widget=forms.CheckboxInput(attrs={"class": "form-check-input"})
    )

    def __init__(self, run_import: RunImport, data: Any = None) -> None:
        found = run_import.findings
        self.found = found
        self.weights = {
            score["name"]: default_weights(score["tool"], [score["name"]])[
                score["name"]
            ]
            for score in found["scores"]
        }
        initial = {"name": _proposed_name(found), "right_from": found["highest"]}
        config = found.get("facts", {}).get("config") or {}
        path = PurePath(config.get("model", {}).get("path", ""))
        # Cohort's folder of a model is called model.
        initial["model"] = path.parent.name if path.name == "model" else path.name
        super().__init__(data, initial=initial)
        if not config:
            self.fields["model"].help_text += " The files do not contain it."
        for name, weight in self.weights.items():
            self.fields[WEIGHT + name] = forms.FloatField(
                required=False,
                label=name,
                initial=weight,
                widget=_input(**{"aria-label": f"Weight of {name}"}),
            )
        self._delete_unused_fields()

    def _delete_unused_fields(self) -> None:
        findings = self.found
        if not findings["num_samples"]:
            del self.fields["right_from"]
        if not findings["num_samples"] or findings["num_advantages"]:
            del self.fields["computes_advantages"]
        runs = findings["wandb_runs"]
        if len(runs) < 2:
            del self.fields["wandb_run"]
        else:
            set_choices(self, "wandb_run", [(run, run or "(unnamed)") for run in runs])
        if findings["num_refused"]:
            num, is_one = f"{findings['num_refused']:,}", findings["num_refused"] == 1
            rows = "invalid row or file" if is_one else "invalid rows or files"
            self.fields["leave_out"].label = f"Leave out {num} {rows}"
        else:
            del self.fields["leave_out"]

    @property
    def rules(self) -> list[tuple[dict[str, Any], forms.BoundField]]:
        return [(score, self[WEIGHT + score["name"]]) for score in self.found["scores"]]

    def clean(self) -> None:
        for name, value in self.cleaned_data.items():
            if isinstance(value, float) and not math.isfinite(value):
                self.add_error(
                    name,
                    forms.ValidationError(
                        f"Enter a finite number; got {value}.", code="not_finite"
                    ),
                )
        if self.found["num_refused"] and not self.cleaned_data.get("leave_out"):
            self.add_error(
                "leave_out",
                forms.ValidationError(
                    f"{self.found['num_refused']:,} rows or files are invalid. Fix "
                    "them and import again, or leave them out.",
                    code="invalid_rows",
                ),
            )

    @property
    def choices(self) -> dict[str, Any]:
        """The choices as the making reads them."""
        data = self.cleaned_data
        runs = self.found["wandb_runs"]
        return {
            "name": data["name"],
            "model": data.get("model") or "not known",
            # Pairs, as JSON in the database keeps no order of names.
            "weights": [[name, data.get(WEIGHT + name)] for name in self.weights],
            "computes_advantages": bool(data.get("computes_advantages")),
            "right_from": data.get("right_from"),
            "leave_out": self.found["num_refused"],
            "wandb_run": data.get("wandb_run") if len(runs) > 1 else None,
        }


def _proposed_name(findings: dict[str, Any]) -> str:
    if len(findings["wandb_runs"]) == 1 and findings["wandb_runs"][0]:
        return str(findings["wandb_runs"][0])[:80]
    names = [PurePath(file["name"]).parts[0] for file in findings["files"]]
    first = PurePath(names[0]).stem if names else "run"
    return f"{' and '.join(findings['tools'])} {first}"[:80]
