"""Advice on the gap between sampler and trainer: ten rules, in order.

The first that applies gives the verdict, with the numbers that it compared; an alarm
stands beside it if the gap has doubled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from cohort.mismatch import DIFFERENCE_EDGES, PROBABILITY_EDGES
from dashboard.analysis.audit.changes import compare_ends, reached
from dashboard.analysis.mismatch.counterfactuals import (
    BY_KEY,
    CANDIDATES,
    DPPO_TV,
    OFF_POLICY,
    SEQUENCE,
    SEQUENCE_MASKED,
    TIS,
    Candidate,
    Counterfactual,
    compare,
    loss_at,
    read_table,
    stored_step,
    weigh_completions,
)
from dashboard.completions.mismatch import (
    Mismatch,
    Numbers,
    Records,
    read_mismatch,
    read_newest,
)
from dashboard.runs.charts.series import Series
from dashboard.runs.models import Run
from dashboard.runs.queries import settings_of, where_it_runs
from trainer.algorithm.corrections import effective_share, rounding_gap
from trainer.config import LossConfig

# Numbers are of the newest steps up to the one that is shown.
NUM_STEPS = 10  # chosen
FEWEST_TOKENS = 1_000  # chosen: 1,000 tokens tell a mean |d| to about 5 %
ROUNDED_SUM = math.log(1.2)  # as far as PPO's clip of 0.2 lets a ratio go
SAFE_SUM = math.log(2)  # below the cap of 3, so that truncation changes few completions
RARE = 0.1  # chosen: the first bin of μ
RARE_SHARE = 0.5  # chosen: "mostly"
RARE_TIMES = 2.0  # chosen: a token that is rare differs so many times as others do
SMALL_DIFFERENCE = 0.1  # of probabilities; half of DPPO's bound (arXiv:2602.04879)
SMALL_SHARE = 0.99  # chosen: of tokens whose probabilities differ by less
LEAST_EFFECTIVE = 0.5  # chosen: of completions, under a truncated product
MOST_MASKED = 0.1  # chosen: of completions, beyond a product of 3
STALE_KL = 0.01  # nats a token, chosen: one update of learning rates in use moves less
STALE_QUANTILE = 0.95  # chosen: of the drift of negative completions
POSITION_TIMES = 3.0  # as `python -m trainer drift` calls a gap one that grows
DOUBLED = 2.0  # chosen
FEWEST_OF_BIN = 100  # tokens, chosen: of a bin that is compared
# Of the number formats that a run may have, the one that rounds least, and most.
LEAST_ROUNDING = rounding_gap(is_float32=True, is_gpu=False)
MOST_ROUNDING = rounding_gap(is_float32=False, is_gpu=True)

Kind = Literal[
    "few",
    "incomparable",
    "rounding",
    "format",
    "fault",
    "rare",
    "sequence",
    "stale",
    "token",
]
# Why a gap is not comparable, and what to do about it.
AS_STALENESS = "A correction would treat that difference as staleness."
REASONS = {
    "restricted": (
        "the sampler's log-probs are of what top_p, top_k or min_p left",
        AS_STALENESS,
    ),
    "temperature": (
        "sampler and trainer take log-probs at different temperatures",
        AS_STALENESS,
    ),
    "unknown": (
        "the sampler reports no log-probs",
        "Let it report them to measure the gap.",
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Number:
    """A number that a rule compared, and the bound that it was compared with."""

    name: str
    value: float
    unit: str = ""
    bound: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """The numbers of some steps that all rules read."""

    steps: tuple[int, int]  # the first and the last
    num_tokens: int
    mean: float  # |d|, nats a token
    p95_sum: float  # of |Σd|, nats a completion
    kl: float  # KL(μ || π_old) by k3, nats a token
    age: float | None  # of the oldest group, in updates; None: not known
    incomparable: str
    least_rounding: float  # mean |d| that any number format of the run explains
    rounding: float  # that some format explains; known formats have the same twice
    rare_share: float  # of Σ|d|, in tokens with μ < 0.1
    rare_times: float  # their mean |d|, by that of all others
    small_share: float  # of tokens with |π - μ| < 0.1
    effective: float  # completions, under sequence truncation at 3
    masked: float  # completions, under a sequence mask at 3
    negative_drift: float  # nats a token, 95th percentile; NaN: none is negative
    position_times: float  # mean |d| of the last positions, by that of the first

    @property
    def shown(self) -> tuple[Number, Number, Number]:
        """The three numbers beside the verdict."""
        return (
            Number(name="mean |d|", value=self.mean, unit="nats/token"),
            Number(name="95th percentile of |Σd|", value=self.p95_sum, unit="nats"),
            Number(name="KL", value=self.kl, unit="nats/token"),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm:
    """The gap doubled: the first step by which most of the change has happened."""

    step: int
    before: float
    after: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    kind: Kind
    verdict: str  # one sentence
    action: str  # others
    numbers: tuple[Number, ...] = ()  # that the rule compared
    candidate: Candidate | None = None  # to be set
    alarm: Alarm | None = None

    @property
    def needs_action(self) -> Literal["no", "unknown", "likely"]:
        """The answer to whether something is to be done about the gap."""
        if self.kind in ("few", "incomparable", "format"):
            return "unknown"
        return "no" if self.kind == "rounding" else "likely"


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """The gap at each of S steps."""

    mean: Series  # |d|, nats a token
    p95_sum: Series  # |Σd|, nats a completion
    kl: Series  # KL(μ || π_old), nats a token


def total(mismatch: Mismatch) -> Totals:
    bins = mismatch.probabilities
    num = np.maximum(bins["num_tokens"].sum(axis=1, dtype=np.float64), 1)
    mean, kl = (
        bins[name].sum(axis=1, dtype=np.float64) / num for name in ("absolute", "k3")
    )
    return Totals(
        mean=Series(steps=mismatch.steps, values=mean),
        p95_sum=Series(steps=mismatch.steps, values=_percentiles(mismatch, 0.95)),
        kl=Series(steps=mismatch.steps, values=kl),
    )


def _percentiles(mismatch: Mismatch, share: float) -> Numbers:
    """Return the percentile of |Σd| of each step's completions, 0 without any."""
    counts = np.bincount(mismatch.step_of, minlength=len(mismatch.steps))
    # A row a step, NaN behind its completions: sorted, they stay there.
    ranked = np.full((len(counts), max(1, counts.max())), np.nan, np.float32)
    is_there = np.arange(ranked.shape[1]) < counts[:, None]
    ranked[is_there] = np.abs(mismatch.completions["sum"])
    ranked.sort(axis=1)
    last = np.maximum(counts - 1, 0)
    below, rest = np.divmod(last * share, 1)
    ends = np.stack([below, np.minimum(below + 1, last)], axis=1).astype(np.int64)
    low, high = np.take_along_axis(ranked, ends, axis=1).astype(np.float64).T
    return np.where(counts > 0, low + rest * (high - low), 0.0)


def gather(mismatch: Mismatch, rounding: tuple[float, float]) -> Evidence:
    """Sum up some steps; the least and the most that rounding explains."""
    completions = mismatch.completions[mismatch.completions["num_tokens"] > 0]
    sums = completions["sum"].astype(np.float64)
    bins = _total(mismatch.probabilities)
    num_tokens = int(bins["num_tokens"].sum())
    reasons = [reason for reason in mismatch.incomparable if reason]
    capped = weigh_completions(SEQUENCE_CAP, completions)
    masked = weigh_completions(SEQUENCE_MASK, completions)
    negative = completions[completions["advantage"] < 0]
    drift = -negative["sum"].astype(np.float64) / negative["num_tokens"]
    num_rare = PROBABILITY_EDGES.index(RARE) + 1
    return Evidence(
        steps=(int(mismatch.steps[0]), int(mismatch.steps[-1])),
        num_tokens=num_tokens,
        mean=_ratio(bins["absolute"].sum(), num_tokens),
        p95_sum=float(np.quantile(np.abs(sums), 0.95)) if len(sums) else 0.0,
        kl=_ratio(bins["k3"].sum(), num_tokens),
        age=None if np.isnan(mismatch.ages).all() else float(np.nanmax(mismatch.ages)),
        incomparable=reasons[-1] if reasons else "",
        least_rounding=rounding[0],
        rounding=rounding[1],
        rare_share=_ratio(bins["absolute"][:num_rare].sum(), bins["absolute"].sum()),
        rare_times=_ratio(
            _mean(bins, slice(num_rare)), _mean(bins, slice(num_rare, None))
        ),
        small_share=_small_share(mismatch),
        effective=effective_share(capped) if len(capped) else 1.0,
        masked=float((masked == 0).mean()) if len(masked) else 0.0,
        negative_drift=float(np.quantile(drift, STALE_QUANTILE))
        if len(drift)
        else math.nan,
        position_times=_growth(_total(mismatch.positions)),
    )


SEQUENCE_CAP = BY_KEY[SEQUENCE].loss
SEQUENCE_MASK = BY_KEY[SEQUENCE_MASKED].loss


def _total(bins: Records) -> dict[str, Numbers]:
    """Add up the sums of steps [S, bins]; "largest" is no sum."""
    return {
        name: bins[name].astype(np.float64).sum(axis=0)
        for name in ("num_tokens", "absolute", "k3")
    }


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else 0.0


def _mean(bins: dict[str, Numbers], chosen: slice) -> float:
    return _ratio(bins["absolute"][chosen].sum(), bins["num_tokens"][chosen].sum())


def _small_share(mismatch: Mismatch) -> float:
    """Return the share of tokens whose probabilities differ by less than 0.1."""
    counts = mismatch.differences.sum(axis=(0, 1))
    low, high = (
        DIFFERENCE_EDGES.index(bound) + 1
        for bound in (-SMALL_DIFFERENCE, SMALL_DIFFERENCE)
    )
    return _ratio(counts[low:high].sum(), counts.sum())


def _growth(bins: dict[str, Numbers]) -> float:
    """Return mean |d| of the last bin of enough tokens, by that of the first."""
    full = np.flatnonzero(bins["num_tokens"] >= FEWEST_OF_BIN)
    means = bins["absolute"][full] / bins["num_tokens"][full]
    return _ratio(means[-1], means[0]) if len(full) > 1 else 1.0


def advise(evidence: Evidence, means: Series) -> Advice:
    """Return the first rule that applies, and whether the gap has doubled.

    Args:
        evidence: of the newest steps.
        means: mean |d| of each step of the run.
    """
    advice = next(found for rule in RULES if (found := rule(evidence)) is not None)
    if advice.kind in ("few", "incomparable", "rounding"):
        return advice
    return replace(advice, alarm=find_doubling(means))


def find_doubling(means: Series) -> Alarm | None:
    """Compare the last quarter of the run with the one before; None: not doubled."""
    change = compare_ends(means, first=2)
    if change is None or not change.is_clear:
        return None
    before, after = change.before.mean, change.after.mean
    if after < DOUBLED * before:
        return None
    return Alarm(step=reached(means, change), before=before, after=after)


def _few(e: Evidence) -> Advice | None:
    # A run at another temperature counts no tokens at all.
    if e.num_tokens >= FEWEST_TOKENS or e.incomparable:
        return None
    return Advice(
        kind="few",
        verdict=f"Too few tokens for advice: {e.num_tokens:,} of {FEWEST_TOKENS:,}.",
        action="Wait for more steps, or sample more completions a step.",
    )


def _incomparable(e: Evidence) -> Advice | None:
    """Take also sums that are no numbers, of a trainer that computes them itself."""
    if e.incomparable:
        reason, action = REASONS[e.incomparable]
    elif all(number.value >= 0 for number in e.shown):
        return None
    else:
        reason, action = "its sums are no numbers", "Report finite log-probs."
    return Advice(
        kind="incomparable",
        verdict=f"The gap is not comparable: {reason}.",
        action=action,
    )


def _rounding(e: Evidence) -> Advice | None:
    if e.age or e.mean > e.least_rounding or e.p95_sum >= ROUNDED_SUM:
        return None
    return Advice(
        kind="rounding",
        verdict="No correction needed: the gap is rounding.",
        action="A correction of tokens leaves the gradient nearly as it is.",
        numbers=(_of_mean(e, e.least_rounding), _of_sum(e, ROUNDED_SUM)),
    )


def _format(e: Evidence) -> Advice | None:
    if e.age or not e.least_rounding < e.mean <= e.rounding:
        return None
    return Advice(
        kind="format",
        verdict="In bfloat16 this gap is rounding, in float32 it is a fault.",
        action="This trainer does not report its number format. Pass it to "
        "log_mismatch as dtype.",
        numbers=(_of_mean(e, e.least_rounding),),
    )


def _fault(e: Evidence) -> Advice | None:
    if e.age or e.mean <= e.rounding:
        return None
    sentences = [
        "Find the cause before you correct anything: another temperature, tokenization "
        "or kernel, or old weights."
    ]
    numbers = [_of_mean(e, e.rounding)]
    if e.age is None:
        sentences.append(
            "This trainer reports no age. Pass it to log_mismatch, which separates "
            "stale samples from a fault."
        )
    if e.position_times >= POSITION_TIMES:
        sentences.append(
            "The gap grows with the position of a token, as with other position "
            "embeddings or reused keys and values."
        )
        numbers.append(
            Number(
                name="mean |d| of the last positions by that of the first",
                value=e.position_times,
                bound=POSITION_TIMES,
            )
        )
    return Advice(
        kind="fault",
        verdict="The gap is more than rounding: a fault, or stale samples."
        if e.age is None
        else "The gap is more than rounding: a fault is likely.",
        action=" ".join(sentences),
        numbers=tuple(numbers),
    )


def _rare(e: Evidence) -> Advice | None:
    is_rare = e.rare_share > RARE_SHARE and e.rare_times >= RARE_TIMES
    if not is_rare or e.small_share < SMALL_SHARE:
        return None
    return Advice(
        kind="rare",
        verdict="The gap is in rare tokens, whose probabilities hardly differ.",
        action="Use DPPO, which bounds differences of probabilities. Bounds of ratios "
        "would hit rare tokens alone.",
        numbers=(
            _percent("Σ|d| in tokens with μ < 0.1", e.rare_share, RARE_SHARE),
            Number(
                name="mean |d| of these by that of others",
                value=e.rare_times,
                bound=RARE_TIMES,
            ),
            _percent("tokens with |π − μ| < 0.1", e.small_share, SMALL_SHARE),
        ),
        candidate=BY_KEY[DPPO_TV],
    )


def _sequence(e: Evidence) -> Advice | None:
    is_safe = e.effective >= LEAST_EFFECTIVE and e.masked <= MOST_MASKED
    if e.p95_sum >= SAFE_SUM or not is_safe:
        return None
    return Advice(
        kind="sequence",
        verdict="Weights of whole completions correct the gap.",
        action="Truncate the product of a completion's ratios at 3: it is unbiased "
        "below that, and few completions reach it.",
        numbers=_of_products(e),
        candidate=BY_KEY[SEQUENCE],
    )


def _stale(e: Evidence) -> Advice | None:
    if not e.age or e.kl <= STALE_KL:
        return None
    numbers = [
        Number(name="age", value=e.age, unit="updates", bound=0),
        Number(name="KL", value=e.kl, unit="nats/token", bound=STALE_KL),
    ]
    action, candidate = "Make fewer updates a batch.", None
    if e.negative_drift > 0:
        bound = float(f"{min(e.negative_drift, 20.0):.2g}")
        action = (
            "Mask completions with A < 0 whose mean log-prob has fallen by more than "
            f"{bound:g} nats, or make fewer updates a batch."
        )
        numbers.append(
            Number(
                name="95th percentile of that fall",
                value=e.negative_drift,
                unit="nats/token",
            )
        )
        candidate = Candidate(
            key=OFF_POLICY,
            title=f"Off-policy mask, {bound:g} nats",
            changes={"off_policy_mask": bound},
            is_added=True,
        )
    return Advice(
        kind="stale",
        verdict="The samples are stale.",
        action=action,
        numbers=tuple(numbers),
        candidate=candidate,
    )


def _token(e: Evidence) -> Advice:
    return Advice(
        kind="token",
        verdict="Weights of whole completions vary too much: correct tokens.",
        action="Truncate the ratio of each token at 2.",
        numbers=_of_products(e),
        candidate=BY_KEY[TIS],
    )


RULES: tuple[Callable[[Evidence], Advice | None], ...] = (
    _few,
    _incomparable,
    _rounding,
    _format,
    _fault,
    _rare,
    _sequence,
    _stale,
    _token,
)


def _of_mean(e: Evidence, bound: float) -> Number:
    return Number(name="mean |d|", value=e.mean, unit="nats/token", bound=bound)


def _of_sum(e: Evidence, bound: float) -> Number:
    return Number(
        name="95th percentile of |Σd|", value=e.p95_sum, unit="nats", bound=bound
    )


def _of_products(e: Evidence) -> tuple[Number, ...]:
    return (
        _of_sum(e, SAFE_SUM),
        _percent("effective completions", e.effective, LEAST_EFFECTIVE),
        _percent("completions with a product above 3", e.masked, MOST_MASKED),
    )


def _percent(name: str, share: float, bound: float) -> Number:
    return Number(name=name, value=100 * share, unit="%", bound=100 * bound)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lab:
    """A run's gap, the advice on it, and each correction at one step."""

    step: int
    mismatch: Mismatch  # of the run
    of_step: Mismatch
    totals: Totals
    evidence: Evidence
    advice: Advice
    stored_step: int | None  # whose token values the comparison has
    today: LossConfig | None  # of the run at the step; None: not known
    rows: list[Counterfactual]

    @property
    def numbers(self) -> list[Number]:
        """The numbers beside the verdict, then others that its rule compared."""
        numbers = (*self.evidence.shown, *self.advice.numbers)
        return list({number.name: number for number in numbers}.values())


def read_lab(
    run: Run, step: int | None = None, own: Sequence[Candidate] = ()
) -> Lab | None:
    """Read the run's steps, and compare corrections at one; None: none was measured.

    Seven queries. Without a step it is the newest with token values, else the newest,
    and the advice is on the newest steps.

    Args:
        run: of the team.
        step: the nearest measured one before it is taken.
        own: further corrections.
    """
    mismatch = read_mismatch(run)
    if mismatch is None:
        return None
    first, newest = mismatch.steps[[0, -1]].tolist()
    last = newest if step is None else max(step, first)
    stored = stored_step(run, last)
    recent = read_newest(run, NUM_STEPS, last)
    of_step = read_newest(run, 1, max(stored or last, first) if step is None else last)
    if recent is None or of_step is None:
        return None  # a run that resumes has superseded them since
    chosen = int(of_step.steps[-1])
    today = loss_at(run, chosen)
    table = None if stored is None else read_table(run, stored)
    totals = total(mismatch)
    evidence = gather(recent, explained_by_rounding(run, recent.dtypes[-1]))
    return Lab(
        step=chosen,
        mismatch=mismatch,
        of_step=of_step,
        totals=totals,
        evidence=evidence,
        advice=advise(evidence, totals.mean),
        stored_step=stored if table is not None else None,
        today=today,
        rows=compare(
            [*CANDIDATES, *own],
            of_step,
            table,
            today,
            trained=None if stored is None else loss_at(run, stored),
        ),
    )


def explained_by_rounding(run: Run, number_format: str) -> tuple[float, float]:
    """Return the least and the most mean |d| that the run's number format explains,
    nats a token; they differ where another trainer did not tell it. One query.
    """
    config = settings_of(run)
    if config is None and not number_format:
        return LEAST_ROUNDING, MOST_ROUNDING
    if config is None:
        # float16 keeps as many bits as a GPU's products of float32
        is_float32, is_gpu = number_format != "bfloat16", True
    else:
        is_gpu = not where_it_runs(run)[0].startswith("cpu")
        is_float32 = config.model.dtype == "float32" or (
            config.model.dtype == "auto" and not is_gpu
        )
    gap = rounding_gap(is_float32=is_float32, is_gpu=is_gpu)
    return gap, gap
