from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from django.db.models import Exists, OuterRef, Q, QuerySet

from dashboard.accounts.models import Team, User
from dashboard.runs.models import Run
from dashboard.samples.annotations.models import Comment, Tag, Thumb
from dashboard.samples.models import Completion

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
    names = Tag.objects.filter(group__run__team=team).order_by("-pk")
    newest = names.values_list("name", flat=True)[: 20 * MAX_SUGGESTED]
    return sorted(list(dict.fromkeys(newest))[:MAX_SUGGESTED])


def with_marks(
    found: QuerySet[Completion], run: Run, *, tag: str, kind: str, by: User | None
) -> QuerySet[Completion]:
    """Those that have this tag, and that somebody, or `by`, has marked in this way.

    What is said of a whole group is said of its completions only as a tag. Few groups
    are marked: they are named, so that nothing is asked of the others.
    """
    if not (tag or kind):
        return found
    mine = {"user": by} if by else {}
    here = Q(group=OuterRef("group"), position=OuterRef("position"))
    of_group = Q(group=OuterRef("group"), position=None)
    thumbs = Thumb.objects.filter(here, **mine)
    tags = Tag.objects.filter(here | of_group, **mine)
    is_judged, is_tagged = Exists(thumbs), Exists(tags)
    is_commented = Exists(Comment.objects.filter(here, **mine))
    wanted = {
        "good": Q(Exists(thumbs.filter(is_up=True))),
        "bad": Q(Exists(thumbs.filter(is_up=False))),
        "tagged": Q(is_tagged),
        "commented": Q(is_commented),
        "any": Q(is_judged) | Q(is_tagged) | Q(is_commented),
    }
    found = found.filter(group__in=marked_group_ids(run))
    if tag:
        found = found.filter(Exists(tags.filter(name=tag)))
    return found.filter(wanted[kind]) if kind else found


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
