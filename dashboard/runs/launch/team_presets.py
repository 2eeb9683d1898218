"""A team's presets: saved settings of the launch form."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError, transaction

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.project.errors import UserError
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.launch.form import Launch
from dashboard.runs.models import TeamPreset
from dashboard.web.edits import find_changes, version_of

LONGEST_NAME = TeamPreset._meta.get_field("name").max_length or 60
# Each run chooses its own training and evaluation rows.
LEFT_OUT = {"data": ("rows",), "evaluation": ("sets",)}


def save_preset(
    *,
    team: Team,
    user: User,
    name: str,
    launch: Launch,
    keeps_model: bool,
    keeps_recipe: bool,
    overwrites: bool = False,
    base: str = "",
) -> TeamPreset:
    """Save the settings of a form under a name; UserError if the name is taken.

    The audit log keeps the settings of an overwritten preset. EditConflict: someone
    saved it since `base`.
    """
    name = _clean_name(name)
    kept = {
        "config": strip_config(launch.config.model_dump(mode="json")),
        "model": launch.config.model.path if keeps_model else "",
        "recipe_version": launch.recipe_version if keeps_recipe else None,
        "saved_by": user,
    }
    with transaction.atomic():
        presets = TeamPreset.objects.select_for_update()
        preset = presets.filter(team=team, name=name).first()
        if preset and not overwrites:
            raise UserError(
                "presets.name_taken",
                f"A preset named “{name}” already exists. Choose another name, or "
                "select “Replace the preset with this name”.",
            )
        if preset:
            version = version_of_preset(preset)
            # The form may have been opened with another preset.
            base = base if base.partition(":")[0] == str(preset.pk) else ""
            typed = contents_of(TeamPreset(**kept))
            find_changes(contents_of(preset), typed, base, version=version)
        before = preset.config if preset else None
        preset = _write(preset or TeamPreset(team=team, name=name), kept)
        verb = "preset.overwritten" if before else "preset.saved"
        detail = {"before": before} if before else {}
        record(team, user, verb, preset, name=name, **detail)
    return preset


def contents_of(preset: TeamPreset) -> dict[str, Any]:
    names = ("config", "model", "recipe_version_id")
    return {name: getattr(preset, name) for name in names}


def version_of_preset(preset: TeamPreset) -> str:
    return f"{preset.pk}:{version_of(contents_of(preset))}"


def write_contents(contents: Mapping[str, Any]) -> str:
    """As text, for the comparison."""
    recipe = RecipeVersion.objects.filter(pk=contents["recipe_version_id"]).first()
    reward = str(recipe or "")
    tree = {**contents["config"], "model": contents["model"], "reward": reward}
    return json.dumps(tree, indent=2, sort_keys=True, ensure_ascii=False)


def _write(preset: TeamPreset, values: dict[str, Any]) -> TeamPreset:
    for field, value in values.items():
        setattr(preset, field, value)
    try:
        with transaction.atomic():
            preset.save()
    except IntegrityError:  # saved by another user a moment ago
        raise UserError(
            "presets.name_taken",
            f"A preset named “{preset.name}” already exists. Choose another name.",
        ) from None
    return preset


def strip_config(config: dict[str, Any]) -> dict[str, Any]:
    """A run's settings without model, rows, evaluation sets and reward."""
    out = {**LEFT_OUT, "model": ("path",), "reward": ("recipe",)}
    return {
        part: {n: v for n, v in values.items() if n not in out.get(part, ())}
        if isinstance(values, dict)
        else values
        for part, values in config.items()
    }


@transaction.atomic
def rename_preset(*, preset: TeamPreset, user: User, name: str, base: str = "") -> None:
    """UserError if the name is taken. EditConflict: another user renamed it."""
    locked = TeamPreset.objects.select_for_update().get(pk=preset.pk)
    before, name = locked.name, _clean_name(name)
    if find_changes({"new_name": before}, {"new_name": name}, base):
        _write(locked, {"name": name})
        record(preset.team, user, "preset.renamed", preset, name=name, before=before)
    preset.name = locked.name


@transaction.atomic
def delete_preset(*, preset: TeamPreset, user: User) -> None:
    """The audit log keeps its settings; runs have their own copies."""
    kept = {"name": preset.name, "before": preset.config}
    record(preset.team, user, "preset.deleted", preset, **kept)
    preset.delete()


def _clean_name(name: str) -> str:
    name = name.strip()
    if not name:
        raise UserError("presets.name_missing", "The preset needs a name.")
    if len(name) > LONGEST_NAME:
        raise UserError(
            "presets.name_too_long",
            f"The name has {len(name)} characters; at most {LONGEST_NAME} are allowed.",
        )
    if any(unicodedata.category(character) == "Cc" for character in name):
        raise UserError(
            "presets.bad_name",
            f"The name {name!r} contains a line break or another control character. "
            "Remove it.",
        )
    return name
