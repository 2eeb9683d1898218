"""Settings of a launch that the team keeps under a name."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models.functions import Lower
from django.http import HttpRequest
from ninja import Router, Schema, Status
from pydantic import Field

from dashboard.api.auth import READ, WRITE, access_of
from dashboard.api.problems import or_refuse
from dashboard.api.resources.launches import LaunchIn, checked_launch, read_launch
from dashboard.api.schemas import Done, Id, Input, Person
from dashboard.runs.launch.team_presets import (
    delete_preset,
    rename_preset,
    save_preset,
)
from dashboard.runs.models import TeamPreset
from dashboard.runs.queries import get_team_preset

router = Router(tags=["Launch"], auth=READ)


class TeamPresetOut(Schema):
    id: int = Field(examples=[4])
    key: str = Field(description="`start` of a launch.", examples=["team:4"])
    name: str = Field(examples=["our GRPO"])
    settings: dict[str, Any] = Field(
        description="As a run's config, without its rows and evaluation sets."
    )
    model: str = Field(description="Empty: not kept.", examples=["Qwen/Qwen3-0.6B"])
    recipe_version_id: int | None = Field(description="null: not kept.", examples=[5])
    saved_by: Person | None
    saved_at: datetime

    @classmethod
    def of(cls, preset: TeamPreset) -> TeamPresetOut:
        return cls(
            id=preset.pk,
            key=f"team:{preset.pk}",
            name=preset.name,
            settings=preset.config,
            model=preset.model,
            recipe_version_id=preset.recipe_version_id,
            saved_by=Person.of(preset.saved_by),
            saved_at=preset.saved_at,
        )


class TeamPresetsOut(Schema):
    items: list[TeamPresetOut]


@router.get("", response=TeamPresetsOut, summary="List the team's presets")
def team_presets(request: HttpRequest) -> TeamPresetsOut:
    """By name."""
    found = TeamPreset.objects.filter(team=access_of(request).team)
    presets = found.select_related("saved_by").order_by(Lower("name"))
    return TeamPresetsOut(items=[TeamPresetOut.of(preset) for preset in presets])


@router.get("/{preset_id}", response=TeamPresetOut, summary="Look at a preset")
def team_preset(request: HttpRequest, preset_id: Id) -> TeamPresetOut:
    return TeamPresetOut.of(get_team_preset(access_of(request).team, preset_id))


class PresetIn(Input):
    name: str = Field(max_length=400, examples=["our GRPO"])
    launch: LaunchIn = Field(
        description="What a launch takes, checked as one; nothing is launched.",
        examples=[{"start": "dr_grpo", "settings": {"optim.learning_rate": 1e-6}}],
    )
    keeps_model: bool = False
    keeps_recipe: bool = False
    overwrites: bool = Field(default=False, description="The one of this name.")


@router.post("", response={201: TeamPresetOut}, auth=WRITE, summary="Save a preset")
def save_team_preset(request: HttpRequest, payload: PresetIn) -> Status[TeamPresetOut]:
    access = access_of(request)
    asked = checked_launch(read_launch(access.team, payload.launch))
    with or_refuse("body.name"):
        preset = save_preset(
            team=access.team,
            user=access.user,
            name=payload.name,
            launch=asked,
            keeps_model=payload.keeps_model,
            keeps_recipe=payload.keeps_recipe,
            overwrites=payload.overwrites,
        )
    return Status(201, TeamPresetOut.of(preset))


class PresetName(Input):
    name: str = Field(max_length=400, examples=["our GRPO"])


@router.patch(
    "/{preset_id}", response=TeamPresetOut, auth=WRITE, summary="Rename a preset"
)
def rename_team_preset(
    request: HttpRequest, preset_id: Id, payload: PresetName
) -> TeamPresetOut:
    access = access_of(request)
    preset = get_team_preset(access.team, preset_id)
    with or_refuse("body.name"):
        rename_preset(preset=preset, user=access.user, name=payload.name)
    return TeamPresetOut.of(preset)


@router.delete("/{preset_id}", response=Done, auth=WRITE, summary="Delete a preset")
def delete_team_preset(request: HttpRequest, preset_id: Id) -> Done:
    """Runs keep their own settings; the audit log keeps what it held."""
    access = access_of(request)
    preset = get_team_preset(access.team, preset_id)
    delete_preset(preset=preset, user=access.user)
    return Done(done=True)
