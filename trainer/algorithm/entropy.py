"""Entropy control: tokens chosen by entropy or covariance, and an adaptive weight.

Tokens are chosen among all that the loss covers in a minibatch, [N] in the batch's
order, before its passes, so that no split of it changes the choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.algorithm.advantages import Floats
from trainer.config import LossConfig
from trainer.seeding import permutation

Bools = NDArray[np.bool_]


def high_entropy(entropies: Floats, share: float) -> Bools:
    """Return where the entropy [N] is at least its 1 - share quantile, which is
    interpolated (arXiv:2506.01939).

    >>> high_entropy(np.array([0.1, 0.5, 0.4, 0.2, 0.3]), 0.4)
    array([False,  True,  True, False, False])
    """
    return entropies >= np.quantile(entropies, 1 - share)


def choose_by_covariance(
    advantages: Floats, logprobs: Floats, config: LossConfig, *, seed: int
) -> Bools:
    """Return the tokens that lower the entropy most (arXiv:2505.22617), bool [N].

    With c = (A - mean A)·(ln μ - mean ln μ), max(1, floor(share·N)) of them: for "kl"
    the largest c, for "clip" some drawn from low < c < high. They are drawn before the
    pass, so PPO's clip may stop some as well.

    Args:
        advantages: A, [N].
        logprobs: ln μ of the rollout engine, [N]; NaN is never chosen.
        config: of the loss.
        seed: of the draw.
    """
    gaps = logprobs - np.nanmean(logprobs)
    covariance = (advantages - advantages.mean()) * gaps
    count = max(1, int(config.covariance_share * len(logprobs)))
    if config.covariance == "kl":
        places = np.argsort(-covariance, kind="stable")[:count]
    else:
        is_inside = covariance > config.covariance_low
        inside = np.flatnonzero(is_inside & (covariance < config.covariance_high))
        places = inside[permutation(seed, len(inside))[:count]]
    chosen: Bools = np.isin(np.arange(len(covariance)), places)
    # without one above 0 nothing lowers the entropy; NaN is not above 0 either
    chosen[~(covariance > 0)] = False
    return chosen


_STEP = 0.005


@dataclass
class AdaptiveEntropy:
    """Raises the weight of the entropy bonus while the entropy is below its target.

    After each step coef ← coef ± 0.005, within 0 and 1. It applies in a step that
    follows one whose entropy was at most the target (arXiv:2505.22312).

    >>> controller = AdaptiveEntropy(coef=0.01)
    >>> controller.update(0.1, target=0.2)
    >>> controller.weight
    0.015
    """

    coef: float
    is_low: bool = True

    @property
    def weight(self) -> float:
        """The weight in the next step's loss."""
        return self.coef if self.is_low else 0.0

    def update(self, entropy: float, *, target: float) -> None:
        """Take in a step's mean entropy in nats a token; NaN gives no bonus either."""
        self.is_low = entropy <= target
        direction = int(entropy < target) - int(entropy > target)
        self.coef = min(max(self.coef + direction * _STEP, 0.0), 1.0)
