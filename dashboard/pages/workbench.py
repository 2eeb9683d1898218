"""The workbench: a recipe and completions with their scores.

Every button posts the whole form, as in the editor; the URL has the other state.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from dashboard.accounts.access import get_team, get_writable_team
from dashboard.accounts.models import Team
from dashboard.analysis.probes.forms import (
    FROM_PROBE,
    FROM_RUN,
    MAX_ROWS,
    ChoiceForm,
    SampleForm,
)
from dashboard.analysis.probes.models import Probe
from dashboard.analysis.probes.services import (
    config_of_model,
    draw_positions,
    request_stop,
    start_probe,
    waiting_reason,
)
from dashboard.analysis.probes.workbench import (
    MAX_SECONDS,
    Bench,
    load_bench,
    score_bench,
)
from dashboard.datasets.models import DatasetVersion
from dashboard.pages.recipes import (
    EDITS,
    apply_action,
    derived_context,
    read_seen,
    seen_by,
    show_meanwhile,
)
from dashboard.pages.requests import Request, choose_version, read_id
from dashboard.project.edits import EditConflict
from dashboard.rewards.forms import NewRecipeForm
from dashboard.rewards.models import RecipeVersion, RewardRecipe
from dashboard.rewards.recipe_checks import find_in_groups
from dashboard.rewards.recipe_editor import RecipeDraft
from dashboard.rewards.row_checks import check_rows
from dashboard.rewards.services import (
    get_recipe,
    save_recipe_version,
    versions_with_use,
)
from dashboard.runs.launch.base_models import check_model, offered_models
from trainer.rewards.rules import RULES
from trainer.rewards.spec import Recipe

STARTS = ("sample", "probe")


@require_http_methods(["GET", "HEAD", "POST"])
def workbench(request: Request, team: str) -> HttpResponseBase:
    team_ = get_team(request, team)
    page = Page(request, team_)
    if request.method != "POST":
        return page.render()
    action, _, argument = request.POST.get("action", "").partition(":")
    if action in EDITS:
        page.draft = apply_action(page.draft, action, argument, request)
    elif action in ("save", "stop", *STARTS):
        get_writable_team(request, team)
        return page.write(action)
    return page.render()


@require_POST
def workbench_scores(request: Request, team: str) -> HttpResponse:
    """Only the scores, without input fields."""
    page = Page(request, get_team(request, team))
    page.draft.validate()
    return render(
        request, "probes/bench_scores.html", page.context() | {"is_swap": True}
    )


@require_POST
def workbench_rows(request: Request, team: str) -> HttpResponse:
    """Checks of the recipe on the dataset's rows, without a model."""
    page = Page(request, get_team(request, team))
    recipe, version = page.draft.validate(), page.choice.chosen["dataset"]
    context = {
        "team": page.team,
        "findings": check_rows(recipe, version) if recipe and version else [],
        "address": page.address,
        "is_checked": bool(recipe and version),
    }
    return render(request, "probes/row_findings.html", context)


@require_GET
def recipe_findings(request: Request, team: str) -> HttpResponse:
    """The same for a launch form: saved versions by ID."""
    team_ = get_team(request, team)
    recipe = RecipeVersion.objects.filter(
        recipe__team=team_, pk=read_id(request.GET.get("recipe")) or 0
    ).first()
    version = DatasetVersion.objects.filter(
        dataset__team=team_, pk=read_id(request.GET.get("dataset")) or 0
    ).first()
    findings = []
    if recipe and version:
        findings = check_rows(Recipe.model_validate(recipe.spec), version)
    context = {
        "team": team_,
        "findings": findings,
        "recipe": recipe,
        "version": version,
    }
    return render(request, "probes/launch_findings.html", context)


class Page:
    """One request's view of the workbench."""

    def __init__(self, request: Request, team: Team) -> None:
        self.request = request
        self.team = team
        given = request.POST if request.method == "POST" else request.GET
        self.given = given
        self.choice = ChoiceForm(team, given)
        self.recipe = self._recipe()
        self.draft = self._draft()
        self.sample = SampleForm(offered_models(team), given)
        self.problem = ""
        self.more: dict[str, Any] = {}

    def _recipe(self) -> RewardRecipe | None:
        """The saved one that is edited."""
        # The editor's form names it in its address.
        named = self.given.get("recipe") or self.request.GET.get("recipe")
        number = read_id(named)
        return get_recipe(self.team, number) if number else None

    def _draft(self) -> RecipeDraft:
        if self.request.method == "POST":
            return RecipeDraft.posted(self.request.POST)
        return RecipeDraft.of(Recipe.model_validate(self._spec()))

    def _spec(self) -> dict[str, Any]:
        """Of the recipe in the URL, or of the chosen run or probe."""
        if self.recipe is not None:
            versions = versions_with_use(self.recipe)
            return dict(choose_version(versions, self.given.get("version")).spec)
        chosen = self.choice.chosen
        shown = {FROM_RUN: chosen["run"], FROM_PROBE: chosen["probe"]}
        of = shown.get(chosen["source"])
        if of is not None and not getattr(of, "is_imported", False):
            return dict(of.config["reward"]["recipe"])
        return {
            "rules": [
                {"name": "numeric_answer", "kind": "numeric_answer", "weight": 1.0},
                {"name": "format_tags", "kind": "format_tags", "weight": 0.2},
            ]
        }

    @property
    def address(self) -> str:
        """The page's URL with its state."""
        return self._address(self.choice.address())

    def _address(self, chosen: str) -> str:
        own = {"recipe": self.recipe.pk} if self.recipe else {}
        query = "&".join(part for part in (urlencode(own), chosen) if part)
        return f"{reverse('workbench', args=[self.team.slug])}?{query}"

    def render(self, *, status: int = 200) -> HttpResponse:
        self.draft.validate()
        target = getattr(self.request, "htmx", None) and self.request.htmx.target
        if target == "editor":
            return render(
                self.request, "rewards/editor_swapped.html", self._editor_context()
            )
        context = self.context()
        if target == "bench":
            response = render(self.request, "probes/bench.html", context)
            response["HX-Replace-Url"] = self.address
            return response
        context |= self._editor_context()
        return render(self.request, "probes/workbench.html", context, status=status)

    def _editor_context(self) -> dict[str, Any]:
        return {
            "team": self.team,
            "recipe": self.recipe,
            "form": None if self.recipe else self._name_form(),
            "kinds": sorted(RULES.values(), key=lambda rule: rule.title),
            "seen": seen_by(self.recipe, self.request.POST),
            **derived_context(self.draft),
            **self.more,
        }

    def _name_form(self) -> NewRecipeForm:
        if self.request.method == "POST" and self.request.POST.get("action") == "save":
            return NewRecipeForm(self.team, self.request.POST)
        return NewRecipeForm(self.team, initial=self.given.dict())

    def context(self) -> dict[str, Any]:
        bench = self._bench()
        probe = self.choice.chosen["probe"]
        is_sampling = self.choice.chosen["source"] == FROM_PROBE and probe is not None
        return {
            "team": self.team,
            "draft": self.draft,
            "choice": self.choice,
            "chosen": self.choice.chosen,
            "sample": self.sample,
            "bench": bench,
            "findings": find_in_groups(bench.scored_groups())
            if bench.is_scored
            else [],
            "address": self.address,
            "probe": probe if is_sampling else None,
            "waits": waiting_reason(probe) if is_sampling else "",
            "problem": self.problem,
            "max_seconds": MAX_SECONDS,
            "max_rows": MAX_ROWS,
        }

    def _bench(self) -> Bench:
        typed = self.request.POST.dict() if self.request.method == "POST" else {}
        bench = load_bench(self.choice, typed)
        if self.draft.recipe is not None:
            score_bench(
                bench,
                self.draft.recipe,
                self.choice.advantage,
                owner=f"team {self.team.pk}",
            )
        return bench

    def write(self, action: str) -> HttpResponseBase:
        recipe = self.draft.validate()
        if action == "stop":
            probe = self.choice.chosen["probe"]
            if probe is not None:
                request_stop(probe=probe, user=self.request.user)
            return self.render()
        if recipe is None:
            self.problem = "The recipe is incomplete. Fix the marked fields."
            return self.render(status=422)
        if action == "save":
            return self._save(recipe)
        return self._start(recipe, is_sample=action == "sample")

    def _save(self, recipe: Recipe) -> HttpResponse:
        form = None if self.recipe else self._name_form()
        if form is not None and not form.is_valid():
            return self.render(status=422)
        typed = form.cleaned_data if form else {"name": str(self.recipe)}
        try:
            version = save_recipe_version(
                team=self.team,
                name=typed["name"],
                recipe=recipe,
                user=self.request.user,
                existing=self.recipe,
                description=typed.get("description", ""),
                seen=read_seen(self.request.POST),
            )
        except EditConflict:
            assert self.recipe is not None
            self.more = show_meanwhile(self.recipe, recipe)
            return self.render(status=409)
        messages.success(self.request, f"Saved as {version}.")
        self.recipe = version.recipe
        return redirect(self.address)

    def _start(self, recipe: Recipe, *, is_sample: bool) -> HttpResponseBase:
        """Sample the shown rows, or start a probe."""
        version = self.choice.chosen["dataset"]
        if version is None:
            self.problem = "This team has no dataset. Upload one first."
            return self.render(status=422)
        try:
            probe = self._start_probe(recipe, version, is_sample=is_sample)
        except ValueError as error:
            self.problem = str(error)
            return self.render(status=422)
        if not is_sample:
            return _go(self.request, reverse("probe", args=[self.team.slug, probe.pk]))
        # The draft is in the form: render the page instead of a redirect.
        data = self.given.copy()
        data["source"], data["probe"] = FROM_PROBE, str(probe.pk)
        self.choice = ChoiceForm(self.team, data)
        return self.render()

    def _start_probe(
        self, recipe: Recipe, version: DatasetVersion, *, is_sample: bool
    ) -> Probe:
        if not self.sample.is_valid():
            first = next(iter(self.sample.errors.items()))
            raise ValueError(f"{self.sample[first[0]].label}: {first[1][0]}")
        fields = self.sample.cleaned_data
        path = fields["model"] or fields["model_other"]
        if problem := check_model(path):
            raise ValueError(problem)
        config = config_of_model(
            path,
            recipe,
            version=version,
            starters=offered_models(self.team),
            rollout={
                "max_new_tokens": fields["max_new_tokens"],
                "temperature": fields["temperature"],
            },
        )
        positions = self._shown_positions() if is_sample else []
        return start_probe(
            team=self.team,
            user=self.request.user,
            config=config,
            dataset_version=version,
            positions=positions or draw_positions(version, fields["prompts"]),
            num_samples=fields["samples"],
            recipe_version=self._saved(recipe),
            is_sample=is_sample,
        )

    def _shown_positions(self) -> list[int]:
        bench = load_bench(self.choice, {})
        return sorted({group.row.position for group in bench.groups})

    def _saved(self, recipe: Recipe) -> RecipeVersion | None:
        """The saved version that equals the recipe, if any."""
        if self.recipe is None:
            return None
        spec = recipe.model_dump(mode="json")
        versions = versions_with_use(self.recipe)
        return next((version for version in versions if version.spec == spec), None)


def _go(request: Request, address: str) -> HttpResponse:
    """Redirect, also for htmx requests."""
    if request.htmx:
        response = HttpResponse(status=204)
        response["HX-Redirect"] = address
        return response
    return redirect(address)
