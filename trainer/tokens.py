"""What is measured of each token during an update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class TokenStatistics:
    """Values of the completion tokens of some sequences, without padding; each [N]."""

    ratio: torch.Tensor
    low: torch.Tensor  # bool: clipped from below
    high: torch.Tensor
    kl: torch.Tensor | None = None
    entropy: torch.Tensor | None = None
    weight: torch.Tensor | None = None  # of the importance correction

    @classmethod
    def of(
        cls,
        inside: torch.Tensor,
        *,
        ratio: torch.Tensor,
        low: torch.Tensor,
        high: torch.Tensor,
        kl: torch.Tensor | None,
        entropy: torch.Tensor | None,
        weight: torch.Tensor | None,
    ) -> TokenStatistics:
        """Take the values where `inside` [B, T] is true, without their gradient."""

        def flat(values: torch.Tensor | None) -> torch.Tensor | None:
            return None if values is None else values.detach()[inside]

        return cls(
            ratio=ratio.detach()[inside],
            low=low[inside],
            high=high[inside],
            kl=flat(kl),
            entropy=flat(entropy),
            weight=flat(weight),
        )

    @classmethod
    def joined(cls, parts: Sequence[TokenStatistics]) -> TokenStatistics:
        """The statistics of all micro-batches as one."""

        def cat(values: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
            present = [value for value in values if value is not None]
            return torch.cat(present) if len(present) == len(values) else None

        return cls(
            ratio=torch.cat([part.ratio for part in parts]),
            low=torch.cat([part.low for part in parts]),
            high=torch.cat([part.high for part in parts]),
            kl=cat([part.kl for part in parts]),
            entropy=cat([part.entropy for part in parts]),
            weight=cat([part.weight for part in parts]),
        )

    def metrics(self) -> dict[str, float]:
        """Means, extremes and shares under the names that charts know."""
        if self.ratio.numel() == 0:
            return {}
        values = {
            "ratio/mean": _mean(self.ratio),
            "ratio/max": self.ratio.max().item(),
            "clip/frac_low": _mean(self.low),
            "clip/frac_high": _mean(self.high),
        }
        if self.kl is not None:
            values["kl/mean"] = _mean(self.kl)
            values["kl/max"] = self.kl.max().item()
            values["kl/p99"] = _percentile(self.kl, 0.99)
        if self.entropy is not None:
            values["entropy"] = _mean(self.entropy)
        if self.weight is not None:
            values["importance/mean"] = _mean(self.weight)
            values["importance/frac_masked"] = _mean(self.weight == 0)
        return values


def _mean(values: torch.Tensor) -> float:
    return values.double().mean().item()


def _percentile(values: torch.Tensor, share: float) -> float:
    # torch.quantile refuses more than 16 million values; kthvalue takes any number
    place = min(int(share * values.numel()) + 1, values.numel())
    return values.float().kthvalue(place).values.item()
