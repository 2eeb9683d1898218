"""Filters of a run's prompts and of one prompt's groups, stored in the URL."""

from __future__ import annotations

from typing import Any, ClassVar
from urllib.parse import urlencode

from django import forms
from django.core.exceptions import ValidationError

from dashboard.completions.forms import FilterForm
from dashboard.completions.pass_rates import GAP, KINDS, Kind
from dashboard.completions.prompt_visits import NUM_LAST, Span
from dashboard.project.forms import float_field

CLASS_WORDS = {
    "all": "sampled",
    "never": "never solved",
    "solved": "solved, not always",
    "always": "always solved",
    "forgotten": "forgotten",
    "oscillating": "unstable",
    "unscored": "not scored",
}
PROMPT_CHOICES = [
    ("all", "sampled: all prompts"),
    ("never", "never solved: no correct group"),
    ("solved", "solved, not always: right in each of the last groups"),
    ("always", "always solved: all completions of the last groups"),
    ("forgotten", "forgotten: correct before, not in the last groups"),
    ("oscillating", "unstable: sometimes correct in the last groups"),
    ("unscored", "not scored"),
    ("unsolved", "unsolved: pass rate 0"),
    ("failed", "failed: pass rate up to a limit"),
    ("mixed", "mixed: pass rate between two limits"),
]
PROMPT_SORTS = [
    ("pass", "lowest pass rate first"),
    ("-pass", "highest pass rate first"),
    ("change", "largest drop first"),
    ("-change", "largest gain first"),
    ("solved", "solved earliest"),
    ("-solved", "solved latest"),
    ("-times", "most sampled first"),
    ("times", "least sampled first"),
    ("prompt", "prompt number"),
]


VISITS = (("Last groups", ("visits",)), ("Steps", ("first_step", "last_step")))


class PromptViewForm(FilterForm):
    """Filters the groups of one prompt."""

    behind: ClassVar[tuple[tuple[str, tuple[str, ...]], ...]] = VISITS

    defaults: ClassVar[dict[str, Any]] = {"visits": NUM_LAST, "page": 1}

    visits = forms.IntegerField(
        required=False, min_value=1, max_value=1_000_000, label="Last groups"
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
        self.fields["visits"].widget.attrs["placeholder"] = str(self.defaults["visits"])


class PromptFilterForm(PromptViewForm):
    """Filters a run's prompts by class or pass rate."""

    defaults: ClassVar[dict[str, Any]] = {
        "which": "all",
        "at_most": 25.0,
        "low": 1.0,
        "high": 99.0,
        "visits": NUM_LAST,
        "sort": "pass",
        "page": 1,
    }

    which = forms.ChoiceField(required=False, label="Class", choices=PROMPT_CHOICES)
    at_most = float_field("Failed: maximum pass rate, %", 0, 100, required=False)
    low = float_field("Mixed: minimum pass rate, %", 0, 100, required=False)
    high = float_field("Mixed: maximum pass rate, %", 0, 100, required=False)
    sort = forms.ChoiceField(required=False, label="Order", choices=PROMPT_SORTS)

    def clean(self) -> dict[str, Any] | None:
        data = super().clean()
        low, high = (self.value(name) for name in ("low", "high"))
        if "high" not in self.errors and low > high:
            self.add_error(
                "high",
                ValidationError(
                    f"The pass rate range {low:g} to {high:g}% is empty. Swap the "
                    "values.",
                    code="empty_range",
                ),
            )
        return data

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in ("at_most", "low", "high"):
            self.fields[name].widget.attrs["placeholder"] = f"{self.defaults[name]:g}"

    @property
    def kind(self) -> Kind | None:
        """The chosen class; None for a filter by pass rate."""
        which = self.value("which")
        return which if which in KINDS else None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The lowest and highest pass rate, in percent; None: any."""
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
            "failed": f"correct in at most {high:g}% of completions",
            "mixed": f"correct in {share_words(low, high)} of completions",
        }[which]

    @property
    def kept(self) -> list[tuple[str, Any]]:
        """Hidden fields beside the chips: what the address has else."""
        values = [
            (name, self.cleaned_data.get(name))
            for name in ("which", "at_most", "low", "high", "sort")
        ]
        return [
            (name, f"{value:.12g}" if isinstance(value, float) else value)
            for name, value in values
            if value not in (None, "")
        ]

    def span_words(self, span: Span) -> str:
        num = self.value("visits")
        groups = "last group" if num == 1 else f"last {num:,} groups"
        return f"the {groups} of {span.words}"

    @property
    def view_query(self) -> str:
        """The query string of one prompt's page for the same groups; may be empty."""
        values = {
            name: self.cleaned_data.get(name)
            for name in ("visits", "first_step", "last_step")
        }
        return urlencode({k: v for k, v in values.items() if v not in (None, "")})

    def query_of(self, span: Span) -> str:
        """Return the query string that shows these prompts, also after more steps."""
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


def share_words(low: float, high: float) -> str:
    """
    >>> share_words(10, 19.99), share_words(0.01, 9.99), share_words(1, 99)
    ('10 to under 20%', 'above 0 to under 10%', '1 to 99%')
    """
    begin = f"above {low - GAP:g}" if low - GAP == int(low) else f"{low:g}"
    if round(high + GAP, 6) == round(high + GAP) and high != int(high):
        return f"{begin} to under {high + GAP:g}%"
    return f"{begin} to {high:g}%"
