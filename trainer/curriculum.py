"""Chooses the prompts of a step by their pass rates.

    belief     Beta(α, β) of each prompt's pass rate, decayed at each visit (MoPPS)
    weight     by pool, by what a group may teach, or by nearness to a target
    draw       without replacement, the largest u^(1/w) (Efraimidis and Spirakis, 2006)
    gate       prompts that are always right or always wrong are out for some steps

Draws follow from seed, step and beliefs, which all processes have alike. A batch that
is sampled k steps ahead is drawn by the beliefs of k steps before. The dashboard runs
the same lines over the visits of a run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.config import CurriculumConfig
from trainer.rewards.scoring import Score, correctness_of
from trainer.rewards.spec import Recipe, recipe_bounds

Floats = NDArray[np.float64]
Places = NDArray[np.int64]
POOLS = ("unseen", "hard", "normal", "easy")
PRIOR = 1.0  # of α and of β: any pass rate is as likely as another
_TARGET_WIDTH = 0.02  # 2σ² of the weight around the target, as σ = 0.1
_MOST_SCORED = 1e9  # completions of a prompt
_TOLERANCE = 1e-5  # of sums of graded rewards, which may be float32


def right_of(
    scores: Sequence[Score], recipe: Recipe, *, step: int
) -> tuple[float, int]:
    """Return how many of a group's scored completions are right, and their number.

    Without rules that compare with an answer, a completion counts as its reward's
    place between the recipe's bounds, 0 to 1.
    """
    scored = [(score.total, score) for score in scores if score.total is not None]
    correctness = correctness_of(recipe, step=step)
    if correctness.full_scores:
        right = sum(correctness.holds(total, score.rules) for total, score in scored)
        return float(right), len(scored)
    shares = place_within([total for total, _ in scored], recipe, step=step)
    return float(shares.sum()), len(scored)


def place_within(
    rewards: Sequence[float] | Floats, recipe: Recipe, *, step: int
) -> Floats:
    """Return rewards as places between the recipe's bounds, 0 to 1."""
    low, high = recipe_bounds(recipe, step=step)
    span = high - low if high > low else 1.0
    return np.clip((np.asarray(rewards, np.float64) - low) / span, 0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Beliefs:
    """The evidence on each training prompt; arrays of one length, by place."""

    rows: Places  # of the dataset, rising
    alpha: Floats
    beta: Floats
    last_step: Places  # that visited it; 0: none of this run
    # Visits in a row that were all right; below 0: all wrong.
    streak: Places

    @classmethod
    def about(cls, rows: Iterable[int]) -> Beliefs:
        """Begin without evidence."""
        indices = np.fromiter(rows, np.int64)
        num = len(indices)
        return cls(
            rows=indices,
            alpha=np.full(num, PRIOR),
            beta=np.full(num, PRIOR),
            last_step=np.zeros(num, np.int64),
            streak=np.zeros(num, np.int64),
        )

    @property
    def seen(self) -> NDArray[np.bool_]:
        return self.alpha + self.beta > 2 * PRIOR

    @property
    def mean(self) -> Floats:
        """The expected pass rate."""
        return self.alpha / (self.alpha + self.beta)

    def add_visits(
        self,
        rows: Places,
        *,
        right: Floats,
        scored: Places,
        step: int,
        decay: float,
    ) -> None:
        """Take in the groups of a step: α ← λα + (1 − λ)α₀ + right, β likewise.

        Groups without a scored completion say nothing.
        """
        is_scored = scored > 0
        right, scored = right[is_scored], scored[is_scored]
        at = self.places_of(rows[is_scored])
        self.alpha[at] = decay * self.alpha[at] + (1 - decay) * PRIOR + right
        self.beta[at] = decay * self.beta[at] + (1 - decay) * PRIOR + scored - right
        self.last_step[at] = step
        all_right, all_wrong = right >= scored - _TOLERANCE, right <= _TOLERANCE
        before, sign = self.streak[at], all_right.astype(np.int64) - all_wrong
        self.streak[at] = sign + np.where(before * sign > 0, before, 0)

    def places_of(self, rows: Places) -> Places:
        return np.searchsorted(self.rows, rows)

    def due_steps(self, config: CurriculumConfig) -> Places:
        """Return the step from which each may be drawn again; 0: it is not out."""
        is_dropped = np.abs(self.streak) >= max(config.drop_after, 1)
        is_dropped &= config.drop_after > 0
        return np.where(is_dropped, self.last_step + config.recheck_every, 0)

    def save(self, path: Path, *, digest: str) -> None:
        """Write them as npz; `digest`: of the prompts that they are about."""
        np.savez(path, digest=np.array(digest), **vars(self))

    @classmethod
    def load(cls, path: Path, *, digest: str) -> Beliefs | None:
        """Read them; None where there are none, or of other prompts."""
        if not path.is_file():
            return None
        with np.load(path, allow_pickle=False) as arrays:
            if str(arrays["digest"]) != digest:
                return None
            return cls(**{name: arrays[name] for name in arrays if name != "digest"})


def read_pass_rates(path: Path, beliefs: Beliefs) -> None:
    """Add the pass rates of a file, of the rows that are trained on.

    Each line has row, num_right and num_scored, as By prompt exports them.

    Raises:
        ValueError: there is no such file, a line is something else, or none is about
            such a row.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"The pass rates {path} cannot be read: {error}. Set "
            "curriculum.start_from to a file that By prompt exported."
        ) from None
    counts: dict[int, tuple[float, float]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            row, right, scored = (
                entry[name] for name in ("row", "num_right", "num_scored")
            )
            if not (isinstance(row, int) and 0 <= right <= scored <= _MOST_SCORED):
                raise ValueError
        except (ValueError, TypeError, LookupError, RecursionError):
            raise ValueError(
                f"{path.name}, line {number} must have row, num_right and num_scored, "
                f"num_right being at most num_scored; got {line[:80]!r}."
            ) from None
        counts[row] = float(right), float(scored)
    rows = np.array(sorted(counts.keys() & set(beliefs.rows.tolist())), np.int64)
    if counts and not len(rows):
        raise ValueError(
            f"{path.name} has pass rates of {len(counts):,} prompts, but the run "
            "trains on none of them. Set curriculum.start_from to a file about its "
            "dataset."
        )
    right, scored = np.array([counts[row] for row in rows.tolist()]).reshape(-1, 2).T
    at = beliefs.places_of(rows)
    beliefs.alpha[at] += right
    beliefs.beta[at] += scored - right


def signal_chance(alpha: Floats, beta: Floats, *, group_size: int) -> Floats:
    """Return the chance that a group's completions differ, by the belief.

    E[1 − p^G − (1 − p)^G] with p of Beta(α, β): E[p^G] = Π (α + i) / (α + β + i).
    """
    right, wrong = np.ones_like(alpha), np.ones_like(beta)
    for i in range(group_size):
        right *= (alpha + i) / (alpha + beta + i)
        wrong *= (beta + i) / (alpha + beta + i)
    return 1 - right - wrong


def pools_of(beliefs: Beliefs, config: CurriculumConfig) -> Places:
    """Return the pool of each prompt, as an index in POOLS."""
    pools = 1 + np.searchsorted(config.pool_bounds, beliefs.mean, side="left")
    return np.where(beliefs.seen, pools, 0)


def weights_of(
    beliefs: Beliefs, config: CurriculumConfig, *, group_size: int, seed: int
) -> Floats:
    """Return the weight of each prompt in a draw, gate aside; 1 or so at most.

    `seed`: of the step, which the guesses of a target's pass rates follow from.
    """
    alpha, beta = beliefs.alpha, beliefs.beta
    match config.kind, config.score:
        case "pools", _:
            by_pool = np.array([config.unseen_weight, *config.pool_weights])
            weights = by_pool[pools_of(beliefs, config)]
        case "target", _:
            draws = np.random.Generator(np.random.PCG64([seed, 1]))
            off = draws.beta(alpha, beta) - config.target
            weights = np.exp(-(off**2) / _TARGET_WIDTH)
        case "learnability", "variance":
            total = alpha + beta
            weights = 4 * alpha * beta / (total * (total + 1))
        case "learnability", _:
            weights = signal_chance(alpha, beta, group_size=group_size)
        case _:
            weights = np.ones_like(alpha)
    weights = np.where(beliefs.seen, weights, config.unseen_weight)
    floored: Floats = np.maximum(weights, config.floor_weight)
    return floored


@dataclass(frozen=True, kw_only=True)
class Draw:
    """The prompts drawn for a step, with their chances and expected signal."""

    places: list[int]  # in the order of their draw: the step's own, then refills
    pools: dict[str, int]  # of the step's own
    num_out: int
    num_rows: int
    rows: list[int]  # the step's own
    # Of each of these: to be drawn at all, and of a signal as it was believed.
    chances: list[float]
    expected: list[float]
    mean_expected: float  # signal over all rows, of which what is out has none

    def round_places(self, turn: int) -> list[int]:
        """Return the places of a round of sampling; 0 is the step's own."""
        num = len(self.rows)
        return self.places[turn * num : (turn + 1) * num]

    def metrics(self, signals: Mapping[int, bool]) -> dict[str, float | None]:
        """Return what the step drew; `signals`: of own rows, whether the group teaches.

        `curriculum/uniform_signal` is the estimated share of groups with signal in
        uniform order: the believed one, corrected by each drawn row's difference over
        its chance. So it is unbiased, however wrong the beliefs are, and of one step
        may lie outside 0 to 1.
        """
        differences = (
            (signals[row] - expected) / chance
            for row, chance, expected in zip(
                self.rows, self.chances, self.expected, strict=True
            )
        )
        uniform = self.mean_expected + sum(differences) / self.num_rows
        num = len(self.rows)
        return {
            **{f"curriculum/{pool}": n / num for pool, n in self.pools.items()},
            "curriculum/num_out": float(self.num_out),
            "curriculum/uniform_signal": uniform,
        }


def draw_keys(weights: Floats, *, seed: int) -> Floats:
    """Return the logarithm of u^(1/w) for each weight; the largest are drawn."""
    uniforms = np.random.Generator(np.random.PCG64(seed)).random(len(weights))
    keys: Floats = np.log1p(-uniforms) / weights
    return keys


def draw(
    beliefs: Beliefs,
    config: CurriculumConfig,
    *,
    prompts_per_step: int,
    group_size: int,
    seed: int,
    step: int,
) -> Draw:
    """Draw prompts without replacement: those with the largest u^(1/w) come first.

    Each step has a seed of its own.

    What is out comes only where too few others are left, the next due first.

    Given the key that comes behind the own prompts, a row was in with the chance
    1 − key^w, whatever the others: so an estimate over all rows is unbiased (Cohen and
    Kaplan, 2007).
    """
    weights = weights_of(beliefs, config, group_size=group_size, seed=seed)
    keys = draw_keys(weights, seed=seed)
    due = beliefs.due_steps(config)
    is_out = due > step
    # Sorted by their keys from the largest; what is out by when it is due.
    order = np.lexsort((-keys, np.where(is_out, due, 0)))
    num_in = int(len(order) - is_out.sum())
    own = order[:prompts_per_step]
    chances = np.ones(len(own))
    if num_in > prompts_per_step:
        chances = -np.expm1(keys[order[prompts_per_step]] * weights[own])
    expected = signal_chance(beliefs.alpha, beliefs.beta, group_size=group_size)
    expected *= ~is_out
    counts = np.bincount(pools_of(beliefs, config)[own], minlength=len(POOLS))
    return Draw(
        places=order[: max(num_in, prompts_per_step)].tolist(),
        pools=dict(zip(POOLS, counts.tolist(), strict=True)),
        num_out=int(is_out.sum()),
        num_rows=len(order),
        rows=beliefs.rows[own].tolist(),
        chances=chances.tolist(),
        expected=expected[own].tolist(),
        mean_expected=float(expected.mean()),
    )
