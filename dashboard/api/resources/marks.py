"""What people say of groups and completions."""

from __future__ import annotations

from typing import Annotated, Literal

from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import Field

from dashboard.api.auth import WRITE, access_of
from dashboard.api.problems import or_refuse
from dashboard.api.schemas import Id, Input, Step
from dashboard.runs.queries import get_run
from dashboard.samples.annotations.queries import Marks, read_marks
from dashboard.samples.annotations.services import (
    add_comment,
    add_tag,
    delete_comment,
    find_target,
    judge,
    remove_tag,
)
from dashboard.samples.visits import get_group

router = Router(tags=["Completions"], auth=WRITE)


class CommentOut(Schema):
    id: int
    by: str | None = Field(examples=["alice"])
    text: str = Field(examples=["Guesses the format, not the sum."])


class MarksOut(Schema):
    num_good: int
    num_bad: int
    tags: list[str] = Field(examples=[["reward-hack"]])
    comments: list[CommentOut]


def marks_out(marks: Marks) -> MarksOut:
    return MarksOut(
        num_good=marks.num_up,
        num_bad=marks.num_down,
        tags=[tag.name for tag in marks.tags],
        comments=[
            CommentOut(id=c.pk, by=c.user.username if c.user else None, text=c.text)
            for c in marks.comments
        ],
    )


class MarkIn(Input):
    position: Annotated[int, Field(ge=0, le=99_999)] | None = Field(
        default=None, description="Of the completion; null: the whole group."
    )
    action: Literal["judge", "tag", "untag", "comment", "uncomment"] = Field(
        examples=["tag"]
    )
    value: str = Field(
        max_length=20_000,
        description="judge: good, bad or none. tag, untag: the tag. comment: its text. "
        "uncomment: the number of one of your own.",
        examples=["reward-hack"],
    )


@router.post(
    "/{run_id}/groups/{step}/{prompt_index}/marks",
    response=MarksOut,
    auth=WRITE,
    summary="Judge, tag or comment",
)
def mark(
    request: HttpRequest, run_id: Id, step: Step, prompt_index: Step, payload: MarkIn
) -> MarksOut:
    """A completion, or a whole group; answers with all that is said of it then."""
    access = access_of(request)
    found = get_group(get_run(access.team, run_id), step, prompt_index)
    place = "" if payload.position is None else str(payload.position)
    target = find_target(found, place)
    with or_refuse("body.value"):
        match payload.action:
            case "judge":
                judge(access.user, target, is_up=_judgement(payload.value))
            case "tag":
                add_tag(access.user, target, payload.value)
            case "untag":
                remove_tag(access.user, target, payload.value)
            case "comment":
                add_comment(access.user, target, payload.value)
            case "uncomment":
                delete_comment(access.user, target, payload.value)
    marks = read_marks([found.pk], access.user)
    return marks_out(marks.get((found.pk, payload.position), Marks()))


def _judgement(value: str) -> bool | None:
    known = {"good": True, "bad": False, "none": None}
    if value not in known:
        raise ValueError(f"A judgement is good, bad or none; got {value[:40]!r}.")
    return known[value]
