"""What the preview of a prompt is made with, beside the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms

from dashboard.datasets.forms.tokens import LONGEST, TokenForm
from dashboard.datasets.tokens.preview import MAX_SETTING_CHARS, SETTINGS
from trainer.config import DataConfig, read_about

_TEMPLATE = DataConfig.model_fields["chat_template"]


def _text(name: str) -> forms.CharField:
    """A setting of a run, explained in the run's own words."""
    field = DataConfig.model_fields[name]
    attrs = {"class": "form-control mono", "spellcheck": "false"}
    # As the launch form has them: a line, or several.
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
    """Its controls have the names that the launch form gives them."""

    model = forms.CharField(
        max_length=LONGEST,
        label="Model",
        help_text="A folder on this server, or a hub id.",
        widget=forms.TextInput(
            attrs={"class": "form-control", "list": "models", "autocomplete": "off"}
        ),
        error_messages={"required": "Choose a model, whose tokenizer renders the row."},
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

    clean_model = TokenForm.clean_model

    def add_prefix(self, field_name: str) -> str:
        return f"data.{field_name}" if field_name in SETTINGS else field_name

    @classmethod
    def prefilled(cls, query: Mapping[str, Any], *, model: str) -> PromptForm:
        """With what the address holds, and this model unless it names one."""
        settings = {name: query.get(f"data.{name}", "") for name in SETTINGS}
        return cls(initial={"model": query.get("model", model), **settings})

    @property
    def settings(self) -> dict[str, Any]:
        """As DataConfig takes them."""
        texts = {
            name: self.cleaned_data[name].replace("\r\n", "\n") for name in SETTINGS
        }
        default = DataConfig.model_fields["max_prompt_tokens"].default
        return {
            "system_prompt": texts["system_prompt"] or None,
            "prompt_template": texts["prompt_template"] or None,
            "completion_prefix": texts["completion_prefix"],
            "chat_template": texts["chat_template"] or "auto",
            "max_prompt_tokens": default,
        }

    @property
    def first_problem(self) -> str:
        name, errors = next(iter(self.errors.items()))
        label = self.fields[name].label
        return str(errors[0]) if name == "model" else f"{label}: {errors[0]}"
