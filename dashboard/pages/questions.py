"""Questions about a run's completions, labels of people, and a team's judges."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from dashboard.accounts.access import (
    get_membership_for,
    look_up,
)
from dashboard.accounts.models import Membership, Team
from dashboard.accounts.services import record
from dashboard.analysis.questions import services
from dashboard.analysis.questions.estimates import difference
from dashboard.analysis.questions.figures import draw_windows
from dashboard.analysis.questions.forms import JudgeForm, QuestionForm
from dashboard.analysis.questions.models import CompletionLabel, Question
from dashboard.analysis.questions.results import read_draws, read_result
from dashboard.completions.forms import CompletionFilterForm
from dashboard.jobs.queue import waiting_reason
from dashboard.pages.requests import Request, read_id, redirect_with, report_refusal
from dashboard.pages.team_admin import get_changing_membership
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run

PER_PAGE = 50
QUESTIONS_PER_PAGE = 20
EXCERPT = 160  # characters around a quote


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_membership_for, run=get_run)
def run_questions(
    request: Request, membership: Membership, team: Team, run: Run
) -> HttpResponse:
    """List a run's questions, and ask one of the completions that the query finds."""
    again = _again(request, team)
    start = {}
    if again:
        start = {
            "text": again.text,
            "labels": "\n".join(
                f"{label['name']}: {label['meaning']}".removesuffix(": ")
                for label in again.labels
            ),
            "sample_size": again.sample_size,
            "shows_prompt": again.shows_prompt,
            "judge": team.judges.filter(name=again.judge["name"]).first(),
        }
    query = again.query if again else _filters(request)
    form = QuestionForm(team, request.POST or None, initial=start)
    if form.is_valid():
        fields = form.cleaned_data
        try:
            question = services.ask(run=run, user=request.user, query=query, **fields)
        except ValueError as error:
            form.add_error(None, str(error))
        else:
            return redirect("question", team.slug, run.pk, question.pk)
    pages = Paginator(services.list_questions(team, run), QUESTIONS_PER_PAGE)
    page = pages.get_page(request.GET.get("page"))
    context = {
        "team": team,
        "run": run,
        "tab": "questions",
        "form": form,
        "query": query,
        "again": again,
        "can_manage": membership.can_manage,
        "page": page,
        "listed": [
            (question, read_result(question), services.read_spent(question))
            for question in page
        ],
    }
    status = 422 if form.errors else 200
    return render(request, "questions/list.html", context, status=status)


def _again(request: Request, team: Team) -> Question | None:
    """Return the question that the form begins with."""
    number = read_id(request.GET.get("again"))
    return None if number is None else services.get_question(team, number)


def _filters(request: Request) -> str:
    """Return the query with a search's filters alone."""
    names = CompletionFilterForm.base_fields.keys() - {*CompletionFilterForm.hidden}
    chosen = {k: v for k, v in request.GET.items() if v and k in names - {"sort"}}
    return urlencode(chosen)


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_membership_for, run=get_run)
def question(
    request: Request, membership: Membership, team: Team, run: Run, question_id: int
) -> HttpResponse:
    """?label= of the quotes, ?page= of them, ?with= another question to compare."""
    asked = services.get_question(team, question_id, run)
    if request.method == "POST":
        return _act(request, team, asked)
    result = read_result(asked)
    context = _context(team, asked) | {
        "tab": "questions",
        "result": result,
        "spent": services.read_spent(asked),
        "is_tried": asked.budget_tokens is None,
    }
    if result:
        label = request.GET.get("label", "")
        if label not in asked.names:
            label = "" if context["is_tried"] else asked.names[0]
        labelled = asked.sample.exclude(label="")
        quotes = (
            (labelled.filter(label=label) if label else labelled)
            .select_related("group")
            .prefetch_related("group__packed_completions")
            .order_by("rank")
        )
        page = Paginator(quotes, PER_PAGE).get_page(request.GET.get("page"))
        context |= {
            "label": label,
            "page": page,
            "quotes": [(place, *_excerpt(place)) for place in page],
            "figures": {"windows": draw_windows(result, asked.names[0])},
            "others": _others(team, asked, request.GET.get("with")),
        }
    return render(request, "questions/question.html", context)


def _context(team: Team, asked: Question) -> dict[str, Any]:
    return {
        "team": team,
        "run": asked.run,
        "question": asked,
        "waiting": waiting_reason(asked.job) if asked.job else "",
    }


def _excerpt(place: CompletionLabel) -> tuple[str, str, str]:
    """Return the text before the quote, the quote, and the text after it."""
    text = place.text
    if place.quote_from is None or place.quote_to is None:
        return text[: 2 * EXCERPT], "", ""
    start, end = place.quote_from, place.quote_to
    return (
        text[max(0, start - EXCERPT) : start],
        text[start:end],
        text[end : end + EXCERPT],
    )


def _others(team: Team, asked: Question, chosen: str | None) -> list[dict[str, Any]]:
    """List the same question about other runs, with the difference to the chosen."""
    same = services.list_questions(team).filter(text=asked.text, labels=asked.labels)
    others = []
    for other in same.exclude(run=asked.run)[:PER_PAGE]:
        found = None
        if chosen == str(other.pk):
            ours, theirs = read_draws(asked), read_draws(other)
            found = difference(ours, theirs) if ours and theirs else None
        others.append(
            {"question": other, "is_chosen": chosen == str(other.pk), "found": found}
        )
    return others


def _act(request: Request, team: Team, asked: Question) -> HttpResponse:
    action, _, argument = request.POST.get("action", "").partition(":")
    with report_refusal(request):
        if action == "start":
            services.start(asked, request.user)
        elif action == "try":
            services.try_again(asked, request.user)
        elif action == "stop":
            services.stop(asked, request.user)
        elif action == "tag":
            num = services.save_as_tag(asked, request.user, argument)
            messages.success(request, f"Tagged {num:,} completions.")
        elif action == "delete":
            services.delete(asked, request.user)
            return redirect_with(
                request,
                "Deleted the question.",
                "run_questions",
                team.slug,
                asked.run_id,
            )
    return redirect("question", team.slug, asked.run_id, asked.pk)


@require_safe
@look_up(get_membership_for, run=get_run)
def question_progress(
    request: Request, membership: Membership, team: Team, run: Run, question_id: int
) -> HttpResponse:
    """Show the progress; requested every second while it changes."""
    asked = services.get_question(team, question_id, run)
    response = render(request, "questions/progress.html", _context(team, asked))
    if not asked.is_open:
        response["HX-Refresh"] = "true"
    return response


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_membership_for, run=get_run)
def question_check(
    request: Request, membership: Membership, team: Team, run: Run, question_id: int
) -> HttpResponse:
    """Label completions without the judge's label; ?num= of them in all."""
    asked = services.get_question(team, question_id, run)
    num = min(read_id(request.GET.get("num")) or services.NUM_BY_HAND, 500)
    if request.method == "POST":
        place = get_object_or_404(
            asked.sample, pk=read_id(request.POST.get("place")) or 0
        )
        with report_refusal(request):
            services.label_by_hand(
                asked, request.user, place, request.POST.get("label", "")
            )
        return redirect(request.get_full_path())
    places = services.places_for(asked, request.user, num=num)
    first = places[0] if places else None
    context = {
        "team": team,
        "run": run,
        "tab": "questions",
        "question": asked,
        "place": first,
        "num": num,
        "num_left": len(places),
    }
    return render(request, "questions/check.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_changing_membership)
def team_judges(request: Request, membership: Membership, team: Team) -> HttpResponse:
    form = JudgeForm(request.POST or None)
    form.instance.team = team
    if request.method == "POST":
        action, _, number = request.POST.get("action", "").partition(":")
        if action == "delete":
            judge = get_object_or_404(team.judges, pk=read_id(number) or 0)
            record(team, request.user, "judge.deleted", team, name=judge.name)
            judge.delete()
            return redirect_with(request, f"Deleted {judge}.", "team_judges", team.slug)
        if form.is_valid():
            judge = form.save()
            record(team, request.user, "judge.added", team, name=judge.name)
            return redirect_with(request, f"Added {judge}.", "team_judges", team.slug)
    context = {
        "team": team,
        "can_manage": membership.can_manage,
        "judges": team.judges.order_by("name"),
        "form": form,
    }
    status = 422 if form.errors else 200
    return render(request, "questions/judges.html", context, status=status)
