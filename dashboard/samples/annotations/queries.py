from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from dashboard.accounts.models import Team, User
from dashboard.runs.models import Run
from dashboard.samples.annotations.models import Comment, Tag, Thumb

MAX_SUGGESTED = 100
Place = tuple[int, int | None]  # a group, and the completion in it


@dataclass(kw_only=True, slots=True)
class Marks:
    """What was said of one completion or group."""

    num_up: int = 0
    num_down: int = 0
    mine: bool | None = None  # the reader's own judgement
    tags: list[Tag] = field(default_factory=list)
    comments: list[Comment] = field(default_factory=list)

    @property
    def balance(self) -> int:
        return self.num_up - self.num_down


def read_marks(group_ids: Iterable[int], user: User | None) -> dict[Place, Marks]:
    """Of these groups and their completions; three queries."""
    ids = list(group_ids)
    found: defaultdict[Place, Marks] = defaultdict(Marks)
    for thumb in Thumb.objects.filter(group__in=ids):
        marks = found[thumb.group_id, thumb.position]
        marks.num_up += thumb.is_up
        marks.num_down += not thumb.is_up
        if user is not None and thumb.user_id == user.pk:
            marks.mine = thumb.is_up
    for tag in Tag.objects.filter(group__in=ids).select_related("user"):
        found[tag.group_id, tag.position].tags.append(tag)
    comments = Comment.objects.filter(group__in=ids).select_related("user")
    for comment in comments.order_by("pk"):
        found[comment.group_id, comment.position].comments.append(comment)
    for marks in found.values():
        marks.tags.sort(key=lambda tag: tag.name)
    return found


def suggest_tags(team: Team) -> list[str]:
    """The team's own words, the newest first in case there are many."""
    of_team = Tag.objects.filter(group__run__team=team, group__run__deleted_at=None)
    names = of_team.order_by("-pk")
    newest = names.values_list("name", flat=True)[: 20 * MAX_SUGGESTED]
    return sorted(list(dict.fromkeys(newest))[:MAX_SUGGESTED])


def marked_group_ids(run: Run) -> list[int]:
    """Of the current history; three queries."""
    ids: set[int] = set()
    for kind in (Thumb, Tag, Comment):
        of_run = kind.objects.filter(group__run=run, group__superseded_by=None)
        ids.update(of_run.values_list("group", flat=True).distinct())
    return sorted(ids)


def has_marks(run: Run) -> bool:
    of_run = {"group__run": run, "group__superseded_by": None}
    return any(kind.objects.filter(**of_run).exists() for kind in (Thumb, Tag, Comment))
