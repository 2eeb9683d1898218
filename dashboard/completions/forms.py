"""Filters and views of completions, groups and rule logs, stored in the URL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, get_args
from urllib.parse import urlencode

from django import forms
from django.core.exceptions import ValidationError
from django.http import QueryDict

from dashboard.completions.flags import ENDS, OUTCOMES, SURPRISES, FlagFilter
from dashboard.completions.rewards import outcomes_of, rule_names
from dashboard.project.forms import float_field
from dashboard.runs.models import Run
from trainer.events import Signal

SIGNALS = [(signal, signal) for signal in get_args(Signal)]
GROUP_SORTS = [
    ("-spread", "widest spread"),
    ("spread", "narrowest spread"),
    ("-mean", "highest mean reward"),
    ("mean", "lowest mean reward"),
    ("prompt", "prompt number"),
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
GROUP_LAYOUTS = [("table", "table"), ("cards", "cards")]
COMPLETION_ORDERS = [
    ("-reward", "best first"),
    ("reward", "worst first"),
    ("-length", "longest first"),
    ("length", "shortest first"),
    ("position", "as sampled"),
]
TOKEN_COLORS = [
    ("logprob", "log-prob"),
    ("entropy", "entropy"),
    ("kl", "KL from reference"),
    ("teacher", "distance to teacher"),
    ("ratio", "ratio"),
    ("clipped", "clipping"),
    ("advantage", "advantage"),
    ("coefficient", "gradient coefficient"),
    ("gap", "sampler mismatch"),
    ("weight", "weight of a correction"),
    ("none", "token boundaries only"),
]
MARKS = [
    ("", "all"),
    ("any", "annotated"),
    ("good", "good"),
    ("bad", "bad"),
    ("tagged", "tagged"),
    ("commented", "commented"),
]
MATCHES = [("text", "substring"), ("words", "whole words")]


def labelled(filters: Mapping[str, FlagFilter]) -> list[tuple[str, str]]:
    return [(name, flag_filter.label) for name, flag_filter in filters.items()]


HIGHS = {"min": "max", "first": "last"}  # by how the other field's name begins


def range_words(low: float | None, high: float | None) -> str:
    """
    >>> range_words(0.5, None), range_words(3, 7), range_words(3, 3)
    ('≥ 0.5', '3–7', '3')
    """
    # An integer may be too large for a float.
    begin, end = (f"{n:g}" if isinstance(n, float) else str(n) for n in (low, high))
    if low is None:
        return "" if high is None else f"≤ {end}"
    if high is None:
        return f"≥ {begin}"
    return begin if low == high else f"{begin}–{end}"


def _class_of(widget: forms.Widget) -> str:
    if isinstance(widget, forms.CheckboxInput):
        return "form-check-input"
    return "form-select" if isinstance(widget, forms.Select) else "form-control"


@dataclass(frozen=True, kw_only=True, slots=True)
class Chip:
    """Fields behind one button."""

    title: str
    words: str  # what they are set to; may be empty
    fields: list[forms.BoundField]
    without: str  # the query string that unsets them; "?" alone unsets all
    has_errors: bool


class FilterForm(forms.Form):
    """Filters stored in the URL. An invalid value is reported and ignored."""

    defaults: ClassVar[dict[str, Any]] = {}
    hidden: ClassVar[tuple[str, ...]] = ("page",)  # not filters
    # Titles of chips, and the fields of each.
    behind: ClassVar[tuple[tuple[str, tuple[str, ...]], ...]] = ()

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
        value = self.cleaned_data.get(name)
        return self.defaults.get(name) if value in (None, "") else value

    def chips(self, query: QueryDict) -> list[Chip]:
        chips = []
        for title, names in self.behind:
            others = query.copy()
            for name in {*names, *self.hidden}:
                others.pop(name, None)
            chips.append(
                Chip(
                    title=title,
                    words=", ".join(self._words(names)),
                    fields=[self[name] for name in names],
                    without=f"?{others.urlencode()}",
                    has_errors=any(name in self.errors for name in names),
                )
            )
        return chips

    def _words(self, names: Sequence[str]) -> Iterator[str]:
        """Describe a range by its first field; its noun only beside other fields."""
        for name in names:
            value, (low, _, noun) = self.cleaned_data.get(name), name.partition("_")
            if low in HIGHS:
                end = self.cleaned_data.get(f"{HIGHS[low]}_{noun}")
                if words := range_words(value, end):
                    yield f"{noun} {words}" if len(names) > 3 else words
            elif low not in HIGHS.values() and value not in (None, ""):
                choices = getattr(self.fields[name], "choices", ())
                words = str(dict(choices).get(value, value))
                yield f"{noun or name} {words}" if name in ("by", "prompt") else words

    @property
    def is_narrowed(self) -> bool:
        return any(
            self.value(name) not in (None, "")
            for name in self.fields
            if name not in self.defaults
        )

    def clean(self) -> dict[str, Any] | None:
        """Refuse a range that ends before it begins."""
        for name in self.fields:
            low, _, noun = name.partition("_")
            high = f"{HIGHS.get(low)}_{noun}"
            first, last = self.cleaned_data.get(name), self.cleaned_data.get(high)
            if first is not None and last is not None and first > last:
                self.add_error(
                    high,
                    ValidationError(
                        f"The {noun} range {first} to {last} is empty. Swap the values "
                        "or clear one.",
                        code="empty_range",
                    ),
                )
        return super().clean()


def offer_rules(form: FilterForm, rules: Iterable[str]) -> None:
    """Set the choices to these rules and the one in the URL, even if unknown."""
    names = dict.fromkeys([*rules, *filter(None, [form.value("rule")])])
    widget = form.fields["rule"].widget
    assert isinstance(widget, forms.Select)
    widget.choices = [("", "all rules"), *((name, name) for name in names)]


class GroupFilterForm(FilterForm):
    defaults: ClassVar[dict[str, Any]] = {"step": None, "page": 1}

    step = forms.IntegerField(required=False, min_value=0)
    page = forms.IntegerField(required=False, min_value=1)


class GroupViewForm(FilterForm):
    """A step's list of groups, and how the open group's completions are read.

    `order` is of the groups, `sort` of the completions. On the address of a step, where
    no group is chosen, `sort` is of the groups.
    """

    defaults: ClassVar[dict[str, Any]] = {
        "signal": "",
        "order": "-spread",
        "view": "text",
        "layout": "table",
        "sort": "-reward",
        "color": "logprob",
        "diff": False,
    }

    signal = forms.ChoiceField(required=False, choices=SIGNALS)
    order = forms.ChoiceField(required=False, label="Order", choices=GROUP_SORTS)
    view = forms.ChoiceField(required=False, label="View", choices=GROUP_VIEWS)
    color = forms.ChoiceField(required=False, label="Colour", choices=TOKEN_COLORS)
    layout = forms.ChoiceField(required=False, label="Layout", choices=GROUP_LAYOUTS)
    sort = forms.ChoiceField(required=False, label="Order", choices=COMPLETION_ORDERS)
    diff = forms.BooleanField(required=False, label="Diff against best")

    @classmethod
    def of_step(cls, query: QueryDict) -> Self:
        changed = query.copy()
        changed.setlist("order", changed.pop("sort", []))
        return cls.read(changed)

    @property
    def shows_diff(self) -> bool:
        return self.value("view") == "text" and bool(self.value("diff"))

    @property
    def shows_plain(self) -> bool:
        """True for text without differences, of which two lines are shown at first."""
        return self.value("view") == "text" and not self.value("diff")

    @property
    def shows_text(self) -> bool:
        return bool(self.value("view") == "text")

    @property
    def wants_rendered(self) -> bool:
        return bool(self.value("view") == "rendered")

    @property
    def wants_tokens(self) -> bool:
        return bool(self.value("view") == "tokens")

    @property
    def is_table(self) -> bool:
        return bool(self.value("layout") == "table")

    @property
    def color_shown(self) -> str:
        return str(self.value("color"))

    @property
    def selects(self) -> list[tuple[forms.BoundField, str]]:
        """The selects with their values; a table is sorted by its headings."""
        names = ["color"] * self.wants_tokens + ["sort"] * (not self.is_table)
        return [(self[name], self.value(name)) for name in names]

    @property
    def kept(self) -> list[tuple[str, Any]]:
        """Hidden fields beside the selects."""
        shown = {field.name for field, _ in self.selects}
        return [(k, v) for k, v in self._changed().items() if k not in shown]

    @property
    def of_list(self) -> list[tuple[str, Any]]:
        """Hidden fields beside the number of the step."""
        return list(self._of_step().items())

    @property
    def query(self) -> str:
        """For links to other groups with the same list and view: "?…" or empty."""
        return self.query_with()

    def query_with(self, **changes: Any) -> str:
        """Return the query with these values changed."""
        return _in_address(self._changed(**changes))

    def query_of_step(self, step: int | None, **changes: Any) -> str:
        """Return the query of a step's address, the newest step's if None."""
        chosen = {} if step is None else {"step": step}
        return _in_address(chosen | self._of_step(**changes))

    def _of_step(self, **changes: Any) -> dict[str, Any]:
        chosen = self._changed(**changes)
        chosen.pop("sort", None)
        if "order" in chosen:
            chosen["sort"] = chosen.pop("order")
        return chosen

    def _changed(self, **changes: Any) -> dict[str, Any]:
        """Return the values that differ from the defaults."""
        values = {name: self.value(name) for name in self.fields} | changes
        chosen = {k: v for k, v in values.items() if v != self.defaults[k]}
        return chosen | ({"diff": "on"} if "diff" in chosen else {})


def _in_address(values: Mapping[str, Any]) -> str:
    return f"?{urlencode(values)}" if values else ""


class CompletionFilterForm(FilterForm):
    defaults: ClassVar[dict[str, Any]] = {
        "match": "text",
        "sort": "-step",
        "page": 1,
        "start": 0,
        "before": 0,
    }
    hidden: ClassVar[tuple[str, ...]] = ("page", "start", "before")
    behind: ClassVar[tuple[tuple[str, tuple[str, ...]], ...]] = (
        ("Outcome", ("outcome",)),
        ("Reward", ("min_reward", "max_reward")),
        ("Steps", ("first_step", "last_step")),
        ("Finish", ("end",)),
        ("Rule score", ("rule", "min_score", "max_score")),
        ("Unusual", ("surprise",)),
        ("Annotated", ("mark", "tag", "by")),
        (
            "More",
            (
                "prompt",
                "min_advantage",
                "max_advantage",
                "min_length",
                "max_length",
                "min_turns",
                "min_waited",
                "tools",
            ),
        ),
    )

    text = forms.CharField(required=False, max_length=200, label="Text contains")
    match = forms.ChoiceField(required=False, label="Match", choices=MATCHES)
    surprise = forms.ChoiceField(
        required=False,
        label="Unusual",
        choices=[("", "all"), *labelled(SURPRISES)],
    )
    outcome = forms.ChoiceField(
        required=False, label="Outcome", choices=[("", "all"), *labelled(OUTCOMES)]
    )
    first_step = forms.IntegerField(required=False, min_value=0, label="From step")
    last_step = forms.IntegerField(required=False, min_value=0, label="To step")
    min_reward = float_field("Minimum reward", required=False)
    max_reward = float_field("Maximum reward", required=False)
    end = forms.ChoiceField(
        required=False,
        label="Finish reason",
        choices=[("", "all"), *labelled(ENDS)],
    )
    prompt = forms.IntegerField(required=False, min_value=0, label="Prompt number")
    min_advantage = float_field("Minimum advantage", required=False)
    max_advantage = float_field("Maximum advantage", required=False)
    min_length = forms.IntegerField(
        required=False, min_value=0, max_value=2**31 - 1, label="Minimum tokens"
    )
    max_length = forms.IntegerField(
        required=False, min_value=0, max_value=2**31 - 1, label="Maximum tokens"
    )
    min_turns = forms.IntegerField(
        required=False, min_value=2, max_value=127, label="Minimum turns"
    )
    min_waited = float_field("Minimum wait, s", required=False)
    tools = forms.ChoiceField(
        required=False,
        label="Tool calls",
        choices=[("", "all"), ("failed", "a tool call failed")],
    )
    rule = forms.CharField(
        required=False, max_length=40, label="Rule", widget=forms.Select
    )
    min_score = float_field("Minimum score", required=False)
    max_score = float_field("Maximum score", required=False)
    tag = forms.CharField(
        required=False,
        max_length=40,
        label="Tag",
        widget=forms.TextInput(attrs={"list": "team-tags", "autocomplete": "off"}),
    )
    mark = forms.ChoiceField(required=False, label="Annotation", choices=MARKS)
    by = forms.ChoiceField(
        required=False, label="Annotated by", choices=[("", "anyone"), ("me", "me")]
    )
    sort = forms.ChoiceField(required=False, label="Order", choices=COMPLETION_SORTS)
    page = forms.IntegerField(required=False, min_value=1, max_value=2**31 - 1)
    # A text search has no pages: how many completions it has searched in this order,
    # and how many of them matched.
    start = forms.IntegerField(required=False, min_value=0, max_value=2**31 - 1)
    before = forms.IntegerField(required=False, min_value=0, max_value=2**31 - 1)

    def clean(self) -> dict[str, Any] | None:
        data = super().clean()
        bounds = (self.cleaned_data.get(name) for name in ("min_score", "max_score"))
        if not self.cleaned_data.get("rule") and any(b is not None for b in bounds):
            self.add_error(
                "rule",
                ValidationError("Choose a rule for the score range.", code="required"),
            )
        return data

    @classmethod
    def of_run(cls, query: QueryDict, run: Run) -> Self:
        form = cls.read(query)
        offer_rules(form, rule_names(run))
        outcome = form.fields["outcome"]
        assert isinstance(outcome, forms.ChoiceField)
        outcomes = outcomes_of(run)
        if (chosen := form.value("outcome")) and chosen not in outcomes:
            outcomes = {chosen: OUTCOMES[chosen], **outcomes}
        outcome.choices = [("", "all"), *labelled(outcomes)]
        return form
