"""People whom comments name: "@ada, look"."""

from __future__ import annotations

import re

from django.db.models import QuerySet
from django.utils import timezone

from dashboard.accounts.models import Team, User
from dashboard.samples.annotations.models import Comment, Mention

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
