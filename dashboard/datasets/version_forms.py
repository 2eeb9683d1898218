"""Forms to split a version, generate rows, preview prompts and count tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django import forms

from dashboard.accounts.models import Team
from dashboard.datasets.import_forms import NameField, free_name
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.token_preview import MAX_SETTING_CHARS, SETTINGS
from dashboard.project.forms import set_choices
from trainer.config import DataConfig, read_about

LONGEST = 500
NEEDED = {"share": ("share", "seed"), "column": ("column",)}


class SplitForm(forms.Form):
    """The rule that splits a version, and the names of the halves."""

    by = forms.ChoiceField(
        label="Held out",
        choices=[("share", "share of the rows")],
        initial="share",
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    share = forms.FloatField(
        label="Share (%)",
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
        help_text="The same version, share and seed always give the same split.",
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
        self.fields["train_name"].label = "Name of train split"
        self.fields["eval_name"].label = "Name of held-out split"
        columns = version.mapping.get("columns", [])
        if columns:
            set_choices(self, "column", [(name, name) for name in columns])
            by = [("share", "share of the rows"), ("column", "value of a column")]
            set_choices(self, "by", by)
        else:
            del self.fields["column"], self.fields["value"]

    def clean_train_name(self) -> str:
        return free_name(self.team, self.cleaned_data["train_name"])

    def clean_eval_name(self) -> str:
        name = free_name(self.team, self.cleaned_data["eval_name"])
        if name == self.cleaned_data.get("train_name"):
            raise forms.ValidationError(
                f'"{name}" already names the train split. Choose another name.',
                code="datasets.same_name",
            )
        return name

    def clean(self) -> dict[str, Any]:
        data = self.cleaned_data
        for name in NEEDED.get(data.get("by", ""), ()):
            if data.get(name) in (None, "") and name not in self.errors:
                error = forms.ValidationError(f"Enter a {name}.", code="required")
                self.add_error(name, error)
        return data

    @property
    def rule(self) -> dict[str, Any]:
        """The rule as stored in VersionSplit; the form must be valid."""
        data = self.cleaned_data
        names = (
            ("by", "share", "seed")
            if data["by"] == "share"
            else ("by", "column", "value")
        )
        return {name: data[name] for name in names}


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


class TokenForm(forms.Form):
    model = forms.CharField(
        max_length=LONGEST,
        label="Model",
        help_text="Model folder on the worker, or Hugging Face model ID.",
        widget=forms.TextInput(
            attrs={"class": "form-control", "list": "models", "autocomplete": "off"}
        ),
    )
    limit = forms.IntegerField(
        min_value=1,
        max_value=131_072,
        initial=512,
        required=False,
        label="Prompt limit (tokens)",
        widget=forms.NumberInput(attrs={"class": "form-control"}),
    )

    def clean_model(self) -> str:
        model: str = self.cleaned_data["model"].strip()
        if "\x00" in model or model.startswith("-"):
            raise forms.ValidationError(
                f"{model[:40]!r} is neither an absolute path nor a Hugging Face model "
                "ID such as Qwen/Qwen2.5-0.5B-Instruct.",
                code="datasets.invalid_model",
            )
        return model


_TEMPLATE = DataConfig.model_fields["chat_template"]


def _text(name: str) -> forms.CharField:
    """Build a field for a setting of a run, with its label and help."""
    field = DataConfig.model_fields[name]
    attrs = {"class": "form-control mono", "spellcheck": "false"}
    # One line or several, as in the launch form.
    is_long = read_about(field).get("is_long")
    widget = forms.Textarea({**attrs, "rows": 2}) if is_long else forms.TextInput(attrs)
    return forms.CharField(
        label=field.title,
        help_text=field.description or "",
        required=False,
        strip=False,
        max_length=MAX_SETTING_CHARS,
        widget=widget,
    )


class PromptForm(forms.Form):
    """Model and settings of a prompt's preview, named as in the launch form."""

    model = forms.CharField(
        max_length=LONGEST,
        label="Model",
        help_text="Model folder on this server, or Hugging Face model ID.",
        widget=forms.TextInput(
            attrs={"class": "form-control", "list": "models", "autocomplete": "off"}
        ),
        error_messages={"required": "Choose a model. Its tokenizer renders the row."},
    )
    chat_template = forms.ChoiceField(
        choices=tuple(read_about(_TEMPLATE).get("choices", {}).items()),
        required=False,
        label=_TEMPLATE.title,
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    system_prompt = _text("system_prompt")
    prompt_template = _text("prompt_template")
    completion_prefix = _text("completion_prefix")
    chat_template_kwargs = _text("chat_template_kwargs")

    clean_model = TokenForm.clean_model

    def clean_chat_template_kwargs(self) -> Any:
        try:
            return json.loads(self.cleaned_data["chat_template_kwargs"] or "{}")
        except (ValueError, RecursionError):
            raise forms.ValidationError(
                'Write a JSON object, such as {"enable_thinking": false}.'
            ) from None

    def add_prefix(self, field_name: str) -> str:
        return f"data.{field_name}" if field_name in SETTINGS else field_name

    @classmethod
    def prefilled(cls, query: Mapping[str, Any], *, model: str) -> PromptForm:
        """Fill in the values in the URL, and this model by default."""
        settings = {name: query.get(f"data.{name}", "") for name in SETTINGS}
        return cls(initial={"model": query.get("model", model), **settings})

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of DataConfig."""
        texts = {
            name: self.cleaned_data[name].replace("\r\n", "\n")
            for name in SETTINGS
            if name != "chat_template_kwargs"
        }
        return {
            "system_prompt": texts["system_prompt"] or None,
            "prompt_template": texts["prompt_template"] or None,
            "completion_prefix": texts["completion_prefix"],
            "chat_template": texts["chat_template"] or "auto",
            "chat_template_kwargs": self.cleaned_data["chat_template_kwargs"],
            "max_prompt_tokens": DataConfig.model_fields["max_prompt_tokens"].default,
        }

    @property
    def first_problem(self) -> str:
        name, errors = next(iter(self.errors.items()))
        label = self.fields[name].label
        return str(errors[0]) if name == "model" else f"{label}: {errors[0]}"
