"""What a recipe says, and what rules there are to write one with."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest
from ninja import Router, Schema
from pydantic import Field

from dashboard.api.auth import READ, access_of
from dashboard.api.resources.datasets.schemas import find_version
from dashboard.api.resources.recipes import (
    SPEC,
    RecipeVersionOut,
    read_spec,
    version_out,
)
from dashboard.api.schemas import Id, IdIn, Input, fill
from dashboard.rewards.models import RecipeVersion
from dashboard.rewards.recipe_checks import Finding
from dashboard.rewards.recipe_text import recipe_sentence, write_formula
from dashboard.rewards.row_checks import check_rows
from trainer.rewards.rules import RULES
from trainer.rewards.spec import Recipe, recipe_bounds

router = Router(tags=["Rewards"], auth=READ)


class RecipeSaid(Schema):
    sentence: str = Field(description="What it rewards, in words.")
    formula: str = Field(examples=["1·answer + 0.2·format"])
    lowest: float = Field(description="The reward that it can give.", examples=[0.0])
    highest: float = Field(examples=[1.2])


class RecipeVersionDetail(RecipeVersionOut, RecipeSaid):
    pass


def _said(recipe: Recipe) -> RecipeSaid:
    low, high = recipe_bounds(recipe)
    return RecipeSaid(
        sentence=recipe_sentence(recipe),
        formula=write_formula(recipe),
        lowest=low,
        highest=high,
    )


@router.get(
    "/recipe-versions/{recipe_version_id}",
    response=RecipeVersionDetail,
    summary="Look at a recipe version",
)
def recipe_version(request: HttpRequest, recipe_version_id: Id) -> RecipeVersionDetail:
    """With what it says in words, as a formula, and in bounds."""
    team = access_of(request).team
    found = RecipeVersion.objects.select_related("recipe")
    version = found.filter(recipe__team=team, pk=recipe_version_id).first()
    if version is None:
        raise Http404(f"{team} has no recipe version {recipe_version_id}.")
    said = _said(Recipe.model_validate(version.spec))
    return RecipeVersionDetail(**version_out(version).model_dump(), **said.model_dump())


class RecipeFindingOut(Schema):
    kind: str = Field(examples=["trivial"])
    sentence: str
    remedy: str
    rows: list[int] = Field(description="That show it.", examples=[[0, 3]])


class RecipeCheckIn(Input):
    spec: dict[str, Any] = Field(examples=[SPEC])
    dataset_version_id: IdIn | None = Field(
        default=None,
        description="Rows to look at: references that no rule can read, and rewards "
        "for completions that solve nothing.",
        examples=[12],
    )


class RecipeCheckOut(RecipeSaid):
    findings: list[RecipeFindingOut] = Field(description="Of the rows.")


@router.post("/recipes/check", response=RecipeCheckOut, summary="Check a recipe")
def check_recipe(request: HttpRequest, payload: RecipeCheckIn) -> RecipeCheckOut:
    """What is wrong with it is a 422 that names its fields; nothing is saved."""
    recipe, version_id = read_spec(payload.spec), payload.dataset_version_id
    findings: list[Finding] = []
    if version_id is not None:
        version = find_version(access_of(request).team, version_id)
        findings = check_rows(recipe, version)
    return RecipeCheckOut(
        **_said(recipe).model_dump(),
        findings=[
            fill(RecipeFindingOut, found, rows=list(found.positions))
            for found in findings
        ],
    )


class RuleKind(Schema):
    kind: str = Field(examples=["exact_answer"])
    title: str = Field(examples=["Exact answer"])
    summary: str
    asks_a_model: bool = Field(description="Which may cost money.")
    runs_code: bool = Field(description="In a sandbox.")
    params: dict[str, Any] = Field(description="Its parameters as a JSON schema.")


class RuleKinds(Schema):
    items: list[RuleKind]


@router.get("/rule-kinds", response=RuleKinds, summary="List kinds of rules")
def rule_kinds(request: HttpRequest) -> RuleKinds:
    """What a recipe's rules can be, by title."""
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
