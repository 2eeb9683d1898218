"""The launch form as the engine's TOML, and such TOML as the form."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from dashboard.rewards.recipe_text import is_same_reward
from dashboard.runs.config.fields import ConfigField, all_fields, put, write_texts
from dashboard.runs.config.toml import (
    Lines,
    TomlProblem,
    find_toml_problems,
    read_toml,
    write_phases,
    write_toml_tree,
)
from dashboard.runs.launch.eval_sets import choose_sets
from dashboard.runs.launch.form import AS_START, LaunchForm
from dashboard.runs.queries import ROWS, eval_rows
from trainer.config import RunConfig

# In place of what is not chosen yet, so that the rest can be checked.
NO_MODEL = "not chosen"
ANY_RECIPE = {"rules": [{"name": "any", "kind": "numeric_answer", "params": {}}]}


@dataclass(kw_only=True, slots=True)
class TomlDraft:
    """What the form's TOML tab shows."""

    text: str = ""
    problems: list[TomlProblem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    # Rewards it brings that the team does not have, by their place in the tree.
    unknown_recipes: dict[str, dict[str, Any]] = field(default_factory=dict)


def write_form(form: LaunchForm) -> str:
    """ValueError where the form's phases cannot be read, as they would be lost."""
    tree = form.tree(
        form.recipe_version, choose_sets(form.eval_sets, taken=form.eval_files)
    )
    if sentence := form.put_phases(tree):
        raise ValueError(f"Correct the phases first. {sentence}")
    if not form.recipe_version:
        tree["reward"]["recipe"] = ANY_RECIPE
    try:
        tree = RunConfig.model_validate(tree).model_dump(mode="json")
    except ValidationError:  # shown as it was typed; to apply it tells what is wrong
        for path, setting in all_fields().items():
            put(tree, path, _typed(setting, form.texts[path]))
    if not form.model_path:
        del tree["model"]["path"]
    if not form.recipe_version:
        del tree["reward"]["recipe"]
    return write_toml_tree(tree)


def _typed(setting: ConfigField, text: str) -> Any:
    """A number as one, where the text is one."""
    value = setting.read(text)
    if isinstance(value, str) and setting.kind in ("whole", "number"):
        with suppress(ValueError):
            number = float(value)
            is_whole = number.is_integer() and abs(number) < 2**53
            if math.isfinite(number):
                return int(number) if is_whole else number
    return value


def apply_toml(form: LaunchForm, text: str) -> TomlDraft:
    """Put what it says into the form, which stays as it is where there are problems.

    As in a file of the engine, what it leaves out has its default; the model, the
    dataset, the reward and the evaluation sets stay as they are chosen.
    """
    draft = TomlDraft(text=text)
    try:
        given = read_toml(text)
    except ValueError as error:
        draft.problems = [TomlProblem(sentence=str(error))]
        return draft
    lines = Lines(text, given)
    draft.problems = find_toml_problems(lines, _completed(form, given))
    if draft.problems:
        return draft
    config = RunConfig.model_validate(_completed(form, given))
    tree = config.model_dump(mode="json")
    applied = _Applied(form=form, given=given, lines=lines, tree=tree)
    applied.read(draft)
    if not draft.problems:
        applied.fill()
    return draft


def _completed(form: LaunchForm, given: dict[str, Any]) -> dict[str, Any]:
    recipe = form.recipe_version
    chosen: dict[str, dict[str, Any]] = {
        "model": {"path": form.model_path or NO_MODEL},
        "data": {"rows": ROWS},
        "reward": {"recipe": recipe.spec if recipe else ANY_RECIPE},
    }
    tree = dict(given)
    for part, values in chosen.items():
        said = given.get(part, {})
        tree[part] = values | said if isinstance(said, dict) else said
    return tree


@dataclass(kw_only=True)
class _Applied:
    form: LaunchForm
    given: dict[str, Any]
    lines: Lines
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
                f"1 setting of the TOML has no field here: data.rows = “{rows}”. The "
                "dataset that is chosen on the form is trained on."
            )

    def _read_texts(self, draft: TomlDraft) -> None:
        """A text box cannot tell an empty text from none."""
        self.texts = write_texts(self.tree)
        for path, setting in all_fields().items():
            part, _, name = path.rpartition(".")
            value = (self.tree[part] if part else self.tree)[name]
            if setting.kind == "text" and setting.read(self.texts[path]) != value:
                self._refuse(
                    draft,
                    path,
                    "The form cannot hold an empty text here, or one with carriage "
                    "returns. Leave it out, or give another.",
                )

    def _read_recipes(self, draft: TomlDraft) -> None:
        form, reward = self.form, self.tree["reward"]
        self.recipe, chosen = form.recipe, form.recipe_version
        said = self.given.get("reward", {})
        if "recipe" in said and not (
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
            "Your team has no such reward. Save it as one, or leave it out.",
        )
        return ""

    def _read_sets(self, draft: TomlDraft) -> None:
        """Files are not taken from a text: a worker would read any it names."""
        form = self.form
        known = form.eval_files | {
            one.said_name: eval_rows(one.said_name) for one in form.eval_sets
        }
        sets = self.tree["evaluation"]["sets"]
        files = form.eval_files.keys()
        is_said = "sets" in self.given.get("evaluation", {})
        if is_said and files & sets.keys() and not files <= sets.keys():
            message = "The files of the run that is cloned are kept all, or none."
            self._refuse(draft, "evaluation.sets", message)
        for name, file in sets.items():
            if known.get(name) != file:
                self._refuse(
                    draft,
                    f"evaluation.sets.{name}",
                    f"Held-out sets are datasets, not files such as “{file[:60]}”. Add "
                    f"one named {name} under Evaluation sets, or leave it out.",
                )

    def _refuse(self, draft: TomlDraft, path: str, sentence: str) -> None:
        line = self.lines.line_of(path.split("."))
        draft.problems.append(TomlProblem(line=line, key=path, sentence=sentence))

    def fill(self) -> None:
        form = self.form
        form.texts = self.texts
        form.phases = write_phases(self.tree["phases"])
        form.recipe, form.step_recipe = self.recipe, self.step_recipe
        if (path := self.tree["model"]["path"]) != NO_MODEL:
            form.use_model(path)
        if "sets" in self.given.get("evaluation", {}):
            sets = self.tree["evaluation"]["sets"]
            form.eval_sets = [one for one in form.eval_sets if one.said_name in sets]
            form.keeps_eval_files = bool(sets.keys() & form.start.eval_files.keys())
