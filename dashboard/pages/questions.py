"""Questions about a run's completions, labels of people, and a team's judges."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from dashboard.accounts.access import get_membership_for, look_up
from dashboard.accounts.models import Membership, Team
from dashboard.accounts.services import record
from dashboard.analysis.compare.selection import join_ids, read_selection
from dashboard.analysis.questions import services
from dashboard.analysis.questions.estimates import difference
from dashboard.analysis.questions.figures import draw_windows
from dashboard.analysis.questions.forms import JudgeForm, QuestionForm
from dashboard.analysis.questions.models import CompletionLabel, Question
from dashboard.analysis.questions.results import read_result
from dashboard.completions.forms import CompletionFilterForm
from dashboard.jobs.queue import request_stop, waiting_reason
from dashboard.pages.compare import MIN_SWEPT
from dashboard.pages.requests import Request, read_id, redirect_with, report_refusal
from dashboard.pages.team_admin import get_changing_membership
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run

PER_PAGE = 50
QUESTIONS_PER_PAGE = 20
TOGETHER_PER_PAGE = 10
MOST_TOGETHER = 10  # runs that are asked in one form
EXCERPT = 160  # characters around a quote


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_membership_for, run=get_run)
def run_questions(
    request: Request, membership: Membership, team: Team, run: Run
) -> HttpResponse:
    """List a run's questions, and ask one of the completions that the query finds."""
    number = read_id(request.GET.get("again"))
    again = None if number is None else services.get_question(team, number)
    query = again.query if again else _filters(request)
    form = QuestionForm([run], request.POST or None, again=again)
    seed = again.seed if again else 0
    for question in _ask(request, form, [run], query=query, seed=seed):
        return redirect("question", team.slug, run.pk, question.pk)
    pages = Paginator(services.list_questions(team, run), QUESTIONS_PER_PAGE)
    page = pages.get_page(request.GET.get("page"))
    context = {
        "team": team,
        "run": run,
        "tab": "questions",
        "form": form,
        "query": query,
        "can_manage": membership.can_manage,
        "page": page,
        "listed": [
            (question, read_result(question), services.read_spent(question))
            for question in page
        ],
    }
    status = 422 if form.errors else 200
    return render(request, "questions/list.html", context, status=status)


def _ask(
    request: Request, form: QuestionForm, runs: list[Run], **more: Any
) -> list[Question]:
    """Ask what the form has; a refusal becomes an error of the form."""
    if not form.is_valid():
        return []
    try:
        fields = form.cleaned_data | more
        return services.ask(runs=runs, user=request.user, **fields)
    except ValueError as error:
        form.add_error(None, str(error))
        return []


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
    """?label= or ?kind= of the quotes, and ?page= of them."""
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
        kinds = {kind.name: kind for kind in result.kinds}
        if kind := kinds.get(request.GET.get("kind", "")):
            label = asked.names[0]
            labelled = labelled.filter(kind__in=kind.phrases)
        quotes = (
            (labelled.filter(label=label) if label else labelled)
            .select_related("group")
            .prefetch_related("group__packed_completions")
            .order_by("rank")
        )
        page = Paginator(quotes, PER_PAGE).get_page(request.GET.get("page"))
        context |= {
            "label": label,
            "kind": kind,
            "page": page,
            "quotes": [(place, *_excerpt(place)) for place in page],
            "figures": {"windows": draw_windows(result, asked.names[0])},
            "compared": _compared(team, asked),
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


def _compared(team: Team, asked: Question) -> str:
    """Return the run and others that were asked the same."""
    same = services.list_questions(team).filter(text=asked.text, labels=asked.labels)
    runs = [asked.run_id, *same.values_list("run_id", flat=True)]
    return join_ids([*dict.fromkeys(runs)][:MOST_TOGETHER])


def _act(request: Request, team: Team, asked: Question) -> HttpResponse:
    action, _, argument = request.POST.get("action", "").partition(":")
    with report_refusal(request):
        if action == "start":
            services.start([asked], request.user)
        elif action == "try":
            services.try_again(asked, request.user)
        elif action == "stop":
            request_stop(asked, request.user, "question.stop_requested")
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
@look_up(get_membership_for)
def compare_questions(
    request: Request, membership: Membership, team: Team
) -> HttpResponse:
    """Compare what ?runs= were asked, the first the baseline, and ask them all."""
    selection = read_selection(team, request.GET, most=MOST_TOGETHER)
    runs = selection.runs
    if not runs:
        context = {"team": team, "selection": selection}
        return render(request, "questions/compare.html", context)
    together = services.list_together(team, runs)
    is_new = request.POST.get("action") == "ask"
    form = QuestionForm(runs, request.POST if is_new else None)
    if request.method == "POST" and not is_new:
        _act_together(request, runs, together)
    if request.method == "POST" and (not is_new or _ask(request, form, runs)):
        return redirect(request.get_full_path())
    page = Paginator(together, TOGETHER_PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "team": team,
        "selection": selection,
        "num_swept": MIN_SWEPT,
        "form": form,
        "can_manage": membership.can_manage,
        "page": page,
        "listed": [_together(runs, questions) for questions in page],
    }
    status = 422 if form.errors else 200
    return render(request, "questions/compare.html", context, status=status)


def _act_together(
    request: Request, runs: list[Run], together: list[dict[int, Question]]
) -> None:
    """Start a question in all runs, or try it on those that were not asked it."""
    action, _, number = request.POST.get("action", "").partition(":")
    numbered = {str(each.pk): asked for asked in together for each in asked.values()}
    asked = numbered.get(number, {})
    others = [run for run in runs if run.pk not in asked]
    waiting = list(_waiting(asked.values()))
    with report_refusal(request):
        if action == "again" and asked and others:
            services.ask_again(next(iter(asked.values())), others, request.user)
        elif action == "start" and waiting:
            services.start(waiting, request.user)


def _waiting(questions: Iterable[Question]) -> dict[Question, services.Spent]:
    """Return those that were tried, and not asked of their whole samples."""
    spent = {each: services.read_spent(each) for each in questions}
    return {
        each: of
        for each, of in spent.items()
        if not each.is_open and 0 < of.num_asked < of.num_sampled
    }


def _together(runs: list[Run], asked: dict[int, Question]) -> dict[str, Any]:
    """Describe a question of some runs, with the difference of each to the first that
    people checked.
    """
    results = {pk: read_result(each) for pk, each in asked.items()}
    estimates = [
        found.estimate if (found := results.get(run.pk)) else None for run in runs
    ]
    baseline = next((each for each in estimates if each and each.truth), None)
    waiting = _waiting(asked.values()).values()
    costs = [spent.expected_cost for spent in waiting]
    currencies = {spent.currency for spent in waiting}
    has_cost = None not in costs and len(currencies) == 1
    return {
        "question": next(iter(asked.values())),
        "rows": [
            {
                "run": run,
                "question": asked.get(run.pk),
                "result": results.get(run.pk),
                "is_baseline": estimate is not None and estimate is baseline,
                "more": difference(estimate, baseline)
                if estimate and baseline
                else None,
            }
            for run, estimate in zip(runs, estimates, strict=True)
        ],
        "num_waiting": len(waiting),
        "num_missing": len(runs) - len(asked),
        "is_open": any(each.is_open for each in asked.values()),
        "expected_tokens": sum(spent.expected_tokens or 0 for spent in waiting),
        "expected_cost": sum(filter(None, costs)) if has_cost else None,
        "currency": "".join(currencies),
    }


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
