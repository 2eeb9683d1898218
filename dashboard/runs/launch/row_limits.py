"""Whether rows, settings and model fit together: row counts, lengths, characters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.db.models import BigIntegerField, Max
from django.db.models.expressions import RawSQL
from django.db.models.functions import Length

from dashboard.datasets.models import DatasetRow, DatasetVersion, TokenLengths
from dashboard.datasets.row_filters import PROMPT_CHARS
from dashboard.runs.launch.base_models import (
    has_chat_template,
    read_characters,
    read_model_config,
)
from trainer.config import DataConfig, RunConfig
from trainer.rewards.rule import message_text

EVAL, STEP = "data.num_eval_rows", "rollout.prompts_per_step"
LENGTH, TEMPLATE = "data.max_prompt_tokens", "data.chat_template"
MAX_SHARE_HELD_OUT = 1 / 3  # of the rows; above it, HELD_OUT applies
HELD_OUT = 1 / 5
DEFAULT_LENGTH: int = DataConfig.model_fields["max_prompt_tokens"].default
CHAT_TOKENS = 64  # of a chat template around a prompt
MAX_ROWS_MEASURED = 20_000  # 40 ms

NUM_ROWS_READ = 20
MAX_SHARE_UNREAD = 0.1  # of the characters
# Names used by model families; models without a length limit have none.
LIMIT_NAMES = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")


@dataclass(frozen=True, kw_only=True, slots=True)
class FitResult:
    """The fitted settings, and a message for each that changed."""

    texts: dict[str, str] = field(default_factory=dict)
    sentences: tuple[str, ...] = ()


def fit_to_rows(
    texts: Mapping[str, str], version: DatasetVersion, model: str
) -> FitResult:
    """For `texts` as a start has them."""
    held_out, why_held_out = _held_out(int(texts[EVAL]), version)
    per_step, why_per_step = _per_step(int(texts[STEP]), version, held_out)
    longest, why_longest = _longest(texts, version, model)
    return FitResult(
        texts={EVAL: str(held_out), STEP: str(per_step), LENGTH: str(longest)},
        sentences=tuple(filter(None, (why_held_out, why_per_step, why_longest))),
    )


def _held_out(wanted: int, version: DatasetVersion) -> tuple[int, str]:
    if wanted <= version.num_rows * MAX_SHARE_HELD_OUT:
        return wanted, ""
    fitting = int(version.num_rows * HELD_OUT)
    return fitting, (
        f"Held-out prompts: {fitting:,} instead of {wanted:,}, a fifth of the "
        f"{version.num_rows:,} rows."
    )


def _per_step(wanted: int, version: DatasetVersion, held_out: int) -> tuple[int, str]:
    num_train = version.num_rows - held_out
    if wanted <= num_train:
        return wanted, ""
    return num_train, (
        f"Prompts per step: {num_train:,} instead of {wanted:,}, the number of "
        "training rows."
    )


def _longest(
    texts: Mapping[str, str], version: DatasetVersion, model: str
) -> tuple[int, str]:
    wanted = int(texts[LENGTH])
    if counted := count_longest(version, model):
        fitting, has = counted, f"has {counted:,} tokens"
    else:
        # A rough bound, so it is limited to the default.
        fitting = min(
            bound_longest(version, has_template=texts[TEMPLATE] == "auto"),
            DEFAULT_LENGTH,
        )
        has = f"has {longest_prompt(version.pk):,} characters"
    if fitting <= wanted:
        return wanted, ""
    return fitting, (
        f"Prompt limit: {fitting:,} tokens instead of {wanted:,}, because the "
        f"longest in the dataset {has}."
    )


def warn_of_lengths(config: RunConfig, dataset: DatasetVersion) -> str:
    """A warning if prompt and completion may exceed the model's context; else ""."""
    path = config.model.path
    tree = read_model_config(Path(path)) if path.startswith("/") else None
    limit = find_limit(tree) if tree else None
    if limit is None:
        return ""
    known = count_longest(dataset, path)
    is_auto = config.data.chat_template == "auto"
    has_template = is_auto and has_chat_template(Path(path))
    bound = known or bound_longest(dataset, has_template=has_template)
    prompt = min(config.data.max_prompt_tokens, bound)
    longest = max(phase.config.rollout.max_new_tokens for phase in config.phase_configs)
    if prompt + longest <= limit:
        return ""
    room = limit - prompt
    remedy = (
        f"Lower rollout.max_new_tokens to {room:,}, or choose a model with a longer "
        "context."
        if room > 0
        else "Use shorter prompts, or choose a model with a longer context."
    )
    return (
        f"Prompts of up to {prompt:,} tokens and completions of up to {longest:,} need "
        f"{prompt + longest:,} tokens, but the model's context is {limit:,}. {remedy}"
    )


def warn_of_characters(model: str, version: DatasetVersion) -> str:
    """A warning if a small model has no tokens for the rows' texts; else ""."""
    known = read_characters(Path(model)) if model.startswith("/") else None
    if known is None:
        return ""
    rows = DatasetRow.objects.filter(version=version).order_by("position")[
        :NUM_ROWS_READ
    ]
    text = "".join(_text_of(row.prompt) for row in rows)
    unread = [mark for mark in text if mark not in known]
    if len(unread) <= MAX_SHARE_UNREAD * len(text):
        return ""
    some = " ".join(
        f"“{mark}”" if mark.isprintable() else repr(mark)
        for mark in [*dict.fromkeys(unread)][:5]
    )
    return (
        f"This model cannot learn from {version}: its tokenizer has no tokens for "
        f"{len(unread) / len(text):.0%} of the characters, such as {some}. "
        "Choose another model, or rows that it can read."
    )


def count_longest(version: DatasetVersion, model: str) -> int | None:
    """Tokens of the longest prompt, if they were counted for this model."""
    if "\x00" in model:  # PostgreSQL refuses it; the form check reports it
        return None
    counted = TokenLengths.objects.filter(version=version, model=model).first()
    if counted is None or not counted.result:
        return None
    return max((length for length, _ in counted.result["lengths"]), default=None)


def bound_longest(version: DatasetVersion, *, has_template: bool) -> int:
    """An upper bound on the tokens of the longest prompt.

    No tokenizer in use makes more tokens than characters.
    """
    return longest_prompt(version.pk) + (CHAT_TOKENS if has_template else 0)


@lru_cache(maxsize=256)  # versions never change, so neither does the answer
def longest_prompt(version_pk: int) -> int:
    """Its length in characters, among the first rows."""
    rows = DatasetRow.objects.filter(version=version_pk, position__lt=MAX_ROWS_MEASURED)
    chars = RawSQL(PROMPT_CHARS, [], output_field=BigIntegerField())  # nosec B611 # noqa: S611 - our own constant
    found: int | None = rows.aggregate(longest=Max(chars))["longest"]
    return found or 0


@lru_cache(maxsize=256)  # as above
def longest_answer(version_pk: int) -> int:
    """Its length in characters, among the first rows."""
    rows = DatasetRow.objects.filter(version=version_pk, position__lt=MAX_ROWS_MEASURED)
    found: int | None = rows.aggregate(longest=Max(Length("answer")))["longest"]
    return found or 0


def find_limit(tree: Mapping[str, Any]) -> int | None:
    """The model's context length in tokens; None if its configuration has none.

    >>> find_limit({"max_position_embeddings": 32_768, "rope_scaling":
    ...     {"factor": 4.0, "original_max_position_embeddings": 32_768}})
    131072
    """
    inner = tree.get("text_config")
    config = inner if isinstance(inner, dict) else tree
    named = next((n for name in LIMIT_NAMES if (n := _count(config.get(name)))), None)
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if named is None or not isinstance(scaling, dict):
        return named
    original = _count(scaling.get("original_max_position_embeddings"))
    factor = scaling.get("factor")
    if not isinstance(factor, int | float) or not math.isfinite(factor):
        return named
    return max(named, int((original or 0) * factor))


def _count(value: object) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and value > 0 else None  # type: ignore[operator,return-value]  # a number


def _text_of(prompt: Any) -> str:
    if isinstance(prompt, str):
        return prompt
    return "".join(map(message_text, prompt))
