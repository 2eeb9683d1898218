"""The launch form's settings with their values, and the choices of a team."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dashboard.accounts.models import Team
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.queries import list_versions
from dashboard.rewards.models import RecipeVersion
from dashboard.rewards.recipe_text import is_same_reward
from dashboard.runs.config.errors import Problems
from dashboard.runs.config.fields import (
    ConfigField,
    ConfigPart,
    advanced_parts,
    all_fields,
    find_unused,
    main_fields,
    recipe_facts,
)
from dashboard.runs.launch.base_models import StarterModel, offered_models
from dashboard.runs.launch.initial_values import RECOMMENDED, Start
from dashboard.runs.queue.hosts import Cluster, known_cluster

# Beside the size of a run where there is a cluster; else only the last, among all.
WHERE = ("distributed.where", "distributed.num_nodes", "distributed.num_processes")


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundField:
    """A setting with its value in the form."""

    field: ConfigField
    text: str
    start_text: str  # the initial value
    start_name: str  # "": Cohort's defaults
    unused_reason: str  # why it has no effect; "": it has one
    errors: list[str]
    fixed_reason: str = ""  # why a fork cannot change it

    @property
    def is_changed(self) -> bool:
        return not self.field.is_same(self.text, self.field.default_text)

    @property
    def differs_from_start(self) -> bool:
        return not self.field.is_same(self.text, self.start_text)

    @property
    def mark(self) -> str:
        """Where the value comes from. launch.js writes the same while typing."""
        if not self.start_name:
            return f"default {self.default_shown}" if self.is_changed else ""
        if self.start_name == RECOMMENDED:
            return f"recommended {self.start_shown}" if self.differs_from_start else ""
        if self.differs_from_start:
            return f"changed from {self.start_name}: {self.start_shown}"
        if self.is_changed:
            return f"from {self.start_name}, default {self.default_shown}"
        return ""

    @property
    def default_shown(self) -> str:
        return self.field.show(self.field.default_text)

    @property
    def start_shown(self) -> str:
        return self.field.show(self.start_text)


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundGroup:
    title: str
    fields: list[BoundField]


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundPart:
    part: ConfigPart
    groups: list[BoundGroup]

    @property
    def fields(self) -> list[BoundField]:
        return [bound for group in self.groups for bound in group.fields]

    @property
    def num_changed(self) -> int:
        """Settings changed from their initial values."""
        return sum(bound.differs_from_start for bound in self.fields)

    @property
    def num_set(self) -> int:
        """Settings that the start changed from the defaults."""
        return sum(
            bound.is_changed and not bound.differs_from_start for bound in self.fields
        )

    @property
    def is_open(self) -> bool:
        return any(bound.errors for bound in self.fields)


@dataclass(frozen=True, kw_only=True, slots=True)
class Binder:
    """Binds the form's values to its settings."""

    texts: Mapping[str, str]
    start: Start
    problems: Problems
    has_phases: bool  # a phase may give a setting an effect
    has_cluster: bool  # that a run may train on
    recipe: Mapping[str, Any]  # the chosen one; empty: none

    @property
    def main(self) -> list[BoundField]:
        unused = self._unused
        settings = [*main_fields(), *(self._where if self.shows_where else ())]
        return [self._bind(setting, unused) for setting in settings]

    @property
    def _where(self) -> list[ConfigField]:
        return [all_fields()[path] for path in WHERE]

    @property
    def shows_where(self) -> bool:
        """With a cluster, and for settings that ask for one."""
        return self.has_cluster or self.texts[WHERE[0]] != "machine"

    @property
    def hidden(self) -> list[BoundField]:
        """Settings without a cluster's, which the form only carries."""
        return [] if self.shows_where else [self._bind(s, {}) for s in self._where[:2]]

    @property
    def num_main_changed(self) -> int:
        return sum(bound.differs_from_start for bound in self.main)

    @property
    def parts(self) -> list[BoundPart]:
        unused = self._unused
        left_out = WHERE if self.shows_where else WHERE[:2]
        return [
            BoundPart(
                part=part,
                groups=[
                    BoundGroup(
                        title=group.title,
                        fields=[
                            self._bind(setting, unused)
                            for setting in group.fields
                            if setting.path not in left_out
                        ],
                    )
                    for group in part.groups
                ],
            )
            for part in advanced_parts()
        ]

    @property
    def step_recipe_unused(self) -> str:
        return self._unused.get("reward.step_recipe", "")

    @property
    def _unused(self) -> dict[str, str]:
        if self.has_phases:
            return {}
        facts = recipe_facts(self.recipe) if self.recipe else {}
        return find_unused(self.texts, facts)

    def _bind(self, setting: ConfigField, unused: Mapping[str, str]) -> BoundField:
        return BoundField(
            field=setting,
            text=self.texts[setting.path],
            start_text=self.start.texts[setting.path],
            start_name=self.start.name,
            unused_reason=unused.get(setting.path, ""),
            errors=self.problems.by_field.get(setting.path, []),
            fixed_reason=setting.about.get("fork", "") if self.start.fork else "",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """What a team can choose from on the launch form."""

    starters: list[StarterModel]
    datasets: list[DatasetVersion]
    recipes: list[RecipeVersion]
    cluster: Cluster | None = None
    team: str = ""  # its slug

    def find_model(self, path: str) -> StarterModel | None:
        return next((one for one in self.starters if one.path == path), None)

    def own_dataset(self, model: StarterModel) -> DatasetVersion | None:
        """The newest version that a starter or published model was trained on."""
        if model.dataset:
            return self.find_dataset(str(model.dataset))
        own = [v for v in self.datasets if v.source.get("kind") == "starter"]
        newest = max(own, key=lambda version: version.pk, default=None)
        return newest if model.has_settings else None

    def own_recipe(self, model: StarterModel) -> RecipeVersion | None:
        """The reward that it was trained with."""
        if model.recipe:
            return self.find_recipe(str(model.recipe))
        if not model.has_settings:
            return None
        spec = model.read_settings().get("reward", {}).get("recipe")
        return self.find_same_recipe(spec) if spec else None

    def find_dataset(self, pk: str) -> DatasetVersion | None:
        return next(
            (version for version in self.datasets if str(version.pk) == pk), None
        )

    def find_recipe(self, pk: str) -> RecipeVersion | None:
        return next(
            (version for version in self.recipes if str(version.pk) == pk), None
        )

    def find_equal_recipe(self, spec: dict[str, Any]) -> RecipeVersion | None:
        """The team's own version of a recipe, the newest when there are several."""
        return next((version for version in self.recipes if version.spec == spec), None)

    def find_same_recipe(self, spec: dict[str, Any]) -> RecipeVersion | None:
        """An equal version, or one that gives the same rewards."""
        same = (one for one in self.recipes if is_same_reward(one.spec, spec))
        return self.find_equal_recipe(spec) or next(same, None)


def choices_of(team: Team) -> Choices:
    datasets = list_versions(team)
    recipes = RecipeVersion.objects.filter(recipe__team=team)
    return Choices(
        starters=offered_models(team),
        datasets=list(datasets.order_by("dataset__name", "dataset_id", "-number")),
        recipes=list(
            recipes.select_related("recipe").order_by("recipe__name", "-number")
        ),
        cluster=known_cluster(team),
        team=team.slug,
    )
