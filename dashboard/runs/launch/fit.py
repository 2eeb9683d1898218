"""Whether rows, settings, model and memory fit together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.db.models import BigIntegerField, Max
from django.db.models.expressions import RawSQL
from django.db.models.functions import Length

from dashboard.datasets.models import DatasetRow, DatasetVersion, TokenLengths
from dashboard.datasets.row_filters import PROMPT_CHARS
from dashboard.runs.config.fields import write_texts
from dashboard.runs.launch.base_models import (
    read_characters,
    read_chat_template,
    read_model_config,
)
from dashboard.runs.queue.hosts import Cluster, Device, known_devices
from trainer.config import DataConfig, RunConfig
from trainer.sizes.memory import MemoryEstimate, PassSizes, estimate

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


LONGEST_PROBLEM = 300  # characters
ALWAYS = {
    "weights": "Weights",
    "master_weights": "Float32 master weights",
    "optimizer": "Optimizer",
    "reference": "Reference model",
    "engine": "vLLM weights and KV cache",
    "snapshot": "Weights copy for sampling",
    "reward_models": "Reward models",
}
UPDATING = {
    "gradients": "Gradients",
    "activations": "Activations",
    "logits": "Logits",
}
SAMPLING = {
    "kv_cache": "KV cache",
    "sampling": "Sampling logits",
    "sleeping_engine": "vLLM, idle during updates",
}
MEASURING = {"measuring": "Start model"}
TEACHER = {"reference": "Teacher", "measuring": "Teacher"}  # in place of these


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedRows:
    """The fitted settings, and a message for each that changed."""

    texts: dict[str, str] = field(default_factory=dict)
    sentences: tuple[str, ...] = ()


def fit_to_rows(
    texts: Mapping[str, str], version: DatasetVersion, model: str
) -> FittedRows:
    """Fit `texts`, which a start has, to the rows and their environment."""
    sentences = []
    held_out, per_step, longest = (int(texts[path]) for path in (EVAL, STEP, LENGTH))
    if held_out > version.num_rows * MAX_SHARE_HELD_OUT:
        fitting = int(version.num_rows * HELD_OUT)
        sentences.append(
            f"Held-out prompts: {fitting:,} instead of {held_out:,}, a fifth of the "
            f"{version.num_rows:,} rows."
        )
        held_out = fitting
    if per_step > (num_train := version.num_rows - held_out):
        sentences.append(
            f"Prompts per step: {num_train:,} instead of {per_step:,}, the number of "
            "training rows."
        )
        per_step = num_train
    if counted := count_longest(version, model):
        fitting, has = counted, f"has {counted:,} tokens"
    else:
        # A rough bound, so it is limited to the default.
        bound = bound_longest(version, has_template=texts[TEMPLATE] == "auto")
        fitting = min(bound, DEFAULT_LENGTH)
        has = f"has {longest_prompt(version.pk):,} characters"
    if fitting > longest:
        sentences.append(
            f"Prompt limit: {fitting:,} tokens instead of {longest:,}, because the "
            f"longest in the dataset {has}."
        )
        longest = fitting
    environment = {}
    if version.environment:
        environment = {
            path: text
            for path, text in write_texts({"environment": version.environment}).items()
            if path.startswith("environment.")
        }
        # The limit may be that of another model's prompts and completions.
        limit = int(environment["environment.max_tokens"])
        least = longest + int(texts["rollout.max_new_tokens"])
        if 0 < limit < least:
            environment["environment.max_tokens"] = str(least + limit)
        sentences.append(
            f"Environment: {environment['environment.kind']}, as in the dataset."
        )
    return FittedRows(
        texts={EVAL: str(held_out), STEP: str(per_step), LENGTH: str(longest)}
        | environment,
        sentences=tuple(sentences),
    )


def warn_of_lengths(config: RunConfig, dataset: DatasetVersion) -> str:
    """Warn if prompt and completion may exceed the model's context; else ""."""
    path = config.model.path
    tree = read_model_config(Path(path)) if path.startswith("/") else None
    limit = find_limit(tree) if tree else None
    if limit is None:
        return ""
    counted = count_longest(dataset, path)
    is_auto = config.data.chat_template == "auto"
    has_template = is_auto and bool(read_chat_template(Path(path)))
    bound = counted or bound_longest(dataset, has_template=has_template)
    prompt = min(config.data.max_prompt_tokens, bound)
    longest = max(phase.config.rollout.max_new_tokens for phase in config.phase_configs)
    episode = config.environment.max_tokens if config.environment.is_there else 0
    if limit < episode:
        return (
            f"Episodes of up to {episode:,} tokens are longer than the model's "
            f"context, {limit:,}. Lower environment.max_tokens, or choose a model "
            "with a longer context."
        )
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
    """Warn if a small model has no tokens for the rows' texts; else ""."""
    readable = read_characters(Path(model)) if model.startswith("/") else None
    if readable is None:
        return ""
    rows = DatasetRow.objects.filter(version=version).order_by("position")[
        :NUM_ROWS_READ
    ]
    text = "".join(row.question for row in rows)
    unread = [mark for mark in text if mark not in readable]
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
    """Return an upper bound on the tokens of the longest prompt.

    No tokenizer in use makes more tokens than characters.
    """
    return longest_prompt(version.pk) + (CHAT_TOKENS if has_template else 0)


@lru_cache(maxsize=256)  # versions never change, so neither does the answer
def longest_prompt(version_pk: int) -> int:
    """Return its length in characters, among the first rows."""
    rows = DatasetRow.objects.filter(version=version_pk, position__lt=MAX_ROWS_MEASURED)
    chars = RawSQL(PROMPT_CHARS, [], output_field=BigIntegerField())  # nosec B611 # noqa: S611 - our own constant
    longest: int | None = rows.aggregate(longest=Max(chars))["longest"]
    return longest or 0


@lru_cache(maxsize=256)  # as above
def longest_answer(version_pk: int) -> int:
    """Return its length in characters, among the first rows."""
    longest: int | None = DatasetRow.objects.filter(
        version=version_pk, position__lt=MAX_ROWS_MEASURED
    ).aggregate(longest=Max(Length("answer")))["longest"]
    return longest or 0


def find_limit(tree: Mapping[str, Any]) -> int | None:
    """Return the model's context length in tokens; None if its configuration has none.

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


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPart:
    title: str
    num_bytes: int
    colour: int  # of the page's series
    start_percent: float  # its place in the bar
    percent: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """The memory that the run needs, as a share of a device's."""

    device: Device
    num_bytes: int
    sizes: PassSizes | None = None  # that the run would choose there

    @property
    def percent(self) -> float:
        return 100 * self.num_bytes / self.device.memory_bytes

    @property
    def tokens(self) -> str:
        return f"{self.sizes.tokens:,}" if self.sizes else ""

    @property
    def is_enough(self) -> bool:
        return self.percent <= 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Peak memory, in the phase that needs the most."""

    problem: str = ""  # why there is no estimate
    peak: str = ""  # when it is
    phase: str = ""
    total: int = 0
    # The minimum, if the run sizes micro-batches by GPU memory.
    least: int = 0
    parts: tuple[MemoryPart, ...] = ()
    others: tuple[tuple[str, int], ...] = ()  # not needed at the peak
    ppo_critic: int = 0
    reward_models_elsewhere: int = 0  # on the other device: CPU or GPU
    unknown_reward_models: tuple[str, ...] = ()
    fits: tuple[Fit, ...] = ()
    host: Fit | None = None  # the main memory of all ranks of a machine with GPUs

    @property
    def is_too_much(self) -> bool:
        """For every known device."""
        return bool(self.fits) and not any(fit.is_enough for fit in self.fits)


def estimate_memory(
    config: RunConfig, *, largest_set: int = 0, cluster: Cluster | None = None
) -> Memory:
    """Estimate each rank's memory.

    Args:
        largest_set: rows of the largest evaluation set.
        cluster: the team's, whose nodes count for a run that trains there.
    """
    if not config.model.path.startswith("/"):
        return Memory(
            problem="No memory estimate: it needs the files of the model, which is not "
            "downloaded yet."
        )
    model_config = read_model_config(Path(config.model.path))
    if model_config is None:
        return Memory(
            problem="No memory estimate: this server cannot read config.json in "
            f"{config.model.path}."
        )
    on_cluster = config.distributed.where == "ray"
    offered = (cluster.devices if cluster else []) if on_cluster else known_devices()
    devices = _possible(config, offered)
    on_gpu = any(
        device.is_gpu for device in offered
    )  # what reward models may take, too
    teachers = {
        path: tree
        for phase in config.phase_configs
        if (path := phase.config.reference.model) and path.startswith("/")
        if (tree := read_model_config(Path(path))) is not None
    }

    def estimated(device: Device | None) -> MemoryEstimate:
        is_gpu = device is not None and device.is_gpu
        return estimate(
            config,
            model_config,
            on_gpu=on_gpu,
            gpu_bytes=(device.memory_bytes or None) if device and is_gpu else None,
            largest_set=largest_set,
            teachers=teachers,
        )

    try:
        least = estimated(None)
        on_each = [(device, estimated(device)) for device in devices]
    except ValueError as error:
        return Memory(problem=str(error)[:LONGEST_PROBLEM])
    except (TypeError, ArithmeticError):  # the file may contain anything
        return Memory(
            problem=f"No memory estimate: config.json in {config.model.path} does not "
            "describe a language model."
        )
    names = {phase.first_step: phase.name for phase in config.phase_configs}
    needs = on_each[0][1] if on_each else least  # of the largest
    ranks = config.distributed.num_processes  # of a machine
    host_bytes = ranks * (needs.parked + needs.reward_models_elsewhere)
    hosts = [
        Fit(device=device, num_bytes=host_bytes)
        for device in offered
        if device.memory_bytes and not device.is_gpu and device not in devices
    ]
    return replace(
        _describe(needs, names[needs.first_step], config.config_at(needs.first_step)),
        least=least.total if least.is_least else 0,
        fits=tuple(
            Fit(
                device=device,
                num_bytes=there.total * (1 if device.is_gpu else ranks),
                sizes=there.sizes,
            )
            for device, there in on_each
            if device.memory_bytes
        ),
        host=hosts[0] if hosts else None,
    )


def _possible(config: RunConfig, devices: Sequence[Device]) -> list[Device]:
    """List those the run would use: a GPU if there is one, unless it needs a CPU."""
    gpus = [device for device in devices if device.is_gpu]
    if config.model.device == "cuda" or (config.model.device == "auto" and gpus):
        return gpus
    return [device for device in devices if not device.is_gpu]


def _describe(needs: MemoryEstimate, phase: str, config: RunConfig) -> Memory:
    peak, at_peak, otherwise = _peak(needs)
    own_titles = TEACHER if config.reference.model is not None else {}
    titles = ALWAYS | at_peak
    titles |= {name: own_titles[name] for name in titles.keys() & own_titles}
    return Memory(
        peak=peak,
        phase=phase,
        total=needs.total,
        parts=tuple(_parts(needs, titles)),
        others=tuple(
            (own_titles.get(name, title), getattr(needs, name))
            for name, title in otherwise.items()
            if getattr(needs, name)
        ),
        ppo_critic=needs.ppo_critic,
        reward_models_elsewhere=needs.reward_models_elsewhere,
        unknown_reward_models=needs.unknown_reward_models,
    )


def _peak(needs: MemoryEstimate) -> tuple[str, dict[str, str], dict[str, str]]:
    """When the peak occurs, the parts then, and the parts at other times."""
    measures = needs.measuring > needs.while_updating
    trains, training = (
        ("measuring KL", MEASURING) if measures else ("updating", UPDATING)
    )
    other = UPDATING if measures else MEASURING
    if needs.is_one_step_off:
        return f"while sampling and {trains} at once", training | SAMPLING, other
    if needs.while_sampling > sum(getattr(needs, name) for name in training):
        return "while sampling", SAMPLING, UPDATING | MEASURING
    return f"while {trains}", training, SAMPLING | other


def _parts(needs: MemoryEstimate, titles: dict[str, str]) -> list[MemoryPart]:
    """List those that are there, one after the other along the bar."""
    parts: list[MemoryPart] = []
    start = 0
    for colour, (name, title) in enumerate(titles.items(), start=1):
        num_bytes = getattr(needs, name)
        if not num_bytes:
            continue
        parts.append(
            MemoryPart(
                title=title,
                num_bytes=num_bytes,
                colour=colour,
                start_percent=100 * start / needs.total,
                percent=100 * num_bytes / needs.total,
            )
        )
        start += num_bytes
    return parts
