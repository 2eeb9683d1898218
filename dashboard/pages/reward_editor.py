"""The reward editor: rules, and samples with their scores.

Every button posts the whole form; the address has the other state, such as which
samples are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
)

from dashboard.accounts.access import (
    get_membership,
    get_writing_membership,
    look_up,
)
from dashboard.accounts.models import Membership, Team
from dashboard.analysis.probes.bench import (
    Bench,
    load_bench,
    score_bench,
)
from dashboard.analysis.probes.forms import (
    FROM_PROBE,
    FROM_RUN,
    MAX_ROWS,
    ChoiceForm,
    SampleForm,
    default_choice,
)
from dashboard.analysis.probes.models import Probe
from dashboard.analysis.probes.services import (
    config_of_model,
    draw_positions,
    start_probe,
    waiting_reason,
)
from dashboard.costs.models import add_judge_use, judge_models
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.queries import first_rows
from dashboard.datasets.suggestions import RuleSuggestion, suggest_rule
from dashboard.jobs.queue import request_stop
from dashboard.pages.recipes import (
    EDITS,
    MAX_NAME,
    NewRecipeForm,
    apply_action,
    derived_context,
    refusal_context,
)
from dashboard.pages.requests import Request, choose_version, read_id, read_number
from dashboard.rewards.checks import check_rows, find_in_groups
from dashboard.rewards.gallery import TEMPLATES, offered_templates
from dashboard.rewards.models import RecipeVersion, RewardRecipe
from dashboard.rewards.recipe_editor import RecipeDraft
from dashboard.rewards.recipe_text import write_json
from dashboard.rewards.services import (
    get_recipe,
    save_recipe_version,
    versions_with_use,
)
from dashboard.rewards.trial import calls_models, usage_of
from dashboard.runs.launch.base_models import check_model, offered_models
from dashboard.web.edits import BASE, EditConflict, compare_texts
from trainer.rewards.spec import Recipe

SHOWN = ("source", "run", "probe", "dataset")  # parameters that choose samples


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_membership)
def reward_new(request: Request, team: Team) -> HttpResponseBase:
    return _answer(Page(request, team, None))


@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_membership)
def reward_edit(request: Request, team: Team, recipe_id: int) -> HttpResponseBase:
    return _answer(Page(request, team, get_recipe(team, recipe_id)))


def _answer(page: Page) -> HttpResponseBase:
    if page.request.method != "POST":
        return page.render()
    action, _, argument = page.request.POST.get("action", "").partition(":")
    if action in EDITS:
        page.edit(action, argument)
    elif action in ("save", "stop", "sample", "probe"):
        get_writing_membership(page.request, page.team.slug)
        return page.write(action)
    return page.render()


@require_POST
@look_up(get_membership)
def reward_scores(request: Request, membership: Membership, team: Team) -> HttpResponse:
    """Only the scores, without input fields."""
    page = Page(request, team, _posted_recipe(request, team))
    page.draft.validate()
    # The run may train on, and the page still shows the groups of an earlier step.
    page.shown_step = read_number(request.POST.get("shown_step"))
    asks = request.POST.get("asks") == "on" and membership.can_write
    context = page.samples_context(asks=asks) | {"is_swap": True}
    return render(request, "rewards/samples_swapped.html", context)


@require_POST
@look_up(get_membership)
def reward_rows(request: Request, team: Team) -> HttpResponse:
    """Checks of the rules on the dataset's rows, without a model."""
    page = Page(request, team, _posted_recipe(request, team))
    recipe, version = page.draft.validate(), page.choice.rows_of
    findings = []
    if recipe and version:
        # Short, as scores wait for a process that checks rows.
        findings = check_rows(recipe, version, share=0.25)
    context = {"team": team, "findings": findings, "address": page.address}
    return render(request, "rewards/findings.html", context)


def _posted_recipe(request: Request, team: Team) -> RewardRecipe | None:
    number = read_id(request.POST.get("recipe"))
    return get_recipe(team, number) if number else None


class Page:
    """A request's view of the editor."""

    def __init__(
        self, request: Request, team: Team, recipe: RewardRecipe | None
    ) -> None:
        self.request = request
        self.team = team
        self.recipe = recipe
        self.is_posted = request.method == "POST"
        self.given: Mapping[str, Any] = request.POST if self.is_posted else request.GET
        self.choice = ChoiceForm(team, self.given)
        self.draft = self._draft()
        if not self.is_posted and not any(map(self.given.get, SHOWN)):
            self._choose_default()
        self.sample = SampleForm(offered_models(team), self.given)
        self.shown_step: int | None = None
        self.problem = ""
        self.more: dict[str, Any] = {}

    def _choose_default(self) -> None:
        default = default_choice(self.team, self.recipe, self.draft.validate())
        values = {name: self.given[name] for name in self.given if name not in SHOWN}
        self.choice = ChoiceForm(self.team, {**values, **default})

    def _draft(self) -> RecipeDraft:
        if self.is_posted:
            return RecipeDraft.posted(self.request.POST)
        if spec := self._spec():
            return RecipeDraft.of(Recipe.model_validate(spec))
        if template := TEMPLATES.get(self.given.get("template", "")):
            return RecipeDraft.from_template(template)
        draft = RecipeDraft([])
        if "dataset" in self.choice.named and self.suggestion is not None:
            draft.add(self.suggestion.kind, self.suggestion.params)
            draft.add("format_tags")
            draft.rules[-1].weight = "0.2"
        return draft

    def _spec(self) -> dict[str, Any] | None:
        """Find the recipe of the edited reward, or of the chosen run or test."""
        if self.recipe is not None:
            versions = versions_with_use(self.recipe)
            return dict(choose_version(versions, self.given.get("version")).spec)
        chosen = self.choice.chosen
        shown = {FROM_RUN: chosen["run"], FROM_PROBE: chosen["probe"]}
        of = shown.get(chosen["source"])
        if of is None or getattr(of, "is_imported", False):
            return None
        return dict(of.config["reward"]["recipe"])

    @cached_property
    def suggestion(self) -> RuleSuggestion | None:
        """For the chosen dataset, or the team's newest."""
        version = self.choice.chosen["dataset"]
        return suggest_rule(first_rows(version)) if version else None

    @property
    def path(self) -> str:
        """The page's URL without its query."""
        if self.recipe is None:
            return reverse("reward_new", args=[self.team.slug])
        return reverse("reward_edit", args=[self.team.slug, self.recipe.pk])

    @property
    def address(self) -> str:
        """The page's URL with its state, and the run that waits for the reward."""
        query = self.choice.address()
        if continued := read_id(self.request.GET.get("continue")):
            query += f"&continue={continued}"
        return f"{self.path}?{query}"

    def edit(self, action: str, argument: str) -> None:
        self.draft = apply_action(self.draft, action, argument, self.request)
        if action == "template":
            self._choose_default()
            self.more["shows_samples"] = True

    def render(self, *, status: int = 200) -> HttpResponse:
        self.draft.validate()
        target = getattr(self.request, "htmx", None) and self.request.htmx.target
        if target == "editor":
            context = self.editor_context() | {"is_rules_swap": True}
            context |= refusal_context(self.request, self.team, self.draft)
            if self.more.get("shows_samples"):
                context |= self.samples_context(is_scored=False)
            return render(self.request, "rewards/editor_swapped.html", context)
        # A page is scored once it is there, by a request of its own.
        context = self.samples_context(is_scored=self.is_posted and target != "samples")
        if target == "samples":
            response = render(self.request, "rewards/samples.html", context)
            response["HX-Replace-Url"] = self.address
            return response
        context |= self.editor_context()
        return render(self.request, "rewards/editor.html", context, status=status)

    def editor_context(self) -> dict[str, Any]:
        base = read_number(self.request.POST.get(BASE))
        if self.recipe and base is None:
            base = self.recipe.versions.latest("number").number
        is_empty = self.recipe is None and not self.draft.rules
        return {
            "team": self.team,
            "recipe": self.recipe,
            "form": None if self.recipe else self._name_form(),
            "base_version": base,
            "next_number": (base or 0) + 1,
            "templates": offered_templates() if is_empty else (),
            "suggestion": self.suggestion if is_empty else None,
            "suggested_for": self.choice.chosen["dataset"],
            **derived_context(self.draft),
            **self.more,
        }

    def _name_form(self) -> NewRecipeForm:
        if self.is_posted and self.request.POST.get("action") == "save":
            return NewRecipeForm(self.team, self.request.POST)
        initial = {"name": self._name_of_dataset(), **dict(self.given.items())}
        return NewRecipeForm(self.team, initial=initial)

    def _name_of_dataset(self) -> str:
        """Name the reward of a dataset's rows, if the team has none of that name."""
        version = self.choice.chosen["dataset"]
        if not self.given.get("dataset") or version is None:
            return ""
        name = version.dataset.name
        is_taken = RewardRecipe.objects.filter(team=self.team, name=name).exists()
        return "" if is_taken or len(name) > MAX_NAME else name

    def samples_context(
        self, *, is_scored: bool = True, asks: bool = False
    ) -> dict[str, Any]:
        bench = self._bench(is_scored=is_scored, asks=asks)
        probe = self.choice.chosen["probe"]
        is_sampling = self.choice.chosen["source"] == FROM_PROBE and probe is not None
        findings = find_in_groups(bench.scored_groups()) if bench.is_scored else []
        failures = bench.failures
        recipe = self.draft.recipe
        return {
            "team": self.team,
            "recipe": self.recipe,
            "choice": self.choice,
            "chosen": self.choice.chosen,
            "sample": self.sample,
            "bench": bench,
            "findings": findings,
            "address": self.address,
            "probe": probe if is_sampling else None,
            "waits": waiting_reason(probe) if is_sampling else "",
            "problem": self.problem,
            "rules_failed": [
                (rule, failures.get(rule.name)) for rule in self.draft.rules
            ],
            "calls_models": recipe is not None and calls_models(recipe),
            "max_rows": MAX_ROWS,
            **derived_context(self.draft),
        }

    def _bench(self, *, is_scored: bool, asks: bool) -> Bench:
        typed = self.request.POST.dict() if self.is_posted else {}
        if self.more.get("shows_samples"):
            typed = {}  # a template comes with its own example
        first = next((rule.kind for rule in self.draft.rules), "")
        bench = load_bench(self.choice, typed, kind=first, step=self.shown_step)
        if self.draft.recipe is not None and is_scored:
            score_bench(
                bench,
                self.draft.recipe,
                self.choice.advantage,
                owner=f"team {self.team.pk}",
                asks=asks,
            )
            tried = (attempt.trial for g in bench.groups for attempt in g.tried)
            add_judge_use(
                usage_of(trial for trial in tried if trial),
                models=judge_models(self.draft.recipe),
                team=self.team,
                user=self.request.user,
                source="trial",
            )
        return bench

    def write(self, action: str) -> HttpResponseBase:
        if action == "stop":
            probe = self.choice.chosen["probe"]
            if probe is not None:
                request_stop(probe, self.request.user, "probe.stop_requested")
            return self.render()
        if action == "save":
            return self._save()
        recipe = self.draft.validate()
        if recipe is None:
            self.problem = "The reward is incomplete. Fix the marked rules."
            return self.render(status=422)
        return self._start(recipe, is_sample=action == "sample")

    def _save(self) -> HttpResponse:
        self.draft.split_unnamed()
        recipe = self.draft.validate()
        form = None if self.recipe else self._name_form()
        if recipe is None or (form is not None and not form.is_valid()):
            self.more["is_refused"] = True
            return self.render(status=422)
        typed = form.cleaned_data if form else {"name": str(self.recipe)}
        newest = self.recipe and self.recipe.versions.order_by("number").last()
        try:
            version = save_recipe_version(
                team=self.team,
                name=typed["name"],
                recipe=recipe,
                user=self.request.user,
                existing=self.recipe,
                description=typed.get("description", ""),
                base=self.request.POST.get(BASE, ""),
            )
        except EditConflict:
            assert self.recipe is not None
            newest = self.recipe.versions.select_related("created_by").latest("number")
            saved = write_json(Recipe.model_validate(newest.spec))
            self.more = {
                "base_version": newest.number,
                "next_number": newest.number + 1,
                "conflict": {
                    "saved_by": newest.created_by,
                    "saved_at": newest.created_at,
                    **compare_texts(saved, write_json(recipe)),
                },
            }
            return self.render(status=409)
        messages.success(
            self.request,
            f"No changes: version {version.number} already has these rules."
            if version == newest
            else f"Saved as version {version.number}.",
        )
        address = reverse("reward", args=[self.team.slug, version.recipe_id])
        dataset = self.choice.chosen["dataset"] if self.recipe is None else None
        if continued := read_id(self.request.GET.get("continue")):
            return redirect(f"{address}?continue={continued}")
        return redirect(f"{address}?dataset={dataset.pk}" if dataset else address)

    def _start(self, recipe: Recipe, *, is_sample: bool) -> HttpResponseBase:
        """Sample the shown rows, or start a test."""
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
            address = reverse("probe", args=[self.team.slug, probe.pk])
            if not self.request.htmx:
                return redirect(address)
            return HttpResponse(status=204, headers={"HX-Redirect": address})
        # The draft is in the form: render the page instead of a redirect.
        data = self.request.POST.copy()
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
        if self.choice.rows_of is None:
            return []
        bench = load_bench(self.choice, {})
        return sorted({group.row.position for group in bench.groups})

    def _saved(self, recipe: Recipe) -> RecipeVersion | None:
        """Return the saved version that equals the recipe, if any."""
        if self.recipe is None:
            return None
        spec = recipe.model_dump(mode="json")
        versions = versions_with_use(self.recipe)
        return next((version for version in versions if version.spec == spec), None)
