"""Conditions worth a warning while a run goes on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A metric, the value it should not pass, and what to say when it does."""

    code: str
    metric: str
    threshold: float
    message: str


ALARMS = (
    Alarm(
        code="dead_groups",
        metric="group/frac_zero_std",
        threshold=0.9,
        message="Nearly all groups have equal rewards, so almost nothing is learned. "
        "Choose prompts that are neither too easy nor too hard, or raise group_size.",
    ),
    Alarm(
        code="truncated",
        metric="completion/frac_truncated",
        threshold=0.5,
        message="Most completions are cut at max_new_tokens. Raise it, or reward "
        "shorter answers.",
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
        "reference there. Lower the learning rate or raise the KL weight.",
    ),
)


class AlarmBoard:
    """Rings each alarm when its metric passes the threshold, not at every step after.

    It rings again only once the metric has come back.
    """

    def __init__(self) -> None:
        self._ringing: set[str] = set()

    def check(self, metrics: dict[str, float | None]) -> list[tuple[Alarm, float]]:
        """The alarms that go off with these metrics, and the values seen."""
        rung = []
        for alarm in ALARMS:
            value = metrics.get(alarm.metric)
            if value is None or value <= alarm.threshold:
                self._ringing.discard(alarm.code)
            elif alarm.code not in self._ringing:
                self._ringing.add(alarm.code)
                rung.append((alarm, value))
        return rung
