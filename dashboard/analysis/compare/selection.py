"""The compared runs, their settings and their colours.

`?runs=3,5` names the runs, the baseline first; `?sweep=7` the runs of a sweep, of which
`runs` selects some.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from django import forms
from django.db.models import Q, QuerySet
from django.http import Http404, QueryDict

from dashboard.accounts.models import Team
from dashboard.analysis.compare.differences import compare_settings
from dashboard.analysis.compare.seeds import (
    IQM,
    MAX_SEEDS,
    MAX_SETS,
    MEAN,
    SEEDS,
    Arrangement,
)
from dashboard.completions.forms import FilterForm
from dashboard.costs.ledger import COST_AXES
from dashboard.project.database import read_whole
from dashboard.project.errors import or_404
from dashboard.runs.models import REWARD, Run, Sweep

MAX_RUNS = MAX_SETS * MAX_SEEDS
MAX_OFFERED = 12
NUM_ALIKE = 5  # runs of the same dataset that are offered beside a single one
MAX_CHOICES = 200  # of a sweep, or of runs that were ticked
MAX_VALUES = 4  # settings shown for each choice
MOST = 2**31 - 1
NUM_COLOURS = 10  # --cohort-series-1 … in colors.css
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    runs: list[Run]
    num_chosen: int  # more than `runs` when too many were chosen
    sweep: Sweep | None = None
    choices: list[int] = field(default_factory=list)  # that `runs` are some of

    @property
    def is_cut(self) -> bool:
        return self.num_chosen > len(self.runs)

    @property
    def ids(self) -> list[int]:
        return [run.pk for run in self.runs]

    def kept_in(self, arrangement: Arrangement) -> Selection:
        """Keep what is compared, still in the order in which it was named."""
        compared = {run.pk for run in arrangement.runs}
        runs = [run for run in self.runs if run.pk in compared]
        return replace(
            self,
            runs=runs,
            choices=self.choices if len(self.choices) > len(runs) else [],
        )

    def with_run(self, run: Run) -> str:
        return join_ids([*self.ids, run.pk])

    def without(self, runs: Iterable[Run]) -> str:
        gone = {run.pk for run in runs}
        return join_ids(pk for pk in self.ids if pk not in gone)

    def with_baseline(self, runs: Iterable[Run]) -> str:
        first = [run.pk for run in runs]
        return join_ids([*first, *(pk for pk in self.ids if pk not in first)])


def join_ids(ids: Iterable[int]) -> str:
    return ",".join(map(str, ids))


def read_selection(team: Team, query: QueryDict, *, most: int = MAX_RUNS) -> Selection:
    """Read the team's runs in the order they were named; 404 when one is not
    its own.
    """
    # `runs=3,5` as this page writes it, or `runs=3&runs=5` as ticked boxes do.
    words = [
        word.strip() for value in query.getlist("runs") for word in value.split(",")
    ]
    named = [word for word in words if word]
    ids = [
        or_404(read_whole(word), f"Run IDs are numbers; got {word[:20]!r}.")
        for word in dict.fromkeys(named)
    ]
    sweep = _read_sweep(team, query)
    choices = ids
    if sweep is not None:
        choices = list(
            Run.objects.kept()
            .filter(team=team, sweep=sweep)
            .order_by("pk")
            .values_list("pk", flat=True)
        )
        ids = ids or choices
    runs = _runs(team).in_bulk(ids[:most])
    missing = [pk for pk in ids[:most] if pk not in runs]
    if missing:
        raise Http404(_describe_missing(team, missing))
    return Selection(
        runs=[runs[pk] for pk in ids[:most]],
        num_chosen=len(ids),
        sweep=sweep,
        choices=choices[:MAX_CHOICES] if len(choices) > MAX_SETS else [],
    )


def _describe_missing(team: Team, missing: list[int]) -> str:
    away = Run.objects.filter(team=team, pk__in=missing).order_by("pk")
    if trashed := list(away.values_list("pk", flat=True)):
        return f"Run {join_ids(trashed)} is in the trash. Restore it to compare it."
    return f"{team} has no run {join_ids(missing)}."


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    run: Run
    is_chosen: bool
    values: list[tuple[str, str]]  # of settings in which the choices differ


def list_choices(team: Team, selection: Selection) -> list[Choice]:
    """List the runs of a sweep to choose from, with the settings in which they
    differ.
    """
    by_id = _runs(team).in_bulk(selection.choices)
    runs = [by_id[pk] for pk in selection.choices if pk in by_id]
    differing = [s for s in compare_settings(runs) if s.differs][:MAX_VALUES]
    return [
        Choice(
            run=run,
            is_chosen=run.pk in selection.ids,
            values=[(s.key, s.values[i] or "absent") for s in differing],
        )
        for i, run in enumerate(runs)
    ]


def _read_sweep(team: Team, query: QueryDict) -> Sweep | None:
    number = query.get("sweep", "") or query.get("group", "")
    if not number:
        return None
    sweeps = Sweep.objects.filter(team=team).select_related("launched_by")
    sweep = sweeps.filter(pk=read_whole(number) or 0).first()
    return or_404(sweep, f"{team} has no sweep {number[:20]!r}.")


def offer_alike(team: Team, run: Run) -> list[Run]:
    """List the newest other runs of its dataset; of one without, the newest."""
    runs = _runs(team).filter(archived_at=None).exclude(pk=run.pk).order_by("-pk")
    if run.dataset_version is not None:
        runs = runs.filter(dataset_version__dataset_id=run.dataset_version.dataset_id)
    return list(runs[:NUM_ALIKE])


def offer_runs(team: Team, selection: Selection, text: str) -> list[Run]:
    """Runs that could be added, newest first."""
    words = text.replace("\x00", "").split()
    runs = _runs(team).filter(archived_at=None).exclude(pk__in=selection.ids)
    runs = runs.order_by("-pk")
    for word in words[:8]:
        runs = runs.filter(
            Q(name__icontains=word)
            | Q(model_label__icontains=word)
            | Q(dataset_version__dataset__name__icontains=word)
            | Q(owner__username__icontains=word)
        )
    return list(runs[:MAX_OFFERED])


def _runs(team: Team) -> QuerySet[Run]:
    return (
        Run.objects.kept()
        .filter(team=team)
        .select_related("owner", "dataset_version__dataset", "recipe_version__recipe")
        .prefetch_related("evaluation_sets__dataset_version__dataset")
    )


class CompareForm(FilterForm):
    """The view, held in the address. A bad value gives way to its default."""

    defaults: ClassVar[dict[str, Any]] = {
        "metric": REWARD,
        "x": "step",
        "y": "linear",
        "settings": "differing",
        "by": SEEDS,
        "stat": MEAN,
    }

    metric = forms.CharField(required=False, max_length=120)
    x = forms.ChoiceField(
        required=False,
        choices=[
            ("step", "step"),
            ("time", "wall time"),
            ("tokens", "completion tokens"),
            ("samples", "completions sampled"),
            *COST_AXES.items(),
        ],
    )
    smooth = forms.FloatField(required=False, min_value=0, max_value=0.99)
    y = forms.ChoiceField(required=False, choices=[("linear", ""), ("log", "")])
    settings = forms.ChoiceField(
        required=False, choices=[("differing", ""), ("all", "")]
    )
    by = forms.CharField(required=False, max_length=200)
    stat = forms.ChoiceField(
        required=False,
        choices=[
            (MEAN, "mean ± 95% interval"),
            (IQM, "IQM, bootstrap interval"),
        ],
    )
    better = forms.ChoiceField(
        required=False,
        choices=[
            ("higher", "higher is better"),
            ("lower", "lower is better"),
            ("neither", "neither is better"),
        ],
    )
    window = forms.IntegerField(required=False, min_value=1, max_value=MOST)
    paired = forms.BooleanField(required=False)
    each = forms.BooleanField(required=False)
    q = forms.CharField(required=False, max_length=200)
    prompt = forms.IntegerField(required=False, min_value=0, max_value=MOST)
    find = forms.CharField(required=False, max_length=200)  # in the prompt
    step = forms.IntegerField(required=False, min_value=0, max_value=MOST)


# A run has the same colour in every chart.


@dataclass(frozen=True, kw_only=True, slots=True)
class LineStyle:
    colour: int  # 1 … NUM_COLOURS
    dash: str


def line_styles(ids: Iterable[int]) -> dict[int, LineStyle]:
    """Colours by run number; where two meet, the younger run takes the next free one.

    >>> [style.colour for style in line_styles([1, 2, 11]).values()]
    [1, 2, 3]
    """
    styles: dict[int, LineStyle] = {}
    taken: set[int] = set()
    for pk in sorted(ids):
        around = ((pk - 1 + i) % NUM_COLOURS for i in range(NUM_COLOURS))
        slot = next(slot for slot in around if slot not in taken)
        taken.add(slot)
        styles[pk] = LineStyle(colour=slot + 1, dash=DASHES[slot % len(DASHES)])
    return styles
