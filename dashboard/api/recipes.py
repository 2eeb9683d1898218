"""Reward recipes, their versions, and the kinds of rules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Router, Schema, Status
from pydantic import Field, ValidationError

from dashboard.accounts.models import Team
from dashboard.accounts.throttling import one_at_a_time
from dashboard.analysis.rescoring.credit import StepSettings
from dashboard.analysis.rescoring.scoring import Refused, rows_of, samples_of
from dashboard.api.auth import READ, WRITE, ApiRequest
from dashboard.api.datasets import find_version
from dashboard.api.problems import Problem, WrongField, or_refuse, refuse_field
from dashboard.api.schemas import (
    Cursor,
    Id,
    IdIn,
    Input,
    Limit,
    Page,
    Person,
    Real,
    StepIn,
    fill,
    page_by,
)
from dashboard.completions.groups import get_group
from dashboard.costs.models import add_judge_use, judge_models
from dashboard.project.errors import or_404
from dashboard.rewards.checks import RecipeWarning, check_rows
from dashboard.rewards.models import RecipeVersion
from dashboard.rewards.recipe_text import describe, recipe_sentence, write_formula
from dashboard.rewards.rule_editor import find_fault
from dashboard.rewards.services import get_recipe, save_recipe_version
from dashboard.rewards.trial import (
    as_sample,
    ask_models,
    calls_models,
    try_groups,
    usage_of,
)
from dashboard.runs.queries import get_run
from trainer.rewards.rule import Sample
from trainer.rewards.rules import RULES
from trainer.rewards.spec import Recipe, recipe_bounds

router = Router(tags=["Rewards"], auth=READ)
versions_router = Router(tags=["Rewards"], auth=READ)
SPEC: dict[str, Any] = {
    "rules": [{"name": "answer", "kind": "exact_answer", "weight": 1.0, "params": {}}]
}


class RecipeOut(Schema):
    id: int = Field(examples=[2])
    name: str = Field(examples=["right answer"])
    description: str
    created_by: Person | None
    created_at: datetime


class RecipeVersionOut(Schema):
    id: int = Field(examples=[5])
    recipe_id: int = Field(examples=[2])
    recipe: str = Field(examples=["right answer"])
    number: int = Field(examples=[3])
    content_sha256: str
    spec: dict[str, Any] = Field(
        description="A trainer.rewards.spec.Recipe as JSON.", examples=[SPEC]
    )
    created_at: datetime


def version_out(row: RecipeVersion) -> RecipeVersionOut:
    return fill(RecipeVersionOut, row, recipe=row.recipe.name)


@router.get("", response=Page[RecipeOut], summary="List rewards")
def recipes(request: ApiRequest, cursor: Cursor, limit: Limit) -> Page[Any]:
    """Newest first."""
    return page_by(
        request.auth.team.recipes.select_related("created_by"),
        lambda row: fill(RecipeOut, row, created_by=Person.of(row.created_by)),
        cursor=cursor,
        limit=limit,
    )


@router.get(
    "/{recipe_id}/versions",
    response=Page[RecipeVersionOut],
    summary="List a reward's versions",
)
def recipe_versions(
    request: ApiRequest, recipe_id: Id, cursor: Cursor, limit: Limit
) -> Page[Any]:
    """Newest first. A version never changes."""
    own = get_recipe(request.auth.team, recipe_id)
    versions = own.versions.select_related("recipe")
    return page_by(versions, version_out, cursor=cursor, limit=limit)


class VersionIn(Input):
    spec: dict[str, Any] = Field(examples=[SPEC])


class RecipeIn(VersionIn):
    name: str = Field(min_length=1, max_length=80, examples=["right answer"])
    description: str = Field(default="", max_length=2_000)


@router.post(
    "", response={201: RecipeVersionOut}, auth=WRITE, summary="Create a reward"
)
def create_recipe(request: ApiRequest, payload: RecipeIn) -> Status[RecipeVersionOut]:
    """Create a recipe with its first version."""
    name = " ".join(payload.name.split())
    if not name:
        raise refuse_field(
            "body.name",
            "A reward requires a name; got only spaces.",
            code="rewards.name_required",
        )
    with or_refuse("body.name"):
        version = save_recipe_version(
            team=request.auth.team,
            name=name,
            recipe=read_spec(payload.spec),
            user=request.auth.user,
            description=payload.description,
        )
    return Status(201, version_out(version))


@router.post(
    "/{recipe_id}/versions",
    response={201: RecipeVersionOut},
    auth=WRITE,
    summary="Create a reward version",
)
def create_recipe_version(
    request: ApiRequest, recipe_id: Id, payload: VersionIn
) -> Status[RecipeVersionOut]:
    """Returns the newest version if the recipe equals it."""
    own = get_recipe(request.auth.team, recipe_id)
    version = save_recipe_version(
        team=request.auth.team,
        name=own.name,
        recipe=read_spec(payload.spec),
        user=request.auth.user,
        existing=own,
    )
    return Status(201, version_out(version))


def read_spec(spec: dict[str, Any]) -> Recipe:
    try:
        recipe = Recipe.model_validate(spec)
    except ValidationError as error:
        errors = [
            WrongField(
                ".".join(["body", "spec", *map(str, fault["loc"])]),
                describe(fault),
                fault["type"],
            )
            for fault in error.errors(include_url=False)
        ]
        detail = "; ".join(f"{field.field}: {field.message}" for field in errors[:5])
        raise Problem(422, detail, code="rewards.bad_recipe", errors=errors) from error
    for number, rule in enumerate(recipe.rules):
        if fault := find_fault(rule):
            raise refuse_field(
                f"body.spec.rules.{number}.params.source",
                fault,
                code="rewards.bad_source",
            )
    return recipe


# Summaries and checks of recipes; kinds of rules.


class RecipeSummary(Schema):
    sentence: str = Field(description="The reward in words.")
    formula: str = Field(examples=["1·answer + 0.2·format"])
    lowest: float = Field(description="Lowest possible reward.", examples=[0.0])
    highest: float = Field(description="Highest possible reward.", examples=[1.2])


class RecipeVersionDetail(RecipeVersionOut, RecipeSummary):
    pass


def _summarize(recipe: Recipe) -> RecipeSummary:
    low, high = recipe_bounds(recipe)
    return RecipeSummary(
        sentence=recipe_sentence(recipe),
        formula=write_formula(recipe),
        lowest=low,
        highest=high,
    )


@versions_router.get(
    "/recipe-versions/{recipe_version_id}",
    response=RecipeVersionDetail,
    summary="Get a reward version",
)
def recipe_version(request: ApiRequest, recipe_version_id: Id) -> RecipeVersionDetail:
    """Return a version with its summary, formula and bounds."""
    version = find_recipe_version(request.auth.team, recipe_version_id)
    summary = _summarize(Recipe.model_validate(version.spec))
    return RecipeVersionDetail(
        **version_out(version).model_dump(), **summary.model_dump()
    )


def find_recipe_version(team: Team, version_id: int) -> RecipeVersion:
    versions = RecipeVersion.objects.select_related("recipe")
    version = versions.filter(recipe__team=team, pk=version_id).first()
    return or_404(version, f"{team} has no reward version with the ID {version_id}.")


class RecipeFindingOut(Schema):
    kind: str = Field(examples=["trivial"])
    sentence: str
    remedy: str
    rows: list[int] = Field(
        description="Rows of the dataset that show it.", examples=[[0, 3]]
    )


class RecipeCheckIn(Input):
    spec: dict[str, Any] = Field(examples=[SPEC])
    dataset_version_id: IdIn | None = Field(
        default=None,
        description="Checks its rows: unscorable rows, and rewards for "
        "trivial completions.",
        examples=[12],
    )


class RecipeCheckOut(RecipeSummary):
    findings: list[RecipeFindingOut] = Field(
        description='Warnings about the rows. "unchecked": how many rows were checked.'
    )


@versions_router.post(
    "/recipes/check", response=RecipeCheckOut, summary="Check a reward"
)
def check_recipe(request: ApiRequest, payload: RecipeCheckIn) -> RecipeCheckOut:
    """Saves nothing. 422 names the invalid fields."""
    recipe, version_id = read_spec(payload.spec), payload.dataset_version_id
    findings: list[RecipeWarning] = []
    if version_id is not None:
        version = find_version(request.auth.team, version_id)
        with _only_scoring(request.auth.team):
            findings = check_rows(recipe, version)
    return RecipeCheckOut(
        **_summarize(recipe).model_dump(),
        findings=[
            fill(RecipeFindingOut, finding, rows=list(finding.positions))
            for finding in findings
        ],
    )


@contextmanager
def _only_scoring(team: Team) -> Iterator[None]:
    """Score one request of a team at a time: a web process has two scoring processes.

    A second one gets 429.
    """
    key = f"cohort:scoring:{team.pk}"
    with one_at_a_time(key, most_seconds=MAX_SCORING_SECONDS) as is_free:
        if not is_free:
            raise Problem(
                429,
                f"Cohort is scoring another request of {team}. Try again in "
                f"{TRY_SECONDS:g} s.",
                code="rewards.scoring",
                headers={"Retry-After": f"{TRY_SECONDS:g}"},
            )
        yield


MAX_TEXTS = 20
MAX_TEXT_CHARS = 100_000
TRY_SECONDS = 5.0
MAX_SCORING_SECONDS = 60.0  # with the start of the process


class RecipeTryIn(Input):
    recipe_version_id: IdIn | None = None
    spec: dict[str, Any] | None = Field(
        default=None, description="An unsaved reward, in place of a version."
    )
    texts: list[Annotated[str, Field(max_length=MAX_TEXT_CHARS)]] = Field(
        default=[],
        max_length=MAX_TEXTS,
        description="Completions of the row `row` of the dataset version.",
    )
    dataset_version_id: IdIn | None = None
    row: StepIn | None = None
    run_id: IdIn | None = Field(
        default=None, description="Instead of texts: score a group of this run."
    )
    step: StepIn | None = None
    prompt: StepIn | None = Field(default=None, description="Row number of the group.")
    may_ask: bool = Field(
        default=False,
        description="Allow judge requests, which cost money and need the scope write.",
    )


class TrialOut(Schema):
    text: str
    reward: Real = Field(examples=[1.2])
    rules: dict[str, Real] = Field(examples=[{"answer": 1.0}])
    errors: dict[str, str] = Field(description="Why a rule has no score.")
    problem: str = Field(description="Why the completion is not scored.")


class RecipeTryOut(RecipeSummary):
    items: list[TrialOut]


@versions_router.post("/recipes/try", response=RecipeTryOut, summary="Try a reward")
def try_recipe(request: ApiRequest, payload: RecipeTryIn) -> RecipeTryOut:
    """Score completions of a row, or a stored group. Saves nothing."""
    team = request.auth.team
    if payload.may_ask:
        WRITE.authenticate(request, "")
    if (payload.recipe_version_id is None) == (payload.spec is None):
        raise refuse_field(
            "body.spec",
            "Send either a reward version or a spec.",
            code="rewards.recipe_or_spec",
        )
    if payload.spec is not None:
        recipe = read_spec(payload.spec)
    else:
        version = find_recipe_version(team, payload.recipe_version_id or 0)
        recipe = Recipe.model_validate(version.spec)
    asks = calls_models(recipe)
    if not payload.may_ask and asks:
        raise refuse_field(
            "body.may_ask",
            "The reward calls a judge. Send may_ask: true to allow its requests.",
            code="rewards.judge_not_allowed",
        )
    texts, samples = _tried_samples(team, payload, recipe)
    score = ask_models if asks else try_groups
    owner = f"team {team.pk}"
    with _only_scoring(team):
        (trials,) = score(recipe, [samples], seconds=TRY_SECONDS, owner=owner)
    add_judge_use(
        usage_of(trials),
        models=judge_models(recipe),
        team=team,
        user=request.auth.user,
        source="trial",
    )
    return RecipeTryOut(
        **_summarize(recipe).model_dump(),
        items=[
            TrialOut(
                text=text,
                reward=trial.score.total if trial.score else None,
                rules=trial.score.rules if trial.score else {},
                errors=trial.score.errors if trial.score else {},
                problem=trial.problem,
            )
            for text, trial in zip(texts, trials, strict=True)
        ],
    )


def _tried_samples(
    team: Team, payload: RecipeTryIn, recipe: Recipe
) -> tuple[list[str], list[Sample]]:
    if payload.run_id is not None and not payload.texts:
        if payload.step is None or payload.prompt is None:
            raise refuse_field(
                "body.step",
                "A run requires a step and a prompt.",
                code="rewards.group_required",
            )
        run = get_run(team, payload.run_id)
        group = get_group(run, payload.step, payload.prompt, with_texts=True)
        try:
            config = StepSettings(run.config, recipe.model_dump(mode="json"))
            row = (
                rows_of(run, [group]).get(payload.prompt)
                if run.dataset_version
                else None
            )
            completions = group.completions[:MAX_TEXTS]
            samples = samples_of(run, group, row, completions, config.at(payload.step))
        except (Refused, ValueError) as error:
            raise refuse_field(
                "body.run_id", str(error), "rewards.bad_group"
            ) from error
        return [completion.text for completion in completions], samples
    if not payload.texts or payload.dataset_version_id is None:
        raise refuse_field(
            "body.texts",
            "Send texts with a dataset version and a row, or a run with a step and a "
            "prompt.",
            code="rewards.nothing_to_try",
        )
    rows = find_version(team, payload.dataset_version_id).rows
    row = or_404(
        rows.filter(position=payload.row or 0).first(),
        f"The dataset version has no row {payload.row or 0:,}.",
    )
    return payload.texts, [as_sample(row, text) for text in payload.texts]


class RuleKind(Schema):
    kind: str = Field(examples=["exact_answer"])
    title: str = Field(examples=["Exact answer"])
    summary: str
    asks_a_model: bool = Field(
        description="True: the rule calls a model, which may cost money."
    )
    runs_code: bool = Field(description="True: the rule runs code in a sandbox.")
    params: dict[str, Any] = Field(description="JSON schema of the parameters.")


class RuleKinds(Schema):
    items: list[RuleKind]


@versions_router.get("/rule-kinds", response=RuleKinds, summary="List kinds of rules")
def rule_kinds(request: HttpRequest) -> RuleKinds:
    """Sorted by title."""
    rules = sorted(RULES.values(), key=lambda rule: rule.title)
    return RuleKinds(
        items=[
            fill(
                RuleKind,
                rule,
                asks_a_model=rule.batching is not None,
                runs_code=rule.needs_sandbox,
                params=rule.params_model.model_json_schema(),
            )
            for rule in rules
        ]
    )
