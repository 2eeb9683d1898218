"""What the engine would refuse only once a worker is busy with the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from django.conf import settings
from django.db.models import BigIntegerField, Max
from django.db.models.expressions import RawSQL

from dashboard.datasets.models import DatasetRow, DatasetVersion, TokenLengths
from dashboard.datasets.row_filters import PROMPT_CHARS
from dashboard.runs.config.errors import Problems
from dashboard.runs.config.snapshot import toml_value
from trainer.config import DataConfig, RunConfig


class Given(NamedTuple):
    """A value that a setting has in the run, and where it was put.

    >>> Given("phases", 'Phase "grpo": ', 64)
    """

    control: str
    where: str  # begins a sentence about it
    value: Any


def values_of(config: RunConfig, path: str) -> Iterator[Given]:
    """The form's own value, unless each phase changes it, and those of such phases."""
    part, name = path.split(".")
    changing = [
        stage
        for phase, stage in zip(config.phases, config.stages, strict=False)
        if name in phase.changes.get(part, {})
    ]
    if not config.phases or len(changing) < len(config.phases):
        yield Given(path, "", getattr(getattr(config, part), name))
    for stage in changing:
        value = getattr(getattr(stage.config, part), name)
        yield Given("phases", f'Phase "{stage.name}": ', value)


def check_rows(config: RunConfig, dataset: DatasetVersion, problems: Problems) -> None:
    num_train = dataset.num_rows - config.data.num_eval_rows
    if num_train < 1:
        problems.add(
            "data.num_eval_rows",
            f"{config.data.num_eval_rows:,} held-out prompts leave none of the "
            f"{dataset.num_rows:,} rows of {dataset} to train on. Hold out fewer.",
        )
    else:
        _check_prompts(config, dataset, num_train, problems)
    _check_column(config, dataset, problems)


def _check_prompts(
    config: RunConfig, dataset: DatasetVersion, num_train: int, problems: Problems
) -> None:
    for control, where, num_prompts in values_of(config, "rollout.prompts_per_step"):
        if num_prompts > num_train:
            problems.add(
                control,
                f"{where}A step takes {num_prompts:,} distinct prompts, but "
                f"{num_train:,} rows of {dataset} are left to train on. Take fewer.",
            )


def _check_column(
    config: RunConfig, dataset: DatasetVersion, problems: Problems
) -> None:
    """The column is the run's, whichever phase reads it."""
    column = config.data.completion_column
    columns = dataset.mapping.get("columns", [])
    sources = values_of(config, "rollout.source")
    where = next((given.where for given in sources if given.value == "dataset"), None)
    if where is not None and column not in columns:
        there = f"It has {', '.join(columns)}" if columns else "It has none"
        problems.add(
            "data.completion_column",
            f"{where}The completions come from the dataset, but {dataset} has no "
            f"column “{column}”. {there}. Upload the rows with that column kept.",
        )


def tokens_folder() -> Path:
    return Path(settings.COHORT_DATA) / "tokens"


def check_files(config: RunConfig, problems: Problems) -> None:
    """A form must not make a worker read, and send or show, any file it likes."""
    for part in ("reference", "rollout"):
        for control, where, token_file in values_of(config, f"{part}.token_file"):
            if token_file and not _is_token(token_file):
                problems.add(
                    control,
                    f"{where}A token for a {part} server is a file in "
                    f"{tokens_folder()}; got “{token_file}”. Put it there.",
                )
    for control, where, sets in values_of(config, "evaluation.sets"):
        if not sets.items() <= config.evaluation.sets.items():
            there = toml_value(config.evaluation.sets)
            problems.add(
                control,
                f"{where}Held-out sets are chosen above, not by their files: a phase "
                f"can leave some out of {there}. Leave evaluation.sets out for all.",
            )


def _is_token(path: str) -> bool:
    file = Path(path)
    return file.parent == tokens_folder() and ".." not in file.parts


# Settings that depend on the rows, made to fit those of a dataset.

EVAL, STEP = "data.num_eval_rows", "rollout.prompts_per_step"
LENGTH, TEMPLATE = "data.max_prompt_tokens", "data.chat_template"
FITTED = (EVAL, STEP, LENGTH)
MOST_HELD_OUT = 1 / 3  # where a start asks for more, HELD_OUT are
HELD_OUT = 1 / 5
DEFAULT_LENGTH: int = DataConfig.model_fields["max_prompt_tokens"].default
CHAT_TOKENS = 64  # of a chat template around a prompt
MOST_LOOKED_AT = 20_000  # 40 ms


@dataclass(frozen=True, kw_only=True, slots=True)
class FitResult:
    """What the settings should be, and a sentence on each that is changed."""

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
    if wanted <= version.num_rows * MOST_HELD_OUT:
        return wanted, ""
    fitting = int(version.num_rows * HELD_OUT)
    return fitting, (
        f"Held-out prompts are {fitting:,} in place of {wanted:,}, a fifth of the "
        f"{version.num_rows:,} rows."
    )


def _per_step(wanted: int, version: DatasetVersion, held_out: int) -> tuple[int, str]:
    num_train = version.num_rows - held_out
    if wanted <= num_train:
        return wanted, ""
    return num_train, (
        f"Prompts per step are {num_train:,} in place of {wanted:,}, as many as are "
        "left to train on."
    )


def _longest(
    texts: Mapping[str, str], version: DatasetVersion, model: str
) -> tuple[int, str]:
    wanted = int(texts[LENGTH])
    if counted := count_longest(version, model):
        fitting, has = counted, f"has {counted:,} tokens"
    else:
        # A rough bound, so it asks for no more than Cohort does anyway.
        fitting = min(
            bound_longest(version, has_template=texts[TEMPLATE] == "auto"),
            DEFAULT_LENGTH,
        )
        has = f"has {longest_prompt(version.pk):,} characters"
    if fitting <= wanted:
        return wanted, ""
    return fitting, (
        f"Longest prompt is {fitting:,} tokens in place of {wanted:,}, as the "
        f"dataset's longest {has}."
    )


def count_longest(version: DatasetVersion, model: str) -> int | None:
    """Tokens of the longest prompt, where somebody had this model's counted."""
    counted = TokenLengths.objects.filter(version=version, model=model).first()
    if counted is None or not counted.result:
        return None
    return max((length for length, _ in counted.result["lengths"]), default=None)


def bound_longest(version: DatasetVersion, *, has_template: bool) -> int:
    """Tokens that the longest prompt has at most.

    No tokenizer that is in use makes more tokens than characters of a text.
    """
    return longest_prompt(version.pk) + (CHAT_TOKENS if has_template else 0)


@lru_cache(maxsize=256)  # versions never change, so neither does the answer
def longest_prompt(version_pk: int) -> int:
    """Its characters, among the first rows."""
    rows = DatasetRow.objects.filter(version=version_pk, position__lt=MOST_LOOKED_AT)
    chars = RawSQL(PROMPT_CHARS, [], output_field=BigIntegerField())  # nosec B611 # noqa: S611 - our own constant
    found: int | None = rows.aggregate(longest=Max(chars))["longest"]
    return found or 0
