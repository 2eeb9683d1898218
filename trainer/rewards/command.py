"""`python -m trainer score`: score completions from a file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainer.config.reading import place_models, why_unreadable
from trainer.presets.preset import as_published, load_preset, published_names
from trainer.rewards.function_forms import none_recognised, recognise, rule_names
from trainer.rewards.rule import Sample, message_text, read_answer, split_prefill
from trainer.rewards.rules.python_function import LARGEST_SCORE
from trainer.rewards.scoring import score_all
from trainer.rewards.session import open_session
from trainer.rewards.spec import Recipe, check_rules, judges_groups

# Of a recipe, and of a row: what is longer is another file, or has no end.
MAX_BYTES = 32 * 2**20
_OWN_KEYS = {"prompt", "completion", "answer", "columns"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    recipe = parser.add_mutually_exclusive_group(required=True)
    recipe.add_argument("--recipe", type=Path, metavar="FILE", help="reward as JSON")
    recipe.add_argument(
        "--function",
        type=Path,
        metavar="FILE",
        help="Python with reward functions in the form of Cohort, TRL, verl or "
        "verifiers; each is a rule of weight 1",
    )
    recipe.add_argument(
        "--preset",
        metavar="NAME",
        help="score with the reward of a preset; as published for "
        + ", ".join(published_names()),
    )
    parser.add_argument(
        "--as-published",
        action="store_true",
        help="score as the published code does, including its bugs",
    )
    parser.add_argument(
        "--rows",
        type=Path,
        required=True,
        metavar="FILE",
        help="JSON lines with prompt, completion, answer and any columns; consecutive "
        "lines with the same prompt are one group",
    )
    parser.add_argument(
        "--step",
        type=int,
        default=1,
        metavar="N",
        help="training step whose rule weights to use (default: 1)",
    )


def main(options: argparse.Namespace) -> int:
    """Return one line of JSON for each row; 0 when all were read, 2 on bad input."""
    try:
        if options.preset:
            recipe = load_preset(options.preset).recipe
            if options.as_published and options.preset not in published_names():
                raise ValueError(
                    f'Cohort wrote the reward of preset "{options.preset}"; it has no '
                    "published grader. Remove --as-published."
                )
        elif options.function:
            recipe = _recipe_of_functions(options.function)
        else:
            recipe = _recipe_of(options.recipe)
        recipe = as_published(recipe) if options.as_published else recipe
        with open_session(None):  # in which models may be loaded
            _score(recipe, options)
    except (OSError, ValueError) as error:
        _complain(_text(error))
        return 2
    return 0


def _score(recipe: Recipe, options: argparse.Namespace) -> None:
    check_rules(recipe)
    for group in _groups(recipe, options.rows):
        scores = score_all(recipe, [sample for _, sample in group], step=options.step)
        for (number, _), score in zip(group, scores, strict=True):
            line: dict[str, Any] = {"total": score.total, "rules": score.rules}
            if score.metrics:
                line["metrics"] = score.metrics
            print(json.dumps(line))  # noqa: T201 - the command's output
            for rule, error in score.errors.items():
                _complain(f"line {number}, rule {rule}: {error}")


def _groups(recipe: Recipe, path: Path) -> Iterator[list[tuple[int, Sample]]]:
    """Yield each row by itself; rows of one prompt that follow one another, where a
    rule compares them.
    """
    compares = any(judges_groups(rule) for rule in recipe.rules)
    rows = _samples(path)
    if not compares:
        yield from ([row] for row in rows)
        return
    for _, group in groupby(rows, key=lambda row: replace(row[1], completion="")):
        yield list(group)


def _recipe_of(path: Path) -> Recipe:
    tree = Recipe.model_validate_json(_read(path)).model_dump(mode="json")
    place_models(tree, path.parent)
    return Recipe.model_validate(tree)


def _recipe_of_functions(path: Path) -> Recipe:
    """Return a rule for each of a file's functions, whatever numbers they return.

    Says on standard error what was recognised.
    """
    try:
        source = _read(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 (byte {error.start}). Save it as UTF-8."
        ) from None
    recognised = recognise(source)
    if recognised.fault:
        raise ValueError(f"{path} is not valid Python. {recognised.fault}.")
    if not recognised.functions:
        raise ValueError(f"{path}: {none_recognised(recognised)}")
    for function in recognised.functions:
        _complain(f"Recognised: {function.title}")
    for name, why in recognised.refused.items():
        _complain(f"Not a rule: {name}: {why}")
    rules = [
        {
            "name": name,
            "kind": "python_function",
            "params": {
                "source": source,
                "function": function.name,
                "minimum": -LARGEST_SCORE,
                "maximum": LARGEST_SCORE,
            },
        }
        for function, name in zip(
            recognised.functions, rule_names(recognised.functions), strict=True
        )
    ]
    return Recipe.model_validate({"rules": rules})


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise ValueError(
            f"{path} has more than {MAX_BYTES:,} bytes, the limit for a reward or a "
            "source. Name another file."
        )
    return text


def _samples(path: Path) -> Iterator[tuple[int, Sample]]:
    with path.open("rb") as file:
        lines = iter(partial(file.readline, MAX_BYTES + 1), b"")
        for number, line in enumerate(lines, start=1):
            if len(line) > MAX_BYTES:
                raise ValueError(
                    f"{path}, line {number} is longer than {MAX_BYTES:,} bytes. Write "
                    "one object per line."
                )
            if line.strip():
                yield number, _sample(path, number, line)


def _sample(path: Path, number: int, line: bytes) -> Sample:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path}, line {number} is not JSON: {why_unreadable(error)}. Write one "
            "object per line."
        ) from error
    if not isinstance(row, dict) or not isinstance(row.get("completion"), str):
        raise ValueError(
            f'{path}, line {number} is not an object with a text "completion"; got '
            f"{line[:80]!r}."
        )
    try:
        answer = read_answer(row.get("answer"))
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: {error}.") from None
    nested = row.get("columns")
    columns = {name: value for name, value in row.items() if name not in _OWN_KEYS}
    prompt = row.get("prompt", "")
    is_chat = isinstance(prompt, list) and all(
        isinstance(turn, dict) and isinstance(turn.get("role"), str) for turn in prompt
    )
    messages, begun = split_prefill(prompt if is_chat else ())
    return Sample(
        prompt=_prompt_text(messages if is_chat else prompt),
        completion=row["completion"],
        messages=messages,
        is_chat=is_chat,
        begun=begun,
        answer=answer,
        columns=columns | (nested if isinstance(nested, dict) else {}),
    )


def _prompt_text(prompt: Any) -> str:
    """Chat messages become their contents, one after the other."""
    if isinstance(prompt, list):
        return "\n".join(
            message_text(message) if isinstance(message, dict) else ""
            for message in prompt
        )
    return str(prompt)


def _text(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return " ".join(
            fault["msg"].removeprefix("Value error, ") for fault in error.errors()
        )
    return str(error)


def _complain(text: str) -> None:
    sys.stderr.write(f"{text}\n")
