"""Questions about a run's completions, and labels of people."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

from ninja import Query, Router, Schema, Status
from pydantic import Field

from dashboard.analysis.questions import services
from dashboard.analysis.questions.estimates import Share
from dashboard.analysis.questions.models import MAX_LABEL_CHARS, Question
from dashboard.analysis.questions.results import LabelShare, read_result
from dashboard.api.auth import READ, WRITE, ApiRequest
from dashboard.api.problems import Problem, or_conflict, refuse_field
from dashboard.api.schemas import (
    Cursor,
    Done,
    Id,
    IdIn,
    Input,
    JobOut,
    Limit,
    Page,
    fill,
    job_fields,
    page_by,
)
from dashboard.jobs.queue import request_stop
from dashboard.project.errors import code_of
from dashboard.runs.queries import get_run
from trainer.rewards.model_judge.labels import Label

router = Router(tags=["Questions"], auth=READ)


class QuestionOut(JobOut):
    id: int = Field(examples=[3])
    run_id: int = Field(examples=[7])
    text: str
    labels: list[str] = Field(examples=[["yes", "no"]])
    query: str = Field(description="Filter, as in the address of Samples → Search.")
    judge: str = Field(description="The judge's name.")
    num_found: int | None = Field(description="Completions that match the filter.")
    created_at: datetime
    finished_at: datetime | None


class QuestionDetail(QuestionOut):
    num_sampled: int
    num_asked: int
    num_labelled: int = 0
    num_by_hand: int = Field(
        0, description="Completions that people labelled, and that count."
    )
    num_not_drawn: int = Field(
        0, description="Completions with sent labels that do not count."
    )
    num_tokens: int
    cost: float | None = Field(description="null: the judge has no prices.")
    expected_tokens: int | None = Field(description="Of the whole sample.")
    expected_cost: float | None
    currency: str = Field(description="Empty: no price, or one without a currency.")
    shares: list[LabelShare] = Field(
        [],
        description="By label, each with the ends of its 95% interval.",
        examples=[
            [
                {
                    "label": "yes",
                    "judge": {"value": 0.212, "low": 0.117, "high": 0.444},
                    "corrected": None,
                }
            ]
        ],
    )
    kappa: Share | None = Field(None, description="Cohen's κ of judge and people.")
    sensitivity: Share | None = None
    specificity: Share | None = None


def question_out(row: Question, *, tells_why: bool = False) -> QuestionOut:
    return fill(
        QuestionOut,
        row,
        labels=row.names,
        judge=row.judge["name"],
        **job_fields(row, tells_why=tells_why),
    )


@router.get("", response=Page[QuestionOut], summary="List questions")
def questions(request: ApiRequest, cursor: Cursor, limit: Limit) -> Page[Any]:
    """Newest first."""
    asked = services.list_questions(request.auth.team)
    return page_by(asked, question_out, cursor=cursor, limit=limit)


class LabelIn(Input):
    name: str = Field(min_length=1, max_length=MAX_LABEL_CHARS)
    meaning: str = Field(default="", max_length=500)


class QuestionIn(Input):
    run_id: IdIn = Field(examples=[7])
    text: str = Field(max_length=4_000, examples=["Does the reply hedge?"])
    judge: str = Field(
        default="",
        description="Name of a judge of the team, or of the run's recipe as “RULE of "
        "RECIPE v1”. Default: the team's only judge.",
    )
    labels: list[LabelIn] = Field(
        default=[], description="2 to 12; none: yes and no. The first is asked for."
    )
    query: str = Field(
        default="", max_length=2_000, examples=["min_reward=1&first_step=100"]
    )
    sample_size: int = Field(
        default=300,
        ge=services.FEWEST_COMPLETIONS,
        le=services.MOST_COMPLETIONS,
    )
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    shows_prompt: bool = True


@router.post("", response={201: QuestionOut}, auth=WRITE, summary="Try a question")
def ask(request: ApiRequest, payload: QuestionIn) -> Status[QuestionOut]:
    """Draw a sample, and ask the judge about five completions of it.

    `POST /questions/{id}/start` asks about all of them.
    """
    team = request.auth.team
    run = get_run(team, payload.run_id)
    judges = services.list_judges([run])
    matching = [
        judge
        for name, judge in judges.items()
        if payload.judge == name or (not payload.judge and judge.pk)
    ]
    if len(matching) != 1:
        message = f"Name one of the judges: {', '.join(judges) or 'there are none'}."
        raise refuse_field("body.judge", message, code="question.unknown_judge")
    own = {"text", "query", "sample_size", "seed", "shows_prompt"}
    try:
        [question] = services.ask(
            runs=[run],
            user=request.auth.user,
            judge=matching[0],
            labels=[Label(label.name, label.meaning) for label in payload.labels],
            **payload.model_dump(include=own),
        )
    except ValueError as error:
        raise Problem(422, str(error), code=code_of(error)) from error
    return Status(201, question_out(question))


@router.get("/{question_id}", response=QuestionDetail, summary="Get a question")
def question(request: ApiRequest, question_id: Id) -> QuestionDetail:
    asked = services.get_question(request.auth.team, question_id)
    result, spent = read_result(asked), services.read_spent(asked)
    labelled: dict[str, Any] = (
        {
            "num_labelled": result.num_labelled,
            "num_by_hand": result.num_by_hand,
            "num_not_drawn": result.num_not_drawn,
            "shares": result.shares,
            **{
                name: getattr(result.estimate, name)
                for name in ("kappa", "sensitivity", "specificity")
            },
        }
        if result
        else {}
    )
    return QuestionDetail.model_validate(
        question_out(asked, tells_why=True).model_dump()
        | asdict(spent)
        | {"num_tokens": spent.num_tokens}
        | labelled
    )


class CompletionLabelOut(Schema):
    id: int
    step: int
    prompt_index: int
    position: int
    weight: float = Field(description="Matching completions that it stands for.")
    label: str = Field(description="Of the judge; empty: none yet.")
    quote_from: int | None
    quote_to: int | None
    why: str
    kind: str
    problem: str


@router.get(
    "/{question_id}/labels",
    response=Page[CompletionLabelOut],
    summary="List a question's labels",
)
def question_labels(
    request: ApiRequest,
    question_id: Id,
    cursor: Cursor,
    limit: Limit,
    drawn: Annotated[int, Query(0, ge=0, le=services.MOST_IMPORTED)],
) -> Page[Any]:
    """List the sample with the judge's labels and quotes, newest row first.

    drawn: only those that are left for you, if people label so many; 0: all.
    """
    asked = services.get_question(request.auth.team, question_id)
    rows = asked.sample.select_related("group").order_by("-pk")
    if drawn:
        places = services.places_for(asked, request.auth.user, num=drawn)
        rows = rows.filter(pk__in=[place.pk for place in places])
    return page_by(
        rows,
        lambda row: fill(CompletionLabelOut, row, prompt_index=row.group.prompt_index),
        cursor=cursor,
        limit=limit,
    )


class HandLabelIn(Input):
    id: IdIn = Field(description="Of a row of the question's labels.")
    label: str = Field(description="Empty: it cannot be decided.")


class HandLabelsIn(Input):
    labels: list[HandLabelIn] = Field(max_length=services.MOST_IMPORTED)


@router.post(
    "/{question_id}/hand-labels", response=Done, auth=WRITE, summary="Label by hand"
)
def label_by_hand(request: ApiRequest, question_id: Id, payload: HandLabelsIn) -> Done:
    """Store labels that people gave without seeing the judge's; all or none.

    They count if they are of the draw: send all of `/labels?drawn=20`, then as many
    more as you like. Others are kept and left out of the corrected share.
    """
    asked = services.get_question(request.auth.team, question_id)
    with or_conflict():
        services.label_many(
            asked,
            request.auth.user,
            {each.id: each.label for each in payload.labels},
        )
    return Done(done=True)


@router.post(
    "/{question_id}/start", response=Done, auth=WRITE, summary="Start a question"
)
def start_question(request: ApiRequest, question_id: Id) -> Done:
    """Ask about the whole sample, or the rest of it. 409 while it is being asked."""
    asked = services.get_question(request.auth.team, question_id)
    with or_conflict():
        services.start([asked], request.auth.user)
    return Done(done=True)


@router.post(
    "/{question_id}/stop", response=Done, auth=WRITE, summary="Stop a question"
)
def stop_question(request: ApiRequest, question_id: Id) -> Done:
    asked = services.find_question(request.auth.team, question_id)
    is_done = request_stop(asked, request.auth.user, "question.stop_requested")
    return Done.or_state(is_done, asked, "Nothing to stop: the question is")


@router.delete("/{question_id}", response=Done, auth=WRITE, summary="Delete a question")
def delete_question(request: ApiRequest, question_id: Id) -> Done:
    """Permanent, with its labels. 409 while it is being asked."""
    asked = services.find_question(request.auth.team, question_id)
    with or_conflict():
        services.delete(asked, request.auth.user)
    return Done(done=True)
