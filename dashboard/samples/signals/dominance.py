"""Whether one rule dominates the reward, and whether it hides others by that.

A rule dominates where it supplies more than 90 % of the variance of rewards within
groups, which updates follow. That is as it should be where it is the task itself
and the others are small beside it, or are met by all completions alike: a fact.

It is worth a warning where it drowns another rule, one that has something to say and is
not heard. Rule r with weight w differs within the share d of the groups. If scores were
spread alike where they differ, it would supply

    asked(r) = w² d / Σ w² d     over the rules that count.

r is drowned where d is above 10 % and it supplies less than half of asked(r). Where
rewards are a product or a minimum, weights ask for nothing: w = 1.

A rule that gives all completions of each group the same teaches nothing. Where it gives
them something that is a fact, such as a format that is learnt; where it gives them
nothing it cannot be learnt, which is a warning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

DOMINANT = 0.9
DIFFERS = 0.1  # of the groups: less is hardly anything to learn from
HEARD = 0.5  # of what its weight asks for


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """One rule that counts, over the watched steps."""

    rule: str
    weight: float
    share: float | None  # of the variance within groups; None: there was none
    differs: float  # share of the groups within which it differs
    part: float  # of the mean reward


def judge(
    standings: Sequence[Standing], *, num_groups: int, num_steps: int
) -> dict[str, list[str]]:
    """Sentences: warnings, and plain facts. Of a single rule there are none."""
    found: dict[str, list[str]] = {"warnings": [], "facts": []}
    if len(standings) < 2 or not num_groups:
        return found
    ruling = next((s for s in standings if (s.share or 0) > DOMINANT), None)
    if ruling is not None:
        drowned = [s for s in standings if s is not ruling and _drowned(s, standings)]
        kind = "warnings" if drowned else "facts"
        found[kind].append(_say_dominance(ruling, drowned, num_steps))
    silent = [s for s in standings if not s.differs]
    for standing in silent:
        kind = "facts" if standing.part else "warnings"
        found[kind].append(_say_silence(standing, num_groups, num_steps))
    return found


def _asked(standing: Standing, among: Sequence[Standing]) -> float:
    total = sum(s.weight**2 * s.differs for s in among)
    return standing.weight**2 * standing.differs / total if total else 0.0


def _drowned(standing: Standing, among: Sequence[Standing]) -> bool:
    has_say = standing.differs > DIFFERS
    return has_say and (standing.share or 0) < HEARD * _asked(standing, among)


def _say_dominance(
    ruling: Standing, drowned: Sequence[Standing], num_steps: int
) -> str:
    said = (
        f"{ruling.rule} supplies {100 * (ruling.share or 0):.0f} % of the variance of "
        f"rewards within groups over the last {num_steps} steps."
    )
    if not drowned:
        return (
            f"{said} It hides no other rule: they differ in few groups, or count as "
            "little as their weights say."
        )
    hidden = " and ".join(
        f"{s.rule}, which differs within {100 * s.differs:.0f} % of the groups but "
        f"supplies {100 * (s.share or 0):.0f} %"
        for s in drowned
    )
    return (
        f"{said} It hides {hidden}, less than half of what its weight asks for. If "
        "that is not meant, change the weights or the range of the scores."
    )


def _say_silence(standing: Standing, num_groups: int, num_steps: int) -> str:
    what = "something, the same" if standing.part else "nothing"
    said = (
        f"{standing.rule} gave {what} to all completions in each of the "
        f"{num_groups:,} groups of the last {num_steps} steps"
    )
    if standing.part:
        return f"{said}: nothing is left to learn from it."
    return (
        f"{said}, so it cannot be learnt. See in a group why: the prompt may not ask "
        "for it, or the rule may never match."
    )
