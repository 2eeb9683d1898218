"""Where a run comes from and what was made of it: forks and clones, as a tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from django.db.models import Q, QuerySet

from dashboard.runs.models import Run

MAX_RUNS = 500
MAX_DEPTH = 50
SHOWN = ("id", "name", "state", "last_step", "num_steps", "fork_step", "created_at")
PARENTS = ("forked_from_id", "cloned_from_id")


@dataclass(slots=True)
class Member:
    run: Run
    children: list[Member] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Lineage:
    root: Member
    num_runs: int
    is_whole: bool  # False: there are more than are shown


def find_lineage(run: Run) -> Lineage:
    """The tree that a run belongs to; a query for each generation."""
    root = Member(_first_ancestor(run))
    known, generation, is_whole = {root.run.id}, [root], True
    for _ in range(MAX_DEPTH):
        parents = {member.run.id: member for member in generation}
        made = list(_made_of(parents)[: MAX_RUNS - len(known) + 1])
        if len(known) + len(made) > MAX_RUNS:
            made, is_whole = made[: MAX_RUNS - len(known)], False
        generation = []
        for each in made:
            if each.id in known:
                continue
            known.add(each.id)
            member = Member(each)
            parents[_parent_of(each) or 0].children.append(member)
            generation.append(member)
        if not generation or not is_whole:
            break
    return Lineage(root, len(known), is_whole)


def list_children(run: Run) -> list[Run]:
    """What was forked or cloned from it, the newest first; one query."""
    return list(_made_of([run.id]).order_by("-id")[:MAX_RUNS])


def list_ancestors(run: Run) -> Iterator[tuple[Run, int]]:
    """The runs that a fork goes on from, nearest first, each up to a step."""
    step = run.fork_step
    for _ in range(MAX_DEPTH):
        if step is None or run.forked_from is None:
            return
        run = run.forked_from
        yield run, step
        step = None if run.fork_step is None else min(step, run.fork_step)


def _made_of(ids: Iterable[int]) -> QuerySet[Run]:
    ids = list(ids)
    forks = Q(forked_from__in=ids)
    clones = Q(cloned_from__in=ids, forked_from=None)
    return Run.objects.filter(forks | clones).only(*SHOWN, *PARENTS).order_by("id")


def _parent_of(run: Run) -> int | None:
    return run.forked_from_id or run.cloned_from_id


def _first_ancestor(run: Run) -> Run:
    for _ in range(MAX_DEPTH):
        parent = _parent_of(run)
        if parent is None:
            break
        run = Run.objects.only(*SHOWN, *PARENTS).get(id=parent)
    return run
