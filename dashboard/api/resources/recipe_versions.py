"""What a version of a recipe says, and what rules there are to write one with."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest
from ninja import Router, Schema
from pydantic import Field

from dashboard.api.auth import READ, access_of
from dashboard.api.resources.recipes import RecipeVersionOut, version_out
from dashboard.api.schemas import Id
from dashboard.rewards.formulas import write_formula
from dashboard.rewards.models import RecipeVersion
from dashboard.rewards.sentences import recipe_sentence
from trainer.rewards.rules import RULES
from trainer.rewards.spec import Recipe, recipe_bounds

router = Router(tags=["Rewards"], auth=READ)


class RecipeVersionDetail(RecipeVersionOut):
    sentence: str = Field(description="What it rewards, in words.")
    formula: str = Field(examples=["1·answer + 0.2·format"])
    lowest: float = Field(description="The reward that it can give.", examples=[0.0])
    highest: float = Field(examples=[1.2])


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
    recipe = Recipe.model_validate(version.spec)
    low, high = recipe_bounds(recipe)
    return RecipeVersionDetail(
        **version_out(version).model_dump(),
        sentence=recipe_sentence(recipe),
        formula=write_formula(recipe),
        lowest=low,
        highest=high,
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
            RuleKind(
                kind=rule.kind,
                title=rule.title,
                summary=rule.summary,
                asks_a_model=rule.batching is not None,
                runs_code=rule.needs_sandbox,
                params=rule.params_model.model_json_schema(),
            )
            for rule in rules
        ]
    )
