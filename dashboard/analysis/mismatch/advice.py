"""Advice on the gap between sampler and trainer: nine rules, in order.

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
    CANDIDATES,
    DPPO_TV,
    OFF_POLICY,
    SEQUENCE,
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
    MAX_STEPS,
    Mismatch,
    Numbers,
    Records,
    StepMismatch,
    read_mismatch,
    read_step_mismatch,
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

Kind = Literal[
    "few",
    "incomparable",
    "rounding",
    "fault",
    "rare",
    "sequence",
    "stale",
    "token",
]
REASONS = {
    "restricted": "the sampler's log-probs have top_p, top_k or min_p in them",
    "temperature": "sampler and trainer take log-probs at different temperatures",
    "unknown": "the sampler reports no log-probs",
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
    rounding: float  # mean |d| that the run's number format explains
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
    action: str  # another
    numbers: tuple[Number, ...]  # that the rule compared
    candidate: Candidate | None = None  # to be set
    grows_with_position: bool = False
    alarm: Alarm | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """The gap at each of S steps."""

    mean: Series  # |d|, nats a token
    p95_sum: Series  # |Σd|, nats a completion
    kl: Series  # KL(μ || π_old), nats a token


def total(mismatch: Mismatch) -> Totals:
    bins = mismatch.probabilities
    num = np.maximum(bins["num_tokens"].sum(axis=1, dtype=np.float64), 1)

    def series(values: Numbers) -> Series:
        return Series(steps=mismatch.steps, values=values)

    return Totals(
        mean=series(bins["absolute"].sum(axis=1, dtype=np.float64) / num),
        kl=series(bins["k3"].sum(axis=1, dtype=np.float64) / num),
        p95_sum=series(_percentiles(mismatch, 0.95)),
    )


def _percentiles(mismatch: Mismatch, share: float) -> Numbers:
    """Return the percentile of |Σd| of each step's completions, 0 without any."""
    sums = np.abs(mismatch.completions["sum"].astype(np.float64))
    order = np.lexsort((sums, mismatch.step_of))
    counts = np.bincount(mismatch.step_of, minlength=len(mismatch.steps))
    places = np.maximum(counts - 1, 0) * share
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    ranked = np.append(sums[order], 0.0)  # a step without completions has a place too
    below = starts + places.astype(np.int64)
    above = np.minimum(below + 1, starts + np.maximum(counts - 1, 0))
    rest = places - places.astype(np.int64)
    values = ranked[below] + rest * (ranked[above] - ranked[below])
    return np.where(counts > 0, values, 0.0)


def gather(mismatch: Mismatch, *, rounding: float, last: int | None = None) -> Evidence:
    """Sum up the newest steps up to `last`."""
    end = len(mismatch.steps)
    if last is not None:
        end = max(1, int(np.searchsorted(mismatch.steps, last, side="right")))
    here = slice(max(0, end - NUM_STEPS), end)
    within = (mismatch.step_of >= here.start) & (mismatch.step_of < here.stop)
    completions = mismatch.completions[within]
    completions = completions[completions["num_tokens"] > 0]
    sums = completions["sum"].astype(np.float64)
    bins = _total(mismatch.probabilities[here])
    num_tokens = int(bins["num_tokens"].sum())
    ages = mismatch.ages[here]
    reasons = [reason for reason in mismatch.incomparable[here] if reason]
    capped = weigh_completions(SEQUENCE_CAP, completions)
    masked = weigh_completions(SEQUENCE_MASK, completions)
    negative = completions[completions["advantage"] < 0]
    drift = -negative["sum"].astype(np.float64) / negative["num_tokens"]
    num_rare = PROBABILITY_EDGES.index(RARE) + 1
    return Evidence(
        steps=(int(mismatch.steps[here.start]), int(mismatch.steps[end - 1])),
        num_tokens=num_tokens,
        mean=_ratio(bins["absolute"].sum(), num_tokens),
        p95_sum=float(np.quantile(np.abs(sums), 0.95)) if len(sums) else 0.0,
        kl=_ratio(bins["k3"].sum(), num_tokens),
        age=None if np.isnan(ages).all() else float(np.nanmax(ages)),
        incomparable=reasons[-1] if reasons else "",
        rounding=rounding,
        rare_share=_ratio(bins["absolute"][:num_rare].sum(), bins["absolute"].sum()),
        rare_times=_ratio(
            _mean(bins, slice(num_rare)), _mean(bins, slice(num_rare, None))
        ),
        small_share=_small_share(mismatch, here),
        effective=effective_share(capped) if len(capped) else 1.0,
        masked=float((masked == 0).mean()) if len(masked) else 0.0,
        negative_drift=float(np.quantile(drift, STALE_QUANTILE))
        if len(drift)
        else math.nan,
        position_times=_growth(_total(mismatch.positions[here])),
    )


SEQUENCE_CAP = next(each.loss for each in CANDIDATES if each.key == SEQUENCE)
SEQUENCE_MASK = SEQUENCE_CAP.model_copy(
    update={"importance_correction": "sequence_mask"}
)


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


def _small_share(mismatch: Mismatch, steps: slice) -> float:
    """Return the share of tokens whose probabilities differ by less than 0.1."""
    counts = mismatch.differences[steps].sum(axis=(0, 1))
    low, high = (
        int(np.searchsorted(DIFFERENCE_EDGES, bound, side="right"))
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
        verdict=f"{e.num_tokens:,} tokens are too few for advice.",
        action="Wait for more steps, or sample more completions a step.",
        numbers=(Number(name="tokens", value=e.num_tokens, bound=FEWEST_TOKENS),),
    )


def _incomparable(e: Evidence) -> Advice | None:
    if not e.incomparable:
        return None
    return Advice(
        kind="incomparable",
        verdict=f"The gap is not comparable: {REASONS[e.incomparable]}.",
        action="Report them, to see the gap."
        if e.incomparable == "unknown"
        else "Corrections would take that for staleness.",
        numbers=(),
    )


def _missing(e: Evidence) -> Advice | None:
    """Take sums that are no numbers, of a trainer that computes them itself."""
    if all(number.value >= 0 for number in e.shown):
        return None
    return Advice(
        kind="incomparable",
        verdict="The gap is not comparable: its sums are no numbers.",
        action="Log-probs that the trainer reports may be infinite.",
        numbers=(),
    )


def _rounding(e: Evidence) -> Advice | None:
    if e.age or e.mean > e.rounding or e.p95_sum >= ROUNDED_SUM:
        return None
    return Advice(
        kind="rounding",
        verdict="No correction needed: the gap is rounding.",
        action="A correction of tokens leaves the gradient nearly as it is.",
        numbers=(_of_mean(e), _of_sum(e, ROUNDED_SUM)),
    )


def _fault(e: Evidence) -> Advice | None:
    if e.age or e.mean <= e.rounding:
        return None
    is_known = e.age is not None
    action = (
        "Find it before you correct anything: another temperature, tokenization or "
        "kernel, or old weights. python -m trainer drift compares both on new samples."
    )
    if not is_known:
        action += (
            " This trainer reports no age. Pass it to log_mismatch, which separates "
            "stale samples from a fault."
        )
    numbers = [_of_mean(e)]
    grows = e.position_times >= POSITION_TIMES
    if grows:
        action += (
            " The gap grows with the position of a token, as with other position "
            "embeddings or kept keys."
        )
        numbers.append(
            Number(
                name="last positions by the first",
                value=e.position_times,
                bound=POSITION_TIMES,
            )
        )
    return Advice(
        kind="fault",
        verdict="A fault is likelier than rounding."
        if is_known
        else "The gap is more than rounding: a fault, or stale samples.",
        action=action,
        numbers=tuple(numbers),
        grows_with_position=grows,
    )


def _rare(e: Evidence) -> Advice | None:
    is_rare = e.rare_share > RARE_SHARE and e.rare_times >= RARE_TIMES
    if not is_rare or e.small_share < SMALL_SHARE:
        return None
    return Advice(
        kind="rare",
        verdict="The gap is in rare tokens, whose probabilities hardly differ.",
        action="DPPO bounds probabilities; bounds of ratios would hit these tokens "
        "alone.",
        numbers=(
            Number(
                name="share of Σ|d| in tokens with μ < 0.1",
                value=e.rare_share,
                bound=RARE_SHARE,
            ),
            Number(
                name="their mean |d| by that of others",
                value=e.rare_times,
                bound=RARE_TIMES,
            ),
            Number(
                name="tokens with |π - μ| < 0.1", value=e.small_share, bound=SMALL_SHARE
            ),
        ),
        candidate=_candidate(DPPO_TV),
    )


def _sequence(e: Evidence) -> Advice | None:
    is_safe = e.effective >= LEAST_EFFECTIVE and e.masked <= MOST_MASKED
    if e.p95_sum >= SAFE_SUM or not is_safe:
        return None
    return Advice(
        kind="sequence",
        verdict="Sequence truncation at 3 is safe here.",
        action="It is unbiased up to its cap, and few completions reach that.",
        numbers=(_of_sum(e, SAFE_SUM), *_of_completions(e)),
        candidate=_candidate(SEQUENCE),
    )


def _stale(e: Evidence) -> Advice | None:
    if not e.age or e.kl <= STALE_KL:
        return None
    numbers = (
        Number(name="age", value=e.age, unit="updates", bound=1),
        Number(name="KL", value=e.kl, unit="nats/token", bound=STALE_KL),
    )
    verdict = "The samples are stale."
    if not e.negative_drift > 0:
        return Advice(
            kind="stale",
            verdict=verdict,
            action="Make fewer updates a batch.",
            numbers=numbers,
        )
    bound = float(f"{min(e.negative_drift, 20.0):.2g}")
    return Advice(
        kind="stale",
        verdict=verdict,
        action=f"Mask negative completions that have fallen by more than {bound:g} "
        "nats a token, or make fewer updates a batch.",
        numbers=(
            *numbers,
            Number(
                name="drift of negative completions, 95th percentile",
                value=e.negative_drift,
                unit="nats/token",
            ),
        ),
        candidate=Candidate(
            key=OFF_POLICY,
            title=f"Off-policy mask, {bound:g} nats",
            changes={"off_policy_mask": bound},
        ),
    )


def _token(e: Evidence) -> Advice:
    return Advice(
        kind="token",
        verdict="Products over completions vary too much: correct tokens.",
        action="Truncate the weight of each token at 2.",
        numbers=(_of_sum(e, SAFE_SUM), *_of_completions(e)),
        candidate=_candidate(TIS),
    )


RULES: tuple[Callable[[Evidence], Advice | None], ...] = (
    _few,
    _incomparable,
    _missing,
    _rounding,
    _fault,
    _rare,
    _sequence,
    _stale,
    _token,
)


def _of_mean(e: Evidence) -> Number:
    return Number(name="mean |d|", value=e.mean, unit="nats/token", bound=e.rounding)


def _of_sum(e: Evidence, bound: float) -> Number:
    return Number(
        name="95th percentile of |Σd|", value=e.p95_sum, unit="nats", bound=bound
    )


def _of_completions(e: Evidence) -> tuple[Number, Number]:
    return (
        Number(name="effective completions", value=e.effective, bound=LEAST_EFFECTIVE),
        Number(
            name="completions beyond a product of 3", value=e.masked, bound=MOST_MASKED
        ),
    )


def _candidate(key: str) -> Candidate:
    return next(each for each in CANDIDATES if each.key == key)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lab:
    """A run's gap, the advice on it, and each correction at one step."""

    step: int
    mismatch: Mismatch  # of the run
    of_step: StepMismatch
    totals: Totals
    evidence: Evidence
    advice: Advice
    stored_step: int | None  # whose token values the comparison has
    today: LossConfig | None  # of the run at the step; None: not known
    rows: list[Counterfactual]


def read_lab(
    run: Run, step: int | None = None, own: Sequence[Candidate] = ()
) -> Lab | None:
    """Read the run's steps, and compare corrections at one; None: none was measured.

    Eight queries. Without a step it is the newest with token values, else the newest,
    and the advice is on the newest steps.

    Args:
        run: of the team.
        step: the nearest measured one before it is taken.
        own: further corrections.
    """
    mismatch = read_mismatch(run)
    if mismatch is None:
        return None
    newest = int(mismatch.steps[-1])
    stored = stored_step(run, newest if step is None else step)
    chosen = (stored or newest) if step is None else step
    of_step = read_step_mismatch(run, chosen)
    if of_step is None:
        before = mismatch.steps[mismatch.steps <= chosen]
        chosen = int(before[-1] if len(before) else mismatch.steps[0])
        of_step = read_step_mismatch(run, chosen)
        assert of_step is not None, "it was read with the others"
    today = loss_at(run, chosen)
    table = None if stored is None else read_table(run, stored)
    totals = total(mismatch)
    recent = mismatch
    if len(mismatch.steps) > MAX_STEPS // 2:  # perhaps not all of them
        recent = read_mismatch(run, last=step, newest=NUM_STEPS) or mismatch
    evidence = gather(recent, rounding=explained_by_rounding(run), last=step)
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
            of_step.step,
            table,
            today,
            trained=None if stored is None else loss_at(run, stored),
        ),
    )


def explained_by_rounding(run: Run) -> float:
    """Return the mean |d| that the run's number format explains, nats a token.

    Of another trainer it is that of bfloat16; one query.
    """
    config = settings_of(run)
    if config is None:
        return rounding_gap(is_float32=False, is_gpu=True)
    device, _ = where_it_runs(run)
    is_gpu = not device.startswith("cpu")
    is_float32 = config.model.dtype == "float32" or (
        config.model.dtype == "auto" and not is_gpu
    )
    return rounding_gap(is_float32=is_float32, is_gpu=is_gpu)
