"""Report a run of slime, by its options:

    --custom-rollout-log-function-path cohort.slime.log_rollout
    --custom-eval-rollout-log-function-path cohort.slime.log_eval

slime calls them in the process of its rollout manager, with all samples of a rollout.
The loss is measured in other processes and is not reported. Written for version 0.3.1
(commit 624b824a), and not run with slime, which needs a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from cohort.formats.files import settings_of
from cohort.lines import Completion, mean, number, text_of, turns_by_mask
from cohort.reporter import Reporter, keep_training
from cohort.spool import free_folder

_opened: list[Reporter] = []  # the one of the process


def log_rollout(
    rollout_id: int,
    args: Any,
    samples: Sequence[Any],
    rollout_extra_metrics: Mapping[str, Any] | None,
    rollout_time: float,
) -> bool:
    """Return False: slime logs, too."""
    with keep_training():
        step, reporter = rollout_id + 1, _reporter_of(args, rollout_id)
        groups: dict[Any, list[Any]] = {}
        for sample in _flat(samples):
            groups.setdefault(sample.group_index, []).append(sample)
        for group in groups.values():
            completions = [_completion(sample, args) for sample in group]
            prompt, answer = text_of(group[0].prompt), group[0].label
            reporter.group(step, prompt, completions, answer=answer)
        metrics = {"time/generate": rollout_time, **(rollout_extra_metrics or {})}
        reporter.step(step, metrics)
        if step == getattr(args, "num_rollout", None):
            reporter.finish()
    return False


def log_eval(
    rollout_id: int,
    args: Any,
    data: Mapping[str, Mapping[str, Any]],
    extra_metrics: Mapping[str, Any] | None,
) -> bool:
    with keep_training():
        reporter = _reporter_of(args, rollout_id)
        for name, values in data.items():
            scores = {"mean": mean([s for s in values["rewards"] if s is not None])}
            reporter.evaluated(rollout_id + 1, name, scores)
    return False


def _reporter_of(args: Any, rollout_id: int) -> Reporter:
    if not _opened:
        folder = Path(args.save) / "cohort" if getattr(args, "save", None) else None
        if folder and rollout_id == 0:
            folder = free_folder(folder)
        model = str(getattr(args, "hf_checkpoint", ""))
        name = getattr(args, "wandb_group", None) or Path(model).name or "slime"
        _opened.append(
            Reporter(
                str(name),
                num_steps=getattr(args, "num_rollout", None),
                model=model,
                settings=settings_of(vars(args)),
                tool="slime",
                folder=folder,
                from_step=rollout_id,
            )
        )
    return _opened[0]


def _flat(samples: Iterable[Any]) -> list[Any]:
    nested = (s if isinstance(s, list) else [s] for s in samples)
    return [sample for group in nested for sample in group]


def _completion(sample: Any, args: Any) -> Completion:
    mask = sample.loss_mask or [1] * sample.response_length
    turns = []
    if not all(mask):
        ids = sample.tokens[len(sample.tokens) - len(mask) :]
        turns = turns_by_mask(ids, mask, _tokenizer(args.hf_checkpoint).decode)
    key = getattr(args, "reward_key", None)
    parts = sample.reward if isinstance(sample.reward, Mapping) else {}
    ends = {"truncated": True, "completed": False}
    return Completion(
        text="" if turns else sample.response,
        turns=turns,
        reward=number(parts.get(key) if parts else sample.reward),
        rules={name: number(value) for name, value in parts.items()},
        num_tokens=sum(mask),
        is_truncated=ends.get(sample.status.value),
    )


@cache
def _tokenizer(path: str) -> Any:
    processing = import_module("slime.utils.processing_utils")
    return processing.load_tokenizer(path, trust_remote_code=True)
