"""Blind votes: which two completions, what was chosen, and what came of it all."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, QuerySet

from dashboard.accounts.models import Team, User
from dashboard.insights.duels.pairs import Side
from dashboard.insights.models import Vote
from dashboard.insights.statistics import wilson_interval
from dashboard.runs.models import Run
from dashboard.samples.completion import Completion

LEFT, RIGHT, TIE = "left", "right", "tie"
CHOICES = (LEFT, RIGHT, TIE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ballot:
    """A completion of each run; the link's seed says which ones, and which is left."""

    left: Completion
    right: Completion
    left_run: Run
    right_run: Run

    @property
    def pair(self) -> tuple[Completion, Completion]:
        """By group and position, as votes have them."""
        first, second = sorted((self.left, self.right), key=lambda c: c.place)
        return first, second

    @property
    def key(self) -> dict[str, Any]:
        """A vote's fields of it."""
        first, second = self.pair
        return {
            "first_group_id": first.group_id,
            "first_position": first.position,
            "second_group_id": second.group_id,
            "second_position": second.position,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    wins: tuple[int, int]
    ties: int
    by_voter: list[tuple[str, int, int, int]]  # name, wins of each run, ties

    @property
    def num_decided(self) -> int:
        return sum(self.wins)

    @property
    def share(self) -> float | None:
        """Of the first run, among the votes that are no ties."""
        return self.wins[0] / self.num_decided if self.num_decided else None

    @property
    def interval(self) -> tuple[float, float] | None:
        share = self.share
        return None if share is None else wilson_interval(share, self.num_decided)


def draw_ballot(ours: Side, theirs: Side, *, number: int, seed: int) -> Ballot | None:
    """The number-th pair, from 0, of the two groups as the seed shuffles them."""
    if not 0 <= number < min(len(ours.completions), len(theirs.completions)):
        return None
    mine = _shuffled(ours.completions, seed)[number]
    its = _shuffled(theirs.completions, seed)[number]
    if _draw(seed, *mine.place, *its.place) % 2:
        return Ballot(left=its, right=mine, left_run=theirs.run, right_run=ours.run)
    return Ballot(left=mine, right=its, left_run=ours.run, right_run=theirs.run)


def cast(team: Team, voter: User, ballot: Ballot, choice: str) -> None:
    """Or changes what the person chose before."""
    if choice not in CHOICES:
        raise ValueError(f"A vote is left, right or tie; got {choice[:20]!r}.")
    first, _ = ballot.pair
    chosen = {LEFT: ballot.left, RIGHT: ballot.right}.get(choice)
    stored = Vote.Choice.TIE
    if chosen is not None:
        is_first = chosen.place == first.place
        stored = Vote.Choice.FIRST if is_first else Vote.Choice.SECOND
    Vote.objects.update_or_create(
        voter=voter,
        **ballot.key,
        defaults={"choice": stored, "team": team},
    )


def take_back(voter: User, ballot: Ballot) -> None:
    Vote.objects.filter(voter=voter, **ballot.key).delete()


def find_choice(voter: User, ballot: Ballot) -> str | None:
    """What the person chose of it: left, right, tie, or nothing yet."""
    vote = Vote.objects.filter(voter=voter, **ballot.key).first()
    if vote is None:
        return None
    if vote.choice == Vote.Choice.TIE:
        return TIE
    first, second = ballot.pair
    chosen = first if vote.choice == Vote.Choice.FIRST else second
    return LEFT if chosen.place == ballot.left.place else RIGHT


def tally(team: Team, runs: tuple[Run, Run]) -> Tally:
    """All votes between the two runs, whatever the prompt. One query."""
    counts = _between(team, runs).values_list(
        "voter__username", "choice", "first_group__run_id"
    )
    wins: Counter[str] = Counter()
    voters: dict[str, Counter[str]] = {}
    for voter, choice, first_run, count in counts.annotate(count=Count("pk")):
        whose = _whose(choice, first_is_ours=first_run == runs[0].pk)
        wins[whose] += count
        voters.setdefault(voter, Counter())[whose] += count
    return Tally(
        wins=(wins["ours"], wins["theirs"]),
        ties=wins["tie"],
        by_voter=[
            (name, told["ours"], told["theirs"], told["tie"])
            for name, told in sorted(voters.items())
        ],
    )


def _between(team: Team, runs: tuple[Run, Run]) -> QuerySet[Vote]:
    ids = [run.pk for run in runs]
    return Vote.objects.filter(
        team=team, first_group__run__in=ids, second_group__run__in=ids
    ).order_by()


def _whose(choice: str, *, first_is_ours: bool) -> str:
    if choice == Vote.Choice.TIE:
        return "tie"
    return "ours" if (choice == Vote.Choice.FIRST) == first_is_ours else "theirs"


def _shuffled(completions: Sequence[Completion], seed: int) -> list[Completion]:
    return sorted(completions, key=lambda c: _draw(seed, *c.place))


def _draw(*numbers: int) -> int:
    """The same for everybody with the same link, and told by nothing on the page."""
    told = "/".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.sha256(told).digest()[:8])
