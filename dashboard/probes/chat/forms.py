"""What a chat page shows: every field is a parameter of its address."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.http import Http404

from dashboard.datasets.models import DatasetRow, DatasetVersion
from dashboard.datasets.rows.search import Search, look_on
from dashboard.probes.chat.services import (
    MAX_CHARS,
    MAX_SAMPLES,
    MAX_TOKENS,
    sampling_of,
)
from dashboard.rewards.forms import LARGEST
from dashboard.runs.checkpoints.listing import list_checkpoints
from dashboard.runs.models import Checkpoint, Run

NUM_FOUND = 8
SEARCH_SECONDS = 0.5


class ChatForm(forms.Form):
    """A checkpoint, a prompt, and how both models sample."""

    checkpoint = forms.ChoiceField(
        label="Checkpoint", widget=forms.Select(attrs={"class": "form-select"})
    )
    prompt = forms.IntegerField(
        label="Row",
        required=False,
        min_value=0,
        max_value=LARGEST,
        widget=forms.NumberInput(attrs={"class": "form-control"}),
    )
    text = forms.CharField(
        label="Or your own prompt",
        required=False,
        max_length=MAX_CHARS,
        strip=False,
        widget=forms.Textarea(attrs={"class": "form-control mono", "rows": 3}),
    )
    temperature = forms.FloatField(
        label="Temperature",
        min_value=0,
        max_value=5,
        widget=forms.NumberInput(attrs={"class": "form-control", "step": "any"}),
    )
    max_new_tokens = forms.IntegerField(
        label="Tokens at most",
        min_value=1,
        max_value=MAX_TOKENS,
        widget=forms.NumberInput(attrs={"class": "form-control"}),
    )
    seed = forms.IntegerField(
        label="Seed",
        min_value=0,
        max_value=LARGEST,
        widget=forms.NumberInput(attrs={"class": "form-control"}),
    )
    num_samples = forms.IntegerField(
        label="Completions of each",
        min_value=1,
        max_value=MAX_SAMPLES,
        widget=forms.NumberInput(attrs={"class": "form-control"}),
    )

    def __init__(self, run: Run, given: Mapping[str, Any]) -> None:
        asked_version(run)
        usual = {**sampling_of(run.config), "seed": 0, "num_samples": 1}
        listing = list_checkpoints(run)
        there = [row for row in listing.rows if row.is_there or not listing.is_seen]
        best = next((row.checkpoint.name for row in there if row.is_best), None)
        names = [row.checkpoint.name for row in there]
        usual["checkpoint"] = best or (names[0] if names else "")
        kept = {n: given[n] for n in self.base_fields if given.get(n, "") != ""}
        super().__init__({**usual, **kept})
        field = self.fields["checkpoint"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [
            (row.checkpoint.name, f"step {row.checkpoint.step}" + _mark(row.is_best))
            for row in there
        ]
        self.run = run

    def clean_text(self) -> str:
        text: str = self.cleaned_data["text"]
        return text.replace("\r\n", "\n")

    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        if given.get("prompt") is not None and not given.get("text"):
            self._check_row(given["prompt"])
        return given

    def _check_row(self, position: int) -> None:
        version = asked_version(self.run)
        if not version.rows.filter(position=position).exists():
            self.add_error(
                "prompt",
                f"{version} has rows 0 to {version.num_rows - 1:,}; got {position:,}.",
            )

    @property
    def row(self) -> DatasetRow | None:
        """What is asked; None where nothing was chosen."""
        if not self.is_valid():
            return None
        text, position = self.cleaned_data["text"], self.cleaned_data["prompt"]
        if text.strip():
            return DatasetRow(prompt=text, answer=None, columns={})
        if position is None:
            return None
        return asked_version(self.run).rows.filter(position=position).first()

    @property
    def chosen_checkpoint(self) -> Checkpoint | None:
        name = self.cleaned_data.get("checkpoint") if self.is_valid() else None
        found = self.run.checkpoints.select_related("run__team")
        return found.filter(name=name).first()

    def address(self, **changes: object) -> str:
        """The parameters that reproduce the view."""
        shown = {name: self.data.get(name, "") for name in self.fields} | changes
        return urlencode({n: v for n, v in shown.items() if v not in ("", None)})


def _mark(is_best: bool) -> str:
    return ", the best" if is_best else ""


def find_rows(run: Run, wanted: str) -> list[DatasetRow]:
    """Rows whose prompt has this text; the first ones without one."""
    version = asked_version(run)
    condition = ("strpos(upper(prompt), upper(%s)) > 0", [wanted])
    search = Search(version=version, conditions=[condition] if wanted else [])
    found = look_on(search, 0, wanted=NUM_FOUND, seconds=SEARCH_SECONDS)
    positions = [position for _, position in found.matches]
    return list(version.rows.filter(position__in=positions).order_by("position"))


def draw_row(run: Run) -> int:
    return random.randrange(max(1, asked_version(run).num_rows))  # noqa: S311 - no secret


def asked_version(run: Run) -> DatasetVersion:
    """404 of an imported run: it has no checkpoint to be asked."""
    if run.is_imported or run.dataset_version is None:
        raise Http404(f"{run} was imported: it has no checkpoint to ask.")
    return run.dataset_version
