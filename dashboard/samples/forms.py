"""Filters and views of completions, groups and rule logs, held in the address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self, get_args
from urllib.parse import urlencode

from django import forms
from django.http import QueryDict

from dashboard.samples.flags import ENDS, OUTCOMES, SURPRISES, FlagFilter
from trainer.events import Signal

SIGNALS = [(signal, signal) for signal in get_args(Signal)]
GROUP_SORTS = [
    ("prompt", "prompt number"),
    ("-mean", "mean reward, high first"),
    ("mean", "mean reward, low first"),
    ("-spread", "spread, wide first"),
    ("spread", "spread, narrow first"),
]
COMPLETION_SORTS = [
    ("-step", "newest step first"),
    ("step", "oldest step first"),
    ("-reward", "highest reward first"),
    ("reward", "lowest reward first"),
    ("-advantage", "highest advantage first"),
    ("advantage", "lowest advantage first"),
    ("-length", "longest first"),
    ("length", "shortest first"),
]
GROUP_VIEWS = [
    ("text", "text"),
    ("rendered", "rendered"),
    ("tokens", "tokens"),
]
GROUP_LAYOUTS = [("side", "side by side"), ("stacked", "stacked")]
COMPLETION_ORDERS = [
    ("position", "as sampled"),
    ("-reward", "best reward first"),
    ("reward", "worst reward first"),
    ("-length", "longest first"),
    ("length", "shortest first"),
]
TOKEN_COLORS = [
    ("logprob", "log-prob"),
    ("entropy", "entropy"),
    ("kl", "KL to the reference"),
    ("ratio", "ratio"),
    ("clipped", "clipped or not"),
    ("advantage", "advantage"),
    ("coefficient", "gradient coefficient"),
    ("none", "none: only where each begins"),
]
NOTE_KINDS = [("error", "errors only"), ("print", "prints only")]
MARKS = [
    ("", "no filter"),
    ("any", "in any way"),
    ("good", "good"),
    ("bad", "bad"),
    ("tagged", "with a tag"),
    ("commented", "with a comment"),
]
MATCHES = [("text", "this text"), ("words", "these words")]


def labelled(filters: Mapping[str, FlagFilter]) -> list[tuple[str, str]]:
    return [(name, each.label) for name, each in filters.items()]


def number_field(
    label: str, *, min_value: float | None = None, max_value: float | None = None
) -> forms.FloatField:
    return forms.FloatField(
        required=False,
        label=label,
        min_value=min_value,
        max_value=max_value,
        widget=forms.NumberInput(attrs={"step": "any"}),
    )


def _class_of(widget: forms.Widget) -> str:
    if isinstance(widget, forms.CheckboxInput):
        return "form-check-input"
    return "form-select" if isinstance(widget, forms.Select) else "form-control"


class FilterForm(forms.Form):
    """Filters held in the address. A bad value is named, and left out."""

    defaults: ClassVar[dict[str, Any]] = {}
    hidden: ClassVar[tuple[str, ...]] = ("page",)  # which page, not what is on it
    further: ClassVar[tuple[str, ...]] = ()  # filters that are folded away

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, field in self.fields.items():
            field.widget.attrs["class"] = _class_of(field.widget)
            if self.defaults.get(name) is not None:
                field.widget.attrs["data-default"] = self.defaults[name]

    @classmethod
    def read(cls, query: QueryDict) -> Self:
        form = cls(query)
        form.is_valid()
        return form

    def value(self, name: str) -> Any:
        found = self.cleaned_data.get(name)
        return self.defaults.get(name) if found in (None, "") else found

    @property
    def filters(self) -> list[forms.BoundField]:
        elsewhere = (*self.hidden, *self.further)
        return [field for field in self if field.name not in elsewhere]

    @property
    def further_filters(self) -> list[forms.BoundField]:
        return [self[name] for name in self.further]

    @property
    def uses_further(self) -> bool:
        """Or has a mistake in one, which must be seen."""
        return any(
            self.value(name) not in (None, "") or name in self.errors
            for name in self.further
        )

    @property
    def is_narrowed(self) -> bool:
        return any(
            self.value(name) not in (None, "")
            for name in self.fields
            if name not in self.defaults
        )

    def refuse_empty_range(self, low: str, high: str, noun: str) -> None:
        first, last = self.cleaned_data.get(low), self.cleaned_data.get(high)
        if first is not None and last is not None and first > last:
            self.add_error(
                high,
                f"No {noun} is at least {first} and at most {last}. "
                "Swap the two, or leave one empty.",
            )


def offer_rules(form: FilterForm, rules: Iterable[str], *, nothing: str) -> None:
    """These, and the one in the address, whatever it is."""
    names = dict.fromkeys([*rules, *filter(None, [form.value("rule")])])
    widget = form.fields["rule"].widget
    assert isinstance(widget, forms.Select)
    widget.choices = [("", nothing), *((name, name) for name in names)]


class GroupFilterForm(FilterForm):
    defaults: ClassVar[dict[str, Any]] = {"sort": "prompt", "step": None, "page": 1}

    step = forms.IntegerField(required=False, min_value=0)
    signal = forms.ChoiceField(required=False, choices=SIGNALS)
    sort = forms.ChoiceField(required=False, choices=GROUP_SORTS)
    page = forms.IntegerField(required=False, min_value=1)


class GroupViewForm(FilterForm):
    """How a group's completions are read."""

    defaults: ClassVar[dict[str, Any]] = {
        "view": "text",
        "layout": "side",
        "sort": "position",
        "color": "logprob",
        "diff": False,
    }

    view = forms.ChoiceField(required=False, label="Read as", choices=GROUP_VIEWS)
    color = forms.ChoiceField(required=False, label="Colour", choices=TOKEN_COLORS)
    layout = forms.ChoiceField(required=False, label="Lay out", choices=GROUP_LAYOUTS)
    sort = forms.ChoiceField(required=False, label="Order", choices=COMPLETION_ORDERS)
    diff = forms.BooleanField(
        required=False, label="Differences from the best", widget=forms.CheckboxInput
    )

    @property
    def choices(self) -> list[tuple[forms.BoundField, str]]:
        """What is offered, and what is chosen of it: colours are those of tokens."""
        is_colored = self.value("view") == "tokens"
        names = ["view", *(["color"] if is_colored else []), "layout", "sort"]
        return [(self[name], self.value(name)) for name in names]

    @property
    def shows_diff(self) -> bool:
        return self.value("view") == "text" and bool(self.value("diff"))

    @property
    def query(self) -> str:
        """Of an address that shows another group in the same way; "?…" or empty."""
        chosen = {name: self.value(name) for name in self.fields}
        other = {k: v for k, v in chosen.items() if v != self.defaults[k]}
        if "diff" in other:
            other["diff"] = "on"
        return f"?{urlencode(other)}" if other else ""


class CompletionFilterForm(FilterForm):
    defaults: ClassVar[dict[str, Any]] = {
        "match": "text",
        "sort": "-step",
        "page": 1,
        "start": 0,
        "before": 0,
    }
    hidden: ClassVar[tuple[str, ...]] = ("page", "start", "before")
    further: ClassVar[tuple[str, ...]] = (
        "min_advantage",
        "max_advantage",
        "min_length",
        "max_length",
        "rule",
        "min_score",
        "max_score",
    )

    text = forms.CharField(required=False, max_length=200, label="Text contains")
    match = forms.ChoiceField(required=False, label="Look for", choices=MATCHES)
    surprise = forms.ChoiceField(
        required=False,
        label="Surprising",
        choices=[("", "no filter"), *labelled(SURPRISES)],
    )
    outcome = forms.ChoiceField(
        required=False, label="Outcome", choices=[("", "any"), *labelled(OUTCOMES)]
    )
    first_step = forms.IntegerField(required=False, min_value=0, label="From step")
    last_step = forms.IntegerField(required=False, min_value=0, label="To step")
    min_reward = number_field("Reward at least")
    max_reward = number_field("Reward at most")
    end = forms.ChoiceField(
        required=False,
        label="Why it ended",
        choices=[("", "every reason"), *labelled(ENDS)],
    )
    prompt = forms.IntegerField(required=False, min_value=0, label="Prompt number")
    min_advantage = number_field("Advantage at least")
    max_advantage = number_field("Advantage at most")
    min_length = forms.IntegerField(
        required=False, min_value=0, max_value=2**31 - 1, label="Tokens at least"
    )
    max_length = forms.IntegerField(
        required=False, min_value=0, max_value=2**31 - 1, label="Tokens at most"
    )
    rule = forms.CharField(
        required=False, max_length=40, label="Rule", widget=forms.Select
    )
    min_score = number_field("Its score at least")
    max_score = number_field("Its score at most")
    tag = forms.CharField(
        required=False,
        max_length=40,
        label="Tag",
        widget=forms.TextInput(attrs={"list": "team-tags", "autocomplete": "off"}),
    )
    mark = forms.ChoiceField(required=False, label="Marked", choices=MARKS)
    by = forms.ChoiceField(
        required=False, label="Marked by", choices=[("", "anybody"), ("me", "me")]
    )
    sort = forms.ChoiceField(required=False, label="Order", choices=COMPLETION_SORTS)
    page = forms.IntegerField(required=False, min_value=1, max_value=2**31 - 1)
    # With a text there are no pages: how many completions have been looked through in
    # this order, and how many of them were found.
    start = forms.IntegerField(required=False, min_value=0, max_value=2**31 - 1)
    before = forms.IntegerField(required=False, min_value=0, max_value=2**31 - 1)

    def clean(self) -> dict[str, Any] | None:
        self.refuse_empty_range("first_step", "last_step", "step")
        self.refuse_empty_range("min_reward", "max_reward", "reward")
        self.refuse_empty_range("min_advantage", "max_advantage", "advantage")
        self.refuse_empty_range("min_length", "max_length", "length")
        self.refuse_empty_range("min_score", "max_score", "score")
        bounds = (self.cleaned_data.get(name) for name in ("min_score", "max_score"))
        if not self.cleaned_data.get("rule") and any(b is not None for b in bounds):
            self.add_error("rule", "Choose the rule whose score is meant.")
        return super().clean()

    @classmethod
    def of_rules(cls, query: QueryDict, rules: Iterable[str]) -> Self:
        form = cls.read(query)
        offer_rules(form, rules, nothing="any rule")
        return form


class MentionForm(FilterForm):
    defaults: ClassVar[dict[str, Any]] = {"page": 1}

    page = forms.IntegerField(required=False, min_value=1)


class RewardLogForm(FilterForm):
    defaults: ClassVar[dict[str, Any]] = {"page": 1}

    text = forms.CharField(required=False, max_length=200, label="Text contains")
    rule = forms.CharField(
        required=False, max_length=40, label="Rule", widget=forms.Select
    )
    kind = forms.ChoiceField(
        required=False, label="What", choices=[("", "everything"), *NOTE_KINDS]
    )
    first_step = forms.IntegerField(required=False, min_value=0, label="From step")
    last_step = forms.IntegerField(required=False, min_value=0, label="To step")
    prompt = forms.IntegerField(required=False, min_value=0, label="Prompt number")
    page = forms.IntegerField(required=False, min_value=1)

    @classmethod
    def of_rules(cls, query: QueryDict, rules: Iterable[str]) -> Self:
        """Offers these rules, and the one in the address, whatever it is."""
        form = cls.read(query)
        offer_rules(form, rules, nothing="every rule")
        return form

    def clean(self) -> dict[str, Any] | None:
        self.refuse_empty_range("first_step", "last_step", "step")
        return super().clean()
