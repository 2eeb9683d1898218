from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404
from django.utils import timezone

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.project.database import clean_text
from dashboard.runs.models import Run
from dashboard.samples.models import (
    MAX_COMMENT_CHARS,
    MAX_TAG_CHARS,
    NUM_COMPLETIONS,
    Comment,
    Group,
    GroupCompletions,
    Mention,
    Tag,
    Thumb,
)

# People whom comments name: "@ada, look".

# As Django lets a username be spelled; what ends a sentence is no part of it.
NAME = re.compile(r"(?<![\w@.+-])@([\w@.+-]*\w)")
MAX_MENTIONS = 50  # of a comment


def find_mentioned(team: Team, text: str) -> list[User]:
    """The team's members whom a text names, however they write their names."""
    names = {name.lower() for name in NAME.findall(text)}
    members = [user for user in team.members.all() if user.username.lower() in names]
    return members[:MAX_MENTIONS]


def mention(comment: Comment, team: Team) -> None:
    """Whoever names themselves need not be told."""
    Mention.objects.bulk_create(
        Mention(comment=comment, user=user)
        for user in find_mentioned(team, comment.text)
        if user != comment.user
    )


def mentions_of(user: User, team: Team) -> QuerySet[Mention]:
    found = Mention.objects.filter(
        user=user,
        comment__group__run__team=team,
        comment__group__run__deleted_at=None,
    )
    return found.select_related("comment__user", "comment__group__run").order_by("-id")


def mark_seen(user: User, ids: list[int]) -> None:
    unseen = Mention.objects.filter(user=user, pk__in=ids, seen_at=None)
    unseen.update(seen_at=timezone.now())


MAX_TAGS = 20
MAX_COMMENTS = 200
TAG = re.compile(rf"[\w][\w.:+-]{{0,{MAX_TAG_CHARS - 1}}}")


@dataclass(frozen=True, slots=True)
class Target:
    """A completion, or with position None the whole group."""

    group: Group
    position: int | None

    @property
    def key(self) -> str:
        return "group" if self.position is None else str(self.position)

    @property
    def tags(self) -> QuerySet[Tag]:
        return Tag.objects.filter(group=self.group, position=self.position)

    @property
    def comments(self) -> QuerySet[Comment]:
        return Comment.objects.filter(group=self.group, position=self.position)


def find_target(group: Group, position: str) -> Target:
    """`position` as it is sent: empty for the group; 404 when it has none such."""
    if not position:
        return Target(group, None)
    known = position.isascii() and position.isdigit() and len(position) <= 5
    if not known or int(position) >= _num_completions(group):
        raise Http404(f"{group} has no completion {position!r}.")
    return Target(group, int(position))


def _num_completions(group: Group) -> int:
    """One query, which reads no text."""
    stored = GroupCompletions.objects.filter(group=group)
    return stored.values_list(NUM_COMPLETIONS, flat=True).first() or 0


def judge(user: User, target: Target, *, is_up: bool | None) -> None:
    """Good, bad, or None: the person's judgement is taken back."""
    at: dict[str, Any] = {
        "group": target.group,
        "position": target.position,
        "user": user,
    }
    if is_up is None:
        Thumb.objects.filter(**at).delete()
    else:
        Thumb.objects.update_or_create(**at, defaults={"is_up": is_up})


def _record(user: User, target: Target, verb: str, **detail: Any) -> None:
    group = target.group
    detail |= {"run": group.run_id, "completion": target.position}
    record(group.run.team, user, verb, group, **detail)


@transaction.atomic
def add_tag(user: User, target: Target, text: str) -> None:
    """Words become one, in small letters; ValueError for what is no tag."""
    name = "-".join(text.lower().split())
    if not TAG.fullmatch(name):
        raise ValueError(
            f"A tag is of letters, digits and . : + - _, {MAX_TAG_CHARS} at most, such "
            f"as “reward-hack”; got {text[:80]!r}."
        )
    if target.tags.exclude(name=name).count() >= MAX_TAGS:
        raise ValueError(f"There are {MAX_TAGS} tags already. Remove one first.")
    _, is_new = Tag.objects.get_or_create(
        group=target.group, position=target.position, name=name, defaults={"user": user}
    )
    if is_new:
        _record(user, target, "group.tagged", tag=name)


@transaction.atomic
def remove_tag(user: User, target: Target, name: str) -> None:
    if target.tags.filter(name=clean_text(name)).delete()[0]:
        _record(user, target, "group.untagged", tag=clean_text(name))


@transaction.atomic
def add_comment(user: User, target: Target, text: str) -> None:
    # Forms send the ends of lines as two characters; who writes counts one.
    text = clean_text(text).replace("\r\n", "\n").strip()
    if not text:
        raise ValueError("A comment needs some text.")
    if len(text) > MAX_COMMENT_CHARS:
        raise ValueError(
            f"A comment has {MAX_COMMENT_CHARS:,} characters at most; this one has "
            f"{len(text):,}. Shorten it."
        )
    if target.comments.count() >= MAX_COMMENTS:
        raise ValueError(f"There are {MAX_COMMENTS} comments already.")
    comment = Comment.objects.create(
        group=target.group, position=target.position, user=user, text=text
    )
    mention(comment, target.group.run.team)
    _record(user, target, "group.commented", comment=comment.pk)


@transaction.atomic
def delete_comment(user: User, target: Target, comment_id: str) -> None:
    """One's own; another's is left."""
    if comment_id.isascii() and comment_id.isdigit() and len(comment_id) <= 18:
        own = target.comments.filter(user=user, pk=int(comment_id))
        if own.delete()[0]:
            _record(user, target, "group.comment_deleted", comment=int(comment_id))


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
