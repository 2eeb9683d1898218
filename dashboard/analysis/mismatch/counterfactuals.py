"""Corrections of the loss, as each would have weighted the tokens of a step.

Corrections of whole completions are computed of all of a step's, from their sums;
those of tokens of the groups whose token values are stored, and how many tokens of the
step are out of their bounds from its counts. The weights are the loss's own
(trainer.algorithm.corrections).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cohort.mismatch import DIFFERENCE_EDGES, GAP_EDGES, SIGNS
from dashboard.completions.mismatch import Counts, Mismatch, Numbers, Records
from dashboard.completions.models import Group, GroupTokens
from dashboard.completions.tokens import unpack_columns
from dashboard.runs.models import Run
from dashboard.runs.queries import settings_of
from trainer.algorithm.corrections import leaves_region, token_weights
from trainer.config import LossConfig

# Of whose options a correction has: read in the sources of these versions.
TRAINERS = ("TRL 1.16", "verl 0.9", "prime-rl 0.8")
# verl's masks need a lower bound, and its ratios are at least e^-20.
VERL_NO_FLOOR = 1e-9
NUM_QUARTILES = 4
# A weight is not 1 from here on: log-probs are stored with 5 digits, those below -10
# with 3 decimals.
CHANGED = 2e-3
_LARGEST = 20.0  # as the loss bounds a log-ratio
# The settings that choose a correction; a candidate sets all of them.
SETTINGS = (
    "importance_correction",
    "importance_cap",
    "importance_floor",
    "geometric_mask",
    "off_policy_mask",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A correction that a run could have had."""

    key: str  # in an address
    title: str
    changes: Mapping[str, Any] = field(default_factory=dict)  # from the loss's defaults
    is_added: bool = False  # to the run's own correction, which stays

    @property
    def loss(self) -> LossConfig:
        return LossConfig(**self.changes)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a run that has it, by path; None: empty."""
        loss = self.loss
        names = dict.fromkeys((*(() if self.is_added else SETTINGS), *self.changes))
        return {f"loss.{name}": getattr(loss, name) for name in names}


def _truncate(cap: float) -> dict[str, Any]:
    return {"importance_correction": "token_truncate", "importance_cap": cap}


def _region(kind: str, bound: float) -> dict[str, Any]:
    bounds = {"clip_low": bound, "clip_high": bound}
    return {"surrogate": f"dppo_{kind}", "old_logprobs": "sampling", **bounds}


TIS, ICEPOP, SEQUENCE, SEQUENCE_MASKED, OFF_POLICY, DPPO_TV = (
    *("tis-2", "icepop", "sequence", "sequence-mask", "off-policy", "dppo-tv"),
)
CANDIDATES = (
    Candidate(key="none", title="No correction"),
    Candidate(key=TIS, title="Token truncation at 2", changes=_truncate(2.0)),
    Candidate(key="tis-3", title="Token truncation at 3", changes=_truncate(3.0)),
    Candidate(key="tis-5", title="Token truncation at 5", changes=_truncate(5.0)),
    Candidate(
        key=ICEPOP,
        title="IcePop, 0.5 to 5",
        changes={
            "importance_correction": "token_mask",
            "importance_floor": 0.5,
            "importance_cap": 5.0,
        },
    ),
    Candidate(
        key=SEQUENCE,
        title="Sequence truncation at 3",
        changes={"importance_correction": "sequence_truncate", "importance_cap": 3.0},
    ),
    Candidate(
        key=SEQUENCE_MASKED,
        title="Sequence mask at 3",
        changes={"importance_correction": "sequence_mask", "importance_cap": 3.0},
    ),
    *(
        Candidate(
            key=f"geometric-{bound:g}",
            title=f"Geometric mask, {bound:g} nats",
            changes={"geometric_mask": bound},
        )
        for bound in (0.01, 0.001)
    ),
    *(
        Candidate(
            key=f"{OFF_POLICY}-{bound:g}",
            title=f"Off-policy mask, {bound:g} nats",
            changes={"off_policy_mask": bound},
        )
        for bound in (0.1, 0.5)
    ),
    Candidate(key=DPPO_TV, title="DPPO, TV 0.2", changes=_region("tv", 0.2)),
    Candidate(key="dppo-kl", title="DPPO, KL 0.05", changes=_region("kl", 0.05)),
)
BY_KEY = {candidate.key: candidate for candidate in CANDIDATES}


def options_elsewhere(candidate: Candidate) -> tuple[list[str], ...]:
    """Return the options of the same effect of each of TRAINERS, if it has any.

    verl's dppo_tv and dppo_kl have another: they bound the policy against the trainer's
    old log-probs, not the sampler's.
    """
    loss = candidate.loss
    of_trl = _options_of_trl(loss, is_added=candidate.is_added)
    return of_trl, _options_of_verl(loss), _options_of_prime_rl(loss)


def _options_of_trl(loss: LossConfig, *, is_added: bool) -> list[str]:
    if loss.is_dppo or loss.geometric_mask is not None:
        return []
    if is_added:
        options = list[str]()
    elif loss.importance_correction is None:
        options = ["vllm_importance_sampling_correction=False"]
    else:
        options = [
            f'vllm_importance_sampling_mode="{loss.importance_correction}"',
            f"vllm_importance_sampling_clip_max={loss.importance_cap:g}",
        ]
        if loss.importance_floor is not None:
            options.append(
                f"vllm_importance_sampling_clip_min={loss.importance_floor:g}"
            )
    if loss.off_policy_mask is not None:
        options.append(f"off_policy_mask_threshold={loss.off_policy_mask:g}")
    return options


def _options_of_verl(loss: LossConfig) -> list[str]:
    level, _, action = (loss.importance_correction or "null").partition("_")
    floor, cap = loss.importance_floor, f"{loss.importance_cap:g}"
    is_clamp_from_below = action == "truncate" and floor is not None
    if loss.is_dppo or loss.off_policy_mask is not None or is_clamp_from_below:
        return []
    options = [f"rollout_is={level}"]
    if action == "truncate":
        options.append(f"rollout_is_threshold={cap}")
    elif action == "mask":
        options.append(f'rollout_is_threshold="{floor or VERL_NO_FLOOR:g}_{cap}"')
    if loss.geometric_mask is not None:
        # of e^|mean d|; the lower bound is its inverse
        bound = math.exp(loss.geometric_mask)
        options += ["rollout_rs=seq_mean_k1", f"rollout_rs_threshold={bound:.8g}"]
    return [f"algorithm.rollout_correction.{option}" for option in options]


def _options_of_prime_rl(loss: LossConfig) -> list[str]:
    if loss.surrogate != "dppo_tv":
        return []
    bounds = {"low": loss.clip_low, "high": loss.clip_high}
    return [f"trainer.loss.dppo_mask_{side} = {bounds[side]:g}" for side in bounds]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenTable:
    """Stored token values of some completions, [B, T]; 0 outside of the mask."""

    gap: Numbers  # d = ln π_old - ln μ; 0: μ is not known
    gap_now: Numbers  # ln π - ln μ of the update, likewise
    sampling_logprobs: Numbers  # ln μ
    ratio: Numbers  # of the update; 1: it has none
    advantages: Numbers
    coefficients: Numbers
    mask: Numbers  # 1 on the tokens that the loss covers


def tabulate(packed: Sequence[bytes], *, has_old: bool = True) -> TokenTable | None:
    """Read stored token values; None without sampling log-probs.

    Args:
        packed: of some groups, as GroupTokens has them.
        has_old: False where the ratio's denominator is μ itself, so that the policy of
            the update takes the place of π_old.
    """
    groups = [unpack_columns(each) for each in packed]
    if not any("sampling_logprob" in columns for _, columns in groups):
        return None
    lengths = np.array([length for own, _ in groups for length in own], np.int64)
    is_token = np.arange(lengths.max(initial=0)) < lengths[:, None]

    def pad(*names: str) -> Numbers:
        """Read the first of these columns that a group has; NaN: no such value."""
        padded = np.full(is_token.shape, math.nan)
        padded[is_token] = np.concatenate(
            [
                next((columns[name] for name in names if name in columns), no_values)
                for own, columns in groups
                for no_values in [np.full(sum(own), math.nan)]
            ]
        )
        return padded

    covered = np.isfinite(pad("ratio", "advantage"))
    now, sampling = pad("logprob"), pad("sampling_logprob")
    ratio = np.nan_to_num(pad("ratio"), nan=1.0)
    old = now
    if has_old:
        old = pad("old_logprob")
        with np.errstate(divide="ignore"):
            old = np.where(np.isfinite(old), old, now - np.log(ratio))
    is_known = covered & np.isfinite(sampling) & np.isfinite(old)
    return TokenTable(
        gap=np.where(is_known, old - sampling, 0.0),
        gap_now=np.where(is_known, now - sampling, 0.0),
        sampling_logprobs=np.where(is_known, sampling, 0.0),
        ratio=ratio,
        advantages=np.nan_to_num(pad("advantage")),
        coefficients=np.nan_to_num(pad("coefficient")) * covered,
        mask=covered.astype(np.float64),
    )


def weigh_tokens(loss: LossConfig, table: TokenTable) -> Numbers:
    """Return the weight that the loss gives the surrogate loss of each token, [B, T].

    That is e^d in a correction's bounds. Where the ratio's denominator is μ, the ratio
    takes its place; that of DPPO is held at its cap and 0 outside of its region.
    """
    ratio = np.exp(np.clip(table.gap_now, -_LARGEST, _LARGEST))
    if loss.is_dppo:
        low, high = leaves_region(
            loss,
            # rounding may give a likely token more than 1
            logprobs=np.minimum(table.sampling_logprobs + table.gap_now, 0.0),
            old_logprobs=table.sampling_logprobs,
            advantages=table.advantages,
        )
        return np.where(low | high, 0.0, np.minimum(ratio, loss.importance_cap))
    if loss.old_logprobs == "sampling":
        return table.ratio
    weights: Numbers | None = token_weights(
        loss,
        gap=table.gap,
        gap_now=table.gap_now,
        advantages=table.advantages,
        mask=table.mask,
    )
    return np.ones_like(table.gap) if weights is None else weights


def is_of_completions(loss: LossConfig) -> bool:
    """Tell whether all tokens of a completion have one weight, known by its sums."""
    correction = loss.importance_correction or "sequence"
    is_by_ratio = loss.is_dppo or loss.old_logprobs == "sampling"
    return correction.startswith("sequence") and not is_by_ratio


def weigh_completions(loss: LossConfig, completions: Records) -> Numbers:
    """Return the weight of each completion, [N], as its tokens have it."""
    sums = completions["sum"].astype(np.float64)[:, None]
    means = sums / np.maximum(completions["num_tokens"], 1)[:, None]
    others = {
        "advantages": completions["advantage"][:, None],
        "mask": np.ones_like(sums),
    }
    masks = {"geometric_mask": None, "off_policy_mask": None}
    weights = np.ones_like(sums)
    for part, gap in (
        (loss.model_copy(update=masks), sums),
        (loss.model_copy(update={"importance_correction": None}), means),
    ):
        own = token_weights(part, gap=gap, gap_now=gap, **others)
        weights = weights if own is None else weights * own
    return weights[:, 0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """Shares of some tokens, and of the completions that have them.

    None, as everywhere here: there are no such tokens.
    """

    changed: float | None  # of tokens with a weight that is not about 1
    masked: float | None  # of tokens with weight 0
    masked_sequences: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Counterfactual:
    """A correction, and what it would have made of a step's tokens."""

    key: str
    title: str
    settings: Mapping[str, Any]
    is_of_all: bool  # shares are of all of the step's completions, not of those stored
    num_tokens: int
    num_sequences: int
    shares: Shares
    by_length: tuple[Shares, ...]  # quartiles, the shortest first
    by_sign: tuple[Shares, ...]  # of negative and positive advantages
    effective_tokens: float | None
    effective_sequences: float | None
    # Σ|c·w'/w| / Σ|c|, c the stored coefficients, w today's and w' its weights
    kept_positive: float | None
    kept_negative: float | None
    cosine: float | None  # of c·w'/w with c
    num_stuck: int  # tokens that it would keep, but today's setting has masked
    # The least and the largest share of all tokens of the step that its bounds exclude.
    outside: tuple[float, float] | None

    @property
    def parts(self) -> tuple[Shares, ...]:
        return (*self.by_length, *self.by_sign)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Units:
    """Tokens, or completions that stand for all of theirs: weights in rows."""

    weights: Numbers
    counts: Numbers  # of the tokens that each stands for
    rows: Counts
    advantages: Numbers


def compare(
    candidates: Sequence[Candidate],
    mismatch: Mismatch,
    table: TokenTable | None,
    today: LossConfig | None,
    *,
    trained: LossConfig | None = None,
) -> list[Counterfactual]:
    """Compare corrections at one step; the first of the answer is today's, if known.

    Args:
        candidates: in the order of the answer.
        mismatch: of this step alone.
        table: of stored groups; None: the step has none.
        today: the loss of the run at the step.
        trained: that of the stored groups' step, if it is another one.
    """
    losses = [(each.key, each.title, each.settings, each.loss) for each in candidates]
    if today is not None:
        losses.insert(0, ("today", "This run's setting", {}, today))
    now, trained = None, trained or today
    if table is not None:
        now = (
            np.ones_like(table.gap) if trained is None else weigh_tokens(trained, table)
        )
    return [
        _compare_one(key, title, settings, loss, mismatch, table, now)
        for key, title, settings, loss in losses
    ]


def _compare_one(
    key: str,
    title: str,
    settings: Mapping[str, Any],
    loss: LossConfig,
    mismatch: Mismatch,
    table: TokenTable | None,
    now: Numbers | None,
) -> Counterfactual:
    kept_positive, kept_negative, cosine, num_stuck = None, None, None, 0
    weights = None
    if table is not None and now is not None:
        weights = weigh_tokens(loss, table)
        kept_positive, kept_negative, cosine = _gradient(table, weights, now)
        is_stuck = (now == 0) & (weights != 0) & (table.mask > 0)
        num_stuck = int(is_stuck.sum())
    units = _units_of(loss, mismatch.completions, table, weights)
    num_rows = int(units.rows.max(initial=-1)) + 1
    counts = np.bincount(units.rows, units.counts, num_rows)
    totals = np.bincount(units.rows, units.counts * units.weights, num_rows)
    # by rank: many completions may be as long as the limit
    quartiles = 4 * np.argsort(np.argsort(counts, kind="stable")) // max(1, num_rows)
    return Counterfactual(
        key=key,
        title=title,
        settings=settings,
        is_of_all=is_of_completions(loss),
        num_tokens=int(counts.sum()),
        num_sequences=num_rows,
        shares=_share(units, np.ones(len(units.rows), bool)),
        by_length=tuple(
            _share(units, quartiles[units.rows] == index)
            for index in range(NUM_QUARTILES)
        ),
        by_sign=(
            _share(units, units.advantages < 0),
            _share(units, units.advantages > 0),
        ),
        effective_tokens=_effective(units.weights, units.counts),
        effective_sequences=_effective(totals / counts, np.ones(num_rows)),
        kept_positive=kept_positive,
        kept_negative=kept_negative,
        cosine=cosine,
        num_stuck=num_stuck,
        outside=_outside(loss, mismatch),
    )


def _units_of(
    loss: LossConfig,
    completions: Records,
    table: TokenTable | None,
    weights: Numbers | None,
) -> _Units:
    if is_of_completions(loss):
        measured = completions[completions["num_tokens"] > 0]
        return _Units(
            weights=weigh_completions(loss, measured),
            counts=measured["num_tokens"].astype(np.float64),
            rows=np.arange(len(measured)),
            advantages=measured["advantage"].astype(np.float64),
        )
    if table is None or weights is None:
        nothing = np.zeros(0)
        return _Units(
            weights=nothing,
            counts=nothing,
            rows=np.zeros(0, np.int64),
            advantages=nothing,
        )
    inside = table.mask > 0
    # Rows are counted from 0; a completion without a covered token has none.
    rows = np.unique(np.nonzero(inside)[0], return_inverse=True)[1]
    return _Units(
        weights=weights[inside],
        counts=np.ones(len(rows)),
        rows=rows,
        advantages=table.advantages[inside],
    )


def _share(units: _Units, chosen: NDArray[np.bool_]) -> Shares:
    weights, counts = units.weights[chosen], units.counts[chosen]
    if not len(weights):
        return Shares(changed=None, masked=None, masked_sequences=None)
    rows = np.unique(units.rows[chosen], return_inverse=True)[1]
    totals = np.bincount(rows, np.abs(weights))
    return Shares(
        changed=float(counts[np.abs(weights - 1) > CHANGED].sum() / counts.sum()),
        masked=float(counts[weights == 0].sum() / counts.sum()),
        masked_sequences=float((totals == 0).mean()),
    )


def _effective(weights: Numbers, counts: Numbers) -> float | None:
    """Return (Σw)² / (n·Σw²), each weight as often as its count says."""
    if not len(weights):
        return None
    total, squares = counts @ weights, counts @ (weights * weights)
    return float(total * total / (counts.sum() * squares)) if squares > 0 else 0.0


def _gradient(
    table: TokenTable, weights: Numbers, now: Numbers
) -> tuple[float | None, float | None, float | None]:
    """Return the shares of the gradient that stay for A > 0 and A < 0, and its cosine
    with today's gradient.
    """
    scale = np.divide(weights, now, out=np.ones_like(now), where=now != 0)
    before, after = table.coefficients, table.coefficients * scale
    kept = []
    for chosen in (table.advantages > 0, table.advantages < 0):
        size = float(np.abs(before[chosen]).sum())
        kept.append(float(np.abs(after[chosen]).sum()) / size if size else None)
    size = float(np.linalg.norm(before) * np.linalg.norm(after))
    cosine = float((before * after).sum()) / size if size else None
    return kept[0], kept[1], cosine


def _outside(loss: LossConfig, mismatch: Mismatch) -> tuple[float, float] | None:
    """Count all tokens of the step that are out of the bounds of a token's weight.

    Counts are between edges, so a bound between two has the two nearest counts.
    """
    if loss.surrogate == "dppo_tv":
        counts = mismatch.differences.sum(axis=0)
        bounds = ((-1, -loss.clip_low, math.inf), (1, -math.inf, loss.clip_high))
        beyond = [
            _beyond(DIFFERENCE_EDGES, counts[SIGNS.index(sign)], low, high)
            for sign, low, high in bounds
        ]
    elif (loss.importance_correction or "").startswith("token"):
        counts = mismatch.gaps.sum(axis=0)
        floor, cap = loss.importance_floor, math.log(loss.importance_cap)
        low = -math.inf if floor is None else math.log(floor)
        beyond = [_beyond(GAP_EDGES, counts, low, cap)]
    else:
        return None
    if not (total := counts.sum()):
        return None
    least, most = np.sum(beyond, axis=0) / total
    return float(least), float(most)


def _beyond(
    edges: Sequence[float], counts: Counts, low: float, high: float
) -> tuple[int, int]:
    """Return the least and the largest number of values below `low` or above `high`.

    >>> _beyond((0.0, 1.0), np.array([2, 3, 4]), -math.inf, 0.5)
    (4, 7)
    """
    begins, ends = np.array([-math.inf, *edges]), np.array([*edges, math.inf])
    is_beyond = (begins >= high) | (ends <= low)
    reaches_beyond = (ends > high) | (begins < low)
    return int(counts[is_beyond].sum()), int(counts[reaches_beyond].sum())


def stored_step(run: Run, step: int) -> int | None:
    """Find the last step up to this one whose token values are stored; one query."""
    groups = Group.objects.current().filter(run=run, tokens__isnull=False)
    steps = groups.filter(step__lte=step).order_by("-step")
    return steps.values_list("step", flat=True).first()


def read_table(
    run: Run, step: int, prompt_index: int | None = None
) -> TokenTable | None:
    """Read the stored token values of a step's groups, or of one; one query."""
    stored = GroupTokens.objects.filter(
        group__run=run, group__step=step, group__superseded_by=None
    ).order_by("group__prompt_index")
    if prompt_index is not None:
        stored = stored.filter(group__prompt_index=prompt_index)
    packed = [bytes(each) for each in stored.values_list("packed", flat=True)]
    loss = loss_at(run, step)
    has_old = loss is None or loss.old_logprobs == "policy"
    return tabulate(packed, has_old=has_old) if packed else None


def loss_at(run: Run, step: int) -> LossConfig | None:
    """Return the loss of a step; None: another trainer's, which is not known."""
    config = settings_of(run)
    return config.config_at(step).loss if config else None


def weigh_group(run: Run, group: Group, key: str) -> list[dict[str, Any]]:
    """Return d of each stored token and its weight in a correction, by completion.

    None for tokens without; nothing for a group without sampling log-probs.
    """
    table = read_table(run, group.step, group.prompt_index)
    if table is None:
        return []
    values = {"gap": table.gap, "weight": weigh_tokens(BY_KEY[key].loss, table)}
    return [
        {
            name: [
                float(f"{value:.4g}") if inside else None
                for value, inside in zip(own[row].tolist(), mask, strict=True)
            ]
            for name, own in values.items()
        }
        for row, mask in enumerate((table.mask > 0).tolist())
    ]
