"""Groups of a run with rewards and annotations, and the search of its completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from django.db.models import Q
from ninja import Query, Router, Schema
from pydantic import Field

from dashboard.api.auth import READ, ApiRequest
from dashboard.api.problems import Problem, refuse_field
from dashboard.api.schemas import (
    CommentOut,
    Cursor,
    Id,
    Limit,
    Page,
    Real,
    S,
    Step,
    StepBound,
    cut,
    fill,
    page_from,
    query_of,
    read_cursor,
    refuse_errors,
    write_cursor,
)
from dashboard.completions.annotations import Annotations, read_annotations
from dashboard.completions.forms import CompletionFilterForm
from dashboard.completions.groups import ORDERS, get_group
from dashboard.completions.models import Completion, Group
from dashboard.completions.prompts import read_snippets
from dashboard.completions.rewards import (
    rank_completions,
    rule_weights,
    step_recipe,
)
from dashboard.completions.rule_logs import notes_of
from dashboard.completions.search.blocks import BlocksChanged
from dashboard.completions.search.results import PAGE_SIZE, Found, find
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run
from trainer.events import Signal

router = Router(tags=["Completions"], auth=READ)
STEP_BITS = 32  # a group's cursor: its step, then its prompt


class MarksOut(Schema):
    num_good: int
    num_bad: int
    tags: list[str] = Field(examples=[["reward-hack"]])
    comments: list[CommentOut]


def marks_out(marks: Annotations) -> MarksOut:
    return MarksOut(
        num_good=marks.num_up,
        num_bad=marks.num_down,
        tags=[tag.name for tag in marks.tags],
        comments=[CommentOut.of(comment) for comment in marks.comments],
    )


class GroupOut(Schema):
    step: int = Field(examples=[40])
    prompt_index: int = Field(
        description="Row number in the dataset version.", examples=[17]
    )
    prompt: str = Field(
        description="As sampled: with the special tokens of the chat template.",
        examples=["<|im_start|>user\nWhat is 17 + 1?<|im_end|>\n"],
    )
    snippet: str = Field(
        description="One line of the prompt, at most 160 characters.",
        examples=["What is 17 + 1?"],
    )
    answer: str | list[str] | None = Field(
        description="Of a list, any answer is right.", examples=["18"]
    )
    reward_mean: Real = Field(examples=[0.35])
    reward_std: Real = Field(examples=[0.57])
    signal: str = Field(examples=["mixed"])
    is_trained: bool = Field(description="False: dropped by dynamic sampling.")


class CallOut(Schema):
    name: str = Field(examples=["calculator"])
    arguments: str = Field(
        description="As JSON, or as the policy wrote it.",
        examples=['{"expression": "17 + 1"}'],
    )
    result: str = Field(examples=["18"])
    error: str = Field(description="Why there is no result.", examples=[""])


class TurnOut(Schema):
    """A turn of an episode."""

    author: str = Field(description="policy, environment or tool", examples=["tool"])
    name: str = Field(description="Of the tool.", examples=["calculator"])
    start: int = Field(
        description="Characters `start` to `end` - 1 of `text` are the message; the "
        "rest is the chat template's.",
        examples=[32],
    )
    end: int = Field(examples=[34])
    token_end: int | None = Field(
        description="Where its tokens end; null: unknown.", examples=[21]
    )
    seconds: Real = Field(description="The environment took.", examples=[0.02])
    reward: Real = Field(description="Of this turn of the policy.", examples=[None])
    calls: list[CallOut] = Field(description="The calls that it answers.")


class CompletionOut(Schema):
    position: int = Field(examples=[0])
    text: str = Field(examples=["<answer>18</answer>"])
    num_tokens: int | None = Field(description="Of the policy.", examples=[9])
    end_reason: str = Field(
        description="stop, length or unknown; of an episode also turns, done, failed "
        "or timeout.",
        examples=["stop"],
    )
    reward: Real = Field(examples=[1.2])
    rule_scores: dict[str, Real] = Field(examples=[{"answer": 1.0, "format": 1.0}])
    advantage: Real = Field(examples=[1.5])
    mean_logprob: Real = Field(examples=[-0.4])
    turns: list[TurnOut] = Field(
        description="Of an episode; else empty: the text is one turn of the policy."
    )


class RulePartOut(Schema):
    """A rule's part of a reward: counted score × weight."""

    rule: str = Field(examples=["answer"])
    score: Real = Field(examples=[1.0])
    counted: Real = Field(description="Score after clip and gate.", examples=[1.0])
    weight: Real = Field(description="At this step.", examples=[1.0])
    part: Real = Field(description="null: not counted.", examples=[1.0])


class NoteOfRule(Schema):
    rule: str = Field(examples=["answer"])
    is_error: bool
    text: str = Field(examples=["no number in the answer"])


class MarkedCompletion(CompletionOut):
    parts: list[RulePartOut]
    notes: list[NoteOfRule] = Field(description="Output and errors of rules.")
    marks: MarksOut


class GroupDetail(GroupOut):
    completions: list[MarkedCompletion]
    marks: MarksOut


def _as_page(run: Run, page: Page[Any]) -> Page[Any]:
    """Groups with their snippets, read with one query per page."""
    snippets = read_snippets(run, page.items)
    rows = [
        fill(
            GroupOut,
            group,
            answer=group.answer_value,
            snippet=snippets[group.prompt_index],
        )
        for group in page.items
    ]
    return Page(items=rows, next_cursor=page.next_cursor, total=page.total)


def completion_out(
    shape: type[S], completion: Completion, rules: list[str], **fields: Any
) -> S:
    scores = dict(zip(rules, completion.rule_scores, strict=False))
    return fill(shape, completion, rule_scores=scores, **fields)


@router.get("/{run_id}/groups", response=Page[GroupOut], summary="List groups")
def groups(
    request: ApiRequest,
    run_id: Id,
    cursor: Cursor,
    limit: Limit,
    step: StepBound,
    signal: Annotated[Signal | None, Query(None)],
    sort: Annotated[
        Literal["", "prompt", "mean", "-mean", "spread", "-spread"],
        Query(
            "",
            description="Requires `step`. A leading `-` sorts in descending order.",
        ),
    ],
) -> Page[Any]:
    """List groups by step and prompt, without superseded groups."""
    run = get_run(request.auth.team, run_id)
    groups_ = Group.objects.current().filter(run=run)
    if step is not None:
        groups_ = groups_.filter(step=step)
    if signal is not None:
        groups_ = groups_.filter(signal=signal)
    if sort:
        if step is None:
            raise refuse_field(
                "query.step", "`sort` requires a step.", code="groups.step_required"
            )
        ordered = groups_.order_by(*ORDERS[sort])
        page = page_from(ordered, lambda row: row, cursor=cursor, limit=limit)
        return _as_page(run, page)
    if cursor:
        at, prompt = divmod(read_cursor(cursor), 2**STEP_BITS)
        # `step__gte` is redundant, but lets the database use an index.
        behind = Q(step__gt=at) | Q(step=at, prompt_index__gt=prompt)
        groups_ = groups_.filter(behind, step__gte=at)
    page = cut(
        list(groups_.order_by("step", "prompt_index")[: limit + 1]),
        limit,
        lambda row: row,
        lambda group: group.step * 2**STEP_BITS + group.prompt_index,
    )
    return _as_page(run, page)


@router.get(
    "/{run_id}/groups/{step}/{prompt_index}",
    response=GroupDetail,
    summary="Get a group",
)
def group(
    request: ApiRequest, run_id: Id, step: Step, prompt_index: Step
) -> GroupDetail:
    """Return completions with rule contributions, advantages and annotations."""
    run = get_run(request.auth.team, run_id)
    group_ = get_group(run, step, prompt_index, with_texts=True)
    marks = read_annotations([group_.pk], request.auth.user)
    notes = notes_of(group_)
    ranks = rank_completions(
        group_, group_.completions, rule_weights(run, step), step_recipe(run, step)
    )
    return fill(
        GroupDetail,
        group_,
        answer=group_.answer_value,
        snippet=read_snippets(run, [group_])[prompt_index],
        completions=[
            completion_out(
                MarkedCompletion,
                rank.completion,
                group_.rule_names,
                parts=[fill(RulePartOut, part, rule=part.name) for part in rank.parts],
                notes=[
                    fill(NoteOfRule, note)
                    for note in notes.get(rank.completion.position, [])
                ],
                marks=marks_out(
                    marks.get((group_.pk, rank.completion.position), Annotations())
                ),
            )
            for rank in ranks
        ],
        marks=marks_out(marks.get((group_.pk, None), Annotations())),
    )


ATTEMPTS = 3
START_BITS = 31  # a search's cursor: start position, then number of matches before
Short = Annotated[str, Query("", max_length=200)]
Number = Annotated[float | None, Query(None, allow_inf_nan=False)]


class FoundCompletion(CompletionOut):
    step: int
    prompt_index: int


class FoundCompletionsOut(Page[FoundCompletion]):
    num_found: int = Field(description="Matches found so far.")
    is_counted: bool = Field(
        description="False: a text search stops after a time limit, so there may be "
        "more than `num_found` matches. Continue with the cursor, also after an empty "
        "page."
    )
    total: int = Field(description="Completions of the run.")


class CompletionFilters(Schema):
    text: Short
    match: Short = Field(
        "", description="text: substring (default); words: whole words"
    )
    surprise: Short = Field(
        "",
        description="right_low: correct answer, low reward. high_short: high reward, "
        "short. near: near-duplicate in its group.",
    )
    outcome: Short = Field(
        "",
        description="right (correct by the rules that compare with the answer; without "
        "such rules, by the highest reward), not_right or unscored",
    )
    end: Short = Field(
        "", description="stop, length, turns, done, failed, timeout or unknown"
    )
    first_step: StepBound
    last_step: StepBound
    prompt: StepBound
    min_reward: Number
    max_reward: Number
    min_advantage: Number
    max_advantage: Number
    min_length: StepBound
    max_length: StepBound
    min_turns: StepBound
    min_waited: Number
    tools: Short = Field("", description="failed: a tool call failed")
    rule: Short
    min_score: Number
    max_score: Number
    tag: Short
    mark: Short = Field("", description="any, good, bad, tagged or commented")
    by: Short = Field("", description="me")
    sort: Short = Field(
        "",
        description="step, reward, advantage or length; a leading `-` sorts in "
        "descending order. Default -step.",
    )


@router.get(
    "/{run_id}/completions", response=FoundCompletionsOut, summary="Search completions"
)
def completions(
    request: ApiRequest, run_id: Id, cursor: Cursor, filters: Query[CompletionFilters]
) -> FoundCompletionsOut:
    """Fifty per page, with the filters of the run's Completions tab."""
    run = get_run(request.auth.team, run_id)
    query = query_of(filters.model_dump())
    if cursor:
        start, before = divmod(read_cursor(cursor), 2**START_BITS)
        page = {"start": start, "before": before} if filters.text else {"page": before}
        query.update({name: str(value) for name, value in page.items()})
    form = CompletionFilterForm.of_run(query, run)
    refuse_errors(form)
    matches = _find(run, form, request.auth.user)
    return fill(
        FoundCompletionsOut,
        matches,
        items=[
            completion_out(
                FoundCompletion,
                completion,
                completion.group.rule_names,
                step=completion.group.step,
                prompt_index=completion.group.prompt_index,
            )
            for completion in matches.completions
        ],
        next_cursor=_next(matches),
    )


def _find(run: Run, form: CompletionFilterForm, reader: Any) -> Found:
    for _ in range(ATTEMPTS):
        try:
            return find(run, form, reader)
        except BlocksChanged:
            continue
    raise Problem(
        409,
        "The run's completions changed during the search. Try again.",
        code="completions.changed",
    )


def _next(matches: Found) -> str | None:
    if matches.progress is None:
        is_last = matches.number >= matches.num_pages
        return None if is_last else write_cursor(matches.number + 1)
    if matches.progress.next_start is None:
        return None
    before = matches.num_before + min(PAGE_SIZE, len(matches.completions))
    return write_cursor(matches.progress.next_start * 2**START_BITS + before)
