"""In what runs differ: settings, reward recipes, and completions of one prompt."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from django.db.models import F
from django.db.models.functions import Abs

from dashboard.completions.models import Completion, Group
from dashboard.project.schema_forms import SchemaField
from dashboard.rewards.recipe_text import write_formula
from dashboard.runs.config.fields import all_fields
from dashboard.runs.config.snapshot import (
    flatten_config,
    flatten_rule,
    flatten_tree,
    name_phases,
    reported_settings,
    write_named,
    write_setting,
)
from dashboard.runs.launch.base_models import find_published
from dashboard.runs.models import Run
from trainer.config import RunConfig
from trainer.rewards.spec import Recipe

ABSENT = None
RECIPE, OF_RECIPE = "recipe", ("rules.", "recipe.")
TEACHER = "reference.model"
REPORTED = "settings."  # by the names of another trainer
MAX_LISTED = 5  # values of a set
WHOLE = "combination of the rules"


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    key: str
    values: list[str | None]  # one per run; None: this run has no such setting
    varies: bool = False  # within a set of runs, when these are of sets
    # Runs, by index, that were not trained here and did not send it, or that have no
    # such phase.
    unknown: frozenset[int] = frozenset()

    @property
    def differs(self) -> bool:
        values = [v for i, v in enumerate(self.values) if i not in self.unknown]
        return self.varies or any(value != values[0] for value in values)

    @property
    def title(self) -> str:
        """The title in the launch form; else the key."""
        field = self._field
        if field is None:
            return {RECIPE: "Reward", "dataset": "Dataset"}.get(self.key, self.key)
        return f"{field.title} in phase {self.phase}" if self.phase else field.title

    @property
    def unit(self) -> str:
        return self._field.shown_unit if self._field else ""

    @property
    def phase(self) -> str:
        return _phase_of(self.key)

    @property
    def _field(self) -> SchemaField | None:
        own = self.key.removeprefix(f"phases.{self.phase}.") if self.phase else self.key
        return all_fields().get(own)

    @property
    def part(self) -> str:
        return _part(self.key)

    @property
    def cells(self) -> list[tuple[str | None, bool, bool]]:
        """The values, whether each differs from the baseline's, whether it is
        unknown.
        """
        return [
            (
                value,
                value != self.values[0] and not self.unknown & {0, index},
                index in self.unknown,
            )
            for index, value in enumerate(self.values)
        ]


def join_settings(
    settings: Iterable[Setting], sets: Sequence[Sequence[int]]
) -> list[Setting]:
    """Join the values of each set of runs, by their indices; several values are
    listed.
    """
    return [
        Setting(
            key=setting.key,
            values=[_join([setting.values[i] for i in indices]) for indices in sets],
            varies=any(
                len({setting.values[i] for i in indices} - {ABSENT}) > 1
                or (
                    len({setting.values[i] for i in indices}) > 1
                    and not setting.unknown & set(indices)
                )
                for indices in sets
            ),
            unknown=frozenset(
                place
                for place, indices in enumerate(sets)
                if setting.unknown >= set(indices)
            ),
        )
        for setting in settings
    ]


def _join(values: Sequence[str | None]) -> str | None:
    distinct = list(dict.fromkeys(values))
    if distinct == [ABSENT]:
        return ABSENT
    words = ["absent" if value is ABSENT else value for value in distinct[:MAX_LISTED]]
    rest = len(distinct) - len(words)
    return ", ".join(words) + (f" and {rest} more" if rest else "")


def compare_settings(runs: Sequence[Run]) -> list[Setting]:
    flat = [dict(_settings(run)) for run in runs]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    # Keys of one part together, parts in the order they first appear.
    parts = list(dict.fromkeys(map(_part, keys)))
    phases = [set(name_phases(run.config.get("phases") or ())) for run in runs]
    return [
        Setting(
            key=key,
            values=[settings.get(key, ABSENT) for settings in flat],
            unknown=frozenset(
                index
                for index, run in enumerate(runs)
                if key not in flat[index]
                and (
                    run.is_imported
                    or key.startswith(REPORTED)
                    or (phase and phase not in phases[index])
                )
            ),
        )
        for key in sorted(keys, key=lambda key: parts.index(_part(key)))
        for phase in [_phase_of(key)]
    ]


def list_differences(settings: Sequence[Setting]) -> list[Setting]:
    """List the settings that differ; a different recipe stands for its rules."""
    differing = [setting for setting in settings if setting.differs]
    if any(setting.key == RECIPE for setting in differing):
        return [s for s in differing if not s.key.startswith(OF_RECIPE)]
    return differing


def title_of_setting(key: str) -> str:
    return Setting(key=key, values=[]).title


def _phase_of(key: str) -> str:
    """
    >>> _phase_of("phases.warm.loss.kl_coef"), _phase_of("loss.kl_coef")
    ('warm', '')
    """
    head, *rest = key.split(".", 2)
    return rest[0] if head == "phases" and len(rest) > 1 else ""


def lack_settings(run: Run) -> bool:
    """Tell whether its training settings are unknown."""
    return run.is_imported and not any(reported_settings(run.config))


def _part(key: str) -> str:
    head, dot, _ = key.partition(".")
    return head if dot else "run"


def _settings(run: Run) -> Iterator[tuple[str, str]]:
    yield "model", run.model_label
    if run.is_imported:
        yield "trained by" if run.is_external else "imported from", run.imported_from
    if run.dataset_version:
        yield "dataset", str(run.dataset_version)
    frozen = set()
    for evaluation_set in run.evaluation_sets.all():
        frozen.add(f"evaluation.sets.{evaluation_set.name}")
        yield (
            f"eval.{evaluation_set.name}",
            f"{evaluation_set.dataset_version}, {evaluation_set.num_rows:,} rows",
        )
    if run.is_external:
        yield from _reported_settings(run)
        return  # its other settings are unknown
    config = run.config.get("settings", {}) if run.is_imported else run.config
    if not run.is_imported:
        yield "recipe", str(run.recipe_version)
    for key, value in flatten_config(whole_config(config) if config else {}):
        model = find_published(value) if key == TEACHER and value else None
        if key not in frozen:
            title = f"{model} ({model.lineage})" if model else write_named(key, value)
            yield key, title


def _reported_settings(run: Run) -> Iterator[tuple[str, str]]:
    """List the settings that the trainer of an outside run sent, by its own names."""
    for rule in run.config["reward"]["recipe"]["rules"]:
        yield f"rules.{rule['name']}.weight", write_setting(rule["weight"])
    for key, value in reported_settings(run.config):
        yield f"{REPORTED}{key}", write_setting(value)


def whole_config(config: dict[str, Any]) -> dict[str, Any]:
    """Add today's defaults for what the run did not set, where it still validates."""
    try:
        return RunConfig.model_validate(config).model_dump(mode="json")
    except ValueError:
        copy: dict[str, Any] = json.loads(json.dumps(config))
        return copy


# One prompt as several runs answered it, each at the step nearest to the wanted.


MAX_SHOWN = 4  # completions of a group
RECENT_GROUPS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class RunAnswer:
    run: Run
    group: Group | None
    completions: list[Completion]  # the highest rewards first
    num_completions: int
    reason: str  # why there is no group


def choose_prompt(runs: Sequence[Run], text: str = "") -> int | None:
    """Choose at random one of the newest prompts that the most of these runs sampled,
    of those that contain the text.

    None: no two of them sampled the same one. Two queries.
    """
    first, *others = runs
    version = first.dataset_version_id
    if version is None:
        return None
    prompts = set(
        Group.objects.current()
        .filter(run=first, **({"prompt__icontains": text} if text else {}))
        .order_by("-step", "prompt_index")
        .values_list("prompt_index", flat=True)[:RECENT_GROUPS]
    )
    pairs = (
        Group.objects.current()
        .filter(
            run__in=[run.pk for run in others if run.dataset_version_id == version],
            prompt_index__in=prompts,
        )
        .order_by()
        .values_list("prompt_index", "run_id")
        .distinct()
    )
    counts = Counter(prompt for prompt, _ in pairs)
    most = max(counts.values(), default=0)
    shared = sorted(prompt for prompt, num in counts.items() if num == most)
    return secrets.choice(shared) if shared else None


def find_answers(runs: Sequence[Run], prompt: int, step: int | None) -> list[RunAnswer]:
    """Find each run's group at the step nearest to `step`, by default its newest. Two
    queries.
    """
    version = runs[0].dataset_version_id
    groups = Group.objects.current().filter(
        run__in=[run.pk for run in runs if run.dataset_version_id == version],
        prompt_index=prompt,
    )
    away = [] if step is None else [Abs(F("step") - step)]
    nearest = groups.order_by("run_id", *away, "-step").distinct("run_id")
    group_of = {
        group.run_id: group
        for group in nearest.prefetch_related("packed_completions")
        if version is not None
    }
    return [_answer(run, runs[0], prompt, group_of.get(run.pk)) for run in runs]


def _answer(run: Run, baseline: Run, prompt: int, group: Group | None) -> RunAnswer:
    if group is not None:
        ranked = sorted(
            group.completions, key=lambda c: (c.reward is None, -(c.reward or 0.0))
        )
        return RunAnswer(
            run=run,
            group=group,
            completions=ranked[:MAX_SHOWN],
            num_completions=len(ranked),
            reason="",
        )
    reason = f"This run has not sampled prompt {prompt}."
    if run.dataset_version is None:
        reason = "This run was imported without prompts."
    elif run.dataset_version_id != baseline.dataset_version_id:
        reason = (
            f"This run uses {run.dataset_version} and the baseline "
            f"{baseline.dataset_version}, so prompt {prompt} is a different prompt."
        )
    return RunAnswer(
        run=run, group=None, completions=[], num_completions=0, reason=reason
    )


# Rules that a recipe has and the baseline's has not.


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    kind: Literal["added", "removed", "changed"]
    name: str
    # (setting, the baseline's value, this one's); None: it has no such setting.
    settings: list[tuple[str, str | None, str | None]] = field(default_factory=list)


def find_changes(base: Run, others: Sequence[Run]) -> list[list[Change]]:
    """Rules are the same by their names; their order changes nothing."""
    ours = _recipe(base)
    return [_compare_recipes(ours, _recipe(other)) for other in others]


def _compare_recipes(ours: dict[str, Any], theirs: dict[str, Any]) -> list[Change]:
    mine = {rule["name"]: rule for rule in ours.get("rules", [])}
    its = {rule["name"]: rule for rule in theirs.get("rules", [])}
    changes = [
        *(_one("removed", mine[name]) for name in mine if name not in its),
        *(_one("added", its[name]) for name in its if name not in mine),
        *(
            _changed(name, _rule_settings(mine[name]), _rule_settings(its[name]))
            for name in mine
            if name in its
        ),
        _changed(WHOLE, _whole_settings(ours), _whole_settings(theirs)),
    ]
    return [change for change in changes if change is not None]


def formula_of(run: Run) -> str:
    """Write the recipe on one line; empty where today's rules do not read it."""
    try:
        return write_formula(Recipe.model_validate(run.config["reward"]["recipe"]))
    except (KeyError, ValueError):
        return ""


def _recipe(run: Run) -> dict[str, Any]:
    recipe: dict[str, Any] = (
        whole_config(run.config).get("reward", {}).get("recipe", {})
    )
    return recipe


def _whole_settings(recipe: dict[str, Any]) -> dict[str, str]:
    return _written(
        flatten_tree({key: value for key, value in recipe.items() if key != "rules"})
    )


def _rule_settings(rule: dict[str, Any]) -> dict[str, str]:
    return _written(flatten_rule(rule, prefix=""))


def _written(settings: Iterable[tuple[str, Any]]) -> dict[str, str]:
    return {key: write_setting(value) for key, value in settings}


def _one(kind: Literal["added", "removed"], rule: dict[str, Any]) -> Change:
    settings: list[tuple[str, str | None, str | None]] = [
        (key, None, value) if kind == "added" else (key, value, None)
        for key, value in _rule_settings(rule).items()
    ]
    return Change(kind=kind, name=rule["name"], settings=settings)


def _changed(name: str, ours: dict[str, str], theirs: dict[str, str]) -> Change | None:
    settings = [
        (key, ours.get(key), theirs.get(key))
        for key in dict.fromkeys([*ours, *theirs])
        if ours.get(key) != theirs.get(key)
    ]
    return Change(kind="changed", name=name, settings=settings) if settings else None
