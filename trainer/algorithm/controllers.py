"""A KL weight that follows the measured KL to a target."""

from __future__ import annotations

_MAX_ERROR = 0.2


class AdaptiveKL:
    """Raises the weight while the KL is above its target, lowers it while below.

    error = clip(kl / target - 1, ±0.2); coef ← coef · (1 + error · n / horizon), where
    n completions, at most a horizon of them, were seen since the last change
    (arXiv:1909.08593, section 2.2).

    >>> controller = AdaptiveKL(coef=0.1, target=6.0, horizon=1000)
    >>> controller.update(12.0, 100)
    >>> round(controller.coef, 6)
    0.102
    """

    def __init__(self, coef: float, target: float, horizon: int) -> None:
        if coef <= 0 or target <= 0 or horizon < 1:
            raise ValueError(
                "A KL weight adapts from a weight and to a target above 0, over a "
                f"horizon of at least 1 completion; got {coef:g}, {target:g} and "
                f"{horizon}."
            )
        self.coef = coef
        self._target = target
        self._horizon = horizon

    def update(self, kl_per_completion: float, num_completions: int) -> None:
        """Take in the mean KL of some completions, in nats a completion.

        A KL that is not a number leaves the weight as it is.
        """
        error = kl_per_completion / self._target - 1
        if error != error:
            return
        error = min(max(error, -_MAX_ERROR), _MAX_ERROR)
        # more completions than the horizon would turn the weight's sign
        share = min(num_completions / self._horizon, 1.0)
        self.coef *= 1 + error * share

    def state(self) -> dict[str, float]:
        """All that the next update depends on, beside the configuration."""
        return {"coef": self.coef}

    def load_state(self, state: dict[str, float]) -> None:
        """Continue from what `state` gave."""
        self.coef = state["coef"]
