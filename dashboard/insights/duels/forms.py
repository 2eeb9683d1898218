from __future__ import annotations

from typing import Any, ClassVar

from django import forms

from dashboard.insights.duels.pairs import RANK, SAMPLED
from dashboard.samples.forms import FilterForm

MOST = 2**31 - 1
SORTS = [
    ("prompt", "prompt number"),
    ("rate", "lowest win rate first"),
    ("-rate", "highest win rate first"),
    ("delta", "lowest difference first"),
    ("-delta", "highest difference first"),
]


def number() -> forms.IntegerField:
    return forms.IntegerField(required=False, min_value=0, max_value=MOST)


class DuelForm(FilterForm):
    """Which two runs, which prompt, and how its completions are read."""

    defaults: ClassVar[dict[str, Any]] = {
        "sort": "prompt",
        "align": RANK,
        "text": "diff",
        "page": 1,
    }

    a = number()
    b = number()
    prompt = number()
    step = number()
    sort = forms.ChoiceField(required=False, choices=SORTS)
    align = forms.ChoiceField(
        required=False,
        choices=[(RANK, "best beside best"), (SAMPLED, "as they were sampled")],
    )
    text = forms.ChoiceField(
        required=False,
        choices=[("diff", "differences marked"), ("plain", "as they are")],
    )
    page = forms.IntegerField(required=False, min_value=1, max_value=MOST)
