"""Statistics of tokens during an update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar

import torch

from trainer.algorithm.corrections import effective_share
from trainer.parallel.world import World

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, kw_only=True)
class TokenStatistics:
    """Values of the tokens that the loss of some sequences covers, without padding.

    Each is [N], but for that of sequences [B], and carries no gradient.
    """

    ratio: torch.Tensor
    low: torch.Tensor  # bool: clipped from below
    high: torch.Tensor
    dual: torch.Tensor  # bool: the loss of a bad token is bounded
    kl: torch.Tensor | None = None  # NaN: a token that no reference was asked about
    entropy: torch.Tensor | None = None
    weight: torch.Tensor | None = None  # of the correction
    kept: torch.Tensor | None = None  # 0: entropy control leaves it out
    sequence_weight: torch.Tensor | None = None  # NaN: the loss covers no token of it
    # log π of the trainer less that of the rollout engine; NaN: a token not sampled
    mismatch: torch.Tensor | None = None
    teacher_gap: torch.Tensor | None = None  # ln π - ln q; -inf: it was not asked

    @classmethod
    def of(
        cls, covered: torch.Tensor, **values: torch.Tensor | None
    ) -> TokenStatistics:
        """Take the values [B, T] of each field at places [N] of the flattened [B·T].

        Places, since a GPU must be waited for to know how many a mask holds.
        """
        return cls(
            **{
                name: None
                if value is None
                else value.detach().flatten().index_select(0, covered)
                for name, value in values.items()
            }  # type: ignore[arg-type]  # None only where a field allows it
        )

    @classmethod
    def joined(cls, parts: Sequence[TokenStatistics]) -> TokenStatistics:
        """Return the statistics of all micro-batches as one."""
        joined = {}
        for field in fields(cls):
            values = [getattr(part, field.name) for part in parts]
            joined[field.name] = (
                None if any(value is None for value in values) else torch.cat(values)
            )
        return cls(**joined)  # type: ignore[arg-type]  # as above

    def of_all(self, world: World) -> TokenStatistics:
        """Return the statistics of what all processes went through, on the CPU."""
        if world.size == 1:
            return self
        return TokenStatistics.joined(world.gather(on_cpu(self)))

    def metrics(self, *, samples_kl: bool = False) -> dict[str, float]:
        """Return means, extremes and shares under the names that charts know.

        With `samples_kl` the KL is of some tokens, whose extremes would say little.
        """
        if self.ratio.numel() == 0:
            return {}
        values = {
            "ratio/mean": _mean(self.ratio),
            "ratio/max": self.ratio.max().item(),
            "clip/frac": _mean(self.low | self.high | self.dual),
            "clip/frac_low": _mean(self.low),
            "clip/frac_high": _mean(self.high),
            "clip/frac_dual": _mean(self.dual),
        }
        kl = None if self.kl is None else self.kl[~self.kl.isnan()]
        if kl is not None and kl.numel() > 0:
            values["kl/mean"] = _mean(kl)
            values |= (
                {"kl/sampled_tokens": float(kl.numel())}
                if samples_kl
                else {"kl/max": kl.max().item(), "kl/p99": percentile(kl, 0.99)}
            )
        if self.entropy is not None:
            values["entropy"] = _mean(self.entropy)
        if self.kept is not None:
            values["entropy/frac_kept"] = _mean(self.kept)
        if self.weight is not None:
            values["importance/mean"] = _mean(self.weight)
            values["importance/frac_masked"] = _mean(self.weight == 0)
            values["importance/ess"] = effective_share(self.weight.double())
        if self.sequence_weight is not None:
            weights = self.sequence_weight[~self.sequence_weight.isnan()].double()
            values["importance/frac_sequences_masked"] = _mean(weights == 0)
            values["importance/ess_sequence"] = effective_share(weights)
        if self.mismatch is not None:
            values |= _mismatch_metrics(self.mismatch)
        if self.teacher_gap is not None:
            gap = self.teacher_gap[self.teacher_gap > -math.inf]
            if gap.numel() > 0:
                values["distill/kl"] = _mean(gap)
                values["distill/agreement"] = _mean(gap <= 0)
        return values


Tensors = TypeVar("Tensors", bound="DataclassInstance")


def on_cpu(tensors: Tensors) -> Tensors:
    """Return a dataclass of tensors with those that it has on the CPU."""
    here = {name: v.cpu() for name, v in vars(tensors).items() if v is not None}
    return replace(tensors, **here)


def _mismatch_metrics(gap: torch.Tensor) -> dict[str, float]:
    """Return how far the rollout engine's log-probs are from the trainer's.

    With d = log π_trainer - log π_engine of tokens that the engine sampled: the mean
    and the largest |d|, and KL(engine || trainer) by k3 = exp(d) - d - 1.
    """
    gap = gap[~gap.isnan()].double()
    kl = sampling_kl(gap)
    if kl is None:
        return {}
    return {
        "mismatch/mean": _mean(gap.abs()),
        "mismatch/max": gap.abs().max().item(),
        "mismatch/kl": kl,
    }


def sampling_kl(gap: torch.Tensor) -> float | None:
    """KL(what sampled || policy) by k3, of d = log π_policy - log π_sampling [N].

    In nats a token; NaN is a token that no one sampled, None: all are.
    """
    gap = gap[~gap.isnan()].double()
    if gap.numel() == 0:
        return None
    bounded = gap.clamp(-20.0, 20.0)
    return _mean(torch.expm1(bounded) - bounded)


def _mean(values: torch.Tensor) -> float:
    return values.double().mean().item()


def percentile(values: torch.Tensor, share: float) -> float:
    # torch.quantile refuses more than 16 million values; kthvalue takes any number
    index = min(int(share * values.numel()) + 1, values.numel())
    return values.float().kthvalue(index).values.item()
