"""Warnings about a recipe: from scored groups, and from a dataset's rows."""

from __future__ import annotations

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import combinations

from django.core.cache import cache

from dashboard.datasets.models import DatasetRow, DatasetVersion
from dashboard.rewards.trial import Trial, as_sample, try_groups, try_samples
from trainer.rewards.judge import TIMED_OUT, limited_to
from trainer.rewards.rule import column_of
from trainer.rewards.rules import RULES
from trainer.rewards.scoring import Score, judge
from trainer.rewards.spec import Recipe, recipe_bounds, scores_alone

# Fewer completions may well agree by chance.
MIN_COMPLETIONS = 4
UNCHECKED = "unchecked"
# Share of the highest reward that a baseline completion must not reach.
HIGH_SHARE = 0.5
MOST_POSITIONS = 8  # rows that a warning names


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeWarning:
    kind: str
    short: str  # for one line
    sentence: str
    remedy: str
    positions: tuple[int, ...] = ()  # rows of the dataset that show it


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """The scores of the completions of one row."""

    position: int
    scores: tuple[Score, ...]

    @property
    def totals(self) -> list[float]:
        return [score.total for score in self.scores if score.total is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineScore:
    """The mean score of a completion that solves nothing, over some rows."""

    label: str  # "an empty completion"
    mean: float
    positions: tuple[int, ...]  # of the highest scores
    num_rows: int


def find_in_groups(groups: Sequence[ScoredGroup]) -> list[RecipeWarning]:
    return [
        *find_constant_rules(groups),
        *find_rules_that_agree(groups),
        *find_flat_groups(groups),
    ]


def find_constant_rules(groups: Sequence[ScoredGroup]) -> list[RecipeWarning]:
    """Rules with the same score for every completion."""
    warnings = []
    for rule, values in _by_rule(groups).items():
        scores = [value for value in values if value is not None]
        if len(scores) < MIN_COMPLETIONS or len(set(scores)) > 1:
            continue
        warnings.append(
            RecipeWarning(
                kind="constant",
                short=f"{rule}: {scores[0]:.4g} for all {len(scores):,}",
                sentence=f"Rule {rule} gives {scores[0]:.4g} to all {len(scores):,} "
                "completions.",
                remedy="A constant score adds no signal. Check what the rule reads, "
                "test completions that differ in it, or remove the rule.",
                positions=_positions(groups),
            )
        )
    return warnings


def find_rules_that_agree(groups: Sequence[ScoredGroup]) -> list[RecipeWarning]:
    """Pairs of rules that differ between completions, but never from one another."""
    by_rule = _by_rule(groups)
    warnings = []
    for rule, other in combinations(by_rule, 2):
        pairs = [
            (a, b)
            for a, b in zip(by_rule[rule], by_rule[other], strict=True)
            if a is not None and b is not None
        ]
        varies = len({a for a, _ in pairs}) > 1
        if len(pairs) < MIN_COMPLETIONS or not varies or any(a != b for a, b in pairs):
            continue
        warnings.append(
            RecipeWarning(
                kind="agree",
                short=f"{rule} = {other} for all {len(pairs):,}",
                sentence=f"Rules {rule} and {other} give the same score to each of "
                f"{len(pairs):,} completions.",
                remedy="The second rule adds only weight. Remove one, or change what "
                "it reads.",
                positions=_positions(groups),
            )
        )
    return warnings


def find_flat_groups(groups: Sequence[ScoredGroup]) -> list[RecipeWarning]:
    """Groups whose totals do not differ, so that each advantage in them is 0."""
    compared = [group for group in groups if len(group.totals) > 1]
    flat = [group for group in compared if len(set(group.totals)) == 1]
    if not flat:
        return []
    if len(flat) == len(compared):
        groups_ = "each group have" if len(compared) > 1 else "the group have"
        sentence = f"All completions of {groups_} the same reward: no training signal."
    else:
        sentence = (
            f"In {len(flat):,} of {len(compared):,} groups all completions have the "
            "same reward: no training signal."
        )
    return [
        RecipeWarning(
            kind="flat",
            short=f"{len(flat):,} of {len(compared):,} groups without signal",
            sentence=sentence,
            remedy="If all fail, use easier rows or a rule with partial credit. If "
            "all succeed, use harder rows.",
            positions=_positions(flat),
        )
    ]


def tell_unchecked(num_checked: int, num_rows: int, why: str) -> RecipeWarning:
    """Add a note, not a finding: the other rows were not scored."""
    short = f"{num_checked:,} of {num_rows:,} rows checked. {why}"
    return RecipeWarning(kind=UNCHECKED, short=short, sentence=short, remedy="")


def find_high_baselines(
    baselines: Sequence[BaselineScore],
    *,
    bounds: tuple[float, float],
    num_rows: int,
    least_rows: int = 1,
) -> list[RecipeWarning]:
    """Completions that solve nothing and get much of the highest reward.

    Much is HIGH_SHARE of the way up to it from 0, or from the lowest reward where that
    is more than 0 or the highest is not. A mean over fewer than `least_rows` says
    nothing.
    """
    low, high = bounds
    floor = 0.0 if low < 0 < high else low
    warnings = []
    for baseline in baselines:
        share = (baseline.mean - floor) / (high - floor) if high > floor else 0.0
        if share < HIGH_SHARE or baseline.num_rows < least_rows:
            continue
        label = f"{baseline.label[:1].upper()}{baseline.label[1:]}"
        warnings.append(
            RecipeWarning(
                kind="trivial",
                short=f"{label} would earn {baseline.mean:.4g} of {high:.4g}",
                sentence=f"{label} would earn {baseline.mean:.4g} of {high:.4g} on "
                f"average over {_rows_checked(baseline.num_rows, num_rows)}.",
                remedy="The model learns this before it learns the task. Increase the "
                "weight of correctness, or require more than the format.",
                positions=baseline.positions,
            )
        )
    return warnings


def _rows_checked(num_checked: int, num_rows: int) -> str:
    """
    >>> "12 rows", "200 checked rows (of 5,000)"
    """
    if num_checked == num_rows:
        return f"{num_rows:,} rows"
    return f"{num_checked:,} checked rows (of {num_rows:,})"


def _by_rule(groups: Sequence[ScoredGroup]) -> Mapping[str, list[float | None]]:
    scores = [score for group in groups for score in group.scores]
    names = list(dict.fromkeys(name for score in scores for name in score.rules))
    return {name: [score.rules.get(name) for score in scores] for name in names}


def _positions(groups: Sequence[ScoredGroup]) -> tuple[int, ...]:
    return tuple(group.position for group in groups)[:MOST_POSITIONS]


EPISODE_RULES = ("environment", "turn_rewards")
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
    warnings: list[RecipeWarning] | None = cache.get(key)
    if warnings is None:
        warnings, is_whole = _check(recipe, version, share)
        if is_whole:  # else the machine was busy: the next check may reach more rows
            cache.set(key, warnings, CACHE_SECONDS)
    return warnings


def _check(
    recipe: Recipe, version: DatasetVersion, share: float
) -> tuple[list[RecipeWarning], bool]:
    rows = sample_rows(version)
    owner = f"team {version.dataset.team_id}"
    read = _try_references(recipe, rows, owner, share)
    checked = [pair for pair in zip(rows, read, strict=True) if pair[1].score]
    findings = find_unread_references(
        checked,
        num_rows=version.num_rows,
        # What is tried is one turn, which these score in episodes only.
        untried={rule.name for rule in recipe.rules if rule.kind in EPISODE_RULES}
        if version.environment
        else set(),
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
    """Tell whether rules find columns and can read the answer, without running code.

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
    """Draw all rows of a small version, of a large one always the same hundreds."""
    rows = version.rows.order_by("position")
    if version.num_rows <= MAX_ROWS:
        return list(rows)
    drawn = random.Random(version.pk).sample(range(version.num_rows), MAX_ROWS)  # noqa: S311 - a repeatable choice, no secret
    return list(rows.filter(position__in=drawn))


def baseline_completions(
    *, prompt: str, answers: Sequence[str], tags: Tags, seed: int
) -> list[Baseline]:
    """Write those of one row; `answers` are those of the dataset's rows.

    The same kinds in the same order for each row of a dataset.
    """
    guesses = []
    if answers:
        guess, _ = Counter(answers).most_common(1)[0]
        shown = guess if len(guess) <= 40 else f"{guess[:39]}…"
        guesses = [Baseline(f"always answering “{shown}”", written(guess, tags))]
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
    """Write an answer as recipes read it: plain, tagged, boxed, after a marker."""
    return (
        answer,
        tags.around(answer),
        f"\\boxed{{{answer}}}",
        f"#### {answer}",
    )


def choice_letters(answers: Sequence[str]) -> list[str]:
    """List the options of a multiple choice; none where answers are something else."""
    letters = [answer.strip().upper() for answer in answers]
    single = [text for text in letters if len(text) == 1 and "A" <= text <= "Z"]
    kinds = sorted(set(single))
    is_choice = len(single) >= LETTER_SHARE * max(len(answers), 1)
    return kinds if is_choice and 2 <= len(kinds) <= MOST_LETTERS else []


def tags_of(recipe: Recipe) -> Tags:
    """Return the tags that the recipe's rules name, or the default ones."""
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


def find_unread_references(
    checked: Sequence[tuple[DatasetRow, Trial]],
    *,
    num_rows: int,
    untried: Set[str] = frozenset(),
) -> list[RecipeWarning]:
    """Rules that cannot score any completion of some rows, with the first error."""
    unread: defaultdict[str, list[int]] = defaultdict(list)
    errors: dict[str, str] = {}
    for row, trial in checked:
        assert trial.score is not None
        judged = {r: e for r, e in trial.score.errors.items() if r not in untried}
        errors = judged | errors
        for rule in judged:
            unread[rule].append(row.position)
    return [
        RecipeWarning(
            kind="reference",
            short=f"{rule}: {len(positions):,} of {len(checked):,} rows not scored",
            sentence=f"Rule {rule} cannot score {len(positions):,} of "
            f"{_rows_checked(len(checked), num_rows)}. {errors[rule]}",
            remedy="Rows without a score give no training signal. Map another column "
            "as the answer, change the rule's settings, or remove the rows.",
            positions=tuple(positions[:SHOWN_POSITIONS]),
        )
        for rule, positions in unread.items()
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
    """Choose for each kind the form with the highest mean over the scored rows."""
    replies = iter(trials)
    totals: defaultdict[tuple[int, int], list[tuple[float, int]]] = defaultdict(list)
    for row, baselines in zip(rows, made, strict=True):
        for kind, baseline in enumerate(baselines):
            for form in range(len(baseline.texts)):
                score = next(replies).score
                if score is not None and score.total is not None:
                    totals[kind, form].append((score.total, row.position))
    best: dict[int, BaselineScore] = {}
    for (kind, _), rewards in totals.items():
        mean = sum(total for total, _ in rewards) / len(rewards)
        if kind not in best or mean > best[kind].mean:
            highest = sorted(rewards, reverse=True)[:SHOWN_POSITIONS]
            best[kind] = BaselineScore(
                label=made[0][kind].label,
                mean=mean,
                positions=tuple(sorted(position for _, position in highest)),
                num_rows=len(rewards),
            )
    return [best[kind] for kind in sorted(best)]
