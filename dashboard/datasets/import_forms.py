"""Forms that create datasets from a file, pasted rows, a link or selected rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import urlencode
from uuid import UUID, uuid4

from django import forms

from dashboard.accounts.models import Team, User
from dashboard.accounts.templatetags.numbers import num_bytes
from dashboard.datasets.imports import Peek, begin_work
from dashboard.datasets.limits import MAX_PASTED_CHARS, MAX_UPLOAD_BYTES, PART_BYTES
from dashboard.datasets.mapping import LAST_REPLIES, Mapping, nested_names
from dashboard.datasets.models import Dataset, DatasetVersion, ImportJob, Upload
from dashboard.datasets.parsing.detection import CHOICES, PACKED_SUFFIXES, SUFFIXES
from dashboard.datasets.prompt_template import (
    MAX_TEMPLATE_CHARS,
    TemplateFault,
    read_template,
)
from dashboard.datasets.row_filters import are_few
from dashboard.datasets.selections import (
    find_job,
    key_of,
    retry_selection,
    start_selection,
)
from dashboard.datasets.suggestions import (
    first_template,
    has_replies,
    suggest_mapping,
)
from dashboard.jobs.models import JobState
from dashboard.project.errors import code_of
from dashboard.project.forms import set_choices

TAKEN = "datasets.name_taken"


def form_error(error: ValueError) -> forms.ValidationError:
    """Convert a service's error to one of a form, with its code."""
    return forms.ValidationError(str(error), code=code_of(error) or "invalid")


def free_name(team: Team, name: str) -> str:
    """Return the name, if the team has no dataset with it."""
    taken = Dataset.objects.filter(team=team, name=name, trashed_at=None).first()
    if taken is not None:
        raise forms.ValidationError(
            '%(team)s already has a dataset named "%(name)s". Choose another name, or '
            "upload this as a new version from that dataset's page.",
            code=TAKEN,
            params={"team": team, "name": name, "dataset": taken},
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


class TargetForm(forms.Form):
    target = forms.ChoiceField(
        label="Save as",
        required=False,
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    name = NameField()
    # Unique for each form shown, so that sending it twice starts one job.
    key = forms.UUIDField(widget=forms.HiddenInput)

    def __init__(self, team: Team, *, name: str, data: Any = None) -> None:
        self.team = team
        super().__init__(data, initial={"name": name[:80], "key": uuid4()})
        self.fields["name"].required = False
        self.fields["name"].help_text = "Name of the new dataset."
        datasets = team.datasets.filter(trashed_at__isnull=True).order_by("-pk")
        self._datasets = {str(dataset.pk): dataset for dataset in datasets}
        newer = [(key, f"a new version of {it}") for key, it in self._datasets.items()]
        set_choices(self, "target", [("", "a new dataset"), *newer])

    def clean(self) -> dict[str, Any]:
        data = self.cleaned_data
        is_named = data.get("target") or data.get("name") or "name" in self.errors
        if not is_named:
            self.add_error(
                "name",
                forms.ValidationError(
                    "Enter a name for the new dataset.", code="required"
                ),
            )
        return data

    def start(
        self,
        *,
        parent: DatasetVersion,
        source: dict[str, Any],
        user: User,
        positions: Sequence[int] = (),
    ) -> ImportJob | None:
        """Start the job that a valid form asks for; None: the form says why there is
        none.

        Where the name is taken, it may be by what this very form has made.
        """
        key = key_of(
            self.form_key, name=self.new_name, dataset=self.dataset, source=source
        )
        try:
            free_name(self.team, self.new_name)
        except forms.ValidationError as error:
            if job := find_job(self.team, key):
                return job
            self.add_error("name", error)
            return None
        job, is_new = start_selection(
            parent=parent,
            source=source,
            name=self.new_name,
            dataset=self.dataset,
            user=user,
            key=key,
            positions=positions,
        )
        while not is_new and job.state in (JobState.FAILED, JobState.CANCELLED):
            job, is_new = retry_selection(job, user)  # sent again after a failure
        if is_new:
            begin_work(job, at_once=are_few(parent, positions=positions))
        if job.state == JobState.FAILED:
            self.add_error(None, job.error)
            return None
        return job

    @property
    def dataset(self) -> Dataset | None:
        """The dataset that gets a new version."""
        return self._datasets.get(self.cleaned_data.get("target", ""))

    @property
    def new_name(self) -> str:
        return "" if self.dataset else self.cleaned_data["name"]

    @property
    def form_key(self) -> UUID:
        key: UUID = self.cleaned_data["key"]
        return key


class MappingForm(forms.Form):
    """The choices are the columns of the file. A new dataset also has a `name`."""

    name = NameField()
    prompt = forms.ChoiceField(
        label="Prompt",
        required=False,
        help_text="A column of texts or chats (role and content, or from and value as "
        "in ShareGPT), or a template over several columns.",
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    template = forms.CharField(
        label="Template",
        required=False,
        strip=False,
        max_length=MAX_TEMPLATE_CHARS,
        help_text="Jinja. {{ name }} is a column's value, {% for %} and {% if %} work, "
        "and {{ loop.index0 | letter }} gives options their letters.",
        widget=forms.Textarea(
            attrs={
                "class": "form-control prompt-template font-monospace text-small",
                "rows": 6,
            }
            | {"spellcheck": "false"}
        ),
    )
    answer = forms.ChoiceField(
        label="Answer",
        required=False,
        help_text="Ground truth that rules compare a completion with. If it is a list, "
        "any entry counts as correct.",
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    system = forms.ChoiceField(
        label="System message",
        required=False,
        help_text="A column of texts, each the first message of its row's prompt.",
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    last_reply = forms.ChoiceField(
        label="Last assistant message of a chat",
        required=False,
        choices=[
            ("answer", "is the answer"),
            ("prefill", "begins the completion"),
            ("drop", "is removed"),
            ("refuse", "is an error"),
        ],
        help_text="Only a message that begins the completion is part of the prompt. An "
        "answer column takes precedence.",
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    columns = forms.MultipleChoiceField(
        label="Extra columns",
        required=False,
        help_text="Rules and prompt templates can read these.",
        widget=forms.CheckboxSelectMultiple(attrs={"class": "form-check-input"}),
    )

    def __init__(self, upload: Upload, seen: Peek, data: Any = None) -> None:
        self.upload = upload
        is_text = not upload.has_types
        before = None
        if upload.dataset:
            newest = upload.dataset.versions.order_by("number").last()
            if newest and newest.mapping:
                before = Mapping.from_json(newest.mapping)
        suggestion = suggest_mapping(seen.names, seen.sample, before, is_text=is_text)
        guess = suggestion.mapping
        self.note = suggestion.note
        initial = {
            **guess.as_json(),
            "template": guess.template or first_template(seen.names),
            "last_reply": guess.last_reply,
            "name": PurePath(upload.filename).stem[:80],
        }
        super().__init__(data, initial=initial)
        self._names = seen.names
        nested = nested_names(seen.sample, is_text=is_text)
        choices = [(name, name) for name in (*seen.names, *nested)]
        set_choices(self, "prompt", [*choices, ("", "template…")])
        self.has_replies = has_replies(seen.sample, guess.prompt)
        none = "no column" if self.has_replies else "no answer"
        set_choices(self, "answer", [("", none), *choices])
        set_choices(self, "system", [("", "no column"), *choices])
        set_choices(self, "columns", choices)
        if upload.dataset:
            del self.fields["name"]

    def query(self, mapping: Mapping) -> str:
        """Return the query string of the page with this mapping, the name unchanged."""
        fields: dict[str, Any] = {
            "prompt": mapping.prompt,
            "answer": mapping.answer or "",
            "system": mapping.system,
            "last_reply": mapping.last_reply,
            "columns": mapping.columns,
        }
        if mapping.template:
            fields["template"] = mapping.template
        if "name" in self.fields:
            fields["name"] = self["name"].value() or ""
        return urlencode(fields, doseq=True)

    @property
    def column_boxes(self) -> list[tuple[str, list[Any]]]:
        """Two lists: boxes of columns, and those of values inside columns."""
        boxes = list(self["columns"])
        num = len(self._names)
        return [("", boxes[:num]), ("Values inside columns", boxes[num:])]

    def clean_name(self) -> str:
        return free_name(self.upload.team, self.cleaned_data["name"])

    def clean_template(self) -> str:
        """Only that of a form that uses it."""
        template: str = self.cleaned_data["template"].replace("\r\n", "\n")
        if self.cleaned_data.get("prompt") or "prompt" in self.errors:
            return ""
        if not template.strip():
            raise forms.ValidationError(
                "Write a template, or choose a column as the prompt.", code="required"
            )
        try:
            unknown = read_template(template).variables - {*self._names}
        except TemplateFault as error:
            raise form_error(error) from None
        if unknown:
            raise forms.ValidationError(
                f'The file has no column "{min(unknown)}". It has: '
                f"{', '.join(self._names)[:500]}.",
                code="datasets.unknown_column",
            )
        return template

    def clean(self) -> dict[str, Any]:
        for name, none in (("answer", "no answer"), ("system", "no column")):
            column = self.cleaned_data.get(name)
            if column and column == self.cleaned_data.get("prompt"):
                self.add_error(
                    name,
                    forms.ValidationError(
                        f'"{column}" is already the prompt. Choose another column, or '
                        f"“{none}”.",
                        code=f"datasets.{name}_is_prompt",
                    ),
                )
        return self.cleaned_data

    @property
    def mapping(self) -> Mapping:
        """The mapping chosen, or the guess where the form is invalid."""
        chosen = getattr(self, "cleaned_data", {}) if self.is_bound else {}
        if not (chosen.get("prompt") or chosen.get("template")):
            guess = {name: self.initial[name] for name in ("prompt", "template")}
            chosen = {**self.initial, **chosen, **guess}
        prompt = chosen["prompt"]
        answer = chosen.get("answer") or None
        system = chosen.get("system", "")
        used = (prompt, answer, system)
        return Mapping(
            prompt=prompt,
            template="" if prompt else chosen["template"],
            answer=None if answer == prompt else answer,
            columns=tuple(
                name for name in chosen.get("columns", []) if name not in used
            ),
            system="" if system == prompt else system,
            last_reply=chosen.get("last_reply") or LAST_REPLIES[0],
        )


class UploadForm(forms.Form):
    file = forms.FileField(
        label="File",
        help_text=f"{CHOICES}, optionally compressed (.gz, .zst), up to "
        f"{num_bytes(MAX_UPLOAD_BYTES)}. An interrupted upload resumes.",
        widget=forms.FileInput(
            attrs={
                "class": "form-control",
                "accept": ",".join([*SUFFIXES, *PACKED_SUFFIXES]),
                "data-max-bytes": MAX_UPLOAD_BYTES,
                "data-part-bytes": PART_BYTES,
            }
        ),
        error_messages={
            "required": "Choose a file.",
            "empty": "The file is empty. Choose a file with rows.",
        },
    )


class PasteForm(forms.Form):
    rows = forms.CharField(
        label="Rows",
        strip=False,
        max_length=MAX_PASTED_CHARS,
        help_text="JSON Lines, a JSON list, or a table copied from a spreadsheet with "
        "a header line and at least two columns.",
        widget=forms.Textarea(
            attrs={
                "class": "form-control font-monospace text-small",
                "rows": 6,
                "spellcheck": "false",
            }
        ),
        error_messages={"required": "Paste some rows."},
    )


class LinkForm(forms.Form):
    """The source of a download."""

    link = forms.CharField(
        label="URL or Hugging Face dataset ID",
        max_length=4_000,
        help_text="URL of a JSONL, JSON, CSV, TSV or Parquet file, or a dataset ID "
        "such as openai/gsm8k.",
        widget=forms.TextInput(
            attrs={"class": "form-control", "spellcheck": "false", "inputmode": "url"}
        ),
        error_messages={"required": "Enter a URL or a dataset ID."},
    )
    revision = forms.CharField(
        label="Revision",
        required=False,
        max_length=200,
        help_text="Branch, tag or commit of a Hub dataset. Empty: main.",
        widget=forms.TextInput(attrs={"class": "form-control", "spellcheck": "false"}),
    )
    part = forms.CharField(
        label="Split or file",
        required=False,
        max_length=500,
        help_text="Of a Hub dataset, such as train, main/train or data/train.jsonl. "
        "Empty: choose on the next page.",
        widget=forms.TextInput(attrs={"class": "form-control", "spellcheck": "false"}),
    )


class TransferForm(forms.Form):
    """A new upload in parts."""

    filename = forms.CharField(max_length=1_000, strip=False)
    num_bytes = forms.IntegerField(min_value=0, max_value=2**60)
    fingerprint = forms.CharField(max_length=64)
