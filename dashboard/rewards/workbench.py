"""Scores pasted completions of a dataset's rows with an unsaved recipe."""

from __future__ import annotations

import random
import re
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

from dashboard.datasets.models import DatasetRow, DatasetVersion
from trainer.rewards.judge import limited_to
from trainer.rewards.rule import Sample, message_text
from trainer.rewards.rules import RULES
from trainer.rewards.scoring import Score, row_errors, score_all, score_completion
from trainer.rewards.spec import Recipe, judges_several

NUM_ROWS = 5
MAX_COMPLETIONS = 64
MAX_CHARS = 50_000
MAX_SECONDS = 5.0
EPS = 1e-4  # as AdvantageConfig's default
SEPARATOR = re.compile(r"^---[ \t]*$", re.MULTILINE)


@dataclass(slots=True)
class TriedCompletion:
    """One completion with its score and its advantage in its row."""

    completion: str
    score: Score | None  # None: timed out
    seconds: float = 0.0
    advantage: float | None = None

    @property
    def cells(self) -> list[float | None]:
        """The score of each rule, in the recipe's order."""
        return list(self.score.rules.values()) if self.score else []

    @property
    def logs(self) -> dict[str, str]:
        """What rules printed, by name."""
        return self.score.logs if self.score else {}

    @property
    def metrics(self) -> dict[str, float]:
        """The numbers beside the scores, named as a run's metrics end."""
        by_rule = self.score.metrics if self.score else {}
        return {
            f"{rule}/{key}": value
            for rule, found in by_rule.items()
            for key, value in found.items()
        }


@dataclass(slots=True)
class WorkbenchRow:
    """A row on the workbench."""

    row: DatasetRow
    text: str
    tried: list[TriedCompletion]
    errors: list[str]


def pick_rows(
    version: DatasetVersion, *, offset: int, seed: int | None
) -> list[DatasetRow]:
    """Five rows from `offset` on, or five drawn by `seed`."""
    rows = version.rows.order_by("position")
    if seed is None:
        return list(rows[offset : offset + NUM_ROWS])
    count = min(NUM_ROWS, version.num_rows)
    drawn = random.Random(seed).sample(range(version.num_rows), count)  # noqa: S311 - a repeatable choice, no secret
    return list(rows.filter(position__in=drawn))


def split_completions(text: str) -> list[str]:
    """Split at lines of three dashes."""
    parts = SEPARATOR.split(text.replace("\r\n", "\n"))
    # The separator's own line ends are not part of a completion.
    trimmed = [part.removeprefix("\n").removesuffix("\n") for part in parts]
    return [part for part in trimmed if part.strip()]


def calls_models(recipe: Recipe) -> bool:
    """Whether rules call models, which may cost money."""
    return any(RULES[rule.kind].batching is not None for rule in recipe.rules)


def try_recipe(
    recipe: Recipe, rows: list[DatasetRow], texts: Mapping[int, str]
) -> list[WorkbenchRow]:
    """Score the completions of each row, by position, for MAX_SECONDS."""
    deadline = time.monotonic() + MAX_SECONDS
    left = MAX_COMPLETIONS
    benches = []
    for row in rows:
        text = texts.get(row.position, "")
        completions = split_completions(text)
        errors = _refuse(completions, left)
        with limited_to(deadline - time.monotonic()):
            tried = [] if errors else _try_all(recipe, row, completions, deadline)
        left -= len(tried)
        _compare(tried)
        benches.append(WorkbenchRow(row, text, tried, errors))
    return benches


def _refuse(completions: list[str], left: int) -> list[str]:
    longest = max(map(len, completions), default=0)
    if longest > MAX_CHARS:
        return [
            f"A completion has {longest:,} characters; the limit is {MAX_CHARS:,}. "
            "Shorten it."
        ]
    if len(completions) > left:
        return [f"More than {MAX_COMPLETIONS} completions in total. Remove some."]
    return []


def _try_all(
    recipe: Recipe, row: DatasetRow, completions: list[str], deadline: float
) -> list[TriedCompletion]:
    """One by one until the deadline; together if a rule compares completions."""
    if not any(judges_several(rule) for rule in recipe.rules):
        return [_try(recipe, row, each, deadline) for each in completions]
    start = time.monotonic()
    if start > deadline:
        return [TriedCompletion(each, None) for each in completions]
    scores = score_all(recipe, [as_sample(row, each) for each in completions])
    seconds = (time.monotonic() - start) / max(1, len(completions))
    return [
        TriedCompletion(completion, score, seconds)
        for completion, score in zip(completions, scores, strict=True)
    ]


def _try(
    recipe: Recipe, row: DatasetRow, completion: str, deadline: float
) -> TriedCompletion:
    start = time.monotonic()
    if start > deadline:
        return TriedCompletion(completion, None)
    score = score_completion(recipe, as_sample(row, completion))
    return TriedCompletion(completion, score, time.monotonic() - start)


def as_sample(row: DatasetRow, completion: str) -> Sample:
    prompt = row.prompt_value
    is_chat = not isinstance(prompt, str)
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    text = message_text(prompt[-1])
    return Sample(
        text,
        completion,
        row.answer_value,
        row.columns,
        messages=prompt,
        is_chat=is_chat,
    )


def _compare(tried: list[TriedCompletion]) -> None:
    """Advantage = (total - mean) / (std + eps) over the row's scored completions."""
    scored = [(each, each.score.total) for each in tried if each.score]
    totals = [total for _, total in scored if total is not None]
    if len(totals) < 2:
        return
    mean, spread = statistics.fmean(totals), statistics.stdev(totals)
    for each, total in scored:
        if total is not None:
            each.advantage = (total - mean) / (spread + EPS)


def warn_unscorable(recipe: Recipe, rows: list[DatasetRow]) -> dict[str, str]:
    """Errors of rules that cannot score these rows, by rule."""
    warnings: dict[str, str] = {}
    with limited_to(MAX_SECONDS):
        for row in rows:
            errors = row_errors(recipe, as_sample(row, ""))
            for name, error in errors.items():
                warnings.setdefault(name, error)
    return warnings
