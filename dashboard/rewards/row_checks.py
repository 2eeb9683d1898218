"""Checks of a recipe on a dataset's rows: unread references, and baseline completions.

A baseline completion solves nothing, so a recipe should give it little.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from django.core.cache import cache

from dashboard.datasets.models import DatasetRow, DatasetVersion
from dashboard.rewards.recipe_checks import (
    BaselineScore,
    RecipeWarning,
    UnreadReference,
    find_high_baselines,
    find_unread_references,
    tell_unchecked,
)
from dashboard.rewards.trial import Trial, as_sample, try_groups, try_samples
from trainer.rewards.judge import TIMED_OUT, limited_to
from trainer.rewards.rule import column_of
from trainer.rewards.rules import RULES
from trainer.rewards.scoring import judge
from trainer.rewards.spec import Recipe, recipe_bounds, scores_alone

MAX_ROWS = 500  # whose references are read
MAX_BASELINE_ROWS = 40  # each with a dozen completions or more
MIN_BASELINE_ROWS = 20  # of a mean that says something of a larger dataset
REFERENCE_SECONDS = 4.0
BASELINE_SECONDS = 4.0
CACHE_SECONDS = 3_600
SHOWN_POSITIONS = 8
ONE_ROW_SECONDS = 1.0
# Options of a multiple choice are letters, and few.
MOST_LETTERS = 10
LETTER_SHARE = 0.9
THINK_TAG, ANSWER_TAG = "think", "answer"


@dataclass(frozen=True, slots=True)
class Baseline:
    """A completion that solves nothing, in the forms that recipes accept."""

    label: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tags:
    think: str
    answer: str

    def around(self, answer: str) -> str:
        return (
            f"<{self.think}>\n</{self.think}>\n<{self.answer}>{answer}</{self.answer}>"
        )

    @property
    def tight(self) -> str:
        return f"<{self.think}></{self.think}><{self.answer}></{self.answer}>"


def check_rows(
    recipe: Recipe, version: DatasetVersion, *, share: float = 1.0
) -> list[RecipeWarning]:
    """Warnings about references and baselines; versions never change.

    Checks at most MAX_ROWS rows for a few seconds, or a `share` of them; warnings say
    how many. With UNCHECKED last if time ran out.
    """
    spec = recipe.model_dump_json()
    key = f"row-check-{version.pk}-{hashlib.sha256(spec.encode()).hexdigest()}"
    found: list[RecipeWarning] | None = cache.get(key)
    if found is None:
        found, is_whole = _check(recipe, version, share)
        if is_whole:  # else the machine was busy: the next check may reach more rows
            cache.set(key, found, CACHE_SECONDS)
    return found


def _check(
    recipe: Recipe, version: DatasetVersion, share: float
) -> tuple[list[RecipeWarning], bool]:
    rows = sample_rows(version)
    owner = f"team {version.dataset.team_id}"
    read = _try_references(recipe, rows, owner, share)
    checked = [pair for pair in zip(rows, read, strict=True) if pair[1].score]
    findings = find_unread_references(
        unread_references(checked), num_checked=len(checked), num_rows=version.num_rows
    )
    baselines, is_whole = _try_baselines(recipe, rows, owner, share)
    is_small = is_whole and version.num_rows < MIN_BASELINE_ROWS
    findings += find_high_baselines(
        baselines,
        bounds=recipe_bounds(recipe),
        num_rows=version.num_rows,
        least_rows=1 if is_small else MIN_BASELINE_ROWS,
    )
    if len(checked) < len(rows):
        problem = next(trial.problem for trial in read if not trial.score)
        why = "Then time ran out." if problem == TIMED_OUT else problem
        findings.append(tell_unchecked(len(checked), len(rows), why))
    return findings, is_whole and len(checked) == len(rows)


def reads_row(recipe: Recipe, row: DatasetRow) -> bool:
    """Whether rules find their columns and can read the answer, without running code.

    For a default; `check_rows` says why they cannot.
    """
    sample = as_sample(row, "")
    rules = [rule.params for rule in recipe.rules if rule.kind == "code_tests"]
    tests = [str(params.get("tests_column", "tests")) for params in rules]
    if any(column_of(sample.columns, name) is None for name in tests):
        return False
    quick = [
        rule
        for rule in recipe.rules
        if RULES[rule.kind].batching is None and not RULES[rule.kind].needs_sandbox
    ]
    with limited_to(ONE_ROW_SECONDS):  # twice, for rules that compare
        return not judge(quick, [sample] * 2)[0].errors


def sample_rows(version: DatasetVersion) -> list[DatasetRow]:
    """All rows of a small version, and some hundred of a large one, always the same."""
    rows = version.rows.order_by("position")
    if version.num_rows <= MAX_ROWS:
        return list(rows)
    drawn = random.Random(version.pk).sample(range(version.num_rows), MAX_ROWS)  # noqa: S311 - a repeatable choice, no secret
    return list(rows.filter(position__in=drawn))


def baseline_completions(
    *, prompt: str, answers: Sequence[str], tags: Tags, seed: int
) -> list[Baseline]:
    """Those of one row; `answers` are those of the dataset's rows.

    The same kinds in the same order for each row of a dataset.
    """
    guesses = []
    if answers:
        guess, _ = Counter(answers).most_common(1)[0]
        shown = guess if len(guess) <= 40 else f"{guess[:39]}…"
        label = f"always answering “{shown}”"
        guesses = [Baseline(label, written(guess, tags))]
    letters = [
        Baseline(f"always answering {letter}", written(letter, tags))
        for letter in choice_letters(answers)
    ]
    number = str(random.Random(seed).randint(0, 100))  # noqa: S311 - a repeatable guess
    return [
        Baseline("an empty completion", ("",)),
        Baseline("a copy of the prompt", (prompt,)),
        Baseline("empty tags", (tags.around(""), tags.tight)),
        *guesses,
        *letters,
        Baseline("a random number from 0 to 100", written(number, tags)),
    ]


def written(answer: str, tags: Tags) -> tuple[str, ...]:
    """An answer as recipes read it: plain, tagged, boxed, after a marker."""
    return (
        answer,
        tags.around(answer),
        f"\\boxed{{{answer}}}",
        f"#### {answer}",
    )


def choice_letters(answers: Sequence[str]) -> list[str]:
    """The options of a multiple choice; none where answers are something else."""
    letters = [answer.strip().upper() for answer in answers]
    single = [text for text in letters if len(text) == 1 and "A" <= text <= "Z"]
    kinds = sorted(set(single))
    is_choice = len(single) >= LETTER_SHARE * max(len(answers), 1)
    return kinds if is_choice and 2 <= len(kinds) <= MOST_LETTERS else []


def tags_of(recipe: Recipe) -> Tags:
    """The tags that the recipe's rules name, or the default ones."""
    think = answer = ""
    for rule in recipe.rules:
        think = think or str(rule.params.get("think_tag") or "")
        answer = answer or str(
            rule.params.get("answer_tag") or rule.params.get("tag") or ""
        )
    return Tags(think or THINK_TAG, answer or ANSWER_TAG)


def _try_references(
    recipe: Recipe, rows: Sequence[DatasetRow], owner: str, share: float
) -> list[Trial]:
    tags = tags_of(recipe)
    groups = [
        [as_sample(row, tags.around(next(filter(None, row.answers), "1")))]
        for row in rows
    ]
    tried = try_groups(
        recipe,
        groups,
        seconds=REFERENCE_SECONDS * share,
        owner=owner,
        reads_rows=True,
    )
    return [trial for (trial,) in tried]


def unread_references(
    checked: Sequence[tuple[DatasetRow, Trial]],
) -> list[UnreadReference]:
    """Rules without a score for some rows, and these rows."""
    rows: defaultdict[str, list[int]] = defaultdict(list)
    errors: dict[str, str] = {}
    for row, trial in checked:
        assert trial.score is not None
        for rule, error in trial.score.errors.items():
            rows[rule].append(row.position)
            errors.setdefault(rule, error)
    return [
        UnreadReference(
            rule=rule,
            error=errors[rule],
            positions=tuple(positions[:SHOWN_POSITIONS]),
            num_rows=len(positions),
        )
        for rule, positions in rows.items()
    ]


def _try_baselines(
    recipe: Recipe, rows: Sequence[DatasetRow], owner: str, share: float
) -> tuple[list[BaselineScore], bool]:
    if not all(scores_alone(rule) for rule in recipe.rules):
        return [], True  # one completion cannot be compared; a model call costs money
    answers = [answer for row in rows for answer in row.answers]
    tags = tags_of(recipe)
    # Of a drawn sample the first are a sample too; of a small version, spread out.
    step = max(1, len(rows) // MAX_BASELINE_ROWS)
    chosen = rows[::step][:MAX_BASELINE_ROWS]
    made = [
        baseline_completions(
            prompt=as_sample(row, "").prompt,
            answers=answers,
            tags=tags,
            seed=row.position,
        )
        for row in chosen
    ]
    samples = [
        as_sample(row, text)
        for row, baselines in zip(chosen, made, strict=True)
        for baseline in baselines
        for text in baseline.texts
    ]
    trials = try_samples(recipe, samples, seconds=BASELINE_SECONDS * share, owner=owner)
    is_whole = all(trial.score for trial in trials)
    return _mean_scores(chosen, made, trials), is_whole


def _mean_scores(
    rows: Sequence[DatasetRow],
    made: Sequence[Sequence[Baseline]],
    trials: Sequence[Trial],
) -> list[BaselineScore]:
    """For each kind, the form with the highest mean over the scored rows."""
    replies = iter(trials)
    totals: defaultdict[tuple[int, int], list[tuple[float, int]]] = defaultdict(list)
    for row, baselines in zip(rows, made, strict=True):
        for kind, baseline in enumerate(baselines):
            for form in range(len(baseline.texts)):
                score = next(replies).score
                if score is not None and score.total is not None:
                    totals[kind, form].append((score.total, row.position))
    best: dict[int, BaselineScore] = {}
    for (kind, _), given in totals.items():
        mean = sum(total for total, _ in given) / len(given)
        if kind not in best or mean > best[kind].mean:
            highest = sorted(given, reverse=True)[:SHOWN_POSITIONS]
            best[kind] = BaselineScore(
                label=made[0][kind].label,
                mean=mean,
                positions=tuple(sorted(position for _, position in highest)),
                num_rows=len(given),
            )
    return [best[kind] for kind in sorted(best)]
