"""One prompt, answered by a run's checkpoint and by the model that it began with."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from django.http import Http404, HttpRequest
from ninja import Router, Schema, Status
from pydantic import Field

from dashboard.accounts.models import Team
from dashboard.api.auth import READ, WRITE, access_of
from dashboard.api.filters import query_of, refuse_errors
from dashboard.api.paging import Cursor, Limit, Page, page_by
from dashboard.api.problems import Problem, or_conflict, refuse_field
from dashboard.api.schemas import Done, Id, IdIn, Input, Person, Real, StepIn
from dashboard.probes.chat.forms import ChatForm
from dashboard.probes.chat.services import (
    MAX_CHARS,
    MAX_SAMPLES,
    MAX_TOKENS,
    ask,
    stop,
    what_it_waits_for,
)
from dashboard.probes.models import Chat
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run

router = Router(tags=["Chats"], auth=READ)
RELATED = ("checkpoint__run__team", "created_by")


class AnswerOut(Schema):
    """Completions of one model; null: not begun; without an end: being written."""

    completions: list[AnswerCompletion | None]
    problem: str = ""


class AnswerCompletion(Schema):
    text: str = Field(examples=["<answer>2</answer>"])
    num_tokens: int | None = Field(default=None, examples=[9])
    end_reason: str | None = Field(default=None, examples=["stop"])
    reward: Real = Field(default=None, examples=[1.0])
    rules: dict[str, Real] = Field(default={}, examples=[{"answer": 1.0}])
    errors: dict[str, str] = Field(default={})


class ChatOut(Schema):
    id: int = Field(examples=[11])
    run_id: int = Field(examples=[7])
    checkpoint: str = Field(examples=["step-000050-epoch-1"])
    state: str = Field(examples=["finished"])
    row: int | None = Field(description="null: the prompt was typed.", examples=[5])
    prompt: str | list[dict[str, Any]] = Field(examples=["What is 1 + 1?"])
    previous_id: int | None = Field(description="The question that it goes on from.")
    turns: list[list[dict[str, str]]] = Field(
        description="What each of the two models was told after the prompt.",
        examples=[[[], []]],
    )
    trained: AnswerOut = Field(description="The checkpoint's.")
    base: AnswerOut = Field(description="Of the model that the run began with.")
    waits_for: str
    error: str
    created_by: Person | None
    created_at: datetime
    finished_at: datetime | None


def _chat(chat: Chat) -> ChatOut:
    trained, base = chat.answers
    return ChatOut(
        id=chat.pk,
        run_id=chat.checkpoint.run_id,
        checkpoint=chat.checkpoint.name,
        state=chat.state,
        row=chat.position,
        prompt=chat.question["row"]["prompt"],
        previous_id=chat.previous_id,
        turns=chat.question["turns"],
        trained=trained,
        base=base,
        waits_for=what_it_waits_for(chat),
        error=chat.error,
        created_by=Person.of(chat.created_by),
        created_at=chat.created_at,
        finished_at=chat.finished_at,
    )


@router.get("/runs/{run_id}/chats", response=Page[ChatOut], summary="List chats")
def chats(request: HttpRequest, run_id: Id, cursor: Cursor, limit: Limit) -> Page[Any]:
    """Questions to checkpoints of a run, the newest first; they are kept for a week."""
    team = access_of(request).team
    run = get_run(team, run_id)
    found = team.chats.filter(checkpoint__run=run).select_related(*RELATED)
    return page_by(found, _chat, cursor=cursor, limit=limit, total=found.count())


@router.get("/chats/{chat_id}", response=ChatOut, summary="Look at a chat")
def chat(request: HttpRequest, chat_id: Id) -> ChatOut:
    """Also while it is being answered, with what is written so far."""
    return _chat(_find(access_of(request).team, chat_id))


class ChatIn(Input):
    checkpoint: str | None = Field(
        default=None, max_length=120, description="Without it, the best one."
    )
    row: StepIn | None = Field(default=None, examples=[5])
    text: str = Field(
        default="", max_length=MAX_CHARS, description="A prompt, in place of a row."
    )
    previous_id: IdIn | None = Field(
        default=None, description="The question that `reply` goes on from."
    )
    reply: str = Field(default="", max_length=MAX_CHARS)
    num_samples: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] = 1
    max_new_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = Field(
        default=None, description="null: as the run samples; so of the temperature."
    )
    temperature: Annotated[float, Field(ge=0, le=5)] | None = None
    seed: StepIn = 0


@router.post(
    "/runs/{run_id}/chats", response={201: ChatOut}, auth=WRITE, summary="Ask a model"
)
def ask_checkpoint(
    request: HttpRequest, run_id: Id, payload: ChatIn
) -> Status[ChatOut]:
    """A worker answers; look at the chat until its state is finished."""
    access = access_of(request)
    run = get_run(access.team, run_id)
    previous = _previous(access.team, run, payload)
    form = _form(run, payload)
    row = form.row
    checkpoint = previous.checkpoint if previous else form.chosen_checkpoint
    if checkpoint is None:
        raise Problem(409, f"{run} has no checkpoint whose files are there.")
    if row is None:
        raise refuse_field("body.row", "Name a row, or send a text to be answered.")
    sampling = ("num_samples", "max_new_tokens", "temperature", "seed")
    with or_conflict():
        made = ask(
            checkpoint=checkpoint,
            user=access.user,
            row=row,
            previous=previous,
            reply=payload.reply.replace("\r\n", "\n"),
            **{name: form.cleaned_data[name] for name in sampling},
        )
    return Status(201, _chat(made))


def _form(run: Run, payload: ChatIn) -> ChatForm:
    given = payload.model_dump(exclude={"previous_id", "reply", "row"})
    form = ChatForm(run, query_of({**given, "prompt": payload.row}))
    if not form.is_valid():
        if "checkpoint" in form.errors and not payload.checkpoint:
            raise Problem(409, f"{run} has no checkpoint whose files are there.")
        refuse_errors(form, place="body", names={"prompt": "row"})
    return form


def _previous(team: Team, run: Run, payload: ChatIn) -> Chat | None:
    if payload.previous_id is None:
        return None
    if not payload.reply.strip():
        raise refuse_field("body.reply", "Send what is to be answered; it is empty.")
    found = _find(team, payload.previous_id)
    if found.checkpoint.run_id != run.pk:
        raise Http404(f"{run} has no chat {payload.previous_id}.")
    return found


@router.post("/chats/{chat_id}/stop", response=Done, auth=WRITE, summary="Stop a chat")
def stop_chat(request: HttpRequest, chat_id: Id) -> Done:
    """What was answered so far stays."""
    access = access_of(request)
    found = _find(access.team, chat_id)
    if not found.is_open:
        return Done(done=False, detail=f"Nothing to stop: it is {found.state}.")
    stop(found, access.user)
    return Done(done=True)


def _find(team: Team, chat_id: int) -> Chat:
    chat = team.chats.select_related(*RELATED).filter(pk=chat_id).first()
    if chat is None:
        raise Http404(f"{team} has no chat {chat_id}.")
    return chat


AnswerOut.model_rebuild()
