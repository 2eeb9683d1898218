"""Comments on groups, completions, runs and reports, and members mentioned in them."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.analysis.reports.models import Report
from dashboard.completions.annotations import Target, record_annotation
from dashboard.completions.models import MAX_COMMENT_CHARS, Comment, Mention
from dashboard.project.database import clean_text, read_whole
from dashboard.project.errors import UserError
from dashboard.runs.models import Run

# The characters of a Django username; punctuation after it does not count.
NAME = re.compile(r"(?<![\w@.+-])@([\w@.+-]*\w)")
MAX_MENTIONS = 50  # of a comment
MAX_COMMENTS = 200
Commented: TypeAlias = Target | Run | Report
ADDED = {
    Target: "group.commented",
    Run: "run.commented",
    Report: "report.commented",
}
DELETED = {
    Target: "group.comment_deleted",
    Run: "run.comment_deleted",
    Report: "report.comment_deleted",
}


def comments_on(on: Commented) -> QuerySet[Comment]:
    """List them by time, with their authors; one query."""
    comments = Comment.objects.filter(**_columns(on))
    return comments.select_related("user").order_by("pk")


def _columns(on: Commented) -> dict[str, Any]:
    match on:
        case Target():
            return {"group": on.group, "position": on.position}
        case Run():
            return {"run": on}
    return {"report": on}


@transaction.atomic
def add_comment(user: User, on: Commented, text: str) -> None:
    # Forms send CR LF; the author's character count has one for a line end.
    text = clean_text(text).replace("\r\n", "\n").strip()
    if not text:
        raise UserError("samples.empty_comment", "A comment requires text.")
    if len(text) > MAX_COMMENT_CHARS:
        raise UserError(
            "samples.comment_too_long",
            f"A comment has at most {MAX_COMMENT_CHARS:,} characters; got "
            f"{len(text):,}. Shorten it.",
        )
    if comments_on(on).count() >= MAX_COMMENTS:
        raise UserError(
            "samples.too_many_comments",
            f"{on} already has {MAX_COMMENTS} comments, the maximum.",
        )
    comment = Comment.objects.create(**_columns(on), user=user, text=text)
    mention(comment, on.team)
    _record(user, on, ADDED, comment.pk)


@transaction.atomic
def delete_comment(user: User, on: Commented, comment_id: str) -> None:
    """Only the user's own."""
    number = read_whole(comment_id)
    if number and comments_on(on).filter(user=user, pk=number).delete()[0]:
        _record(user, on, DELETED, number)


def _record(
    user: User, on: Commented, verbs: dict[type[Any], str], comment_id: int
) -> None:
    verb = verbs[type(on)]
    if isinstance(on, Target):
        record_annotation(user, on, verb, comment=comment_id)
    else:
        record(on.team, user, verb, on, comment=comment_id)


def find_mentioned(team: Team, text: str) -> list[User]:
    """Find the team's members that a text mentions, ignoring case."""
    names = {name.lower() for name in NAME.findall(text)}
    members = [user for user in team.members.all() if user.username.lower() in names]
    return members[:MAX_MENTIONS]


def mention(comment: Comment, team: Team) -> None:
    """Notify mentioned members, except the author."""
    Mention.objects.bulk_create(
        Mention(comment=comment, user=user)
        for user in find_mentioned(team, comment.text)
        if user != comment.user
    )


def mentions_of(user: User, team: Team) -> QuerySet[Mention]:
    """List the newest first, with what each comment is on."""
    group, run = "comment__group__run__", "comment__run__"
    kept = [{f"{of}team": team, f"{of}deleted_at": None} for of in (group, run)]
    return (
        Mention.objects.filter(
            Q(**kept[0]) | Q(**kept[1]) | Q(comment__report__team=team), user=user
        )
        .select_related(
            "comment__user", "comment__group__run", "comment__run", "comment__report"
        )
        .order_by("-id")
    )


def see_mentions(user: User, ids: list[int]) -> None:
    Mention.objects.filter(user=user, pk__in=ids, seen_at=None).update(
        seen_at=timezone.now()
    )
