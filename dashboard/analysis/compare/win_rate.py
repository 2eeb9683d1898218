"""Two runs prompt by prompt: the steps at which both sampled it, and win rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from django.http import QueryDict
from numpy.typing import NDArray

from dashboard.accounts.models import Team
from dashboard.analysis.compare.pairs import PairForm, Side, delta_of, read_side
from dashboard.analysis.compare.selection import Selection, join_ids, read_selection
from dashboard.analysis.statistics import Array, mean_interval, win_rate
from dashboard.completions.prompt_visits import Visits, find_span, read_visits
from dashboard.project.database import fetch_all
from dashboard.runs.models import Run

# A row is the same where its prompt, its answer and its columns are; of several the
# first counts.
SAME = """
    SELECT ours.position, min(theirs.position)
      FROM datasets_datasetrow ours
      JOIN datasets_datasetrow theirs
        ON theirs.prompt = ours.prompt AND theirs.is_chat = ours.is_chat
       AND theirs.answer IS NOT DISTINCT FROM ours.answer
       AND theirs.answer_is_list = ours.answer_is_list
       AND theirs.columns = ours.columns
     WHERE ours.version_id = %s AND theirs.version_id = %s
       AND ours.position = ANY(%s)
     GROUP BY 1
"""
MAX_PROMPTS = 2_000
Steps = NDArray[np.int32]
REWARDS = """
    SELECT requested.prompt, packed.rewards
      FROM unnest(%s::int[], %s::int[]) AS requested(prompt, step)
      JOIN samples_group visit
        ON visit.run_id = %s AND visit.superseded_by IS NULL
       AND visit.prompt_index = requested.prompt AND visit.step = requested.step
      JOIN samples_groupcompletions packed ON packed.group_id = visit.id
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Matching:
    """The other run's number of each prompt; without `numbers` they are the same."""

    numbers: dict[int, int] | None
    note: str  # how prompts were matched, where that is not by number

    def other(self, prompt: int) -> int | None:
        return prompt if self.numbers is None else self.numbers.get(prompt)


def match_rows(ours: Run, theirs: Run, prompts: NDArray[np.int32]) -> Matching:
    """Match the first run's prompts. One query, where the versions differ in
    content.
    """
    mine, its = ours.dataset_version, theirs.dataset_version
    if mine is None or its is None:
        without = ours.name if mine is None else theirs.name
        return Matching(numbers={}, note=f"{without} was imported without prompts.")
    if mine.content_sha256 == its.content_sha256:
        return Matching(numbers=None, note="")
    sampled = np.unique(prompts).tolist()
    numbers = dict(fetch_all(SAME, [mine.pk, its.pk, sampled]))
    return Matching(
        numbers=numbers,
        note=f"{ours.name} uses {mine} and {theirs.name} uses {its}. Prompts are "
        f"matched by the content of their rows: {len(numbers):,} of "
        f"{len(sampled):,} are in both.",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class CommonStep:
    """A prompt at a step of each run; its number may differ between them."""

    prompts: tuple[int, int]
    steps: tuple[int, int]

    @property
    def is_equal(self) -> bool:
        return self.steps[0] == self.steps[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class CommonSteps:
    found: list[CommonStep]  # by prompt; the newest MAX_PROMPTS of them
    num_common: int  # prompts that both runs sampled
    matching: Matching
    steps: tuple[dict[int, Steps], dict[int, Steps]]  # of each run, by its own numbers

    def of(self, prompt: int, near: int | None) -> CommonStep | None:
        """Find it by the first run's number; None: not both have sampled it."""
        other = self.matching.other(prompt)
        ours, theirs = self.steps[0].get(prompt), self.steps[1].get(other or 0)
        if other is None or ours is None or theirs is None:
            return None
        return CommonStep(
            prompts=(prompt, other), steps=nearest_steps(ours, theirs, near)
        )

    def equal_steps(self, common_step: CommonStep) -> list[int]:
        """List the steps at which both sampled it."""
        ours, theirs = (
            steps[prompt]
            for steps, prompt in zip(self.steps, common_step.prompts, strict=True)
        )
        return [int(step) for step in np.intersect1d(ours, theirs)]

    def why_not(self, prompt: int, runs: tuple[Run, Run]) -> str:
        if prompt not in self.steps[0]:
            return f"{runs[0].name} has not sampled prompt {prompt}."
        if self.matching.other(prompt) is None:
            return f"The dataset of {runs[1].name} has no row equal to prompt {prompt}."
        return f"{runs[1].name} has not sampled prompt {prompt}."


def find_common_steps(runs: tuple[Run, Run], near: int | None) -> CommonSteps:
    """Find for each prompt the common step nearest to `near`, by default the newest."""
    ours, theirs = (_visits(run) for run in runs)
    matching = match_rows(*runs, ours["prompt"])
    steps = _by_prompt(ours), _by_prompt(theirs)
    common = [
        (prompt, other)
        for prompt in steps[0]
        if (other := matching.other(prompt)) is not None and other in steps[1]
    ]
    newest = sorted(common, key=lambda pair: -int(steps[0][pair[0]][-1]))
    return CommonSteps(
        found=[
            CommonStep(
                prompts=pair,
                steps=nearest_steps(steps[0][pair[0]], steps[1][pair[1]], near),
            )
            for pair in sorted(newest[:MAX_PROMPTS])
        ],
        num_common=len(common),
        matching=matching,
        steps=steps,
    )


def nearest_steps(ours: Steps, theirs: Steps, near: int | None) -> tuple[int, int]:
    """Find the common step nearest to `near`, else the two steps nearest to each other.

    Ties are resolved towards `near`, by default the newest.

    >>> nearest_steps(np.array([1, 5, 9]), np.array([2, 5, 8]), 1)
    (5, 5)
    >>> nearest_steps(np.array([1, 9]), np.array([3, 8]), None)
    (9, 8)
    """
    equal = np.intersect1d(ours, theirs)
    if len(equal):
        step = int(equal[-1] if near is None else equal[np.abs(equal - near).argmin()])
        return step, step
    pairs = [
        (int(step), int(theirs[index]))
        for step, end in zip(ours, np.searchsorted(theirs, ours), strict=True)
        for index in (end - 1, end)
        if 0 <= index < len(theirs)
    ]
    around = int(ours[-1]) if near is None else near
    return min(pairs, key=lambda p: (abs(p[0] - p[1]), abs(p[0] - around)))


def _visits(run: Run, *, prompt: int | None = None) -> Visits:
    span = find_span(run, first=None, last=None)
    if span is None:
        return np.empty(0, [("prompt", np.int32), ("step", np.int32)])
    return read_visits(run, span, prompt=prompt)


def _by_prompt(visits: Visits) -> dict[int, Steps]:
    prompts, begins = np.unique(visits["prompt"], return_index=True)
    parts = np.split(visits["step"], begins[1:])
    return dict(zip(prompts.tolist(), parts, strict=False))


# The two runs that are chosen.


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    selection: Selection
    runs: tuple[Run, Run] | None  # None: fewer than two are compared
    form: PairForm

    @property
    def ids(self) -> str:
        return join_ids(self.selection.ids)

    def common_steps(self) -> CommonSteps:
        assert self.runs
        return find_common_steps(self.runs, self.form.value("step"))


def read_choice(team: Team, query: QueryDict) -> Choice:
    """`a` and `b` of the runs; where they do not name two of them, the first others."""
    selection = read_selection(team, query)
    form = PairForm.read(query)
    by_id = {run.pk: run for run in selection.runs}
    first = by_id.get(form.value("a")) or next(iter(selection.runs), None)
    others = [run for run in selection.runs if run != first]
    second = by_id.get(form.value("b"))
    if second is None or second == first:
        second = others[0] if others else None
    return Choice(
        selection=selection,
        runs=(first, second) if first and second else None,
        form=form,
    )


def read_sides(
    runs: tuple[Run, Run], common_step: CommonStep
) -> tuple[Side, Side] | None:
    """Return None if a group was deleted after its step was rolled up. Four queries."""
    ours, theirs = (
        read_side(run, prompt, step)
        for run, prompt, step in zip(
            runs, common_step.prompts, common_step.steps, strict=True
        )
    )
    return (ours, theirs) if ours and theirs else None


# Win rates.


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedPrompt:
    common_step: CommonStep
    means: tuple[float | None, float | None]  # rewards of the two groups
    rate: float | None  # the first run's; None: a group has no rewards

    @property
    def delta(self) -> float | None:
        """The first run's mean reward less the second's."""
        return delta_of(*self.means)


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """A summary of all prompts; each counts once. The interval is of prompts, not of
    seeds.
    """

    num: int
    rate: float | None
    interval: tuple[float, float] | None


def read_pairs(
    runs: tuple[Run, Run], common_steps: Sequence[CommonStep]
) -> list[PairedPrompt]:
    """Two queries."""
    ours, theirs = (_rewards(run, common_steps, i) for i, run in enumerate(runs))
    nothing = np.empty(0)
    return [
        make_pair(m, ours.get(m.prompts[0], nothing), theirs.get(m.prompts[1], nothing))
        for m in common_steps
    ]


def make_pair(common_step: CommonStep, ours: Array, theirs: Array) -> PairedPrompt:
    return PairedPrompt(
        common_step=common_step,
        means=(_mean(ours), _mean(theirs)),
        rate=win_rate(ours, theirs),
    )


def summarise(pairs: Sequence[PairedPrompt]) -> Summary:
    rates = np.array([pair.rate for pair in pairs if pair.rate is not None])
    if not len(rates):
        return Summary(num=0, rate=None, interval=None)
    estimate = mean_interval(rates[:, None])
    low, high = (max(0.0, float(estimate.low[0])), min(1.0, float(estimate.high[0])))
    return Summary(
        num=len(rates),
        rate=float(estimate.value[0]),
        interval=None if len(rates) < 2 else (low, high),
    )


SORTS: dict[str, Callable[[PairedPrompt], float | None]] = {
    "prompt": lambda pair: pair.common_step.prompts[0],
    "rate": lambda pair: pair.rate,
    "delta": lambda pair: pair.delta,
}


def _rewards(
    run: Run, common_steps: Sequence[CommonStep], side: int
) -> dict[int, Array]:
    requested = [
        [m.prompts[side] for m in common_steps],
        [m.steps[side] for m in common_steps],
    ]
    return {
        prompt: np.array([r for r in rewards if r is not None], np.float64)
        for prompt, rewards in fetch_all(REWARDS, [*requested, run.pk])
    }


def _mean(rewards: Array) -> float | None:
    return float(rewards.mean()) if len(rewards) else None
