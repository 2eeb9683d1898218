"""The launch form: RunConfig's fields, and the model, data and reward."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.utils.text import get_text_list

from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.token_preview import SETTINGS
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.config.errors import Problems, find_problems
from dashboard.runs.config.fields import read_texts, read_tree
from dashboard.runs.config.toml import read_phases
from dashboard.runs.launch.base_models import check_model, label_model
from dashboard.runs.launch.checks import (
    check_course,
    check_files,
    check_fork,
    check_rows,
)
from dashboard.runs.launch.eval_sets import (
    ChosenSet,
    SetDraft,
    choose_sets,
    drafts_of,
    read_drafts,
)
from dashboard.runs.launch.form_fields import Binder, Choices
from dashboard.runs.launch.initial_values import (
    RECOMMENDED,
    Start,
    default_start,
    recommended_start,
)
from dashboard.runs.launch.row_limits import FitResult, fit_to_rows, warn_of_characters
from dashboard.runs.models import Run
from dashboard.runs.queries import ROWS, eval_rows
from trainer.config import RunConfig
from trainer.rewards.spec import Recipe

# Settings that a link from a dataset's page may contain.
PROMPT_PATHS = tuple(f"data.{name}" for name in SETTINGS)
# Instead of a recipe's id: the start's own, which may not belong to the team.
AS_START = "start"
LONGEST_NAME = Run._meta.get_field("name").max_length or 80


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """A valid launch."""

    name: str
    config: RunConfig
    dataset_version: DatasetVersion
    recipe_version: RecipeVersion
    model_label: str
    evaluation_sets: Sequence[ChosenSet] = ()


@dataclass(kw_only=True)
class LaunchForm:
    choices: Choices
    name: str
    model: str  # a starter's path, or "" when another one is typed
    model_other: str = ""
    dataset: str = ""  # ids of versions
    recipe: str = ""
    step_recipe: str = ""  # an id, AS_START or ""
    eval_sets: list[SetDraft] = field(default_factory=list)
    keeps_eval_files: bool = True
    # Of model, dataset and recipe, what the user chose: no other start changes that.
    chosen: frozenset[str] = frozenset()
    start: Start = field(default_factory=default_start)
    texts: dict[str, str] = field(default_factory=dict)
    phases: str = ""
    fit: FitResult = field(default_factory=FitResult)
    problems: Problems = field(default_factory=Problems)

    @classmethod
    def from_start(cls, start: Start, choices: Choices, name: str) -> LaunchForm:
        form = cls(choices=choices, name=name, model="")
        form.load(start)
        return form

    @classmethod
    def from_post(
        cls, post: Mapping[str, Any], choices: Choices, start: Start
    ) -> LaunchForm:
        return cls(
            choices=choices,
            name=post.get("name", "").strip(),
            model=post.get("model", "").strip(),
            model_other=post.get("model_other", "").strip(),
            dataset=post.get("dataset", ""),
            recipe=post.get("recipe", ""),
            step_recipe=post.get("step_recipe", ""),
            eval_sets=read_drafts(post, choices),
            keeps_eval_files=post.get("keeps_eval_sets") == "on",
            chosen=frozenset(post.get("chosen", "").split(",")),
            start=start,
            texts=read_texts(post),
            phases=post.get("phases", "").strip(),
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

    @property
    def missing(self) -> str:
        """What is not chosen yet, as in a sentence; "" if nothing is."""
        choices = {
            "a model": self.model_path,
            "a dataset": self.dataset_version,
            "a reward": self.recipe_version,
        }
        return get_text_list([name for name, one in choices.items() if not one], "and")

    def load(self, start: Start) -> None:
        """Take over its settings, and of its choices those that are not `chosen`."""
        self.start, choices = start, self.choices
        self.texts, self.phases = dict(start.texts), start.phases
        self.step_recipe = ""
        if start.step_recipe is not None:
            same = choices.find_equal_recipe(start.step_recipe)
            self.step_recipe = str(same.pk) if same else AS_START
        if start.run is not None:
            self._copy_choices(start.run)
            return
        preset = start.team_preset
        if preset and preset.model:
            self._choose("model", preset.model)
        if preset and preset.recipe_version_id:
            self._choose("recipe", str(preset.recipe_version_id))
        elif start.key == RECOMMENDED:  # chosen with its dataset, if at all
            return
        elif start.recipe and (own := choices.find_same_recipe(start.recipe)):
            self._choose("recipe", str(own.pk))

    def recommend(self) -> None:
        """Load what is recommended for the model, with its own dataset and reward."""
        if model := self.choices.find_model(self.model_path):
            dataset = self.choices.own_dataset(model)
            if dataset:
                self._choose("dataset", str(dataset.pk))
            recipe = self.choices.own_recipe(model)
            if recipe and self.dataset_version == dataset:
                self._choose("recipe", str(recipe.pk))
        starters, version = self.choices.starters, self.dataset_version
        self.load(recommended_start(self.model_path, starters, version))

    def _choose(self, name: str, value: str) -> None:
        if name in self.chosen:
            return
        if name == "model":
            self.use_model(value)
        else:
            setattr(self, name, value)

    def use_model(self, path: str) -> None:
        known = self.choices.find_model(path) is not None
        self.model, self.model_other = (path, "") if known else ("", path)

    def _copy_choices(self, run: Run) -> None:
        """The run's model, data, reward and evaluation sets."""
        self._choose("model", str(run.config["model"]["path"]))
        self._choose("dataset", str(run.dataset_version_id))
        self._choose("recipe", str(run.recipe_version_id))
        sets = run.evaluation_sets.order_by("pk")
        self.eval_sets = drafts_of(sets, self.choices)

    def preselect_only_choices(self) -> None:
        """Preselect a dataset or reward that is the only one."""
        if len(self.choices.datasets) == 1:
            self.dataset = str(self.choices.datasets[0].pk)
        if len(self.choices.recipes) == 1 and self.missing_recipe is None:
            self.recipe = str(self.choices.recipes[0].pk)

    def choose_starter(self) -> None:
        """One whose dataset and reward the team has, if neither is chosen yet.

        Else a text model, unless the reward is for the Countdown model, that can read
        the dataset.
        """
        starters, version = self.choices.starters, self.dataset_version
        if version is None and self.recipe_version is None and not self.start.recipe:
            for one in starters:
                if self.choices.own_dataset(one) and self.choices.own_recipe(one):
                    self.use_model(one.path)
                    return
        if version is not None:
            starters = [s for s in starters if not warn_of_characters(s.path, version)]
        recipe = self.recipe_version
        spec = recipe.spec if recipe else self.start.recipe or {}
        rules = spec.get("rules", [])
        is_countdown = any(rule.get("kind") == "countdown" for rule in rules)
        wanted = ["countdown", "smollm2"] if is_countdown else ["smollm2", "countdown"]
        by_key = {starter.key: starter for starter in starters}
        for key in [*wanted, *by_key]:
            if key in by_key:
                self.use_model(by_key[key].path)
                return

    def fit_rows(self) -> None:
        """Fit the start to the dataset, unless it is that of the run it copies.

        What the form has is as before: the caller knows whether it was typed.
        """
        version, run = self.dataset_version, self.start.run
        if version is None or (run and run.dataset_version_id == version.pk):
            self.fit = FitResult()
            return
        typed = {path: self.texts[path] for path in PROMPT_PATHS}
        self.fit = fit_to_rows(self.start.texts | typed, version, self.model_path)
        self.start = replace(self.start, texts=self.start.texts | self.fit.texts)

    def clear_problems(self) -> None:
        """A form that was not submitted yet shows no errors."""
        self.problems = Problems()
        for draft in self.eval_sets:
            draft.errors = {}

    def check(self) -> Launch | None:
        """What to launch; None if there are problems, which are kept."""
        dataset, recipe = self.dataset_version, self.recipe_version
        chosen = choose_sets(self.eval_sets, taken=self.eval_files)
        tree = self.tree(recipe, chosen)
        unreadable = self.put_phases(tree)
        self.problems = find_problems(tree)
        if unreadable:
            self.problems.add("phases", unreadable)
        self._check_choices()
        if self.start.fork is not None:
            check_fork(self.start, self.texts, self.model_path, self.problems)
        if dataset and not self.problems:
            config = RunConfig.model_validate(tree)
            if self.start.fork is not None:
                check_course(config, self.start, self.problems)
            check_rows(config, dataset, self.problems)
            check_files(config, self.choices.team, self.problems)
        if self.problems or dataset is None or recipe is None:
            return None
        return Launch(
            name=self.name,
            config=RunConfig.model_validate(tree),
            dataset_version=dataset,
            recipe_version=recipe,
            model_label=label_model(self.model_path),
            evaluation_sets=chosen,
        )

    def tree(
        self, recipe: RecipeVersion | None, chosen: list[ChosenSet]
    ) -> dict[str, Any]:
        tree = read_tree(self.texts)
        # _check_choices reports what is not chosen yet; the rest is still checked.
        tree["model"]["path"] = self.model_path or "not chosen"
        tree["data"]["rows"] = ROWS
        tree["reward"]["recipe"] = recipe.spec if recipe else {}
        tree["reward"]["step_recipe"] = self.step_spec
        named = {one.name: eval_rows(one.name) for one in chosen}
        tree["evaluation"]["sets"] = self.eval_files | named
        return tree

    def put_phases(self, tree: dict[str, Any]) -> str:
        """The error in their text; "" if they are in the tree."""
        try:
            tree["phases"] = read_phases(self.phases)
        except ValueError as error:
            return str(error)
        return ""

    @property
    def step_spec(self) -> dict[str, Any] | None:
        if self.step_recipe == AS_START:
            return self.start.step_recipe
        chosen = self.choices.find_recipe(self.step_recipe)
        return chosen.spec if chosen else None

    @property
    def eval_files(self) -> dict[str, str]:
        """Sets that are files of the training worker, kept from the start."""
        return self.start.eval_files if self.keeps_eval_files else {}

    def _check_choices(self) -> None:
        problems = self.problems
        self._check_characters()
        if not self.name:
            problems.add("name", "The run needs a name.")
        if len(self.name) > LONGEST_NAME:
            problems.add(
                "name",
                f"The name has {len(self.name)} characters; at most {LONGEST_NAME} are "
                "allowed.",
            )
        if sentence := check_model(self.model_path):
            problems.add("model" if self.model else "model_other", sentence)
        if self.dataset_version is None:
            problems.add("dataset", "Choose a dataset. The run trains on its prompts.")
        if self.recipe_version is None:
            problems.by_field["recipe"] = [
                "Choose a reward. It scores the completions."
            ]
        for draft in self.eval_sets:
            for part, sentences in draft.errors.items():
                problems.by_field[f"eval-{draft.number}-{part}"] = sentences

    def _check_characters(self) -> None:
        """PostgreSQL cannot store NUL, and a name is also one line of a file header."""
        if any(unicodedata.category(mark) == "Cc" for mark in self.name):
            self.problems.add(
                "name",
                f"The name {self.name[:80]!r} contains a line break or another control "
                "character. Remove it.",
            )
        typed = {"model_other": self.model_path, "phases": self.phases, **self.texts}
        for control, text in typed.items():
            if "\x00" in text:
                self.problems.add(
                    control, "The text contains a NUL character. Remove it."
                )

    # What the template shows.

    @property
    def fields(self) -> Binder:
        return Binder(
            texts=self.texts,
            start=self.start,
            problems=self.problems,
            has_phases=bool(self.phases),
            has_cluster=self.choices.cluster is not None,
            recipe=self.recipe_version.spec if self.recipe_version else {},
        )

    @property
    def missing_recipe(self) -> Recipe | None:
        """The start's reward, when the team has no such recipe yet."""
        spec = self.start.recipe
        if self.start.run or not spec or self.choices.find_same_recipe(spec):
            return None
        return Recipe.model_validate(spec)
