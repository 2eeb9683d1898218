"""The steps at which two runs sampled the same prompt, or came nearest to that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dashboard.insights.duels.rows import Matching, match_rows
from dashboard.runs.models import Run
from dashboard.samples.prompt_visits import Visits, find_span, read_visits

MAX_PROMPTS = 2_000
Steps = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """One prompt at a step of each run; its number may differ between them."""

    prompts: tuple[int, int]
    steps: tuple[int, int]

    @property
    def is_equal(self) -> bool:
        return self.steps[0] == self.steps[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Meetings:
    found: list[Meeting]  # by prompt; the newest MAX_PROMPTS of them
    num_common: int  # prompts that both runs sampled
    matching: Matching
    steps: tuple[dict[int, Steps], dict[int, Steps]]  # of each run, by its own numbers

    def of(self, prompt: int, near: int | None) -> Meeting | None:
        """By the first run's number; None: not both have sampled it."""
        other = self.matching.other(prompt)
        ours, theirs = self.steps[0].get(prompt), self.steps[1].get(other or 0)
        if other is None or ours is None or theirs is None:
            return None
        return Meeting(prompts=(prompt, other), steps=meet(ours, theirs, near))

    def equal_steps(self, meeting: Meeting) -> list[int]:
        """At which both sampled it."""
        ours, theirs = (
            steps[prompt]
            for steps, prompt in zip(self.steps, meeting.prompts, strict=True)
        )
        return [int(step) for step in np.intersect1d(ours, theirs)]

    def why_not(self, prompt: int, runs: tuple[Run, Run]) -> str:
        if prompt not in self.steps[0]:
            return f"{runs[0].name} has not sampled prompt {prompt}."
        if self.matching.other(prompt) is None:
            return f"The dataset of {runs[1].name} has no row like prompt {prompt}."
        return f"{runs[1].name} has not sampled prompt {prompt}."


def find_meetings(runs: tuple[Run, Run], near: int | None) -> Meetings:
    """Of each prompt the equal step nearest to `near`, by default the newest."""
    ours, theirs = (_visits(run) for run in runs)
    matching = match_rows(*runs, ours["prompt"])
    steps = _by_prompt(ours), _by_prompt(theirs)
    common = [
        (prompt, other)
        for prompt in steps[0]
        if (other := matching.other(prompt)) is not None and other in steps[1]
    ]
    newest = sorted(common, key=lambda pair: -int(steps[0][pair[0]][-1]))
    kept = sorted(newest[:MAX_PROMPTS])
    return Meetings(
        found=[
            Meeting(
                prompts=pair, steps=meet(steps[0][pair[0]], steps[1][pair[1]], near)
            )
            for pair in kept
        ],
        num_common=len(common),
        matching=matching,
        steps=steps,
    )


def meet(ours: Steps, theirs: Steps, near: int | None) -> tuple[int, int]:
    """The equal step nearest to `near`, else the two nearest to each other.

    Of equals those nearest to `near`, by default the newest.

    >>> meet(np.array([1, 5, 9]), np.array([2, 5, 8]), 1)
    (5, 5)
    >>> meet(np.array([1, 9]), np.array([3, 8]), None)
    (9, 8)
    """
    equal = np.intersect1d(ours, theirs)
    if len(equal):
        step = _nearest(equal, near)
        return step, step
    after = np.searchsorted(theirs, ours)
    pairs = [
        (int(step), int(theirs[place]))
        for step, end in zip(ours, after, strict=True)
        for place in (end - 1, end)
        if 0 <= place < len(theirs)
    ]
    wanted = int(ours[-1]) if near is None else near
    return min(pairs, key=lambda p: (abs(p[0] - p[1]), abs(p[0] - wanted)))


def _nearest(steps: Steps, near: int | None) -> int:
    return int(steps[-1] if near is None else steps[np.abs(steps - near).argmin()])


def _visits(run: Run, *, prompt: int | None = None) -> Visits:
    span = find_span(run, first=None, last=None)
    if span is None:
        return np.empty(0, [("prompt", np.int32), ("step", np.int32)])
    return read_visits(run, span, prompt=prompt)


def _by_prompt(visits: Visits) -> dict[int, Steps]:
    prompts, begins = np.unique(visits["prompt"], return_index=True)
    parts = np.split(visits["step"], begins[1:])
    return dict(zip(prompts.tolist(), parts, strict=False))
