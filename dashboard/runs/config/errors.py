"""Validation errors of a RunConfig as messages, by form field."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from dashboard.runs.config.fields import ELSEWHERE, ConfigField, all_fields, put
from trainer.config import RunConfig

MAX_ERRORS = 200
# How messages about phases as a whole start.
OF_PHASES = ('Phase "', "The phases have")


@dataclass(slots=True)
class Problems:
    """Messages by form field, and general ones about several fields."""

    by_field: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    general: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.by_field or self.general)

    @property
    def messages(self) -> list[str]:
        """All of them, without duplicates."""
        of_fields = [text for texts in self.by_field.values() for text in texts]
        return list(dict.fromkeys([*self.general, *of_fields]))

    def add(self, control: str, message: str) -> None:
        self.by_field[control].append(message)


def find_problems(tree: dict[str, Any]) -> Problems:
    problems = Problems()
    for error in errors_of(tree):
        path = ".".join(str(part) for part in error["loc"])
        if path in all_fields():
            problems.add(path, sentence_of(all_fields()[path], error))
        elif path.startswith("phases."):
            problems.add("phases", _phase_sentence(error))
        elif control := _control(path):
            problems.add(control, message_of(error))
        else:
            _add_cross_field(problems, tree, message_of(error))
    return problems


def errors_of(tree: dict[str, Any]) -> list[Any]:
    try:
        RunConfig.model_validate(tree)
    except ValidationError as error:
        return list(error.errors(include_url=False))[:MAX_ERRORS]
    return []


def _control(path: str) -> str | None:
    for prefix, control in ELSEWHERE.items():
        if path == prefix or path.startswith(f"{prefix}."):
            return control
    return None


def message_of(error: Mapping[str, Any]) -> str:
    cause = error.get("ctx", {}).get("error")
    return str(cause) if cause is not None else str(error["msg"])


def _add_cross_field(problems: Problems, tree: dict[str, Any], message: str) -> None:
    problems.general.append(message)
    if message.startswith(OF_PHASES):
        problems.add("phases", message)
        return  # no setting's default fixes a phase
    if "reward.step_recipe" in message:
        problems.add("step_recipe", message)
    for path in all_fields():
        if _default_heals(tree, path, message):
            problems.add(path, message)


def _default_heals(tree: dict[str, Any], path: str, message: str) -> bool:
    """Whether resetting this field alone to its default removes the problem."""
    healed = copy.deepcopy(tree)
    put(healed, path, all_fields()[path].default)
    return all(message_of(error) != message for error in errors_of(healed))


def _phase_sentence(error: Mapping[str, Any]) -> str:
    _, number, *place = error["loc"]
    where = f"Phase {number + 1}" if isinstance(number, int) else "Phases"
    inside = f", {'.'.join(map(str, place))}" if place else ""
    if error["type"] == "extra_forbidden":
        return (
            f"{where}{inside}: a phase has name, num_steps and changes. Put settings "
            "under changes."
        )
    if error["type"] == "missing":
        return f"{where}{inside} is missing."
    return (
        f"{where}{inside}: {message_of(error)}. The value was {quote(error['input'])}."
    )


def sentence_of(setting: ConfigField, error: Mapping[str, Any]) -> str:
    given = error["input"]
    if given in ("", None):
        return f"{setting.title} is empty. Its default is {setting.default_text}."
    demand = _demand(error)
    if demand is None:
        return f"{setting.title}: {message_of(error)}. The value was {quote(given)}."
    if setting.may_be_auto:
        demand += " or auto"
    return f"{setting.title} must be {demand}; got {quote(given)}."


def quote(value: Any) -> str:
    text = str(value)
    return f"“{text[:60]}…”" if len(text) > 60 else f"“{text}”"


def _plain(bound: float) -> str:
    return f"{int(bound):,}" if float(bound).is_integer() else f"{bound:g}"


def _demand(error: Mapping[str, Any]) -> str | None:
    context = error.get("ctx", {})
    match error["type"]:
        case "int_parsing" | "int_type" | "int_from_float" | "int_parsing_size":
            return "a whole number"
        case "float_parsing" | "float_type" | "finite_number":
            return "a number, such as 0.5 or 1e-6"
        case "bool_parsing" | "bool_type":
            return "on or off"
        case "greater_than_equal":
            return f"at least {_plain(context['ge'])}"
        case "greater_than":
            return f"above {_plain(context['gt'])}"
        case "less_than_equal":
            return f"at most {_plain(context['le'])}"
        case "less_than":
            return f"below {_plain(context['lt'])}"
        case "literal_error":
            return f"one of {context['expected']}"
    return None
