"""Starts of the launch form: a recommendation, presets, another run; a name."""

from __future__ import annotations

import json
import random
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models.functions import Lower

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.datasets.models import DatasetVersion
from dashboard.project.errors import UserError
from dashboard.project.schema_forms import SchemaField
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.config.fields import all_fields, main_fields, put, write_texts
from dashboard.runs.config.toml import write_phases
from dashboard.runs.launch.base_models import StarterModel, read_model_config
from dashboard.runs.launch.fit import (
    LENGTH,
    bound_longest,
    count_longest,
    find_limit,
    longest_answer,
)
from dashboard.runs.models import Checkpoint, Run, TeamPreset
from dashboard.runs.queries import get_run, get_team_preset
from dashboard.runs.queue.hosts import known_devices
from dashboard.web.edits import find_changes, version_of
from trainer.config import DataConfig, RunConfig
from trainer.presets.preset import Preset, load_preset, preset_names
from trainer.reproductions.reproduction import load_reproduction, reproduction_names
from trainer.sizes.recommended import recommend, size_in_config, size_in_name

RUN_KEY = re.compile(r"run-(\d{1,18})")
FORK_KEY = re.compile(r"fork-(\d{1,18})-(step-\d{1,9}-(?:attempt|epoch)-\d{1,9})")
TEAM_KEY = re.compile(r"team:(\d{1,18})")
RECOMMENDED, DEFAULTS = "recommended", "defaults"
REPRODUCTION = "reproduction:"  # begins a key


# Two words make a pronounceable name: amber-otter.
# fmt: off
QUALITIES = (
    "amber", "ample", "azure", "bold", "brave", "breezy", "bright", "brisk", "calm",
    "candid", "cheery", "clever", "coral", "cosmic", "crisp", "curious", "dapper",
    "deft", "eager", "early", "earnest", "fair", "fleet", "fond", "frosty", "gentle",
    "gilded", "glad", "golden", "grand", "hardy", "hazel", "hearty", "honest", "humble",
    "ivory", "jolly", "keen", "kind", "lively", "lucid", "lucky", "mellow", "merry",
    "misty", "modest", "nimble", "noble", "opal", "patient", "placid", "plucky",
    "polite", "proud", "quick", "quiet", "rapid", "ready", "robust", "rosy", "royal",
    "sandy", "serene", "sharp", "silver", "smooth", "snowy", "sober", "steady",
    "sturdy", "sunny", "swift", "tidy", "tranquil", "upbeat", "velvet", "vivid",
    "warm", "wise", "witty", "zesty",
)
BEINGS = (
    "acorn", "alder", "aspen", "badger", "beacon", "beaver", "birch", "bison", "brook",
    "cedar", "cliff", "clover", "comet", "condor", "crane", "creek", "curlew", "delta",
    "dolphin", "dune", "eagle", "ember", "falcon", "fern", "finch", "fjord", "fox",
    "gecko", "glacier", "glade", "grove", "harbor", "hare", "harrier", "heron", "hill",
    "ibex", "island", "jay", "juniper", "kestrel", "kite", "lagoon", "lark", "lemur",
    "linden", "lynx", "magpie", "maple", "marmot", "marten", "meadow", "mesa", "moose",
    "moth", "newt", "oak", "orca", "osprey", "otter", "owl", "panda", "pebble",
    "pelican", "pine", "plover", "prairie", "puffin", "quail", "rabbit", "raven",
    "reed", "ridge", "river", "robin", "sable", "salmon", "seal", "sparrow", "spruce",
    "stork", "swallow", "swan", "tern", "thrush", "tide", "trout", "vale", "walnut",
    "willow", "wren", "yak",
)
# fmt: on


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """The origin of a form's settings, and the settings."""

    key: str = DEFAULTS  # as ?preset= names it
    title: str = "Cohort's defaults"
    name: str = ""  # in a sentence: "changed from verl"
    summary: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()
    is_scaled: bool = False
    can_be_scaled: bool = False
    texts: dict[str, str] = field(default_factory=dict)
    phases: str = ""
    # Settings without a form field, as in RunConfig. Of evaluation.sets, only files of
    # the training worker.
    eval_files: dict[str, str] = field(default_factory=dict)
    step_recipe: dict[str, Any] | None = None
    recipe: dict[str, Any] | None = None
    run: Run | None = None
    fork: Checkpoint | None = None  # of `run`
    team_preset: TeamPreset | None = None

    @property
    def differences(self) -> list[tuple[SchemaField, str, str]]:
        """Settings that differ from the defaults: setting, value, default."""
        return [
            (setting, setting.show(text), setting.show(setting.default_text))
            for setting in all_fields().values()
            if not setting.is_same(
                text := self.texts[setting.path], setting.default_text
            )
        ]


@dataclass(frozen=True, slots=True)
class Offered:
    """A start to choose from."""

    key: str
    title: str
    kind: str = ""  # of a published preset


@cache
def offer_presets() -> tuple[Offered, ...]:
    presets = map(load_preset, preset_names())
    return tuple(Offered(each.name, each.title, each.kind) for each in presets)


@cache
def offer_reproductions() -> tuple[Offered, ...]:
    each = map(load_reproduction, reproduction_names())
    return tuple(Offered(f"{REPRODUCTION}{one.name}", one.title) for one in each)


def offer_team_presets(team: Team) -> list[Offered]:
    presets = TeamPreset.objects.filter(team=team).order_by(Lower("name"))
    return [
        Offered(f"team:{pk}", name) for pk, name in presets.values_list("pk", "name")
    ]


def offer_starters(starters: list[StarterModel]) -> list[Offered]:
    return [
        Offered(starter.key, f"Settings for {starter.title}")
        for starter in starters
        if starter.has_settings
    ]


def find_start(
    key: str,
    *,
    team: Team,
    starters: list[StarterModel],
    scaled: bool,
    model: str = "",
    version: DatasetVersion | None = None,
) -> Start:
    """Find the start of this key; ValueError lists the presets if it is unknown.

    404 if it is a run that the team does not have. `model` and `version` are those of
    the form, for a recommendation.
    """
    if key in ("", DEFAULTS):
        return default_start()
    if key == RECOMMENDED:
        return recommended_start(model, starters, version)
    if match := RUN_KEY.fullmatch(key):
        return start_of_run(get_run(team, int(match[1])))
    if match := FORK_KEY.fullmatch(key):
        return start_of_fork(get_run(team, int(match[1])), match[2])
    if match := TEAM_KEY.fullmatch(key):
        return start_of_team_preset(get_team_preset(team, int(match[1])))
    for starter in starters:
        if starter.key == key and starter.has_settings:
            return Start(
                key=key,
                title=f"Settings for {starter.title}",
                name=starter.title,
                summary=f"Recommended settings for {starter.title} on its own task.",
                **_read(starter.read_settings()),
            )
    if key.startswith(REPRODUCTION):
        settings = load_reproduction(key.removeprefix(REPRODUCTION)).settings
        return _start_of(settings, key=key)
    return start_of_preset(key, scaled=scaled)


@cache
def default_start() -> Start:
    return Start(texts=write_texts({}))


def recommended_start(
    model: str, starters: Sequence[StarterModel], version: DatasetVersion | None
) -> Start:
    recommended = recommend_settings(model, starters, version)
    start = Start(key=RECOMMENDED, title="Recommended", **_read(recommended.tree))
    if not recommended.about:
        return replace(
            start,
            summary="Cohort's defaults: the size of this model is unknown."
            if model
            else "Cohort's defaults, until you choose a model.",
        )
    values = [
        f"{_in_sentence(setting.title)} {setting.show(start.texts[setting.path])}"
        for setting in main_fields()
        if setting.path != "seed"
        and not setting.is_same(start.texts[setting.path], setting.default_text)
    ]
    summary = f"Recommended for {recommended.about}"
    summary += f": {', '.join(values)}." if values else ": Cohort's defaults."
    return replace(start, name=RECOMMENDED, summary=summary)


# Recommended settings: a starter's own, or by a model's size and the devices.


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommended:
    about: str  # the model they suit; "": its size is unknown
    tree: dict[str, Any]  # as in RunConfig; the rest keeps its defaults


def recommend_settings(
    path: str, starters: Sequence[StarterModel], version: DatasetVersion | None
) -> Recommended:
    """Recommend for a model, trained on a dataset or on one not chosen yet."""
    own = next((starter for starter in starters if starter.path == path), None)
    if own is not None and own.has_settings:
        return Recommended(about=own.title, tree=own.read_settings())
    tree = read_model_config(Path(path)) if path.startswith("/") else None
    size = (size_in_config(tree) if tree else None) or size_in_name(path)
    if size is None:
        return Recommended(about="", tree={})
    devices = known_devices()
    device = next((gpu for gpu in devices if gpu.is_gpu), next(iter(devices), None))
    limit = find_limit(tree) if tree else None
    advice = recommend(
        size,
        on_gpu=device.is_gpu if device else None,
        memory_bytes=(device.memory_bytes or None) if device else None,
        longest_answer=longest_answer(version.pk) if version else 0,
        room=limit - _prompt_tokens(version, path) if limit else None,
    )
    settings: dict[str, Any] = {}
    for name, value in advice.settings.items():
        put(settings, name, value)
    way = "LoRA" if advice.is_lora else "full training"
    # As model cards have it: 135 M, 1.5 B.
    parameters = f"{size / 1e9:.3g} B" if size >= 0.9995e9 else f"{size / 1e6:.3g} M"
    return Recommended(about=f"{parameters} parameters, {way}", tree=settings)


def _prompt_tokens(version: DatasetVersion | None, path: str) -> int:
    """Count the longest prompt; uncounted, an upper bound or the default limit."""
    default: int = DataConfig.model_fields[LENGTH.rpartition(".")[2]].default
    if version is None:
        return default
    return count_longest(version, path) or min(
        default, bound_longest(version, has_template=True)
    )


def _in_sentence(title: str) -> str:
    """Write Learning rate as learning rate, but LoRA rank as it is."""
    return title if any(map(str.isupper, title[1:])) else title.lower()


def start_of_run(run: Run) -> Start:
    if run.is_imported:
        raise UserError(
            "runs.no_settings",
            f"{run.name} {run.source_text}, so Cohort does not know its settings. "
            "Start from a preset, or from a run that Cohort trained.",
        )
    read = _read(run.config)
    for name in run.evaluation_sets.values_list("name", flat=True):
        read["eval_files"].pop(name, None)
    return Start(
        key=f"run-{run.pk}",
        title=f"{run.name} #{run.pk}",
        name=f"run #{run.pk}",
        run=run,
        **read,
    )


def start_of_fork(run: Run, name: str) -> Start:
    checkpoint = run.checkpoints.filter(name=name).select_related("run").first()
    if checkpoint is None:
        raise UserError(
            "runs.no_checkpoint",
            f"{run.name} has no checkpoint {name}. Choose one on its Checkpoints tab.",
        )
    return replace(start_of_run(run), key=f"fork-{run.pk}-{name}", fork=checkpoint)


def start_of_team_preset(preset: TeamPreset) -> Start:
    recipe = preset.recipe_version
    read = _read(preset.config)
    return Start(
        key=f"team:{preset.pk}",
        title=preset.name,
        name=preset.name,
        team_preset=preset,
        **read | {"recipe": recipe.spec if recipe else None},
    )


def start_of_preset(name: str, *, scaled: bool) -> Start:
    return _start_of(load_preset(name), key=name, scaled=scaled)


def _start_of(preset: Preset, *, key: str, scaled: bool = False) -> Start:
    return Start(
        key=key,
        title=preset.title,
        name=preset.name,
        summary=preset.summary,
        source=preset.source,
        notes=preset.notes,
        is_scaled=scaled,
        can_be_scaled=bool(preset.scaled),
        **_read({"seed": preset.seed, **preset.effective(scaled=scaled)}),
    )


def _read(tree: dict[str, Any]) -> dict[str, Any]:
    """Read a stored or published tree as initial values of the form."""
    tree = json.loads(json.dumps(tree))  # recipes are compared with stored ones
    reward = tree.get("reward") or {}
    phases = tree.get("phases") or ()
    return {
        "texts": write_texts(tree),
        "phases": write_phases(phases),
        "eval_files": (tree.get("evaluation") or {}).get("sets") or {},
        "recipe": reward.get("recipe"),
        "step_recipe": reward.get("step_recipe"),
    }


def propose_name(team: Team) -> str:
    """Propose a name that no run of the team has; the same until a run is launched."""
    num_runs = Run.objects.filter(team=team).count()
    candidates = list(_names(seed=f"{team.pk}:{num_runs}"))
    taken = set(
        Run.objects.filter(team=team, name__in=candidates).values_list(
            "name", flat=True
        )
    )
    free = [name for name in candidates if name not in taken]
    return free[0] if free else f"{candidates[0]}-{num_runs + 1}"


def _names(*, seed: str, count: int = 20) -> Iterator[str]:
    chooser = random.Random(seed)  # noqa: S311  # a name, not a secret
    for _ in range(count):
        yield f"{chooser.choice(QUALITIES)}-{chooser.choice(BEINGS)}"


LONGEST_NAME = TeamPreset._meta.get_field("name").max_length or 60
# Each run chooses its own training and evaluation rows.
LEFT_OUT = {"data": ("rows",), "evaluation": ("sets",)}


def save_preset(
    *,
    team: Team,
    user: User,
    name: str,
    config: RunConfig,
    keeps_model: bool,
    recipe_version: RecipeVersion | None,
    overwrites: bool = False,
    base: str = "",
) -> TeamPreset:
    """Save the settings of a form under a name; UserError if the name is taken.

    The audit log keeps the settings of an overwritten preset. EditConflict: someone
    saved it since `base`.
    """
    name = clean_name(name)
    values = {
        "config": strip_config(config.model_dump(mode="json")),
        "model": config.model.path if keeps_model else "",
        "recipe_version": recipe_version,
        "saved_by": user,
    }
    with transaction.atomic():
        preset = (
            TeamPreset.objects.select_for_update().filter(team=team, name=name).first()
        )
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
            typed = contents_of(TeamPreset(**values))
            find_changes(contents_of(preset), typed, base, version=version)
        before = preset.config if preset else None
        preset = _write(preset or TeamPreset(team=team, name=name), values)
        verb = "preset.overwritten" if before else "preset.saved"
        older = {"before": before} if before else {}
        record(team, user, verb, preset, name=name, **older)
    return preset


def contents_of(preset: TeamPreset) -> dict[str, Any]:
    return {
        name: getattr(preset, name) for name in ("config", "model", "recipe_version_id")
    }


def version_of_preset(preset: TeamPreset) -> str:
    return f"{preset.pk}:{version_of(contents_of(preset))}"


def write_contents(contents: Mapping[str, Any]) -> str:
    """Write them as text, for the comparison."""
    reward = str(
        RecipeVersion.objects.filter(pk=contents["recipe_version_id"]).first() or ""
    )
    return json.dumps(
        {**contents["config"], "model": contents["model"], "reward": reward},
        indent=2,
        sort_keys=True,
        ensure_ascii=False,
    )


def _write(preset: TeamPreset, values: dict[str, Any]) -> TeamPreset:
    for name, value in values.items():
        setattr(preset, name, value)
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
    """Return a run's settings without model, rows, evaluation sets and reward."""
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
    before, name = locked.name, clean_name(name)
    if find_changes({"new_name": before}, {"new_name": name}, base):
        _write(locked, {"name": name})
        record(preset.team, user, "preset.renamed", preset, name=name, before=before)
    preset.name = locked.name


@transaction.atomic
def delete_preset(*, preset: TeamPreset, user: User) -> None:
    """Delete it. The audit log keeps its settings; runs have their own copies."""
    before = preset.config
    record(preset.team, user, "preset.deleted", preset, name=preset.name, before=before)
    preset.delete()


def clean_name(name: str, *, of: str = "preset", longest: int = LONGEST_NAME) -> str:
    """Read the name of a preset or a run. UserError for one that it cannot have."""
    name = name.strip()
    if not name:
        raise UserError(f"{of}s.name_missing", f"The {of} needs a name.")
    if len(name) > longest:
        raise UserError(
            f"{of}s.name_too_long",
            f"The name has {len(name)} characters; at most {longest} are allowed.",
        )
    # A run's name is also one line of a file's header.
    if any(unicodedata.category(character) == "Cc" for character in name):
        raise UserError(
            f"{of}s.bad_name",
            f"The name {name!r} contains a line break or another control character. "
            "Remove it.",
        )
    return name
