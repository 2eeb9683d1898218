"""Report a run of SkyRL, from its entry point:

    from cohort.skyrl import CohortReports

    class Exp(CohortReports, BasePPOExp): ...

SkyRL gives its trajectory logger every step's completions, whatever the tracker, and
its callbacks the metrics. Written for version 0.3.0 and commit a9564572, and not run
with SkyRL, which needs a GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cohort.formats.files import settings_of
from cohort.lines import Completion, text_of, turns_by_mask
from cohort.reporter import Reporter, keep_training
from cohort.spool import free_folder


class CohortReports:
    """A mix-in in front of SkyRL's BasePPOExp."""

    def get_trainer(self, *args: Any, **kwargs: Any) -> Any:
        trainer = super().get_trainer(*args, **kwargs)  # type: ignore[misc]  # SkyRL's
        self._reports = Reports(trainer.cfg)
        trainer.add_callback(self._reports)
        return trainer

    def get_trajectory_logger(self) -> Any:
        self._reports.inner = super().get_trajectory_logger()  # type: ignore[misc]
        return self._reports


class Reports:
    """A trajectory logger and a callback of SkyRL, written without importing it."""

    def __init__(self, cfg: Any) -> None:
        self.inner: Any = None  # SkyRL's own logger
        self._cfg = cfg
        self._num_steps: int | None = None
        self._reporter: Reporter | None = None
        self._step = 0

    def __getattr__(self, name: str) -> Any:
        """Ignore the other events of a callback."""
        if name.startswith("on_"):
            return lambda *_: None
        raise AttributeError(name)

    def log(self, **kwargs: Any) -> None:
        self.inner.log(**kwargs)
        if str(kwargs.get("wandb_key")).startswith("trajectories/train"):
            self._report(**kwargs)

    @keep_training()
    def _report(
        self,
        *,
        prompts: Sequence[Any],
        generator_output: dict[str, Any],
        tokenizer: Any,
        global_step: int,
        **_: Any,
    ) -> None:
        self._step = int(global_step)
        self._reporter = self._reporter or self._begin()
        groups: dict[str, tuple[str, list[Completion]]] = {}
        for key, prompt, completion in _rows(prompts, generator_output, tokenizer):
            groups.setdefault(key, (prompt, []))[1].append(completion)
        for prompt, completions in groups.values():
            self._reporter.group(self._step, prompt, completions)

    def _begin(self) -> Reporter:
        trainer = self._cfg.trainer
        is_dataclass = dataclasses.is_dataclass(self._cfg)
        settings = dataclasses.asdict(self._cfg) if is_dataclass else {}
        folder = Path(trainer.ckpt_path) / "cohort"
        return Reporter(
            trainer.run_name,
            num_steps=self._num_steps,
            model=str(trainer.policy.model.path),
            settings=settings_of(settings),
            tool="SkyRL",
            folder=folder if self._step > 1 else free_folder(folder),
            from_step=self._step - 1,
        )

    @keep_training()
    def on_train_start(self, trainer: Any, callback_input: Any, control: Any) -> None:
        self._num_steps = callback_input.total_steps

    @keep_training()
    def on_log(self, trainer: Any, callback_input: Any, control: Any) -> None:
        """Report the step's metrics; those of a first evaluation precede all steps."""
        if self._reporter and callback_input.logs:
            self._reporter.step(self._step, callback_input.logs)

    @keep_training()
    def on_train_end(self, trainer: Any, callback_input: Any, control: Any) -> None:
        if self._reporter:
            self._reporter.finish()
            self._reporter.close()


def _rows(
    prompts: Sequence[Any], output: dict[str, Any], tokenizer: Any
) -> Iterator[tuple[str, str, Completion]]:
    """Yield group, prompt and completion; of step-wise trajectories the last step."""
    all_ids = output["response_ids"]
    for at, ids in enumerate(all_ids):
        if not (output.get("is_last_step") or [True] * len(all_ids))[at]:
            continue
        if len(prompts) == len(all_ids):
            prompt = text_of(prompts[at])
        else:
            prompt = tokenizer.decode(output["prompt_token_ids"][at])
        reward, mask = output["rewards"][at], output["loss_masks"][at]
        turns = turns_by_mask(ids, mask, tokenizer.decode)
        names, stops = output.get("trajectory_ids"), output.get("stop_reasons")
        completion = Completion(
            text="" if turns else tokenizer.decode(ids),
            turns=turns,
            reward=sum(reward) if isinstance(reward, list) else reward,
            num_tokens=sum(mask),
            is_truncated=stops[at] == "length" if stops else None,
        )
        yield str(names[at].instance_id) if names else prompt, prompt, completion
