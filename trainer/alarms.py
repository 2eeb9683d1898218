"""Conditions worth a warning while a run goes on."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

FIRST = 5  # steps that say what is usual at the start of a run or phase
RECENT = 20


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A metric, the value it should not pass, and what to say when it does.

    With `times` the value may also go to that many times what is usual: the median of
    the first 5 steps, or of the last 20. It must pass both bounds to ring. An alarm
    that falls rings below its bounds.
    """

    code: str
    metric: str
    threshold: float
    message: str
    times: float | None = None
    usual: Literal["first", "recent"] = "first"
    falls: bool = False

    def passed(self, value: float | None, usual: float | None) -> float | None:
        """The bound that a value passes; None when it does not, or none is known."""
        bound = self.threshold
        if self.times is not None:
            if usual is None:
                return None
            choose = min if self.falls else max
            bound = choose(bound, self.times * usual)
        if value is None or not (value < bound if self.falls else value > bound):
            return None
        return bound


ALARMS = (
    Alarm(
        code="dead_groups",
        metric="group/frac_zero_std",
        threshold=0.9,
        message="Nearly all groups have equal rewards, so almost nothing is learned. "
        "Choose prompts that are neither too easy nor too hard, raise "
        "rollout.group_size, or set rollout.dynamic_sampling to refill.",
    ),
    Alarm(
        code="truncated",
        metric="completion/frac_truncated",
        threshold=0.5,
        message="Most completions are cut at max_new_tokens. Raise it, penalise "
        "length with reward.overlong_buffer_tokens, or set loss.mask_truncated.",
    ),
    Alarm(
        code="unscorable",
        metric="group/frac_unscorable",
        threshold=0.5,
        message="No rule can score most groups. Try the recipe on some rows.",
    ),
    Alarm(
        code="kl",
        metric="kl/max",
        threshold=20.0,
        message="A token's KL to the reference is very large: the policy has left the "
        "reference there. Lower optim.learning_rate or raise loss.kl_coef.",
    ),
    Alarm(
        code="kl_tail",
        metric="kl/p99",
        threshold=1.0,
        times=10.0,
        usual="recent",
        message="The KL of the worst hundredth of tokens has jumped, though its mean "
        "may look calm. Lower the learning rate, set loss.kl_clamp, or raise the KL "
        "weight.",
    ),
    Alarm(
        code="entropy",
        metric="entropy",
        threshold=0.5,
        times=0.2,
        falls=True,
        message="The policy's entropy has fallen to a fifth of what it began with: "
        "completions become alike and groups stop teaching. Raise loss.entropy_coef "
        "or loss.clip_high, lower the learning rate, or stop here.",
    ),
    Alarm(
        code="mismatch",
        metric="mismatch/mean",
        threshold=0.05,
        times=3.0,
        message="The rollout engine's log-probs and the trainer's drift apart, so "
        "ratios mislead. Run python -m trainer drift on this configuration, use "
        "float32, or set loss.importance_correction.",
    ),
    Alarm(
        code="stale",
        metric="staleness/kl",
        threshold=0.1,
        message="The policy is far from the weights that sampled its batch, one step "
        "before: the importance correction has much to weigh. Lower the learning rate, "
        "or switch rollout.one_step_off off.",
    ),
    Alarm(
        code="grad_norm",
        metric="grad_norm",
        threshold=0.0,
        times=10.0,
        usual="recent",
        message="The gradient is ten times its usual size. Lower the learning rate or "
        "optim.max_grad_norm, and look at this step's groups.",
    ),
    Alarm(
        code="clipped",
        metric="clip/frac",
        threshold=0.3,
        message="Clipping silences a large share of the tokens: the policy moves too "
        "far on one batch. Lower the learning rate, optim.updates_per_batch or "
        "optim.minibatches.",
    ),
    Alarm(
        code="importance_masked",
        metric="importance/frac_masked",
        threshold=0.2,
        message="The importance correction leaves many tokens out; with a sequence "
        "mask it is the long completions that teach nothing. Raise "
        "loss.importance_cap, or correct by token.",
    ),
)
WATCHED = sorted({alarm.metric for alarm in ALARMS if alarm.times is not None})


@dataclass(frozen=True, kw_only=True)
class Rung:
    """An alarm that went off: the value seen, and the bound it passed."""

    alarm: Alarm
    value: float
    bound: float


class AlarmBoard:
    """Rings each alarm when its metric passes the bound, not at every step after.

    It rings again only once the metric has come back. A bound that goes by what is
    usual stays where it was while its alarm rings: else the new state would soon be
    the usual one. `state` goes into checkpoints, so a resumed run does not ring twice.
    """

    def __init__(self) -> None:
        self._ringing: set[str] = set()
        self._first: dict[str, list[float]] = {name: [] for name in WATCHED}
        self._recent: dict[str, list[float]] = {name: [] for name in WATCHED}

    def check(
        self, metrics: Mapping[str, float | None], *, without: Collection[str] = ()
    ) -> list[Rung]:
        """The alarms that go off with these metrics, but for the codes in `without`."""
        rung = []
        for alarm in ALARMS:
            value = metrics.get(alarm.metric)
            bound = alarm.passed(value, self._usual(alarm))
            if value is None or bound is None or alarm.code in without:
                self._ringing.discard(alarm.code)
            elif alarm.code not in self._ringing:
                self._ringing.add(alarm.code)
                rung.append(Rung(alarm=alarm, value=value, bound=bound))
        self._remember(metrics)
        return rung

    def _usual(self, alarm: Alarm) -> float | None:
        if alarm.times is None:
            return None
        seen = (self._first if alarm.usual == "first" else self._recent)[alarm.metric]
        return median(seen) if len(seen) >= FIRST else None

    def _remember(self, metrics: Mapping[str, float | None]) -> None:
        loud = {alarm.metric for alarm in ALARMS if alarm.code in self._ringing}
        for name in WATCHED:
            value = metrics.get(name)
            if value is None or not math.isfinite(value) or name in loud:
                continue
            if len(self._first[name]) < FIRST:
                self._first[name].append(value)
            self._recent[name] = [*self._recent[name], value][-RECENT:]

    def begin_phase(self) -> None:
        """Forget what is usual: another phase has usual values of its own."""
        for name in WATCHED:
            self._first[name], self._recent[name] = [], []

    def state_dict(self) -> dict[str, Any]:
        return {
            "ringing": sorted(self._ringing),
            "first": self._first,
            "recent": self._recent,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._ringing = set(state["ringing"])
        for name in WATCHED:
            self._first[name] = list(state["first"].get(name, ()))
            self._recent[name] = list(state["recent"].get(name, ()))
