from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404

from dashboard.accounts.models import User
from dashboard.accounts.services import record
from dashboard.project.database import clean_text
from dashboard.samples.annotations.mentions import mention
from dashboard.samples.annotations.models import (
    MAX_COMMENT_CHARS,
    MAX_TAG_CHARS,
    Comment,
    Tag,
    Thumb,
)
from dashboard.samples.completion import NUM_COMPLETIONS
from dashboard.samples.models import Group, GroupCompletions

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
