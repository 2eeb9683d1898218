"""The forms of questions and of a team's judges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django import forms
from django.core.exceptions import ValidationError
from django.http import QueryDict

from dashboard.analysis.questions.models import JUDGE_FIELDS, Question, TeamJudge
from dashboard.analysis.questions.services import (
    FEWEST_COMPLETIONS,
    MOST_COMPLETIONS,
    READY,
    YES_NO,
    list_judges,
)
from dashboard.project.forms import number_field, select_field, set_choices
from dashboard.runs.models import Run
from trainer.internet import read_url
from trainer.rewards.model_judge.labels import Label


class QuestionForm(forms.Form):
    ready = READY
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
    judge = select_field("Judge")
    sample_size = number_field(
        "Completions", FEWEST_COMPLETIONS, MOST_COMPLETIONS, initial=300
    )
    shows_prompt = forms.BooleanField(
        required=False,
        initial=True,
        label="Show the prompt to the judge",
        widget=forms.CheckboxInput(attrs={"class": "form-check-input"}),
    )

    def __init__(
        self,
        runs: Sequence[Run],
        data: QueryDict | None,
        *,
        again: Question | None = None,
    ) -> None:
        """Args: again: the question that the form begins with."""
        super().__init__(data, initial=_fields_of(again) if again else {})
        self.judges = list_judges(runs)
        choices = [("", "Choose a judge"), *((name, name) for name in self.judges)]
        set_choices(self, "judge", choices)

    def clean_labels(self) -> list[Label]:
        lines = [line.strip() for line in self.cleaned_data["labels"].splitlines()]
        parts = [line.partition(":") for line in lines if line]
        return [Label(name.strip(), meaning.strip()) for name, _, meaning in parts]

    def clean_judge(self) -> TeamJudge:
        return self.judges[self.cleaned_data["judge"]]


def _fields_of(question: Question) -> dict[str, Any]:
    lines = [f"{label.name}: {label.meaning}" for label in question.parsed_labels]
    return {
        "text": question.text,
        "labels": "\n".join(line.removesuffix(": ") for line in lines),
        "sample_size": question.sample_size,
        "shows_prompt": question.shows_prompt,
        "judge": question.judge["name"],
    }


class JudgeForm(forms.ModelForm[TeamJudge]):
    class Meta:
        model = TeamJudge
        fields = JUDGE_FIELDS
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
