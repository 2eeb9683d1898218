"""The launch form as the engine's TOML, and back."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from dashboard.project.errors import UserError, code_of
from dashboard.project.schema_forms import SchemaField
from dashboard.rewards.recipe_text import is_same_reward
from dashboard.runs.config.fields import all_fields, put, write_texts
from dashboard.runs.config.toml import (
    TomlProblem,
    find_toml_problems,
    read_toml,
    write_phases,
    write_toml_tree,
)
from dashboard.runs.launch.draft import AS_START, LaunchDraft
from dashboard.runs.launch.eval_sets import choose_sets
from dashboard.runs.queries import ROWS, eval_rows
from trainer.config import EnvironmentConfig, RunConfig

# Placeholders for what is not chosen yet, so that the rest can be checked.
NO_MODEL = "not chosen"
NO_ENVIRONMENT = EnvironmentConfig().model_dump(mode="json")
ANY_RECIPE = {"rules": [{"name": "any", "kind": "numeric_answer", "params": {}}]}


@dataclass(kw_only=True, slots=True)
class TomlDraft:
    """The contents of the form's TOML tab."""

    text: str = ""
    problems: list[TomlProblem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    # Rewards in the TOML that the team does not have, by key in the tree.
    unknown_recipes: dict[str, dict[str, Any]] = field(default_factory=dict)


def write_form(form: LaunchDraft) -> str:
    """UserError if the form's phases are invalid, because they would be lost."""
    tree = form.tree(choose_sets(form.eval_sets, taken=form.eval_files))
    if sentence := form.put_phases(tree):
        raise UserError("phases.invalid", f"Fix the phases first. {sentence}")
    if not form.recipe_version:
        tree["reward"]["recipe"] = ANY_RECIPE
    try:
        tree = RunConfig.model_validate(tree).model_dump(mode="json")
    except ValidationError:  # shown as typed; applying it reports the errors
        for path, setting in all_fields().items():
            put(tree, path, _typed(setting, form.texts[path]))
    if tree["environment"] == NO_ENVIRONMENT:
        del tree["environment"]
    if not form.model_path:
        del tree["model"]["path"]
    if not form.recipe_version:
        del tree["reward"]["recipe"]
    return write_toml_tree(tree)


def _typed(setting: SchemaField, text: str) -> Any:
    """Read it as a number, if the text is one."""
    value = setting.read_or_text(text)
    if isinstance(value, str) and setting.is_number:
        with suppress(ValueError):
            number = float(value)
            is_whole = number.is_integer() and abs(number) < 2**53
            if math.isfinite(number):
                return int(number) if is_whole else number
    return value


def apply_toml(form: LaunchDraft, text: str) -> TomlDraft:
    """Apply the TOML to the form, unless there are problems.

    Missing settings get their defaults, as in a file of the engine. Model, dataset,
    reward and evaluation sets keep their choices.
    """
    draft = TomlDraft(text=text)
    try:
        stated = read_toml(text)
    except ValueError as error:
        draft.problems = [TomlProblem(sentence=str(error), code=code_of(error))]
        return draft
    draft.problems = find_toml_problems(_completed(form, stated))
    if draft.problems:
        return draft
    applied = _Applied(
        form=form,
        given=stated,
        tree=RunConfig.model_validate(_completed(form, stated)).model_dump(mode="json"),
    )
    applied.read(draft)
    if not draft.problems:
        applied.fill()
    return draft


def _completed(form: LaunchDraft, stated: dict[str, Any]) -> dict[str, Any]:
    recipe = form.recipe_version
    chosen: dict[str, dict[str, Any]] = {
        "model": {"path": form.model_path or NO_MODEL},
        "data": {"rows": ROWS},
        "reward": {"recipe": recipe.spec if recipe else ANY_RECIPE},
    }
    tree = dict(stated)
    for part, values in chosen.items():
        typed = stated.get(part, {})
        tree[part] = values | typed if isinstance(typed, dict) else typed
    return tree


@dataclass(kw_only=True)
class _Applied:
    form: LaunchDraft
    given: dict[str, Any]
    tree: dict[str, Any]
    recipe: str = ""
    step_recipe: str = ""

    def read(self, draft: TomlDraft) -> None:
        self._read_texts(draft)
        self._read_recipes(draft)
        self._read_sets(draft)
        rows = self.tree["data"]["rows"]
        if rows != ROWS:
            draft.notes.append(
                f"The form ignores data.rows = “{rows}” and trains on its own dataset."
            )

    def _read_texts(self, draft: TomlDraft) -> None:
        """Read the texts. A text box cannot distinguish an empty text from none."""
        self.texts = write_texts(self.tree)
        for path, setting in all_fields().items():
            part, _, name = path.rpartition(".")
            value = (self.tree[part] if part else self.tree)[name]
            if setting.kind == "text" and setting.read(self.texts[path]) != value:
                self._refuse(
                    draft,
                    path,
                    "The form cannot store an empty text here, or carriage returns. "
                    "Remove the setting, or enter another text.",
                )

    def _read_recipes(self, draft: TomlDraft) -> None:
        form, reward = self.form, self.tree["reward"]
        self.recipe, chosen = form.recipe, form.recipe_version
        if "recipe" in self.given.get("reward", {}) and not (
            chosen and is_same_reward(chosen.spec, reward["recipe"])
        ):
            self.recipe = self._find(draft, "recipe")
        step = reward["step_recipe"]
        if step is not None and step == form.start.step_recipe:
            self.step_recipe = AS_START
        elif step is not None:
            self.step_recipe = self._find(draft, "step_recipe")

    def _find(self, draft: TomlDraft, name: str) -> str:
        spec = self.tree["reward"][name]
        if own := self.form.choices.find_same_recipe(spec):
            return str(own.pk)
        draft.unknown_recipes[name] = spec
        self._refuse(
            draft,
            f"reward.{name}",
            "The team does not have this reward. Save it, or remove it here.",
        )
        return ""

    def _read_sets(self, draft: TomlDraft) -> None:
        """File names in the TOML are refused: a worker would read any of them."""
        form = self.form
        own_sets = form.eval_files | {
            row.effective_name: eval_rows(row.effective_name) for row in form.eval_sets
        }
        sets = self.tree["evaluation"]["sets"]
        files = form.eval_files.keys()
        has_sets = "sets" in self.given.get("evaluation", {})
        if has_sets and files & sets.keys() and not files <= sets.keys():
            self._refuse(
                draft,
                "evaluation.sets",
                "Keep all evaluation files of the cloned run, or none.",
            )
        for name, file in sets.items():
            if own_sets.get(name) != file:
                self._refuse(
                    draft,
                    f"evaluation.sets.{name}",
                    f"Evaluation sets must be datasets; got the file “{file[:60]}”. "
                    f"Add a set named {name} under Evaluation sets, or remove it here.",
                )

    def _refuse(self, draft: TomlDraft, path: str, sentence: str) -> None:
        draft.problems.append(TomlProblem(key=path, sentence=sentence))

    def fill(self) -> None:
        form = self.form
        form.texts = self.texts
        form.phases = write_phases(self.tree["phases"])
        form.recipe, form.step_recipe = self.recipe, self.step_recipe
        if (path := self.tree["model"]["path"]) != NO_MODEL:
            form.use_model(path)
        if "sets" in self.given.get("evaluation", {}):
            sets = self.tree["evaluation"]["sets"]
            form.eval_sets = [
                row for row in form.eval_sets if row.effective_name in sets
            ]
            form.keeps_eval_files = bool(sets.keys() & form.start.eval_files.keys())
