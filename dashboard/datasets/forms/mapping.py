from __future__ import annotations

from pathlib import PurePath
from typing import Any

from django import forms

from dashboard.datasets.forms.name import NameField, free_name
from dashboard.datasets.imports.mapping import Mapping, guess_mapping
from dashboard.datasets.models import Upload
from dashboard.project.forms import offer


class MappingForm(forms.Form):
    """Choices are the file's own columns. `name` is asked for a new dataset only."""

    name = NameField()
    prompt = forms.ChoiceField(
        label="Prompt",
        help_text="A text, or a list of chat messages with role and content, or "
        "with from and value, as ShareGPT has them.",
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    answer = forms.ChoiceField(
        label="Answer",
        required=False,
        help_text="The ground truth that rules compare a completion with.",
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    columns = forms.MultipleChoiceField(
        label="Keep as extra columns",
        required=False,
        help_text="Rules and prompt templates can read these.",
        widget=forms.CheckboxSelectMultiple(attrs={"class": "form-check-input"}),
    )

    def __init__(self, upload: Upload, names: list[str], data: Any = None) -> None:
        self.upload = upload
        guess = guess_mapping(names, _mapping_before(upload))
        initial = {**guess.as_json(), "name": PurePath(upload.filename).stem[:80]}
        super().__init__(data, initial=initial)
        choices = [(name, name) for name in names]
        offer(self, "prompt", choices)
        offer(self, "answer", [("", "no answer"), *choices])
        offer(self, "columns", choices)
        if upload.dataset:
            del self.fields["name"]

    def clean_name(self) -> str:
        return free_name(self.upload.team, self.cleaned_data["name"])

    def clean(self) -> dict[str, Any]:
        answer = self.cleaned_data.get("answer")
        if answer and answer == self.cleaned_data.get("prompt"):
            self.add_error(
                "answer",
                f'"{answer}" is the prompt already. Choose another column, or '
                "“no answer”.",
            )
        return self.cleaned_data

    @property
    def mapping(self) -> Mapping:
        """What was chosen; the guess where nothing valid was."""
        chosen = getattr(self, "cleaned_data", {}) if self.is_bound else {}
        if "prompt" not in chosen:
            chosen = {**self.initial, **chosen}
        prompt = chosen["prompt"]
        answer = chosen.get("answer") or None
        columns = chosen.get("columns", [])
        return Mapping(
            prompt=prompt,
            answer=None if answer == prompt else answer,
            columns=tuple(name for name in columns if name not in (prompt, answer)),
        )


def _mapping_before(upload: Upload) -> Mapping | None:
    """Of the dataset's newest version, where the file becomes another one."""
    if upload.dataset is None:
        return None
    newest = upload.dataset.versions.order_by("number").last()
    return Mapping.from_json(newest.mapping) if newest and newest.mapping else None
