"""Groups with their completions, and what people say of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from django.db.models import Q
from django.http import HttpRequest
from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.api.auth import READ, WRITE, access_of
from dashboard.api.paging import Cursor, Limit, Page, cut, page_from, read_cursor
from dashboard.api.problems import refuse_field
from dashboard.api.schemas import Id, Input, Step, StepBound
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
from dashboard.samples.groups import ORDERS
from dashboard.samples.models import Completion, Group
from dashboard.samples.visits import get_group
from trainer.events import Signal

router = Router(tags=["Completions"], auth=READ)
STEP_BITS = 32  # a group's place in its run: its step, then its prompt


class GroupOut(Schema):
    step: int = Field(examples=[40])
    prompt_index: int = Field(
        description="The row of the dataset version.", examples=[17]
    )
    prompt: str = Field(examples=["What is 17 + 1?"])
    answer: str | None = Field(examples=["18"])
    reward_mean: float | None = Field(examples=[0.35])
    reward_std: float | None = Field(examples=[0.57])
    signal: str = Field(examples=["mixed"])
    is_trained: bool = Field(description="Not left out by dynamic sampling.")


class MarksOut(Schema):
    num_good: int
    num_bad: int
    tags: list[str] = Field(examples=[["reward-hack"]])
    comments: list[CommentOut]


class CommentOut(Schema):
    id: int
    by: str | None = Field(examples=["alice"])
    text: str = Field(examples=["Guesses the format, not the sum."])


class CompletionOut(Schema):
    position: int = Field(examples=[0])
    text: str = Field(examples=["<answer>18</answer>"])
    num_tokens: int | None = Field(examples=[9])
    end_reason: str = Field(examples=["stop"])
    reward: float | None = Field(examples=[1.2])
    rule_scores: dict[str, float | None] = Field(
        examples=[{"answer": 1.0, "format": 1.0}]
    )
    advantage: float | None = Field(examples=[1.5])
    mean_logprob: float | None = Field(examples=[-0.4])


class MarkedCompletion(CompletionOut):
    marks: MarksOut


class GroupDetail(GroupOut):
    completions: list[MarkedCompletion]
    marks: MarksOut


def group_fields(group: Group) -> dict[str, Any]:
    names = ("step", "prompt_index", "prompt", "answer", "reward_mean")
    more = ("reward_std", "signal", "is_trained")
    return {name: getattr(group, name) for name in (*names, *more)}


def completion_fields(completion: Completion, rules: list[str]) -> dict[str, Any]:
    return {
        "position": completion.position,
        "text": completion.text,
        "num_tokens": completion.num_tokens,
        "end_reason": completion.end_reason,
        "reward": completion.reward,
        "rule_scores": dict(zip(rules, completion.rule_scores, strict=False)),
        "advantage": completion.advantage,
        "mean_logprob": completion.mean_logprob,
    }


def _marks(marks: Marks) -> MarksOut:
    return MarksOut(
        num_good=marks.num_up,
        num_bad=marks.num_down,
        tags=[tag.name for tag in marks.tags],
        comments=[
            CommentOut(id=c.pk, by=c.user.username if c.user else None, text=c.text)
            for c in marks.comments
        ],
    )


@router.get("/{run_id}/groups", response=Page[GroupOut], summary="List groups")
def groups(
    request: HttpRequest,
    run_id: Id,
    cursor: Cursor,
    limit: Limit,
    step: StepBound,
    signal: Annotated[Signal | None, Query(None)],
    sort: Annotated[
        Literal["", "prompt", "mean", "-mean", "spread", "-spread"],
        Query("", description="Of one step's groups; `-` before it from the top."),
    ],
) -> Page[Any]:
    """By step and prompt, without steps that a resume went back before."""
    run = get_run(access_of(request).team, run_id)
    found = Group.objects.current().filter(run=run)
    if step is not None:
        found = found.filter(step=step)
    if signal is not None:
        found = found.filter(signal=signal)
    if sort:
        if step is None:
            raise refuse_field("query.step", "Name the step whose groups are sorted.")
        return page_from(
            found.order_by(*ORDERS[sort]),
            lambda group: GroupOut(**group_fields(group)),
            cursor=cursor,
            limit=limit,
            total=found.count(),
        )
    if cursor:
        at, prompt = divmod(read_cursor(cursor), 2**STEP_BITS)
        # The first condition says the same, and is one that an index answers.
        behind = Q(step__gt=at) | Q(step=at, prompt_index__gt=prompt)
        found = found.filter(behind, step__gte=at)
    rows = list(found.order_by("step", "prompt_index")[: limit + 1])
    return cut(
        rows,
        limit,
        lambda group: GroupOut(**group_fields(group)),
        lambda group: group.step * 2**STEP_BITS + group.prompt_index,
    )


@router.get(
    "/{run_id}/groups/{step}/{prompt_index}",
    response=GroupDetail,
    summary="Look at a group",
)
def group(
    request: HttpRequest, run_id: Id, step: Step, prompt_index: Step
) -> GroupDetail:
    """All its completions with each rule's score, advantages, and what people said."""
    access = access_of(request)
    found = get_group(get_run(access.team, run_id), step, prompt_index)
    marks = read_marks([found.pk], access.user)
    completions = [
        MarkedCompletion(
            **completion_fields(each, found.rule_names),
            marks=_marks(marks.get((found.pk, each.position), Marks())),
        )
        for each in found.completions.order_by("position")
    ]
    of_group = _marks(marks.get((found.pk, None), Marks()))
    return GroupDetail(**group_fields(found), completions=completions, marks=of_group)


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
    try:
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
    except ValueError as error:
        raise refuse_field("body.value", str(error)) from error
    marks = read_marks([found.pk], access.user)
    return _marks(marks.get((found.pk, payload.position), Marks()))


def _judgement(value: str) -> bool | None:
    known = {"good": True, "bad": False, "none": None}
    if value not in known:
        raise ValueError(f"A judgement is good, bad or none; got {value[:40]!r}.")
    return known[value]


MarksOut.model_rebuild()
