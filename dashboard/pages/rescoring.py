"""Rescorings: the list, the form, a result and its completions as a file.

Of the form, the query has run, steps and recipe; the form has the edited recipe.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)

from dashboard.accounts.access import (
    get_membership,
    get_writing_membership,
    look_up,
)
from dashboard.accounts.models import Team
from dashboard.analysis.rescoring.credit import SIGNALS, StepSettings, why_no_advantages
from dashboard.analysis.rescoring.figures import (
    WRITERS,
    draw_means,
    draw_scatter,
)
from dashboard.analysis.rescoring.forms import ChangesForm, ChoiceForm, StepsForm
from dashboard.analysis.rescoring.models import Rescoring
from dashboard.analysis.rescoring.results import (
    Change,
    list_changes,
    read_columns,
    summarize,
)
from dashboard.analysis.rescoring.services import (
    KEPT,
    MOST_KEPT,
    Estimate,
    Selection,
    check_start,
    delete_rescoring,
    get_rescoring,
    list_failures,
    list_rescorings,
    make_estimate,
    select_steps,
    start_rescoring,
)
from dashboard.completions.rewards import recipe_spec, rule_names
from dashboard.datasets.row_exports import TYPES, joined
from dashboard.jobs.queue import request_stop, waiting_reason
from dashboard.pages.recipes import EDITS, apply_action, derived_context
from dashboard.pages.requests import Request, read_id, redirect_with
from dashboard.rewards.models import RecipeVersion
from dashboard.rewards.recipe_editor import RecipeDraft
from dashboard.rewards.recipe_text import recipe_sentence
from dashboard.runs.charts.chart import NOTE, has_clipped
from dashboard.runs.queries import get_run
from dashboard.web.downloads import attach, mark_for_spreadsheets
from trainer.rewards.spec import Recipe


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_membership)
def rescoring_new(request: Request, team: Team) -> HttpResponse:
    page = Page(request, team)
    if request.method != "POST":
        return page.render()
    action, _, argument = request.POST.get("action", "").partition(":")
    if action in EDITS:
        page.draft = apply_action(page.draft, action, argument, request)
    elif action == "start":
        get_writing_membership(request, team.slug)
        return page.start()
    return page.render()


class Page:
    """A request's view of the page."""

    def __init__(self, request: Request, team: Team) -> None:
        self.request = request
        self.team = team
        is_posted = request.method == "POST"
        self.choice = ChoiceForm(team, request.GET)
        self.steps = StepsForm(request.POST if is_posted else request.GET)
        self.problem = ""
        self.draft = RecipeDraft.posted(request.POST) if is_posted else self._begin()

    def _begin(self) -> RecipeDraft:
        if self.base_spec is None:
            return RecipeDraft([])
        recipe = _read(self.base_spec)
        if recipe is None:
            self.problem = (
                "A rule of this reward no longer exists. Choose another reward, or "
                "add rules below."
            )
            return RecipeDraft([])
        return RecipeDraft.of(recipe)

    @cached_property
    def again(self) -> Rescoring | None:
        """The rescoring whose recipe the form starts with."""
        number = read_id(self.request.GET.get("again"))
        return None if number is None else get_rescoring(self.team, number)

    @cached_property
    def selection(self) -> Selection | None:
        run, chosen = self.choice.chosen_run, self.steps.chosen
        if run is None:
            return None
        return select_steps(
            run, chosen["first_step"], chosen["last_step"], chosen["every"] or 1
        )

    @cached_property
    def base_spec(self) -> dict[str, Any] | None:
        """The recipe that the draft starts with; None: none is chosen."""
        if self.again is not None and self.again.spec is not None:
            return dict(self.again.spec)
        version = self.choice.version
        return dict(version.spec) if version else self._own_spec

    @property
    def _own_spec(self) -> dict[str, Any] | None:
        run = self.choice.chosen_run
        if run is None:
            return None
        first = self.selection.first_step if self.selection else 1
        return recipe_spec(run, first)

    @property
    def is_own(self) -> bool:
        """True if each step is scored by its own recipe: nothing was changed."""
        if self.again is not None or self.choice.version is not None:
            return False
        return self._equals(self._own_spec)

    @property
    def saved_version(self) -> RecipeVersion | None:
        version = self.choice.version
        return version if version and self._equals(version.spec) else None

    def _equals(self, spec: dict[str, Any] | None) -> bool:
        recipe = self.draft.recipe
        return recipe is not None and spec is not None and _read(spec) == recipe

    @property
    def address(self) -> str:
        run = self.choice.chosen_run
        own: dict[str, Any] = {"run": run.pk} if run else {}
        if self.choice.version:
            own["recipe"] = self.choice.version.pk
        if self.again:
            own["again"] = self.again.pk
        path = reverse("rescoring_new", args=[self.team.slug])
        return f"{path}?{urlencode(own | self.steps.params)}"

    def start(self) -> HttpResponse:
        recipe, run = self.draft.validate(), self.choice.chosen_run
        if run is None or recipe is None or self.selection is None:
            self.problem = (
                "The reward is incomplete. Fix the marked fields."
                if run
                else "Choose a run first."
            )
            return self.render(status=422)
        if not self.steps.is_valid():
            self.problem = "The steps are invalid. Fix the marked fields."
            return self.render(status=422)
        try:
            begun = start_rescoring(
                team=self.team,
                user=self.request.user,
                run=run,
                selection=self.selection,
                recipe=None if self.is_own else recipe,
                recipe_version=self.saved_version,
                allows_judges=self.request.POST.get("may_ask") == "on",
            )
        except ValueError as error:
            self.problem = str(error)
            return self.render(status=422)
        return redirect("rescoring", self.team.slug, begun.pk)

    def render(self, *, status: int = 200) -> HttpResponse:
        self.draft.validate()
        editor = {
            "team": self.team,
            **derived_context(self.draft),
        }
        if self.request.htmx and self.request.htmx.target == "editor":
            editor["is_rules_swap"] = True
            return render(self.request, "rewards/editor_swapped.html", editor)
        context = editor | {
            "choice": self.choice,
            "steps": self.steps,
            "run": self.choice.chosen_run,
            "version": self.choice.version,
            "again": self.again,
            "selection": self.selection,
            "address": self.address,
            "problem": self.problem,
            "may_ask": self.request.POST.get("may_ask") == "on",
            **self._outlook(),
        }
        return render(self.request, "rescoring/new.html", context, status=status)

    def _outlook(self) -> dict[str, Any]:
        """Estimate the cost, and find problems."""
        run, recipe, selection = (
            self.choice.chosen_run,
            self.draft.recipe,
            self.selection,
        )
        if run is None or recipe is None or selection is None:
            return {}
        spec = None if self.is_own else recipe.model_dump(mode="json")
        estimate, refused, no_advantages = Estimate(), "", ""
        try:
            settings = StepSettings(run.config, spec)
            check_start(run, selection, settings, allows_judges=True)
            no_advantages = why_no_advantages(settings.at(selection.steps[0]))
            estimate = make_estimate(run, selection, settings)
        except ValueError as error:
            refused = str(error)
        return {
            "estimate": estimate,
            "refused": refused,
            "no_advantages": no_advantages,
            "is_own": self.is_own,
        }


def _read(spec: dict[str, Any]) -> Recipe | None:
    """Read a recipe; None if a rule is unknown."""
    try:
        return Recipe.model_validate(spec)
    except ValueError:
        return None


PER_PAGE = 25


@require_safe
@look_up(get_membership)
def rescorings(request: Request, team: Team) -> HttpResponse:
    """?run= leaves the others out."""
    run_id = read_id(request.GET.get("run"))
    run = None if run_id is None else get_run(team, run_id)
    pages = Paginator(list_rescorings(team, run).defer("steps"), PER_PAGE)
    page = pages.get_page(request.GET.get("page"))
    context = {
        "team": team,
        "run": run,
        "page": page,
        "listed": [(rescoring_, _sentence(rescoring_)) for rescoring_ in page],
        "kept_days": KEPT.days,
        "most_kept": MOST_KEPT,
    }
    return render(request, "rescoring/list.html", context)


@require_safe
@look_up(get_membership, rescoring=get_rescoring)
def rescoring(request: Request, team: Team, rescoring: Rescoring) -> HttpResponse:
    """?show=&sort=&page= of the table of completions."""
    context = _context(team, rescoring)
    if not rescoring.is_open:
        context |= _result(rescoring, ChangesForm(request.GET))
    return render(request, "rescoring/result.html", context)


@require_safe
@look_up(get_membership, rescoring=get_rescoring)
def rescoring_progress(
    request: Request, team: Team, rescoring: Rescoring
) -> HttpResponse:
    """Show the progress; requested every second while it changes."""
    response = render(request, "rescoring/progress.html", _context(team, rescoring))
    if not rescoring.is_open:
        response["HX-Refresh"] = "true"  # for what was found, with its charts
    return response


@require_POST
@look_up(get_writing_membership)
def rescoring_stop(request: Request, team: Team, rescoring_id: int) -> HttpResponse:
    row = get_rescoring(team, rescoring_id)
    request_stop(row, request.user, "rescoring.stop_requested")
    return redirect("rescoring", team.slug, rescoring_id)


@require_POST
@look_up(get_writing_membership, rescoring=get_rescoring)
def rescoring_delete(
    request: Request, team: Team, rescoring: Rescoring
) -> HttpResponse:
    try:
        delete_rescoring(rescoring=rescoring, user=request.user)
    except ValueError as error:
        messages.error(request, str(error))
        return redirect("rescoring", team.slug, rescoring.pk)
    return redirect_with(
        request, f"Deleted rescoring {rescoring.pk}.", "rescorings", team.slug
    )


@require_safe
@look_up(get_membership, rescoring=get_rescoring)
def rescoring_export(
    request: Request, rescoring: Rescoring, file_format: str
) -> HttpResponseBase:
    if file_format not in WRITERS:
        raise Http404(f"Unknown export format {file_format!r}.")
    file = attach(
        joined(WRITERS[file_format](rescoring)),
        filename=f"{rescoring.run.name}-rescoring-{rescoring.pk}.{file_format}",
        content_type=f"{TYPES[file_format]}; charset=utf-8",
    )
    return mark_for_spreadsheets(file)


def _sentence(rescoring_: Rescoring) -> str:
    if rescoring_.spec is None:
        return "The reward of each step"
    try:
        return recipe_sentence(Recipe.model_validate(rescoring_.spec))
    except ValueError:
        return "A reward with unknown rules"


def _context(team: Team, rescoring_: Rescoring) -> dict[str, Any]:
    return {
        "team": team,
        "rescoring": rescoring_,
        "run": rescoring_.run,
        "sentence": _sentence(rescoring_),
        "waiting": waiting_reason(rescoring_.job) if rescoring_.job else "",
        "kept_until": rescoring_.finished_at and rescoring_.finished_at + KEPT,
    }


def _result(rescoring_: Rescoring, form: ChangesForm) -> dict[str, Any]:
    summary = rescoring_.result or summarize(rescoring_)
    if not summary:
        return {}
    completions = read_columns(rescoring_).completions
    page = list_changes(completions, **form.chosen)
    scatter, means = draw_scatter(completions), draw_means(completions)
    names = {rule["name"] for rule in summary["rules"]}
    return {
        "summary": summary,
        "is_same": summary["num_equal"] == summary["num"],
        "shares": _shares(summary),
        "signals": SIGNALS,
        "matrix": list(zip(SIGNALS, summary["matrix"], strict=True)),
        "left_out": [name for name in rule_names(rescoring_.run) if name not in names],
        "form": form,
        "page": page,
        "changes": [Change.of(completions[index]) for index in page],
        "note": NOTE if has_clipped([completions["old"], completions["new"]]) else "",
        "scatter": scatter,
        "means": means,
        "figures": {"scatter": scatter.figure, "means": means.figure},
        "failures": list_failures(rescoring_) if summary["num_failures"] else [],
    }


def _shares(summary: dict[str, Any]) -> dict[str, str]:
    """Return shares of counts, in percent."""
    pairs = {
        "moved": ("num_moved", "num_both"),
        "reordered": ("num_reordered", "num_pairs"),
        "gained": ("num_gained", "num_groups"),
        "lost": ("num_lost", "num_groups"),
        "mixed_old": ("num_mixed_old", "num_groups"),
        "mixed_new": ("num_mixed_new", "num_groups"),
        "advantages": ("num_advantages_changed", "num_advantages"),
        "turned": ("num_turned", "num_advantages"),
    }
    return {
        name: f"{summary[part] / summary[whole]:.1%}"
        for name, (part, whole) in pairs.items()
        if summary[whole]
    }
