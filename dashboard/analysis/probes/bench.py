"""Rows and completions side by side, scored by a recipe that may still change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Max

from dashboard.analysis.probes.forms import (
    FROM_PROBE,
    FROM_RUN,
    MAX_ROWS,
    OWN,
    ChoiceForm,
)
from dashboard.analysis.probes.models import ProbeGroup
from dashboard.completions.models import Group
from dashboard.datasets.models import DatasetRow
from dashboard.project.errors import UserError
from dashboard.rewards.checks import ScoredGroup
from dashboard.rewards.recipe_text import read_json
from dashboard.rewards.trial import (
    BUSY,
    Trial,
    as_sample,
    ask_models,
    split_completions,
    try_groups,
)
from trainer.algorithm.advantages import group_advantages, reward_matrix
from trainer.config import AdvantageConfig
from trainer.events import policy_text
from trainer.rewards.judge import TIMED_OUT
from trainer.rewards.rule import answers_of
from trainer.rewards.rules import RULES
from trainer.rewards.spec import Recipe

DEFAULT_ROWS = (0, 1, 2, 3)
MAX_COMPLETIONS = 128  # scored at a time
MAX_OF_GROUP = 32
MAX_SECONDS = 5.0
MAX_CHARS = 50_000  # of a completion


@dataclass(slots=True)
class Tried:
    """A completion, as it was scored."""

    text: str
    trial: Trial | None = None  # None: nothing was scored yet, or it was left out
    advantage: float | None = None
    is_truncated: bool = False
    # The score of each rule, or why it has none.
    cells: list[tuple[float | None, str]] = field(default_factory=list)

    @property
    def total(self) -> float | None:
        score = self.trial.score if self.trial else None
        return score.total if score else None

    @property
    def shown_total(self) -> float | None:
        """The reward; None where a rule gave no score, as it is only a part then."""
        is_whole = all(cell is not None for cell, _ in self.cells)
        return self.total if is_whole else None

    @property
    def metrics(self) -> dict[str, float]:
        """The numbers beside the scores, named as a run's metrics end."""
        score = self.trial.score if self.trial else None
        return {
            f"{rule}/{key}": value
            for rule, values in (score.metrics if score else {}).items()
            for key, value in values.items()
        }


@dataclass(slots=True)
class BenchGroup:
    """A row with its completions."""

    row: DatasetRow
    tried: list[Tried]
    num_found: int  # completions, of which some may be left out
    step: int | None = None  # of a run
    typed: str = ""
    errors: list[str] = field(default_factory=list)
    own: dict[str, str] = field(
        default_factory=dict
    )  # prompt, answer, columns as typed

    @property
    def key(self) -> str:
        """Names its place on the page."""
        at = "" if self.step is None else f"{self.step}-"
        return f"{at}{self.row.position}"


@dataclass(slots=True)
class Bench:
    groups: list[BenchGroup]
    num_found: int  # groups, of which some may be left out
    rule_names: list[str] = field(default_factory=list)
    problem: str = ""  # why advantages are missing
    is_scored: bool = False

    @property
    def rule_seconds(self) -> list[float | None]:
        """The mean time of a call of each rule."""
        means: list[float | None] = []
        for name in self.rule_names:
            times = [
                attempt.trial.rule_seconds[name]
                for group in self.groups
                for attempt in group.tried
                if attempt.trial and name in attempt.trial.rule_seconds
            ]
            means.append(sum(times) / len(times) if times else None)
        return means

    @property
    def failures(self) -> dict[str, tuple[int, str]]:
        """By rule, the number of completions without a score, and the first why."""
        by_rule: dict[str, tuple[int, str]] = {}
        for group in self.groups:
            for attempt in group.tried:
                score = attempt.trial.score if attempt.trial else None
                for name, error in score.errors.items() if score else ():
                    count, first = by_rule.get(name, (0, error))
                    by_rule[name] = (count + 1, first)
        return by_rule

    @property
    def seconds(self) -> float | None:
        """The mean time of a completion."""
        times = [
            attempt.trial.seconds
            for group in self.groups
            for attempt in group.tried
            if attempt.trial and attempt.trial.score
        ]
        return sum(times) / len(times) if times else None

    @property
    def num_completions(self) -> int:
        return sum(len(group.tried) for group in self.groups)

    @property
    def num_scored(self) -> int:
        return sum(
            attempt.trial is not None
            and attempt.trial.score is not None
            and attempt.trial.score.total is not None
            for group in self.groups
            for attempt in group.tried
        )

    @property
    def is_cut_short(self) -> bool:
        """Another attempt may score more."""
        trials = (attempt.trial for group in self.groups for attempt in group.tried)
        return any(trial and trial.problem in (BUSY, TIMED_OUT) for trial in trials)

    def scored_groups(self) -> list[ScoredGroup]:
        return [
            ScoredGroup(
                group.row.position,
                tuple(
                    attempt.trial.score
                    for attempt in group.tried
                    if attempt.trial is not None and attempt.trial.score is not None
                ),
            )
            for group in self.groups
        ]


def load_bench(
    choice: ChoiceForm,
    typed: Mapping[str, str],
    *,
    kind: str = "",
    step: int | None = None,
) -> Bench:
    """Return what is chosen, not scored yet.

    `typed` are the page's completion-… and own-… fields. `kind` is the rule whose
    example a row of one's own starts with. `step` is of a run for which none is chosen;
    without it, the last.
    """
    chosen = choice.chosen
    if chosen["source"] == OWN:
        return Bench(
            [_own_row(typed if "own-prompt" in typed else _example_fields(kind))], 1
        )
    if chosen["dataset"] is None or not choice.is_valid():
        return Bench([], 0)
    if chosen["source"] == FROM_RUN:
        return _of_run(chosen, step) if chosen["run"] else Bench([], 0)
    if chosen["source"] == FROM_PROBE:
        return _of_probe(chosen) if chosen["probe"] else Bench([], 0)
    return _pasted(chosen, typed)


def _example_fields(kind: str) -> dict[str, str]:
    rule = RULES.get(kind) or RULES["numeric_answer"]
    sample, others = rule.example_pass.sample, rule.example_pass.others
    completions = [sample.completion, *others, rule.example_fail.sample.completion]
    columns = json.dumps(dict(sample.columns), ensure_ascii=False)
    return {
        "own-prompt": sample.prompt,
        "own-answer": next(iter(answers_of(sample.answer)), ""),
        "own-columns": columns if sample.columns else "",
        "completion-0": "\n---\n".join(dict.fromkeys(completions)),
    }


def _own_row(typed: Mapping[str, str]) -> BenchGroup:
    own = {
        name: typed.get(f"own-{name}", "") for name in ("prompt", "answer", "columns")
    }
    columns: Any = {}
    error = ""
    try:
        columns = read_json(own["columns"] or "{}")
    except UserError as problem:
        error = str(problem)
    if not isinstance(columns, dict):
        columns, error = {}, 'Write columns as a JSON object, such as {"target": 4}.'
    row = DatasetRow(
        position=0,
        prompt=own["prompt"],
        answer=own["answer"] or None,
        columns=columns,
    )
    text = typed.get("completion-0", "")
    group = _group_of(row, split_completions(text), typed=text)
    group.own = own
    group.errors += [error] if error else []
    return group


def _pasted(chosen: Mapping[str, Any], typed: Mapping[str, str]) -> Bench:
    rows = (
        chosen["dataset"]
        .rows.filter(position__in=chosen["rows"] or DEFAULT_ROWS)
        .order_by("position")
    )
    first_rows = list(rows[:MAX_ROWS])
    groups = []
    for row in first_rows:
        text = typed.get(f"completion-{row.position}", "")
        groups.append(_group_of(row, split_completions(text), typed=text))
    return Bench(
        groups, rows.count() if len(first_rows) == MAX_ROWS else len(first_rows)
    )


def _group_of(
    row: DatasetRow, completions: Sequence[str], typed: str = ""
) -> BenchGroup:
    errors = _refuse(completions)
    return BenchGroup(
        row,
        [Tried(text) for text in ([] if errors else completions[:MAX_OF_GROUP])],
        len(completions),
        typed=typed,
        errors=errors,
    )


def _refuse(completions: Sequence[str]) -> list[str]:
    longest = max(map(len, completions), default=0)
    if longest <= MAX_CHARS:
        return []
    return [
        (
            f"A completion has {longest:,} characters; the limit is {MAX_CHARS:,}. "
            "Shorten it."
        )
    ]


def _of_run(chosen: Mapping[str, Any], step: int | None) -> Bench:
    stored = Group.objects.current().filter(run=chosen["run"])
    if chosen["steps"] is not None:
        stored = stored.filter(step__range=chosen["steps"])
    else:
        last = stored.aggregate(last=Max("step"))["last"] if step is None else step
        stored = stored.filter(step=last)
    if chosen["rows"]:
        stored = stored.filter(prompt_index__in=chosen["rows"])
    groups = list(
        stored.order_by("step", "prompt_index").prefetch_related("packed_completions")[
            :MAX_ROWS
        ]
    )
    rows = _rows_at(chosen, [group.prompt_index for group in groups])
    benches = []
    for group in groups:
        completions = group.completions
        if group.prompt_index not in rows:
            continue  # the run was given other rows than the version's
        tried = [
            Tried(
                completion.policy_text, is_truncated=completion.end_reason == "length"
            )
            for completion in completions[:MAX_OF_GROUP]
        ]
        benches.append(
            BenchGroup(
                rows[group.prompt_index], tried, len(completions), step=group.step
            )
        )
    return Bench(benches, stored.count())


def _of_probe(chosen: Mapping[str, Any]) -> Bench:
    stored = ProbeGroup.objects.filter(probe=chosen["probe"]).order_by("position")
    if chosen["rows"]:
        stored = stored.filter(position__in=chosen["rows"])
    groups = list(stored[:MAX_ROWS])
    rows = _rows_at(chosen, [group.position for group in groups])
    return Bench(
        [
            BenchGroup(
                rows[group.position],
                [
                    Tried(
                        policy_text(completion["text"], completion.get("turns", ())),
                        is_truncated=completion["end_reason"] == "length",
                    )
                    for completion in group.completions[:MAX_OF_GROUP]
                ],
                len(group.completions),
            )
            for group in groups
        ],
        stored.count(),
    )


def _rows_at(
    chosen: Mapping[str, Any], positions: Sequence[int]
) -> dict[int, DatasetRow]:
    return {
        row.position: row
        for row in chosen["dataset"].rows.filter(position__in=positions)
    }


def score_bench(
    bench: Bench,
    recipe: Recipe,
    advantage: AdvantageConfig,
    *,
    owner: str,
    asks: bool = False,
) -> None:
    """Fill in scores and advantages, for at most so many completions and seconds.

    `asks`: call the models of rules, which may cost money.
    """
    bench.rule_names = [rule.name for rule in recipe.rules]
    bench.is_scored = True
    room = MAX_COMPLETIONS
    scored = []
    for group in bench.groups:
        scored.append((group, group.tried[:room]))
        room -= len(scored[-1][1])
    score = ask_models if asks else try_groups
    trials = score(
        recipe,
        [
            [as_sample(group.row, attempt.text) for attempt in tried]
            for group, tried in scored
        ],
        seconds=MAX_SECONDS,
        owner=owner,
    )
    for (_, tried), group_trials in zip(scored, trials, strict=True):
        for attempt, trial in zip(tried, group_trials, strict=True):
            attempt.trial = trial
            if result := trial.score:
                attempt.cells = [
                    (result.rules.get(name), result.errors.get(name, ""))
                    for name in bench.rule_names
                ]
    try:
        totals = [[attempt.total for attempt in group.tried] for group in bench.groups]
        compared = group_advantages(reward_matrix(totals), advantage).tolist()
    except ValueError as error:
        bench.problem = str(error)
        return
    for group, values in zip(bench.groups, compared, strict=True):
        # Rows of the matrix are as long as the largest group.
        for attempt, value in zip(group.tried, values, strict=False):
            attempt.advantage = None if attempt.total is None else value
