"""The forms of questions and of a team's judges."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.core.exceptions import ValidationError

from dashboard.accounts.models import Team
from dashboard.analysis.questions.models import TeamJudge
from dashboard.analysis.questions.services import (
    FEWEST_COMPLETIONS,
    MOST_COMPLETIONS,
    READY,
    YES_NO,
)
from dashboard.project.forms import number_field, row_field, set_choices
from trainer.internet import read_url
from trainer.rewards.model_judge.labels import Label


class QuestionForm(forms.Form):
    text = forms.CharField(
        label="Question",
        max_length=4_000,
        widget=forms.Textarea(attrs={"class": "form-control", "rows": 2}),
    )
    labels = forms.CharField(
        required=False,
        initial="\n".join(label.name for label in YES_NO),
        widget=forms.Textarea(attrs={"class": "form-control", "rows": 2}),
        help_text="One a line, as “refusal: it declines the task”. The chart shows the "
        "first.",
    )
    judge = row_field("Judge", "Choose a judge")
    sample_size = number_field("Completions", FEWEST_COMPLETIONS, MOST_COMPLETIONS)
    shows_prompt = forms.BooleanField(
        required=False,
        initial=True,
        label="Show the prompt to the judge",
        widget=forms.CheckboxInput(attrs={"class": "form-check-input"}),
    )

    def __init__(self, team: Team, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        judges = TeamJudge.objects.filter(team=team).order_by("name")
        set_choices(self, "judge", judges)
        self.has_judges = judges.exists()
        self.fields["sample_size"].initial = 300

    @property
    def ready(self) -> dict[str, str]:
        return READY

    def clean_labels(self) -> list[Label]:
        lines = [line.strip() for line in self.cleaned_data["labels"].splitlines()]
        parts = [line.partition(":") for line in lines if line]
        return [Label(name.strip(), meaning.strip()) for name, _, meaning in parts]


class JudgeForm(forms.ModelForm[TeamJudge]):
    class Meta:
        model = TeamJudge
        fields = ("name", "base_url", "model", "key_name")
        help_texts: ClassVar[dict[str, str]] = {
            "base_url": "Of an OpenAI-compatible endpoint, such as "
            "https://api.openai.com/v1. Others than public https addresses must be in "
            "COHORT_JUDGE_HOSTS.",
            "key_name": "NAME of the variable COHORT_JUDGE_KEY_NAME of the workers. "
            "Empty: no key.",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.widget.attrs["class"] = "form-control"

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        if TeamJudge.objects.filter(team=self.instance.team, name=name).exists():
            raise ValidationError("The team has a judge of this name.")
        return name

    def clean_base_url(self) -> str:
        url: str = self.cleaned_data["base_url"].rstrip("/")
        try:
            read_url(url)
        except ValueError as error:
            raise ValidationError(str(error)) from None
        return url
