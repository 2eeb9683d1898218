"""Annotations of groups and completions: thumbs, tags, comments; their exports.

Comments are written in dashboard/analysis/comments.py.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404

from cohort.lines import number
from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.completions.models import (
    MAX_TAG_CHARS,
    NUM_COMPLETIONS,
    Comment,
    Completion,
    Group,
    GroupCompletions,
    Tag,
    Thumb,
)
from dashboard.completions.prompts import pass_rate_lines
from dashboard.completions.turns import preference_pair
from dashboard.project.database import clean_text, fetch_all, read_whole
from dashboard.project.errors import UserError
from dashboard.runs.models import Run

MAX_TAGS = 20
TAG = re.compile(rf"[\w][\w.:+-]{{0,{MAX_TAG_CHARS - 1}}}")
MAX_SUGGESTED = 100
AT_ONCE = 50  # groups in memory
Key = tuple[int | None, int | None]  # group ID and position
KINDS_OF_GROUPS = """
    SELECT EXISTS (SELECT FROM samples_thumb WHERE group_id = ANY(%(ids)s)),
    EXISTS (SELECT FROM samples_tag WHERE group_id = ANY(%(ids)s)),
    EXISTS (SELECT FROM samples_comment WHERE group_id = ANY(%(ids)s))"""


@dataclass(frozen=True, slots=True)
class Target:
    """A completion, or with position None the whole group."""

    group: Group
    position: int | None

    @property
    def key(self) -> str:
        return "group" if self.position is None else str(self.position)

    def __str__(self) -> str:
        if self.position is None:
            return "This group"
        return f"Completion {self.position + 1}"

    @property
    def tags(self) -> QuerySet[Tag]:
        return Tag.objects.filter(group=self.group, position=self.position)

    @property
    def team(self) -> Team:
        return self.group.run.team


def find_target(group: Group, position: str) -> Target:
    """`position` as sent: empty for the group; 404 if it does not exist."""
    if not position:
        return Target(group, None)
    number = read_whole(position, digits=5)
    stored = GroupCompletions.objects.filter(group=group)  # without its texts
    num = stored.values_list(NUM_COMPLETIONS, flat=True)
    if number is None or number >= (num.first() or 0):
        raise Http404(f"{group} has no completion {position!r}.")
    return Target(group, number)


def judge(user: User, target: Target, *, is_up: bool | None) -> None:
    """Good, bad, or None to remove the judgement."""
    at: dict[str, Any] = {
        "group": target.group,
        "position": target.position,
        "user": user,
    }
    if is_up is None:
        Thumb.objects.filter(**at).delete()
    else:
        Thumb.objects.update_or_create(**at, defaults={"is_up": is_up})


def record_annotation(user: User, target: Target, verb: str, **detail: Any) -> None:
    """Write it into the audit log, with its place."""
    group = target.group
    detail |= {"run": group.run_id, "completion": target.position}
    record(target.team, user, verb, group, **detail)


@transaction.atomic
def add_tag(user: User, target: Target, text: str) -> None:
    """Words are joined by hyphens, in lower case."""
    name = "-".join(text.lower().split())
    if not TAG.fullmatch(name):
        raise UserError(
            "samples.bad_tag",
            f"A tag has up to {MAX_TAG_CHARS} letters, digits and . : + - _, for "
            f"example “reward-hack”; got {text[:80]!r}.",
        )
    if target.tags.exclude(name=name).count() >= MAX_TAGS:
        raise UserError(
            "samples.too_many_tags",
            f"{target} already has {MAX_TAGS} tags, the maximum. Remove one first.",
        )
    _, is_new = Tag.objects.get_or_create(
        group=target.group, position=target.position, name=name, defaults={"user": user}
    )
    if is_new:
        record_annotation(user, target, "group.tagged", tag=name)


@transaction.atomic
def remove_tag(user: User, target: Target, name: str) -> None:
    if target.tags.filter(name=clean_text(name)).delete()[0]:
        record_annotation(user, target, "group.untagged", tag=clean_text(name))


@dataclass(kw_only=True, slots=True)
class Annotations:
    """All annotations of one completion or group."""

    num_up: int = 0
    num_down: int = 0
    mine: bool | None = None  # the current user's judgement
    tags: list[Tag] = field(default_factory=list)
    comments: list[Comment] = field(default_factory=list)

    @property
    def balance(self) -> int:
        return self.num_up - self.num_down

    def as_json(self) -> dict[str, Any]:
        """Return the columns of an export."""
        return {
            "good": self.num_up,
            "bad": self.num_down,
            "tags": [{"name": t.name, "by": _name(t.user)} for t in self.tags],
            "comments": [
                {"text": c.text, "by": _name(c.user), "at": c.created_at.isoformat()}
                for c in self.comments
            ],
        }


def read_annotations(
    group_ids: Iterable[int], user: User | None
) -> dict[Key, Annotations]:
    """Read those of groups and their completions; one query, and one for each kind."""
    ids = list(group_ids)
    # Most groups have none.
    ((has_thumbs, has_tags, has_comments),) = fetch_all(
        KINDS_OF_GROUPS, {"ids": ids}, is_prepared=True
    )
    annotations: defaultdict[Key, Annotations] = defaultdict(Annotations)
    for thumb in Thumb.objects.filter(group__in=ids) if has_thumbs else ():
        own = annotations[thumb.group_id, thumb.position]
        own.num_up += thumb.is_up
        own.num_down += not thumb.is_up
        if user is not None and thumb.user_id == user.pk:
            own.mine = thumb.is_up
    tags = Tag.objects.filter(group__in=ids).select_related("user")
    for tag in tags if has_tags else ():
        annotations[tag.group_id, tag.position].tags.append(tag)
    comments = Comment.objects.filter(group__in=ids).select_related("user")
    for comment in comments.order_by("pk") if has_comments else ():
        annotations[comment.group_id, comment.position].comments.append(comment)
    for own in annotations.values():
        own.tags.sort(key=lambda tag: tag.name)
    return annotations


def suggest_tags(team: Team) -> list[str]:
    """List the team's tags, the newest if there are many."""
    newest = (
        Tag.objects.filter(group__run__team=team, group__run__deleted_at=None)
        .order_by("-pk")
        .values_list("name", flat=True)[: 20 * MAX_SUGGESTED]
    )
    return sorted(list(dict.fromkeys(newest))[:MAX_SUGGESTED])


def annotated_group_ids(run: Run) -> list[int]:
    """List annotated groups of the current history; three queries."""
    ids: set[int] = set()
    for rows in _of_run(run):
        ids.update(rows.values_list("group", flat=True).distinct())
    return sorted(ids)


def has_annotations(run: Run) -> bool:
    return run.comments.exists() or any(rows.exists() for rows in _of_run(run))


def _of_run(run: Run) -> list[QuerySet[Any]]:
    of_run = {"group__run": run, "group__superseded_by": None}
    return [kind.objects.filter(**of_run) for kind in (Thumb, Tag, Comment)]


def annotation_lines(run: Run) -> Iterator[str]:
    """Write a line for the run's own comments, and each annotated group and
    completion.
    """
    if comments := list(run.comments.select_related("user").order_by("pk")):
        row = {**_place_fields(run, None), "position": None}
        yield _line(row | Annotations(comments=comments).as_json())
    for group, completions, by_key in _read(run):
        for position in [None, *completions]:
            annotations = by_key.get((group.pk, position))
            if annotations is None:
                continue
            row = {**_place_fields(run, group), "position": position}
            if position is not None:
                completion = completions[position]
                scores = map(number, completion.rule_scores)
                row |= {
                    "prompt": group.prompt,
                    "answer": group.answer_value,
                    "completion": completion.text,
                    "reward": number(completion.reward),
                    "advantage": number(completion.advantage),
                    "num_tokens": completion.num_tokens,
                    "end_reason": completion.end_reason,
                    "rules": dict(zip(group.rule_names, scores, strict=False)),
                }
                if completion.turns:
                    row["turns"] = [turn.model_dump() for turn in completion.turns]
            yield _line(row | annotations.as_json())


def preference_lines(run: Run) -> Iterator[str]:
    """Preference pairs in TRL's columns: prompt, chosen, rejected.

    Pairs each completion of a group with more good than bad judgements with each that
    has more bad than good ones, unless the policy wrote the same.
    """
    for group, completions, by_key in _read(run):
        balance = {
            position: by_key[group.pk, position].balance
            for position in completions
            if (group.pk, position) in by_key
        }
        chosen = [completions[i] for i, sum_ in balance.items() if sum_ > 0]
        rejected = [completions[i] for i, sum_ in balance.items() if sum_ < 0]
        for good in chosen:
            for bad in rejected:
                pair = preference_pair(group, good, bad)
                if pair["chosen"] == pair["rejected"]:
                    continue
                yield _line(
                    {
                        **pair,
                        "chosen_reward": number(good.reward),
                        "rejected_reward": number(bad.reward),
                        **_place_fields(run, group),
                        "chosen_position": good.position,
                        "rejected_position": bad.position,
                    }
                )


def _read(
    run: Run,
) -> Iterator[tuple[Group, dict[int, Completion], dict[Any, Annotations]]]:
    ids = list(
        Group.objects.filter(pk__in=annotated_group_ids(run))
        .order_by("step", "prompt_index")
        .values_list("pk", flat=True)
    )
    for start in range(0, len(ids), AT_ONCE):
        part = ids[start : start + AT_ONCE]
        by_key = read_annotations(part, None)
        groups = Group.objects.prefetch_related("packed_completions").in_bulk(part)
        for group in (groups[pk] for pk in part if pk in groups):
            yield group, {c.position: c for c in group.completions}, by_key


def _place_fields(run: Run, group: Group | None) -> dict[str, Any]:
    return {
        "run": run.name,
        "run_id": run.pk,
        "step": group.step if group else None,
        "prompt_index": group.prompt_index if group else None,
    }


def _name(user: Any) -> str | None:
    return user.username if user else None


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


EXPORTS: dict[str, Callable[[Run], Iterator[str]]] = {
    "annotations": annotation_lines,
    "pass-rates": pass_rate_lines,
    "preferences": preference_lines,
}
