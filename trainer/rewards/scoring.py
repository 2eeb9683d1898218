"""Scoring completions with a recipe: what rules say, the reward, correctness."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from trainer.rewards.model_judge.client import TOKENS, USAGE
from trainer.rewards.rule import (
    NotApplicable,
    Outcome,
    Sample,
    Unscorable,
    counting_usage,
    keeping,
    measuring,
    replace_surrogates,
)
from trainer.rewards.rules import RULES
from trainer.rewards.spec import Recipe, RuleSpec, bound_tolerance, recipe_bounds

if TYPE_CHECKING:
    from trainer.events import Signal

ANSWER_KINDS = {kind for kind, rule in RULES.items() if rule.decides_correctness}


@dataclass(frozen=True, kw_only=True, slots=True)
class Correctness:
    """A completion with a reward is correct by the rules that compare with the answer.

    At least one of them gave a score, and each that did gave its full score. Without
    such rules, a completion is correct from `least_reward` on; None: unknown.
    """

    full_scores: Mapping[str, float] = field(default_factory=dict)
    least_reward: float | None = None

    @property
    def is_known(self) -> bool:
        return bool(self.full_scores) or self.least_reward is not None

    @property
    def condition(self) -> str:
        """The condition as pages show it.

        >>> Correctness(full_scores={"answer": 1.0, "tests": 1.0}).condition
        'answer = 1, tests = 1'
        """
        if self.full_scores:
            scores = self.full_scores.items()
            return ", ".join(f"{name} = {score:.4g}" for name, score in scores)
        return "" if self.least_reward is None else f"reward {self.least_reward:.4g}"

    def holds(self, reward: float | None, scores: Mapping[str, float | None]) -> bool:
        """Say whether a completion with this reward and these raw scores is correct."""
        if reward is None:
            return False
        if not self.full_scores:
            return self.least_reward is not None and reward >= self.least_reward
        reached = [
            score >= full
            for name, full in self.full_scores.items()
            if (score := scores.get(name)) is not None
        ]
        return bool(reached) and all(reached)


def correctness_of(recipe: Recipe, *, step: int | None = None) -> Correctness:
    """Return the definition by a recipe, at a step of the run; None: at any.

    Bounds are lowered by their tolerance.
    """
    full_scores = {
        rule.name: rule.own_bounds[1] - bound_tolerance(rule.own_bounds[1])
        for rule in recipe.rules
        if rule.kind in ANSWER_KINDS
    }
    highest = recipe_bounds(recipe, step=step)[1]
    if full_scores or not math.isfinite(highest):
        return Correctness(full_scores=full_scores)
    return Correctness(least_reward=highest - bound_tolerance(highest))


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A rule's part in a reward: `weight` times the `score` that counts.

    That is the rule's own score once it is clipped and gated; None: it has none, or
    does not apply.

    >>> Part(weight=0.5, score=1.0).value
    0.5
    """

    weight: float
    score: float | None

    @property
    def value(self) -> float | None:
        return None if self.score is None else self.weight * self.score


def parts_of(
    recipe: Recipe, scores: Mapping[str, float | None], *, step: int
) -> dict[str, Part]:
    """Return each rule's part, from all rules' own scores at a step of the run."""
    return {spec.name: _part(spec, scores, step) for spec in recipe.rules}


def reward_of(
    recipe: Recipe, parts: Mapping[str, Part], *, failed: Collection[str] = ()
) -> float | None:
    """Return the sum, product or minimum of the parts that there are, clipped.

    None when there are none. A product and a minimum leave out what has weight 0, and
    are None where a rule has `failed`: without it they could only be higher, for no
    merit of the completion.
    """
    parts_scored = [part for part in parts.values() if part.score is not None]
    if not parts_scored:
        return None
    if recipe.combine in ("sum", "normalize_then_sum"):
        reward = math.fsum(part.value or 0.0 for part in parts_scored)
    elif any(_misses(recipe, part, name, failed) for name, part in parts.items()):
        return None
    else:
        factors = [part.value or 0.0 for part in parts_scored if part.weight]
        join = math.prod if recipe.combine == "product" else min
        reward = join(factors) if factors else 0.0
    return recipe.clip.apply(reward) if recipe.clip else reward


def _part(spec: RuleSpec, scores: Mapping[str, float | None], step: int) -> Part:
    score = scores.get(spec.name)
    is_open = _is_open(spec, scores)
    if score is not None and spec.clip is not None:
        score = spec.clip.apply(score)
    if is_open is None or (is_open is False and spec.may_not_apply):
        score = None
    elif is_open is False and score is not None:
        score = 0.0
    return Part(weight=spec.weight_at(step), score=score)


def _is_open(spec: RuleSpec, scores: Mapping[str, float | None]) -> bool | None:
    """Return whether a rule's gate is; None: no one can say."""
    gate = spec.only_if
    if gate is None:
        return True
    other = scores.get(gate.rule)
    return None if other is None else other >= gate.at_least


def _misses(recipe: Recipe, part: Part, name: str, failed: Collection[str]) -> bool:
    """Return whether a rule of weight has failed, or the one that its gate looks at."""
    gate = next(rule for rule in recipe.rules if rule.name == name).only_if
    return part.weight != 0 and (
        name in failed or (gate is not None and gate.rule in failed)
    )


@dataclass(frozen=True)
class Score:
    """A completion's reward, and what each rule scored: before clip, gate and weight.

    `None` is no score and never 0, and `errors` says why. It is no one's fault where
    the rule is among the `not_applicable`: the row has nothing for it to judge by.
    `total` is None when no rule's score counts. `logs` has what rules printed, and
    `metrics` the numbers that they gave beside their score, by rule and name; of a
    rule that judges a group, both stand at its first completion. `usage` has calls and
    tokens of judges by rule, at the first of the completions that were judged together.

    >>> Score(1.05, {"format": 0.5, "answer": 1.0}, {})  # weights 0.1 and 1
    """

    total: float | None
    rules: dict[str, float | None]
    errors: dict[str, str]
    not_applicable: list[str] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    usage: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def failed(self) -> list[str]:
        """Rules whose judgement failed."""
        return [name for name in self.errors if name not in self.not_applicable]


def score_all(
    recipe: Recipe, samples: Iterable[Sample], *, step: int = 1
) -> list[Score]:
    """Return one score for each completion of one prompt, in order."""
    return [
        weigh(recipe, score, step=step) for score in judge(recipe.rules, list(samples))
    ]


def judge(rules: Sequence[RuleSpec], samples: Sequence[Sample]) -> list[Score]:
    """Return what rules say of the completions of one prompt; their totals are None."""
    if not samples:
        return []  # rules that judge a group read its first completion
    samples = [prepared(sample) for sample in samples]
    outcomes: list[dict[str, Outcome]] = [{} for _ in samples]
    logs: list[dict[str, str]] = [{} for _ in samples]
    metrics: list[dict[str, dict[str, float]]] = [{} for _ in samples]
    usage: dict[str, dict[str, int]] = {}
    for spec in rules:
        with counting_usage() as counted:
            judged = list(_outcomes(spec, samples))
        if counted:
            usage[spec.name] = dict(counted)
        for index, (outcome, printed, measured) in enumerate(judged):
            outcomes[index][spec.name] = outcome
            if printed:
                logs[index][spec.name] = printed
            if measured:
                metrics[index][spec.name] = measured
    first, *others = (
        as_score(outcome, logs=printed, metrics=measured)
        for outcome, printed, measured in zip(outcomes, logs, metrics, strict=True)
    )
    return [replace(first, usage=usage), *others]


def _outcomes(
    spec: RuleSpec, samples: Sequence[Sample]
) -> Iterator[tuple[Outcome, str, dict[str, float]]]:
    """Yield what a rule says of each completion, what it printed and measured
    meanwhile.
    """
    rule, params = RULES[spec.kind], spec.checked_params()
    if not rule.needs_sandbox:
        outcomes = rule.judge(samples, params)
        assert len(outcomes) == len(samples)
        yield from ((outcome, "", {}) for outcome in outcomes)
        return
    together = rule.judges_groups(params)
    for part in [samples] if together else [[sample] for sample in samples]:
        with keeping() as printed, measuring() as measured:
            first, *others = rule.judge(part, params)
        yield first, "".join(printed), measured
        yield from ((outcome, "", {}) for outcome in others)


def row_errors(recipe: Recipe, sample: Sample) -> dict[str, str]:
    """Return why rules could not judge a completion of a row; models are not asked for
    it.
    """
    asking = [spec for spec in recipe.rules if RULES[spec.kind].batching is not None]
    own = [spec for spec in recipe.rules if spec not in asking]
    errors = judge(own, [sample] * 2)[0].errors  # twice, for rules that compare
    for spec in asking:
        check = RULES[spec.kind].check_row
        if check is None:
            continue
        try:
            check(prepared(sample), spec.checked_params())
        except Unscorable as error:
            errors[spec.name] = str(error)
    return errors


def weigh(recipe: Recipe, score: Score, *, step: int) -> Score:
    """Give the score with the reward that follows, its rules in the recipe's order."""
    parts = parts_of(recipe, score.rules, step=step)
    return replace(
        score,
        total=reward_of(recipe, parts, failed=score.failed),
        rules={spec.name: score.rules[spec.name] for spec in recipe.rules},
    )


def joined(scores: Sequence[Score]) -> Score:
    """Return what several rules said of one completion, each in a score of its own."""
    return Score(
        None,
        {name: value for score in scores for name, value in score.rules.items()},
        {name: error for score in scores for name, error in score.errors.items()},
        [name for score in scores for name in score.not_applicable],
        {name: text for score in scores for name, text in score.logs.items()},
        {name: values for score in scores for name, values in score.metrics.items()},
        {name: counts for score in scores for name, counts in score.usage.items()},
    )


def add_usage(scores: Iterable[Score]) -> dict[str, dict[str, int]]:
    """Add up calls and tokens of judges, by rule."""
    totals: dict[str, Counter[str]] = {}
    for score in scores:
        for rule, counts in score.usage.items():
            totals.setdefault(rule, Counter()).update(counts)
    return {rule: dict(total) for rule, total in totals.items()}


def usage_metrics(usage: Mapping[str, Mapping[str, int]]) -> dict[str, float | None]:
    """Name calls and tokens by rule; tokens that no reply told are None, never 0."""
    return {
        f"judge/{rule}/{name}": None
        if name in TOKENS and name not in counts and "calls" in counts
        else float(counts.get(name, 0))
        for rule, counts in usage.items()
        for name in USAGE
    }


def as_score(
    outcomes: Mapping[str, Outcome],
    *,
    logs: dict[str, str] | None = None,
    metrics: dict[str, dict[str, float]] | None = None,
) -> Score:
    """Return what each rule said of one completion, printed and measured."""
    for name, outcome in outcomes.items():
        assert isinstance(outcome, Unscorable) or math.isfinite(outcome), (
            f"{name} returned {outcome}"
        )
    missing = {name: o for name, o in outcomes.items() if isinstance(o, Unscorable)}
    return Score(
        None,
        {n: None if isinstance(o, Unscorable) else o for n, o in outcomes.items()},
        {name: str(error) for name, error in missing.items()},
        [name for name, error in missing.items() if isinstance(error, NotApplicable)],
        logs or {},
        metrics or {},
    )


def prepared(sample: Sample) -> Sample:
    """Prepare it as rules read it: valid UTF-8, without special tokens at the end.

    A token cut in two can decode to half a surrogate pair.
    """
    answer = sample.answer
    if isinstance(answer, list):
        answer = [replace_surrogates(part) for part in answer]
    elif answer is not None:
        answer = replace_surrogates(answer)
    completion = without_special_tokens(replace_surrogates(sample.completion))
    if completion == sample.completion and answer == sample.answer:
        return sample
    return replace(sample, completion=completion, answer=answer)


# As tokenizers write the end of a text. External trainers send it as a part of it.
_SPECIAL_TOKEN = re.compile(
    r"<\|[a-z_]{1,30}\|>|</s>|<eos>|<pad>|<end_of_turn>"
    r"|<\uff5cend\u2581of\u2581sentence\uff5c>"
)


@dataclass(frozen=True)
class SpecialTokens:
    """A tokenizer's special tokens that may follow a completion, as texts.

    Those that may be a part of it are left out: tags that have both ends, as
    `<answer>` and `</answer>`, and words. A text's end is looked up by the lengths
    that there are, since a tokenizer may have thousands.
    """

    texts: frozenset[str] = frozenset()
    lengths: tuple[int, ...] = ()
    last_characters: frozenset[str] = frozenset()

    @classmethod
    def of(cls, texts: Iterable[str]) -> SpecialTokens:
        every = {text.strip() for text in texts}
        kept = frozenset(text for text in every if _may_follow(text, every))
        return cls(
            kept,
            tuple(sorted({len(text) for text in kept}, reverse=True)),
            frozenset(text[-1] for text in kept),
        )

    def size_at_end(self, text: str) -> int:
        """Give characters of the token that a text ends with; 0: it ends with none."""
        if text[-1:] not in self.last_characters:
            return 0
        return next((n for n in self.lengths if text[-n:] in self.texts), 0)


def _may_follow(text: str, every: Collection[str]) -> bool:
    is_marked = len(text) > 2 and not (text[0].isalnum() or text[-1].isalnum())
    return is_marked and not text.startswith("</") and f"</{text[1:]}" not in every


NO_TOKENS = SpecialTokens()


def without_special_tokens(text: str, tokens: SpecialTokens = NO_TOKENS) -> str:
    """Return the text without special tokens at its
    end: the tokenizer's, and usual ones.

    >>> without_special_tokens("Paris<|im_end|>\\n")
    'Paris'
    """
    while True:
        kept = text.rstrip()
        size = _usual_at_end(kept) or tokens.size_at_end(kept)
        if size == 0:
            return text
        text = kept[:-size].rstrip()


def _usual_at_end(text: str) -> int:
    if not text.endswith(">"):
        return 0
    start = text.rfind("<", -40)
    is_special = start >= 0 and _SPECIAL_TOKEN.fullmatch(text, start)
    return len(text) - start if is_special else 0


# Its part in the breakdown of a reward, beside the rules'; its weight is 1.
OVERLONG = "overlong"


def overlong_fraction(num_tokens: int, *, max_new_tokens: int, buffer: int) -> float:
    """Return how far a completion has come through the buffer before the limit, 0 to 1.

    clip((n - (limit - buffer)) / buffer, 0, 1) (arXiv:2503.14476, section 3.4).

    >>> overlong_fraction(90, max_new_tokens=100, buffer=20)
    0.5
    """
    inside = num_tokens - (max_new_tokens - buffer)
    return min(max(inside / buffer, 0.0), 1.0)


def penalised(
    score: Score, num_tokens: int, *, max_new_tokens: int, buffer: int, penalty: float
) -> Score:
    """Return the score less `penalty` times the completion's fraction; buffer 0: as it
    is.

    The penalty stands in the breakdown, so that its parts still add up to the reward.
    A completion without a score stays without one.
    """
    if buffer == 0 or score.total is None:
        return score
    fraction = overlong_fraction(
        num_tokens, max_new_tokens=max_new_tokens, buffer=buffer
    )
    part = 0.0 - penalty * fraction
    return replace(
        score, total=score.total + part, rules=score.rules | {OVERLONG: part}
    )


def signal_of(scores: Sequence[Score], recipe: Recipe, *, step: int) -> Signal:
    """Return what the rewards of a group teach; completions without one are left out.

    Equal rewards: `all_right` where all completions are correct, `all_wrong` at the
    recipe's lowest reward.
    """
    scored = [(score.total, score) for score in scores if score.total is not None]
    if not scored:
        return "unscorable"
    rewards = [reward for reward, _ in scored]
    if min(rewards) < max(rewards):
        return "mixed"
    correctness = correctness_of(recipe, step=step)
    if all(correctness.holds(reward, score.rules) for reward, score in scored):
        return "all_right"
    lowest = recipe_bounds(recipe, step=step)[0]
    return "all_wrong" if rewards[0] <= lowest + bound_tolerance(lowest) else "tied"
