"""Reads a request into a draft: a start's settings, choices, what was typed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from django.utils.text import get_text_list

from dashboard.accounts.models import Team
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.queries import list_versions
from dashboard.datasets.token_preview import SETTINGS
from dashboard.project.schema_forms import SchemaField
from dashboard.rewards.models import RecipeVersion
from dashboard.rewards.recipe_text import is_same_reward
from dashboard.runs.config.fields import (
    Problems,
    all_fields,
    read_texts,
    read_tree,
)
from dashboard.runs.config.toml import read_phases
from dashboard.runs.launch.base_models import (
    StarterModel,
    check_model,
    offered_models,
)
from dashboard.runs.launch.eval_sets import (
    ChosenSet,
    SetDraft,
    drafts_of,
    read_drafts,
)
from dashboard.runs.launch.fit import FittedRows, fit_to_rows, warn_of_characters
from dashboard.runs.launch.starts import (
    RECOMMENDED,
    Start,
    default_start,
    find_start,
    propose_name,
    recommended_start,
)
from dashboard.runs.queries import ROWS, eval_rows
from dashboard.runs.queue.hosts import Cluster, known_cluster
from trainer.rewards.spec import Recipe

# Settings that a link from a dataset's page may contain.
PROMPT_PATHS = tuple(f"data.{name}" for name in SETTINGS)
# Instead of a recipe's id: the start's own, which may not belong to the team.
AS_START = "start"
ID = re.compile(r"[0-9]{1,18}")
CHOICES = frozenset({"model", "dataset", "recipe"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """The models, datasets and rewards that a team can choose from."""

    starters: list[StarterModel]
    datasets: list[DatasetVersion]
    recipes: list[RecipeVersion]
    cluster: Cluster | None = None
    team: str = ""  # its slug

    def find_model(self, path: str) -> StarterModel | None:
        return next((model for model in self.starters if model.path == path), None)

    def check_model(self, path: str) -> str | None:
        """Return the problem with a typed model, or None: a name is no Hub ID."""
        for model in self.starters:
            if path and path in (model.title, model.title.partition(" (")[0]):
                return f"Enter the folder of “{path}”: {model.path}"
        return check_model(path)

    def own_dataset(self, model: StarterModel) -> DatasetVersion | None:
        """Find the newest version that a starter or published model was trained on."""
        if model.dataset:
            return self.find_dataset(str(model.dataset))
        newest = max(
            [
                version
                for version in self.datasets
                if version.source.get("kind") == "starter"
                and version.source.get("starter", "countdown") == model.key
            ],
            key=lambda version: version.pk,
            default=None,
        )
        return newest if model.has_settings else None

    def own_recipe(self, model: StarterModel) -> RecipeVersion | None:
        """Find the reward that it was trained with."""
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
        """Find the team's own version of a recipe, the newest of several."""
        return next((version for version in self.recipes if version.spec == spec), None)

    def find_same_recipe(self, spec: dict[str, Any]) -> RecipeVersion | None:
        """Find an equal version, or one that gives the same rewards."""
        same = (
            version for version in self.recipes if is_same_reward(version.spec, spec)
        )
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


@dataclass(kw_only=True)
class LaunchDraft:
    """The launch form as filled in, valid or not."""

    choices: Choices
    name: str
    model: str = ""  # a starter's path, or "" when another one is typed
    model_other: str = ""
    dataset: str = ""  # ids of versions
    recipe: str = ""
    step_recipe: str = ""  # an id, AS_START or ""
    eval_sets: list[SetDraft] = field(default_factory=list)
    keeps_eval_files: bool = True
    # Of CHOICES, what the user chose: no other start changes that.
    chosen: frozenset[str] = frozenset()
    start: Start = field(default_factory=default_start)
    unknown_start: str = ""  # why it is not the one that was asked for
    texts: dict[str, str] = field(default_factory=dict)
    phases: str = ""
    fit: FittedRows = field(default_factory=FittedRows)
    problems: Problems = field(default_factory=Problems)

    @classmethod
    def from_start(cls, start: Start, choices: Choices, name: str) -> LaunchDraft:
        draft = cls(choices=choices, name=name)
        draft.load(start)
        return draft

    @classmethod
    def from_form(
        cls, form: Mapping[str, Any], choices: Choices, start: Start
    ) -> LaunchDraft:
        return cls(
            choices=choices,
            name=form.get("name", "").strip(),
            model=form.get("model", "").strip(),
            model_other=form.get("model_other", "").strip(),
            dataset=form.get("dataset", ""),
            recipe=form.get("recipe", ""),
            step_recipe=form.get("step_recipe", ""),
            eval_sets=read_drafts(form, choices),
            keeps_eval_files=form.get("keeps_eval_sets") == "on",
            chosen=frozenset(form.get("chosen", "").split(",")),
            start=start,
            texts=read_texts(form),
            phases=form.get("phases", "").strip(),
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
        """The names of choices that are not made yet, as in a sentence."""
        choices = {
            "a model": self.model_path,
            "a dataset": self.dataset_version,
            "a reward": self.recipe_version,
        }
        return get_text_list([name for name in choices if not choices[name]], "and")

    @property
    def missing_recipe(self) -> Recipe | None:
        """The start's reward, when the team has no such recipe yet."""
        spec = self.start.recipe
        if self.start.run or not spec or self.choices.find_same_recipe(spec):
            return None
        return Recipe.model_validate(spec)

    def load(self, start: Start) -> None:
        """Take over its settings, and of its choices those that are not `chosen`."""
        self.start, choices = start, self.choices
        self.texts, self.phases = dict(start.texts), start.phases
        self.step_recipe = ""
        if start.step_recipe is not None:
            same = choices.find_equal_recipe(start.step_recipe)
            self.step_recipe = str(same.pk) if same else AS_START
        if run := start.run:
            self.choose("model", str(run.config["model"]["path"]))
            self.choose("dataset", str(run.dataset_version_id))
            self.choose("recipe", str(run.recipe_version_id))
            self.eval_sets = drafts_of(run.evaluation_sets.order_by("pk"), choices)
            return
        preset = start.team_preset
        if preset and preset.model:
            self.choose("model", preset.model)
        if preset and preset.recipe_version_id:
            self.choose("recipe", str(preset.recipe_version_id))
        elif start.key == RECOMMENDED:  # chosen with its dataset, if at all
            return
        elif start.recipe and (own := choices.find_same_recipe(start.recipe)):
            self.choose("recipe", str(own.pk))

    def recommend(self) -> None:
        """Load what is recommended for the model, with its own dataset and reward."""
        if model := self.choices.find_model(self.model_path):
            dataset = self.choices.own_dataset(model)
            if dataset:
                self.choose("dataset", str(dataset.pk))
            recipe = self.choices.own_recipe(model)
            if recipe and self.dataset_version == dataset:
                self.choose("recipe", str(recipe.pk))
        starters, version = self.choices.starters, self.dataset_version
        self.load(recommended_start(self.model_path, starters, version))

    def choose(self, name: str, value: str) -> None:
        """Choose one of CHOICES, unless the user did."""
        if name in self.chosen:
            return
        if name == "model":
            self.use_model(value)
        else:
            setattr(self, name, value)

    def use_model(self, path: str) -> None:
        is_offered = self.choices.find_model(path) is not None
        self.model, self.model_other = (path, "") if is_offered else ("", path)

    def fill_in(
        self, start: Start, model: str | None, texts: Mapping[str, str]
    ) -> None:
        """Choose what is not chosen yet; fit the settings, with these, to the rows."""
        if len(self.choices.datasets) == 1:
            self.dataset = str(self.choices.datasets[0].pk)
        if len(self.choices.recipes) == 1 and self.missing_recipe is None:
            self.recipe = str(self.choices.recipes[0].pk)
        if model is not None:
            self.use_model(model)
        elif not self.model_path:
            self.choose_starter()
        if start.key == RECOMMENDED:
            self.recommend()
        self.texts |= texts
        self.fit_rows()
        self.texts |= self.fit.texts

    def choose_starter(self) -> None:
        """Choose a starter whose dataset and reward the team has, if neither is chosen.

        Else a text model, unless the reward is for the Countdown model, that can read
        the dataset.
        """
        starters, version = self.choices.starters, self.dataset_version
        is_open = not (version or self.recipe_version or self.start.recipe)
        for starter in starters:
            rows = self.choices.own_dataset(starter)
            is_own = is_open and self.choices.own_recipe(starter)
            if rows is not None and (rows == version or is_own):
                self.use_model(starter.path)
                return
        if version is not None:
            starters = [s for s in starters if not warn_of_characters(s.path, version)]
        recipe = self.recipe_version
        rules = (recipe.spec if recipe else self.start.recipe or {}).get("rules", [])
        is_countdown = any(rule.get("kind") == "countdown" for rule in rules)
        order = ["countdown", "smollm2"] if is_countdown else ["smollm2", "countdown"]
        by_key = {starter.key: starter for starter in starters}
        key = next((key for key in [*order, *by_key] if key in by_key), None)
        if key is not None:
            self.use_model(by_key[key].path)

    def fit_rows(self) -> None:
        """Fit the start to the dataset, unless it is that of the run it copies.

        The draft's own texts stay: the caller knows whether they were typed.
        """
        version, run = self.dataset_version, self.start.run
        if version is None or (run and run.dataset_version_id == version.pk):
            self.fit = FittedRows()
            return
        typed = {path: self.texts[path] for path in PROMPT_PATHS}
        self.fit = fit_to_rows(self.start.texts | typed, version, self.model_path)
        self.start = replace(self.start, texts=self.start.texts | self.fit.texts)

    def tree(self, sets: list[ChosenSet]) -> dict[str, Any]:
        """Return the tree that RunConfig validates, without phases."""
        recipe = self.recipe_version
        tree = read_tree(self.texts)
        # What is not chosen yet is refused by itself; the rest is still checked.
        tree["model"]["path"] = self.model_path or "not chosen"
        tree["data"]["rows"] = ROWS
        tree["reward"]["recipe"] = recipe.spec if recipe else {}
        tree["reward"]["step_recipe"] = self.step_spec
        tree["evaluation"]["sets"] = self.eval_files | {
            chosen.name: eval_rows(chosen.name) for chosen in sets
        }
        return tree

    def put_phases(self, tree: dict[str, Any]) -> str:
        """Put the phases into the tree, or return the error in their text."""
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
    def changed(self) -> list[SchemaField]:
        """Settings whose values are not the start's."""
        return [
            setting
            for setting in all_fields().values()
            if not setting.is_same(
                self.texts[setting.path], self.start.texts[setting.path]
            )
        ]

    @property
    def eval_files(self) -> dict[str, str]:
        """Sets that are files of the training worker, kept from the start."""
        return self.start.eval_files if self.keeps_eval_files else {}

    @property
    def own_choices(self) -> dict[str, str]:
        """Parameters of an address that keeps them while other settings are loaded."""
        values = {
            "name": self.name,
            "model": self.model_path,
            "dataset": self.dataset,
            "recipe": self.recipe,
        }
        for draft in self.eval_sets:
            values |= draft.controls
        return {name: text for name, text in values.items() if text}

    def clear_problems(self) -> None:
        """Show no errors in a form that was not submitted yet."""
        self.problems = Problems()
        for draft in self.eval_sets:
            draft.errors = {}


def read_draft(form: Mapping[str, Any], team: Team) -> LaunchDraft:
    """Read the form as it was submitted."""
    choices = choices_of(team)
    start, unknown = _read_start(form, team, choices)
    draft = LaunchDraft.from_form(form, choices, start)
    draft.unknown_start = unknown
    draft.fit_rows()
    return draft


def prefill_draft(query: Mapping[str, str], team: Team) -> LaunchDraft:
    """Fill in the form with what an address names, or what is recommended."""
    choices = choices_of(team)
    start, unknown = _read_start(query, team, choices)
    draft = LaunchDraft(choices=choices, name="", unknown_start=unknown)
    draft.chosen = frozenset(name for name in CHOICES if query.get(name))
    if start.key != RECOMMENDED:
        draft.load(start)
    draft.name = query.get("name") or propose_name(team)
    draft.dataset = query.get("dataset") or draft.dataset
    draft.recipe = query.get("recipe") or draft.recipe
    draft.eval_sets = read_drafts(query, choices) or draft.eval_sets
    texts = {path: query[path] for path in all_fields() if path in query}
    draft.fill_in(
        start,
        query.get("model") or None,
        {path: text.replace("\x00", "") for path, text in texts.items()},
    )
    if start.run is not None:
        draft.chosen = CHOICES
    return draft


def _read_start(
    query: Mapping[str, str], team: Team, choices: Choices
) -> tuple[Start, str]:
    """Find the start; for an unknown one, the defaults and an error."""
    key = query.get("preset", RECOMMENDED)
    clone, fork = query.get("clone", ""), query.get("fork", "")
    if "preset" not in query and ID.fullmatch(clone):
        key = f"run-{clone}"
    if "preset" not in query and ID.fullmatch(fork):
        key = f"fork-{fork}-{query.get('checkpoint', '')[:40]}"
    try:
        start = find_start(
            key,
            team=team,
            starters=choices.starters,
            scaled=query.get("scaled") in ("1", "on"),
            model=query.get("model") or query.get("model_other", ""),
            version=choices.find_dataset(query.get("dataset", "")),
        )
    except ValueError as error:
        return default_start(), str(error)
    return start, ""
