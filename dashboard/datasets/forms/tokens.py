"""Which tokenizer prompts are counted with."""

from __future__ import annotations

from django import forms

LONGEST = 500


class TokenForm(forms.Form):
    model = forms.CharField(
        max_length=LONGEST,
        label="Tokenizer of",
        help_text="A folder on the workers, or a hub id.",
        widget=forms.TextInput(
            attrs={"class": "form-control", "list": "models", "autocomplete": "off"}
        ),
    )
    limit = forms.IntegerField(
        min_value=1,
        max_value=131_072,
        initial=512,
        required=False,
        label="Prompt limit in tokens",
        widget=forms.NumberInput(attrs={"class": "form-control"}),
    )

    def clean_model(self) -> str:
        model: str = self.cleaned_data["model"].strip()
        if "\x00" in model or model.startswith("-"):
            raise forms.ValidationError(
                f"{model[:40]!r} is neither a folder, which starts with /, nor a hub "
                "id such as Qwen/Qwen2.5-0.5B-Instruct."
            )
        return model
