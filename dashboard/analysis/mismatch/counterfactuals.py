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
from trainer.algorithm.corrections import (
    effective_share,
    leaves_region,
    token_weights,
)
from trainer.config import LossConfig

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

    @property
    def loss(self) -> LossConfig:
        return LossConfig(**self.changes)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a run that has it, by path; None: empty."""
        loss = self.loss
        names = [*SETTINGS, *(name for name in self.changes if name not in SETTINGS)]
        return {f"loss.{name}": getattr(loss, name) for name in names}


def _truncate(cap: float) -> dict[str, Any]:
    return {"importance_correction": "token_truncate", "importance_cap": cap}


def _region(kind: str, bound: float) -> dict[str, Any]:
    bounds = {"clip_low": bound, "clip_high": bound}
    return {"surrogate": f"dppo_{kind}", "old_logprobs": "sampling", **bounds}


TIS, ICEPOP, SEQUENCE, OFF_POLICY, DPPO_TV = (
    *("tis-2", "icepop", "sequence", "off-policy", "dppo-tv"),
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
        key="sequence-mask",
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
    rows: list[dict[str, Numbers]] = []
    for each in packed:
        lengths, columns = unpack_columns(each)
        ends = np.cumsum(lengths)[:-1]
        parts = {name: np.split(values, ends) for name, values in columns.items()}
        rows += [
            {name: part[i] for name, part in parts.items()} for i in range(len(lengths))
        ]
    if not any("sampling_logprob" in row for row in rows):
        return None
    read = {
        name: _pad(rows, name)
        for name in (
            *("logprob", "old_logprob", "sampling_logprob", "ratio", "advantage"),
            "coefficient",
        )
    }
    has_ratio = np.array([["ratio" in row] for row in rows])
    inside = np.where(has_ratio, read["ratio"], read["advantage"])
    covered = np.isfinite(inside)
    now, sampling, old = read["logprob"], read["sampling_logprob"], read["old_logprob"]
    if has_old:
        ratio = np.where(np.isfinite(read["ratio"]), read["ratio"], 1.0)
        with np.errstate(divide="ignore"):
            old = np.where(np.isfinite(old), old, now - np.log(ratio))
    else:
        old = now
    is_known = covered & np.isfinite(sampling) & np.isfinite(old)
    return TokenTable(
        gap=np.where(is_known, old - sampling, 0.0),
        gap_now=np.where(is_known, now - sampling, 0.0),
        sampling_logprobs=np.where(is_known, sampling, 0.0),
        ratio=np.where(np.isfinite(read["ratio"]), read["ratio"], 1.0),
        advantages=_filled(read["advantage"]),
        coefficients=_filled(read["coefficient"]) * covered,
        mask=covered.astype(np.float64),
    )


def _pad(rows: Sequence[Mapping[str, Numbers]], name: str) -> Numbers:
    """NaN behind the end of a completion, and where a value is not there."""
    length = max(len(row["logprob"]) for row in rows)
    padded = np.full((len(rows), length), math.nan)
    for own, row in zip(padded, rows, strict=True):
        if name in row:
            own[: len(row[name])] = row[name]
    return padded


def _filled(values: Numbers) -> Numbers:
    return np.where(np.isfinite(values), values, 0.0)


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
    now = None
    if table is not None:
        trained = trained or today
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
    is_of_all = is_of_completions(loss)
    weights = None if table is None else weigh_tokens(loss, table)
    units = _units_of(loss, mismatch.completions, table, weights)
    num_rows = int(units.rows.max(initial=-1)) + 1
    counts = np.bincount(units.rows, units.counts, num_rows)
    totals = np.bincount(units.rows, units.counts * units.weights, num_rows)
    by_row = np.divide(totals, counts, out=np.zeros(num_rows), where=counts > 0)
    # by rank: many completions may be as long as the limit
    quartiles = 4 * np.argsort(np.argsort(counts, kind="stable")) // max(1, num_rows)
    gradient = None
    if table is not None and weights is not None and now is not None:
        gradient = _gradient(table, weights, now)
    is_stuck = (now == 0) & (weights != 0) if now is not None else np.zeros(0, bool)
    return Counterfactual(
        key=key,
        title=title,
        settings=settings,
        is_of_all=is_of_all,
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
        effective_sequences=_effective(by_row, np.ones(num_rows)),
        kept_positive=gradient[0] if gradient else None,
        kept_negative=gradient[1] if gradient else None,
        cosine=gradient[2] if gradient else None,
        num_stuck=0 if table is None else int((is_stuck & (table.mask > 0)).sum()),
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
            rows=nothing.astype(np.int64),
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
    if (counts == counts[0]).all():
        return effective_share(weights)
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
        total = counts.sum()
        least, most = 0, 0
        for sign, low, high in (
            (-1, -loss.clip_low, math.inf),
            (1, -math.inf, loss.clip_high),
        ):
            own = _beyond(DIFFERENCE_EDGES, counts[SIGNS.index(sign)], low, high)
            least, most = least + own[0], most + own[1]
    elif (loss.importance_correction or "").startswith("token"):
        counts = mismatch.gaps.sum(axis=0)
        total = counts.sum()
        low = -math.inf if loss.importance_floor is None else loss.importance_floor
        least, most = _beyond(
            GAP_EDGES,
            counts,
            low if low < 0 else math.log(low),
            math.log(loss.importance_cap),
        )
    else:
        return None
    return (float(least / total), float(most / total)) if total else None


def _beyond(
    edges: Sequence[float], counts: Counts, low: float, high: float
) -> tuple[int, int]:
    """Return the least and the largest number of values below `low` or above `high`.

    >>> _beyond((0.0, 1.0), np.array([2, 3, 4]), -math.inf, 0.5)
    (4, 7)
    """
    bounds = np.array([-math.inf, *edges, math.inf])
    begins, ends = bounds[:-1], bounds[1:]

    def near(values: Numbers, bound: float) -> NDArray[np.bool_]:
        return np.isclose(values, bound, rtol=1e-9, atol=1e-12)

    is_surely = (begins >= high) | near(begins, high) | (ends <= low) | near(ends, low)
    is_maybe = ((begins < high) & (high < ends)) | ((begins < low) & (low < ends))
    is_maybe &= ~near(ends, high) & ~near(begins, low) & ~is_surely
    least = int(counts[is_surely].sum())
    return least, least + int(counts[is_maybe].sum())


def stored_step(run: Run, step: int) -> int | None:
    """Find the last step up to this one whose token values are stored; one query."""
    groups = Group.objects.current().filter(run=run, tokens__isnull=False)
    found = groups.filter(step__lte=step).order_by("-step").values_list("step")
    first = found.first()
    return None if first is None else int(first[0])


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
    loss = next(each.loss for each in CANDIDATES if each.key == key)
    values = {"gap": table.gap, "weight": weigh_tokens(loss, table)}
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
