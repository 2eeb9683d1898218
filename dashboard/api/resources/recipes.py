"""Reward recipes and their versions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema, Status
from pydantic import Field, ValidationError

from dashboard.api.auth import READ, WRITE, access_of
from dashboard.api.paging import Cursor, Limit, Page, page_by
from dashboard.api.problems import Problem, or_refuse, refuse_field
from dashboard.api.schemas import Id, Input, Person, fill
from dashboard.rewards.models import RecipeVersion, RewardRecipe
from dashboard.rewards.recipe_text import describe
from dashboard.rewards.rule_editor import find_fault
from dashboard.rewards.services import get_recipe, save_recipe_version
from trainer.rewards.spec import Recipe

router = Router(tags=["Rewards"], auth=READ)
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
        description="As trainer.rewards.spec.Recipe holds it.", examples=[SPEC]
    )
    created_at: datetime


def _recipe(row: RewardRecipe) -> RecipeOut:
    return fill(RecipeOut, row, created_by=Person.of(row.created_by))


def version_out(row: RecipeVersion) -> RecipeVersionOut:
    return fill(RecipeVersionOut, row, recipe=row.recipe.name)


@router.get("", response=Page[RecipeOut], summary="List recipes")
def recipes(request: HttpRequest, cursor: Cursor, limit: Limit) -> Page[Any]:
    """The newest first."""
    found = access_of(request).team.recipes.select_related("created_by")
    return page_by(found, _recipe, cursor=cursor, limit=limit)


@router.get(
    "/{recipe_id}/versions",
    response=Page[RecipeVersionOut],
    summary="List a recipe's versions",
)
def recipe_versions(
    request: HttpRequest, recipe_id: Id, cursor: Cursor, limit: Limit
) -> Page[Any]:
    """The newest first. A version never changes."""
    own = get_recipe(access_of(request).team, recipe_id)
    found = own.versions.select_related("recipe")
    return page_by(found, version_out, cursor=cursor, limit=limit)


class VersionIn(Input):
    spec: dict[str, Any] = Field(examples=[SPEC])


class RecipeIn(VersionIn):
    name: str = Field(min_length=1, max_length=80, examples=["right answer"])
    description: str = Field(default="", max_length=2_000)


@router.post(
    "", response={201: RecipeVersionOut}, auth=WRITE, summary="Create a recipe"
)
def create_recipe(request: HttpRequest, payload: RecipeIn) -> Status[RecipeVersionOut]:
    """With its first version."""
    access = access_of(request)
    name = " ".join(payload.name.split())
    if not name:
        raise refuse_field("body.name", "A recipe needs a name; got only spaces.")
    with or_refuse("body.name"):
        version = save_recipe_version(
            team=access.team,
            name=name,
            recipe=read_spec(payload.spec),
            user=access.user,
            description=payload.description,
        )
    return Status(201, version_out(version))


@router.post(
    "/{recipe_id}/versions",
    response={201: RecipeVersionOut},
    auth=WRITE,
    summary="Create a recipe version",
)
def create_recipe_version(
    request: HttpRequest, recipe_id: Id, payload: VersionIn
) -> Status[RecipeVersionOut]:
    """Equal to the newest one, that is given back and none is made."""
    access = access_of(request)
    own = get_recipe(access.team, recipe_id)
    version = save_recipe_version(
        team=access.team,
        name=own.name,
        recipe=read_spec(payload.spec),
        user=access.user,
        existing=own,
    )
    return Status(201, version_out(version))


def read_spec(spec: dict[str, Any]) -> Recipe:
    try:
        recipe = Recipe.model_validate(spec)
    except ValidationError as error:
        errors = [
            (".".join(["body", "spec", *map(str, each["loc"])]), describe(each))
            for each in error.errors(include_url=False)
        ]
        detail = "; ".join(f"{field}: {message}" for field, message in errors[:5])
        raise Problem(422, detail, errors=errors) from error
    for number, rule in enumerate(recipe.rules):
        if fault := find_fault(rule):
            raise refuse_field(f"body.spec.rules.{number}.params.source", fault)
    return recipe
