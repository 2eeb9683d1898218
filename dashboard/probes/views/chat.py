"""A run's checkpoint and its base model answer the same prompt, side by side."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from dashboard.accounts.access import get_team, get_writable_team
from dashboard.accounts.models import Team, User
from dashboard.live.over_http import answer_page
from dashboard.probes.chat.forms import ChatForm, draw_row, find_rows
from dashboard.probes.chat.frames import frame_of, shape_of
from dashboard.probes.chat.services import MAX_CHARS, ask, stop, what_it_waits_for
from dashboard.probes.models import Chat
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run


@require_http_methods(["GET", "HEAD", "POST"])
def run_chat(request: HttpRequest, team: str, run_id: int) -> HttpResponse:
    if request.method == "POST":
        return _ask(request, get_writable_team(request, team), run_id)
    team_ = get_team(request, team)
    run = get_run(team_, run_id)
    form = ChatForm(run, request.GET)
    if request.GET.get("random") == "1":
        return redirect(f"{request.path}?{form.address(prompt=draw_row(run), text='')}")
    return _show(request, team_, run, form)


@require_GET
def chat_answers(request: HttpRequest, team: str, chat_id: int) -> HttpResponse:
    """The part that changes; asked for when more than a text has grown."""
    team_ = get_team(request, team)
    chat = _chat(team_, chat_id)
    return render(request, "probes/chat_answers.html", _answers(team_, chat))


@require_GET
def chat_stream(request: HttpRequest, team: str, chat_id: int) -> JsonResponse:
    """What the socket says, for a page that has none: `?after=`."""
    chat = _chat(get_team(request, team), chat_id)
    return answer_page(request, lambda position: _frame_after(chat, position.seq))


@require_POST
def chat_stop(request: HttpRequest, team: str, chat_id: int) -> HttpResponse:
    team_ = get_writable_team(request, team)
    chat = _chat(team_, chat_id)
    assert isinstance(request.user, User)
    stop(chat, request.user)
    page = reverse("run_chat", args=[team, chat.checkpoint.run_id])
    return redirect(f"{page}?chat={chat.pk}")


def _frame_after(chat: Chat, seq: int) -> dict[str, Any]:
    if seq == chat.seq:
        return {"type": "ping", "seq": seq}
    return frame_of(chat, after=seq, had=None)


def _ask(request: HttpRequest, team: Team, run_id: int) -> HttpResponse:
    run = get_run(team, run_id)
    previous = _previous(request, team, run)
    reply = request.POST.get("reply", "").replace("\r\n", "\n")
    form = ChatForm(run, request.POST)
    row, checkpoint = form.row, form.chosen_checkpoint
    if previous is not None:
        checkpoint = previous.checkpoint
    if row is None or checkpoint is None or len(reply) > MAX_CHARS:
        if form.is_valid():
            form.add_error("prompt", "Choose a row, or type a prompt of your own.")
        return _show(request, team, run, form, status=422)
    assert isinstance(request.user, User)
    sampling = ("num_samples", "max_new_tokens", "temperature", "seed")
    try:
        chat = ask(
            checkpoint=checkpoint,
            user=request.user,
            row=row,
            previous=previous,
            reply=reply,
            **{name: form.cleaned_data[name] for name in sampling},
        )
    except ValueError as error:
        messages.error(request, str(error))
        return _show(request, team, run, form, status=422)
    return redirect(f"{request.path}?{form.address(chat=chat.pk)}")


def _previous(request: HttpRequest, team: Team, run: Run) -> Chat | None:
    """The question that a reply goes on from."""
    number = request.POST.get("previous", "")
    if not request.POST.get("reply", "").strip() or not _is_number(number):
        return None
    own = team.chats.filter(checkpoint__run=run).select_related("checkpoint__run__team")
    return get_object_or_404(own, pk=int(number))


def _show(
    request: HttpRequest, team: Team, run: Run, form: ChatForm, *, status: int = 200
) -> HttpResponse:
    wanted = request.GET.get("q", "").replace("\0", "")[:200]
    number = request.GET.get("chat", "")
    chats = team.chats.filter(checkpoint__run=run).select_related("checkpoint__run")
    chat = chats.filter(pk=int(number)).first() if _is_number(number) else None
    context = {
        "team": team,
        "run": run,
        "tab": "checkpoints",
        "form": form,
        "row": form.row,
        "wanted": wanted,
        "found": [
            (row, form.address(prompt=row.position, text="", q=wanted))
            for row in find_rows(run, wanted)
        ],
        "random_address": form.address(random=1, prompt="", text=""),
        **(_answers(team, chat) if chat else {}),
    }
    return render(request, "probes/chat.html", context, status=status)


def _answers(team: Team, chat: Chat) -> dict[str, Any]:
    run = chat.checkpoint.run
    titles = (f"Step {chat.checkpoint.step}", f"Base: {run.model_label}")
    sides = [
        {"title": title, "said": said, **answer}
        for title, said, answer in zip(
            titles, chat.question["turns"], chat.answers, strict=True
        )
    ]
    prompt = chat.question["row"]["prompt"]
    asked = [{"role": "user", "content": prompt}]
    return {
        "team": team,
        "run": run,
        "chat": chat,
        "asked": asked if isinstance(prompt, str) else prompt,
        "waits": what_it_waits_for(chat),
        "sides": sides,
        "shape": shape_of(chat),
        "has_begun": any(map(_has_said, chat.answers)),
        "may_reply": not chat.is_open and all(map(_has_said, chat.answers)),
    }


def _has_said(answer: dict[str, Any]) -> bool:
    return any(answer["completions"])


def _chat(team: Team, chat_id: int) -> Chat:
    found = team.chats.select_related("checkpoint__run__team")
    return get_object_or_404(found, pk=chat_id)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19
