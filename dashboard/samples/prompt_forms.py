"""Which prompts of a run, and which visits of one, held in the address."""

from __future__ import annotations

from typing import Any, ClassVar
from urllib.parse import urlencode

from django import forms

from dashboard.samples.forms import FilterForm, number_field
from dashboard.samples.pass_rates import KINDS, Kind
from dashboard.samples.prompt_visits import Span

CLASS_WORDS = {
    "all": "sampled",
    "never": "never solved",
    "solved": "solved",
    "forgotten": "forgotten",
    "oscillating": "oscillating",
    "unscored": "without a score",
}
PROMPT_CHOICES = [
    ("all", "sampled: all of them"),
    ("never", "never solved: right at no visit"),
    ("solved", "solved: right at the last visits"),
    ("forgotten", "forgotten: no longer right"),
    ("oscillating", "oscillating: now right, now wrong"),
    ("unscored", "without a score"),
    ("unsolved", "unsolved: not right recently"),
    ("failed", "failed: right at most this often"),
    ("mixed", "mixed: right between these, which carries signal"),
]
PROMPT_SORTS = [
    ("pass", "lowest pass rate first"),
    ("-pass", "highest pass rate first"),
    ("change", "greatest loss first"),
    ("-change", "greatest gain first"),
    ("solved", "first solved first"),
    ("-solved", "last solved first"),
    ("-times", "most often sampled first"),
    ("times", "least often sampled first"),
    ("prompt", "prompt number"),
]


class PromptFilterForm(FilterForm):
    """Which prompts of a run, by class or by the share that was right."""

    defaults: ClassVar[dict[str, Any]] = {
        "which": "all",
        "at_most": 25.0,
        "low": 1.0,
        "high": 99.0,
        "visits": 3,
        "sort": "pass",
        "page": 1,
    }

    which = forms.ChoiceField(
        required=False, label="Prompts that are", choices=PROMPT_CHOICES
    )
    at_most = number_field("Failed: at most, %", min_value=0, max_value=100)
    low = number_field("Mixed: from, %", min_value=0, max_value=100)
    high = number_field("to, %", min_value=0, max_value=100)
    visits = forms.IntegerField(
        required=False, min_value=1, max_value=1_000_000, label="Last visits"
    )
    first_step = forms.IntegerField(
        required=False, min_value=0, max_value=2**31 - 1, label="From step"
    )
    last_step = forms.IntegerField(
        required=False, min_value=0, max_value=2**31 - 1, label="To step"
    )
    sort = forms.ChoiceField(required=False, label="Order", choices=PROMPT_SORTS)
    page = forms.IntegerField(required=False, min_value=1, max_value=2**31 - 1)

    def clean(self) -> dict[str, Any] | None:
        self.refuse_empty_range("first_step", "last_step", "step")
        low, high = (self.value(name) for name in ("low", "high"))
        if "high" not in self.errors and low > high:
            self.add_error(
                "high",
                f"No share is at least {low:g} % and at most {high:g} %. Swap the two.",
            )
        return super().clean()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in ("at_most", "low", "high", "visits"):
            usual = f"{self.defaults[name]:g}"
            self.fields[name].widget.attrs["placeholder"] = usual

    @property
    def kind(self) -> Kind | None:
        """The class that is wanted, if it is one."""
        which = self.value("which")
        return which if which in KINDS else None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The lowest and highest share that is wanted, in percent; None: any."""
        return {
            "unsolved": (0.0, 0.0),
            "failed": (0.0, self.value("at_most")),
            "mixed": (self.value("low"), self.value("high")),
        }.get(self.value("which"))

    @property
    def words(self) -> str:
        which = self.value("which")
        if which in CLASS_WORDS:
            return CLASS_WORDS[which]
        low, high = self.bounds or (0.0, 100.0)
        return {
            "unsolved": "unsolved",
            "failed": f"right at most {high:g} % of the time",
            "mixed": f"right {low:g} to {high:g} % of the time",
        }[which]

    def span_words(self, span: Span) -> str:
        num = self.value("visits")
        visits = "last visit" if num == 1 else f"last {num:,} visits"
        return f"the {visits} in {span.words}"

    @property
    def view_query(self) -> str:
        """The part of one prompt's address that shows the same visits; may be empty."""
        names = ("visits", "first_step", "last_step")
        given = {name: self.cleaned_data.get(name) for name in names}
        return urlencode({k: v for k, v in given.items() if v not in (None, "")})

    def query_of(self, span: Span) -> str:
        """The part of the address that shows these prompts, also after more steps."""
        names = {"failed": ("at_most",), "mixed": ("low", "high")}
        which = self.value("which")
        chosen = {"which": which}
        chosen |= {name: f"{self.value(name):.12g}" for name in names.get(which, ())}
        return urlencode(
            {
                **chosen,
                "visits": self.value("visits"),
                "first_step": span.first,
                "last_step": span.last,
            }
        )


class PromptViewForm(FilterForm):
    """Which visits of one prompt."""

    defaults: ClassVar[dict[str, Any]] = {"visits": 3, "page": 1}

    visits = forms.IntegerField(
        required=False, min_value=1, max_value=1_000_000, label="Last visits"
    )
    first_step = forms.IntegerField(
        required=False, min_value=0, max_value=2**31 - 1, label="From step"
    )
    last_step = forms.IntegerField(
        required=False, min_value=0, max_value=2**31 - 1, label="To step"
    )
    page = forms.IntegerField(required=False, min_value=1, max_value=2**31 - 1)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        usual = str(self.defaults["visits"])
        self.fields["visits"].widget.attrs["placeholder"] = usual

    def clean(self) -> dict[str, Any] | None:
        self.refuse_empty_range("first_step", "last_step", "step")
        return super().clean()
