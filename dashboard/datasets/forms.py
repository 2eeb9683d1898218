from __future__ import annotations

from pathlib import PurePath
from typing import Any

from django import forms

from dashboard.accounts.models import Team
from dashboard.datasets.limits import MAX_PASTED_CHARS, MAX_UPLOAD_BYTES, PART_BYTES
from dashboard.datasets.mapping import Mapping, guess_mapping
from dashboard.datasets.models import Dataset, DatasetVersion, Upload
from dashboard.datasets.parsing.detection import CHOICES, PACKED_SUFFIXES, SUFFIXES


def free_name(team: Team, name: str) -> str:
    """The name, when the team has no dataset of that name."""
    if Dataset.objects.filter(team=team, name=name, trashed_at=None).exists():
        raise forms.ValidationError(
            f'{team} already has a dataset named "{name}". Choose another name, or '
            "upload this as a new version from that dataset's page."
        )
    return name


class NameField(forms.CharField):
    def __init__(self) -> None:
        super().__init__(
            label="Name",
            max_length=80,
            widget=forms.TextInput(attrs={"class": "form-control"}),
        )


class RestoreForm(forms.Form):
    name = NameField()


class UploadForm(forms.Form):
    file = forms.FileField(
        label="File",
        help_text=f"{CHOICES}, as it is or packed (.gz, .zst), up to "
        f"{MAX_UPLOAD_BYTES // 2**30} GiB. You see its columns before anything is "
        "imported. Should the connection break, it goes on where it stopped.",
        widget=forms.FileInput(
            attrs={
                "class": "form-control",
                "accept": ",".join([*SUFFIXES, *PACKED_SUFFIXES]),
                "data-max-bytes": MAX_UPLOAD_BYTES,
                "data-part-bytes": PART_BYTES,
            }
        ),
        error_messages={
            "required": "No file was sent. Choose one.",
            "empty": "The file is empty. Choose one that holds rows.",
        },
    )


class PasteForm(forms.Form):
    rows = forms.CharField(
        label="Rows",
        strip=False,
        max_length=MAX_PASTED_CHARS,
        help_text="JSON lines, one JSON list, or a table as a spreadsheet copies it: "
        "CSV or TSV with a header line and two columns or more.",
        widget=forms.Textarea(
            attrs={
                "class": "form-control pasted-rows",
                "rows": 6,
                "spellcheck": "false",
            }
        ),
        error_messages={"required": "Nothing was pasted. Paste some rows."},
    )


class LinkForm(forms.Form):
    """Where a worker fetches a file from."""

    link = forms.CharField(
        label="URL of a file, or id of a hub dataset",
        max_length=4_000,
        help_text="https://… of a JSONL, JSON, CSV, TSV or Parquet file, packed or "
        "not; or owner/name of the Hugging Face hub, such as openai/gsm8k.",
        widget=forms.TextInput(
            attrs={"class": "form-control", "spellcheck": "false", "inputmode": "url"}
        ),
        error_messages={"required": "No link was given. Paste one."},
    )
    revision = forms.CharField(
        label="Revision",
        required=False,
        max_length=200,
        help_text="Of a hub dataset: branch, tag or commit; empty: main.",
        widget=forms.TextInput(attrs={"class": "form-control", "spellcheck": "false"}),
    )
    part = forms.CharField(
        label="Split or file",
        required=False,
        max_length=500,
        help_text="Of a hub dataset: such as train, main/train or data/train.jsonl; "
        "empty: choose from what there is.",
        widget=forms.TextInput(attrs={"class": "form-control", "spellcheck": "false"}),
    )


class TransferForm(forms.Form):
    """A file that is about to arrive in parts."""

    filename = forms.CharField(max_length=1_000, strip=False)
    num_bytes = forms.IntegerField(min_value=0, max_value=2**60)
    fingerprint = forms.CharField(max_length=64)


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
        label="Travel along",
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
        self._choose("prompt", choices)
        self._choose("answer", [("", "no answer"), *choices])
        self._choose("columns", choices)
        if upload.dataset:
            del self.fields["name"]

    def _choose(self, field: str, choices: list[tuple[str, str]]) -> None:
        self.fields[field].choices = choices  # type: ignore[attr-defined]  # both kinds of field have it

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


class GenerateForm(forms.Form):
    name = NameField()
    size = forms.IntegerField(
        label="Rows",
        min_value=1,
        max_value=20_000,
        initial=1_000,
        widget=forms.NumberInput(attrs={"class": "form-control"}),
    )
    seed = forms.IntegerField(
        label="Seed",
        min_value=0,
        max_value=2**31 - 1,
        initial=0,
        help_text="The same task, rows and seed always give the same prompts.",
        widget=forms.NumberInput(attrs={"class": "form-control"}),
    )

    def __init__(self, team: Team, *args: Any, **kwargs: Any) -> None:
        self.team = team
        super().__init__(*args, **kwargs)

    def clean_name(self) -> str:
        return free_name(self.team, self.cleaned_data["name"])


class SplitForm(forms.Form):
    """What of a version is held out, and how the two halves are named."""

    by = forms.ChoiceField(
        label="Held out",
        choices=[("share", "a share of the rows")],
        initial="share",
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    share = forms.FloatField(
        label="Share in %",
        required=False,
        min_value=0.001,
        max_value=99.999,
        initial=10,
        widget=forms.NumberInput(attrs={"class": "form-control", "step": "any"}),
    )
    seed = forms.IntegerField(
        label="Seed",
        required=False,
        min_value=0,
        max_value=2**31 - 1,
        initial=0,
        help_text="The same version, share and seed always give the same halves.",
        widget=forms.NumberInput(attrs={"class": "form-control"}),
    )
    column = forms.ChoiceField(
        label="Column",
        required=False,
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    value = forms.CharField(
        label="Value",
        required=False,
        max_length=500,
        strip=False,
        help_text="Rows with exactly this value in the column are held out.",
        widget=forms.TextInput(attrs={"class": "form-control"}),
    )
    train_name = NameField()
    eval_name = NameField()

    def __init__(self, version: DatasetVersion, data: Any = None) -> None:
        self.team = version.dataset.team
        name = version.dataset.name[:70]
        initial = {"train_name": f"{name} train", "eval_name": f"{name} eval"}
        super().__init__(data, initial=initial)
        self.fields["train_name"].label = "Name of the train half"
        self.fields["eval_name"].label = "Name of the held-out half"
        columns = version.mapping.get("columns", [])
        if columns:
            self._choose("column", [(name, name) for name in columns])
            by = [("share", "a share of the rows"), ("column", "a column's value")]
            self._choose("by", by)
        else:
            del self.fields["column"], self.fields["value"]

    def _choose(self, field: str, choices: list[tuple[str, str]]) -> None:
        self.fields[field].choices = choices  # type: ignore[attr-defined]  # a ChoiceField

    def clean_train_name(self) -> str:
        return free_name(self.team, self.cleaned_data["train_name"])

    def clean_eval_name(self) -> str:
        name = free_name(self.team, self.cleaned_data["eval_name"])
        if name == self.cleaned_data.get("train_name"):
            raise forms.ValidationError(
                f'"{name}" is the name of the train half. Choose another for this one.'
            )
        return name

    def clean(self) -> dict[str, Any]:
        given = self.cleaned_data
        needed = ("share", "seed") if given.get("by") == "share" else ("column",)
        for name in needed:
            if given.get(name) in (None, "") and name not in self.errors:
                self.add_error(name, f"The {name} is missing. Give one.")
        return given

    @property
    def rule(self) -> dict[str, Any]:
        """As VersionSplit keeps it, of a valid form."""
        given = self.cleaned_data
        names = (
            ("by", "share", "seed")
            if given["by"] == "share"
            else ("by", "column", "value")
        )
        return {name: given[name] for name in names}
