"""Models whose tokenizer a team may want to count with."""

from __future__ import annotations

from pathlib import Path

from django import forms
from django.conf import settings

from dashboard.accounts.models import Team

LONGEST = 500


def list_models(team: Team) -> list[str]:
    """The newest run's, folders of the starter models, what other runs have used."""
    starters = sorted((Path(settings.COHORT_DATA) / "starter").glob("*/model"))
    paths = [str(path) for path in starters if (path / "tokenizer.json").is_file()]
    # Runs are of a higher rung, and named by string only.
    runs = team.runs.order_by("-pk").values_list("config__model__path", flat=True)
    used = list(runs[:200])
    return list(dict.fromkeys([*used[:1], *paths, *used[1:]]))[:20]


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
