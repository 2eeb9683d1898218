"""What a launch may begin with, as it would fill the form."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Path, Query, Router, Schema
from pydantic import Field

from dashboard.api.auth import READ, access_of
from dashboard.api.problems import Problem
from dashboard.runs.launch.choices import choices_of
from dashboard.runs.launch.starts import find_start

router = Router(tags=["Launch"], auth=READ)


class StartOut(Schema):
    key: str = Field(examples=["dr-grpo"])
    title: str = Field(examples=["Dr. GRPO"])
    summary: str
    source: str = Field(description="Where it was published.")
    notes: list[str]
    can_be_scaled: bool = Field(description="It can be made smaller for one machine.")
    settings: dict[str, str] = Field(
        description="By path, as a launch's `settings` take them.",
        examples=[{"optim.learning_rate": "1e-6"}],
    )
    recipe: dict[str, Any] | None = Field(
        description="The reward that it brings; a launch takes it once it is a recipe "
        "of the team.",
    )


@router.get("/presets/{key}", response=StartOut, summary="Look at a preset")
def preset(
    request: HttpRequest,
    key: Annotated[
        str,
        Path(
            max_length=200,
            description="As `start` of a launch names it: a preset, `team:3`, `run-7`.",
            examples=["dr-grpo"],
        ),
    ],
    is_scaled: Annotated[bool, Query(False)],
) -> StartOut:
    """Its settings, and the recipe that it brings."""
    team = access_of(request).team
    starters = choices_of(team).starters
    try:
        found = find_start(key, team=team, starters=starters, scaled=is_scaled)
    except ValueError as error:
        raise Problem(404, str(error)) from error
    return StartOut(
        key=key,
        title=found.title,
        summary=found.summary,
        source=found.source,
        notes=list(found.notes),
        can_be_scaled=found.can_be_scaled,
        settings=found.texts,
        recipe=found.recipe,
    )
