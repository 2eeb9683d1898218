"""The launch form: RunConfig's own fields, and what they are applied to."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dashboard.datasets.models import DatasetVersion
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.config_errors import Problems, find_problems
from dashboard.runs.config_fields import (
    ConfigField,
    ConfigPart,
    advanced_parts,
    main_fields,
    read_texts,
    read_tree,
    write_texts,
)
from dashboard.runs.directory import ROWS
from dashboard.runs.model_choices import StarterModel, check_model, label_model
from dashboard.runs.models import Run
from trainer.config import RunConfig

LONGEST_NAME = Run._meta.get_field("name").max_length or 80


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """What a team can choose from."""

    starters: list[StarterModel]
    datasets: list[DatasetVersion]
    recipes: list[RecipeVersion]

    def find_dataset(self, pk: str) -> DatasetVersion | None:
        return next(
            (version for version in self.datasets if str(version.pk) == pk), None
        )

    def find_recipe(self, pk: str) -> RecipeVersion | None:
        return next(
            (version for version in self.recipes if str(version.pk) == pk), None
        )

    def find_starter(self, key: str) -> StarterModel | None:
        return next((starter for starter in self.starters if starter.key == key), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """What a form without problems asks for."""

    name: str
    config: RunConfig
    dataset_version: DatasetVersion
    recipe_version: RecipeVersion
    model_label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundField:
    """A setting with what the form holds for it."""

    field: ConfigField
    text: str
    errors: list[str]

    @property
    def is_changed(self) -> bool:
        return self.text != self.field.default_text


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundPart:
    part: ConfigPart
    fields: list[BoundField]

    @property
    def num_changed(self) -> int:
        return sum(bound.is_changed for bound in self.fields)

    @property
    def is_open(self) -> bool:
        return any(bound.errors for bound in self.fields)


@dataclass(kw_only=True)
class LaunchForm:
    choices: Choices
    name: str
    model: str  # a starter's path, or "" when another one is typed
    model_other: str = ""
    dataset: str = ""  # ids of versions
    recipe: str = ""
    texts: dict[str, str] = field(default_factory=lambda: write_texts({}))
    problems: Problems = field(default_factory=Problems)

    @classmethod
    def from_post(cls, post: Mapping[str, Any], choices: Choices) -> LaunchForm:
        return cls(
            choices=choices,
            name=post.get("name", "").strip(),
            model=post.get("model", "").strip(),
            model_other=post.get("model_other", "").strip(),
            dataset=post.get("dataset", ""),
            recipe=post.get("recipe", ""),
            texts=read_texts(post),
        )

    @property
    def model_path(self) -> str:
        return self.model or self.model_other

    @property
    def dataset_version(self) -> DatasetVersion | None:
        return self.choices.find_dataset(self.dataset)

    @property
    def recipe_version(self) -> RecipeVersion | None:
        return self.choices.find_recipe(self.recipe)

    def use_model(self, path: str) -> None:
        known = any(starter.path == path for starter in self.choices.starters)
        self.model, self.model_other = (path, "") if known else ("", path)

    def take_over(self, run: Run) -> None:
        """Everything the run was launched with, but for its name."""
        self.texts = write_texts(run.config)
        self.use_model(str(run.config["model"]["path"]))
        self.dataset = str(run.dataset_version_id)
        self.recipe = str(run.recipe_version_id)

    def choose_only_ones(self) -> None:
        """Nobody needs to choose from one."""
        if len(self.choices.datasets) == 1:
            self.dataset = str(self.choices.datasets[0].pk)
        if len(self.choices.recipes) == 1:
            self.recipe = str(self.choices.recipes[0].pk)

    def forget_problems(self) -> None:
        """A form that nobody has sent yet complains about nothing."""
        self.problems = Problems()

    def check(self) -> Launch | None:
        """What to launch; None when there are problems, which are kept."""
        dataset, recipe = self.dataset_version, self.recipe_version
        tree = self._tree(recipe)
        self.problems = find_problems(tree)
        self._check_choices()
        if dataset and not self.problems:
            self._check_rows(RunConfig.model_validate(tree), dataset)
        if self.problems or dataset is None or recipe is None:
            return None
        return Launch(
            name=self.name,
            config=RunConfig.model_validate(tree),
            dataset_version=dataset,
            recipe_version=recipe,
            model_label=label_model(self.model_path),
        )

    def _tree(self, recipe: RecipeVersion | None) -> dict[str, Any]:
        tree = read_tree(self.texts)
        # What is not chosen yet is said by _check_choices; the rest is still checked.
        tree["model"]["path"] = self.model_path or "not chosen"
        tree["data"]["rows"] = ROWS
        tree["reward"] = {"recipe": recipe.spec if recipe else {}}
        return tree

    def _check_choices(self) -> None:
        problems = self.problems
        self._check_characters()
        if not self.name:
            problems.add("name", "The run needs a name.")
        if len(self.name) > LONGEST_NAME:
            length = f"{len(self.name)} of at most {LONGEST_NAME} characters"
            problems.add("name", f"This name is too long: {length}. Shorten it.")
        if sentence := check_model(self.model_path):
            problems.add("model" if self.model else "model_other", sentence)
        if self.dataset_version is None:
            problems.add("dataset", "Choose a dataset: its prompts are trained on.")
        if self.recipe_version is None:
            problems.beside["recipe"] = ["Choose a reward: it scores the completions."]

    def _check_characters(self) -> None:
        """PostgreSQL keeps no NUL, and a name is one line of a file's header too."""
        if any(unicodedata.category(mark) == "Cc" for mark in self.name):
            self.problems.add(
                "name",
                f"The name {self.name[:80]!r} holds a line break or another control "
                "character. Remove it.",
            )
        for control, text in {"model_other": self.model_path, **self.texts}.items():
            if "\x00" in text:
                self.problems.add(control, "This holds a NUL character. Remove it.")

    def _check_rows(self, config: RunConfig, dataset: DatasetVersion) -> None:
        """The engine refuses these as well, but only once a worker is busy with it."""
        num_train = dataset.num_rows - config.data.num_eval_rows
        if num_train < 1:
            self.problems.add(
                "data.num_eval_rows",
                f"{config.data.num_eval_rows:,} held-out prompts leave none of the "
                f"{dataset.num_rows:,} rows of {dataset} to train on. Hold out fewer.",
            )
        elif config.rollout.prompts_per_step > num_train:
            self.problems.add(
                "rollout.prompts_per_step",
                f"A step takes {config.rollout.prompts_per_step:,} distinct prompts, "
                f"but {num_train:,} rows of {dataset} are left to train on. Take "
                "fewer.",
            )

    # What the template shows.

    @property
    def main(self) -> list[BoundField]:
        return [self._bind(setting) for setting in main_fields()]

    @property
    def parts(self) -> list[BoundPart]:
        return [
            BoundPart(
                part=part, fields=[self._bind(setting) for setting in part.fields]
            )
            for part in advanced_parts()
        ]

    def _bind(self, setting: ConfigField) -> BoundField:
        errors = self.problems.beside.get(setting.path, [])
        return BoundField(field=setting, text=self.texts[setting.path], errors=errors)
