"""Report a run of TRL's GRPOTrainer:

    import cohort

    trainer = GRPOTrainer(…, args=GRPOConfig(report_to="cohort", run_name="my-run"))
    trainer.train()

Or with options of Cohort's, in place of `report_to`:

    from cohort.trl import watch

    trainer = GRPOTrainer(…)
    watch(trainer, name="my-run", right_from=1.0)
    trainer.train()

Cohort gets metrics, all completions, rewards by function and advantages of every step,
independent of logging_steps, and held-out scores as they are logged. Only the loss is
taken from TRL's log: the mean since the log before. Of several processes only the main
one reports, because TRL gathers the completions there.

TRL has no public interface for this. Completions are in `trainer._logs`, filled after
each generation (0.19 and later; tested with 1.16); token ids are an argument of
`_calculate_rewards`. Both are read after TRL's own calls; metrics are in
`trainer._metrics` until TRL logs their means. If one is missing, its part is not
reported and the training continues.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from cohort.http import Server
from cohort.lines import (
    Completion,
    answer_of,
    mean,
    number,
    text_of,
    turns_of,
)
from cohort.reporter import Reporter
from cohort.spool import free_folder

logger = logging.getLogger("cohort")
ANSWERS = ("answer", "solution", "ground_truth", "target")
RESTRICTIONS = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
FOLDER = "cohort"  # in the trainer's output_dir
# Where transformers looks the names of `report_to` up. It reads no entry points.
INTEGRATIONS = "transformers.integrations.integration_utils"


def watch(
    trainer: Any,
    *,
    name: str | None = None,
    right_from: float | None = None,
    tags: Sequence[str] = (),
    notes: str = "",
    folder: str | Path | None = None,
    server: Server | None = None,
) -> Watcher:
    """Report the trainer's next `train()`; it never raises."""
    options = {"right_from": right_from, "tags": tags, "notes": notes, "server": server}
    watcher = Watcher(trainer, name=name, folder=folder, options=options)
    try:
        watcher.attach()
        trainer.add_callback(watcher)
    except Exception:
        logger.exception("Failed to attach Cohort to this trainer.")
    return watcher


def add_to_transformers() -> None:
    """Let `report_to="cohort"` name `ReportTo`, once transformers is imported."""
    if INTEGRATIONS in sys.modules:
        _add_to(sys.modules[INTEGRATIONS])
    else:
        sys.meta_path.insert(0, _ImportHook())


def _add_to(integrations: ModuleType) -> None:
    callbacks = getattr(integrations, "INTEGRATION_TO_CALLBACK", None)
    if isinstance(callbacks, dict):
        callbacks.setdefault("cohort", ReportTo)


class _ImportHook:
    """A finder that finds transformers' table as others do, and adds to it when run."""

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        if name != INTEGRATIONS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run_module = spec.loader.exec_module

            def run(module: ModuleType) -> None:
                run_module(module)
                _add_to(module)

            spec.loader.exec_module = run  # type: ignore[method-assign]  # of this loader alone
        return spec


def _never_raising(event: Callable[..., None]) -> Callable[..., None]:
    """Let no error here stop the training; it ends the reporting instead."""

    def call(self: Watcher, *args: Any, **kwargs: Any) -> None:
        if (
            self.is_off and event.__name__ != "on_train_end"
        ):  # which closes the reporter
            return
        try:
            event(self, *args, **kwargs)
        except Exception:
            self.is_off = True
            logger.exception("Reporting to Cohort failed. The training continues.")

    return call


class Watcher:
    """A callback of transformers' Trainer, written without importing transformers."""

    def __init__(
        self,
        trainer: Any,
        *,
        name: str | None,
        folder: str | Path | None,
        options: Mapping[str, Any],
    ) -> None:
        self.trainer = trainer
        self.reporter: Reporter | None = None
        self.is_off = False
        self._name = name
        self._folder = folder
        self._options = options
        self._ids: list[list[int]] = []  # tokens of this process's completions
        self._rows: list[Mapping[str, Any]] = []
        self._pending: dict[str, Any] | None = None  # metrics of a step that is done
        self._step = 0
        # By metric: TRL's list, which its log replaces, and how far it was read.
        self._read: dict[str, tuple[list[float], int]] = {}

    def attach(self) -> None:
        trainer = self.trainer
        if not hasattr(trainer, "_logs"):
            logger.warning(
                "This trainer has no `_logs`, so Cohort gets metrics only, without "
                "completions."
            )
        elif hasattr(trainer, "_generate_and_score_completions"):
            self._call_after("_generate_and_score_completions", self._generated)
            if hasattr(trainer, "_calculate_rewards"):
                self._call_after("_calculate_rewards", self._scored)

    def _call_after(self, method: str, callback: Callable[..., None]) -> None:
        original = getattr(self.trainer, method)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            callback(result, *args, **kwargs)
            return result

        setattr(self.trainer, method, wrapper)

    def __getattr__(self, name: str) -> Any:
        """Ignore the other events of a callback."""
        if name.startswith("on_"):
            return lambda *_, **__: None
        raise AttributeError(name)

    @_never_raising
    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not state.is_world_process_zero:
            self.is_off = True
            return
        step = int(state.global_step)
        folder = Path(self._folder or Path(args.output_dir) / FOLDER)
        if step == 0:
            # A new run, even if the folder has an earlier one.
            folder = free_folder(folder)
        self._step = step
        config = getattr(getattr(self.trainer, "model", None), "config", None)
        # without hub tokens: to_sanitized_dict masks them
        tree = args.to_sanitized_dict() if hasattr(args, "to_sanitized_dict") else {}
        self.reporter = Reporter(
            self._name or args.run_name or Path(args.output_dir).name or "TRL",
            num_steps=int(state.max_steps) or None,
            model=str(getattr(config, "_name_or_path", "") or "")[:200],
            settings={name: value for name, value in tree.items() if value is not None},
            rules=_rules(self.trainer),
            tool="TRL",
            version=_version(),
            folder=folder,
            from_step=step,
            **self._options,
        )

    @_never_raising
    def _scored(self, _: Any, inputs: Any, *args: Any, **kwargs: Any) -> None:
        """Arguments: inputs, prompts, completions, completion_ids_list."""
        ids = kwargs.get("completion_ids_list", args[2] if len(args) > 2 else None)
        self._ids = ids if isinstance(ids, list) else []
        self._rows = inputs if isinstance(inputs, list) else []

    @_never_raising
    def _generated(self, output: Any, *_: Any, **__: Any) -> None:
        if self.reporter is None or not self.trainer.model.training:
            return
        logs = self.trainer._logs
        prompts = list(logs["prompt"])
        completions = _completions(self.trainer, list(logs["completion"]), self._ids)
        answers = _answers(self._rows, len(prompts))
        size = int(getattr(self.trainer, "num_generations", 0)) or 1
        step = int(self.trainer.state.global_step) + 1
        for first in range(0, len(prompts), size):
            self.reporter.group(
                step,
                text_of(prompts[first]),
                completions[first : first + size],
                answer=answers[first],
            )
        self._report_mismatch(step, output)

    def _report_mismatch(self, step: int, output: Any) -> None:
        """Report log-probs of sampler and trainer, where TRL computes both for vLLM."""
        names = ("old_per_token_logps", "sampling_per_token_logps", "completion_mask")
        tensors = [output.get(name) for name in names]
        if self.reporter is None or any(tensor is None for tensor in tensors):
            return
        old, sampling, mask = tensors
        settings = self.trainer.args
        # vLLM's log-probs are those of what it draws from
        is_free = all(
            getattr(settings, name, free) in (free, None)
            for name, free in RESTRICTIONS.items()
        )
        self.reporter.log_mismatch(
            step,
            old,
            sampling,
            mask * output.get("tool_mask", 1),
            advantages=output.get("advantages"),
            age=0,
            incomparable=None if is_free else "restricted",
            # else vLLM's own may be coarser
            dtype="bfloat16" if getattr(settings, "bf16", False) else None,
        )

    @_never_raising
    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._report_step()

    @_never_raising
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._report_step()
        # Means over the step's batches: TRL logs means over all steps since a log.
        measured = {}
        for name, values in _metrics(self.trainer).items():
            earlier, num_read = self._read.get(name, ([], 0))
            new = values[num_read if earlier is values else 0 :]
            self._read[name] = values, len(values)
            if new:
                measured[name] = mean([v for v in new if not math.isnan(v)])
        self._step, self._pending = int(state.global_step), measured

    @_never_raising
    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if self.reporter is None or not logs:
            return
        held_out = {
            "mean" if key == "eval_reward" else key.removeprefix("eval_"): value
            for key, value in logs.items()
            if key.startswith("eval_")
        }
        if held_out:
            self.reporter.evaluated(int(state.global_step), "heldout", held_out)
        elif self._pending is not None and int(state.global_step) == self._step:
            means = _metrics(self.trainer)
            others = {name: logs[name] for name in logs if name not in means}
            self._pending = others | self._pending
            self._report_step()  # rather than with the next step

    def _report_step(self) -> None:
        if self._pending is not None and self.reporter is not None:
            self.reporter.step(self._step, self._pending)
        self._pending = None

    @_never_raising
    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._report_step()
        if self.reporter is None:
            return
        if state.global_step >= state.max_steps:
            self.reporter.finish()
        else:
            self.reporter.stop()
        self.reporter.close()
        self.reporter = None


class ReportTo(Watcher):
    """The callback that `report_to="cohort"` names: `watch` without options."""

    def __init__(self) -> None:
        super().__init__(None, name=None, folder=None, options={})

    @_never_raising
    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.trainer is None:
            self.trainer = self._calling_trainer()
            callbacks = self.trainer.callback_handler.callbacks
            if any(isinstance(c, Watcher) and c is not self for c in callbacks):
                self.is_off = True  # `watch` reports this trainer
                return
            self.attach()
        super().on_train_begin(args, state, control)

    def _calling_trainer(self) -> Any:
        """Find the trainer among the callers: transformers gives a callback none."""
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            caller = frame.f_locals.get("self")
            if self in getattr(
                getattr(caller, "callback_handler", None), "callbacks", ()
            ):
                return caller
            frame = frame.f_back
        raise RuntimeError("No trainer calls this callback.")


def _metrics(trainer: Any) -> dict[str, list[float]]:
    """Return what TRL measured since its last log, a value for each batch."""
    metrics: dict[str, dict[str, list[float]]] = getattr(trainer, "_metrics", {})
    return metrics.get("train", {})


def _completions(
    trainer: Any, texts: Sequence[Any], ids: Sequence[Sequence[int]]
) -> list[Completion]:
    logs = trainer._logs
    rules = {str(name): list(scores) for name, scores in logs["rewards"].items()}
    advantages = list(logs["advantages"])
    weights = _rules(trainer)
    # With several processes, texts are gathered and token ids are not.
    are_all = len(ids) == len(texts)
    ends = _end_tokens(trainer)
    completions = []
    for at, text in enumerate(texts):
        scores = {name: number(values[at]) for name, values in rules.items()}
        tokens = ids[at] if are_all else None
        # TRL's weighted sum; functions that gave no score are left out.
        parts = [weights.get(n, 1.0) * s for n, s in scores.items() if s is not None]
        turns = turns_of(text)
        completions.append(
            Completion(
                text="" if turns else text_of(text),
                turns=turns,
                reward=sum(parts) if parts else None,
                rules=scores,
                advantage=number(advantages[at]),
                # Those of tools are among them, and TRL does not keep its mask.
                num_tokens=None if turns or tokens is None else len(tokens),
                is_truncated=tokens[-1] not in ends if tokens and ends else None,
            )
        )
    return completions


def _rules(trainer: Any) -> dict[str, float]:
    names = [str(name) for name in getattr(trainer, "reward_func_names", ())]
    weights = getattr(trainer, "reward_weights", None)
    values = [1.0] * len(names) if weights is None else weights.tolist()
    return dict(zip(names, map(float, values), strict=False))


def _end_tokens(trainer: Any) -> set[int]:
    eos = getattr(trainer, "eos_token_id", None)
    ends = set(getattr(trainer, "eos_token_ids", None) or [eos])
    ends.add(getattr(trainer, "pad_token_id", None))
    ends.add(getattr(getattr(trainer, "_tokenizer", None), "pad_token_id", None))
    return {int(end) for end in ends if end is not None}


def _answers(
    rows: Sequence[Mapping[str, Any]], num: int
) -> list[str | list[str] | None]:
    if len(rows) != num or not rows:
        return [None] * num
    column = next((name for name in ANSWERS if name in rows[0]), None)
    if column is None:
        return [None] * num
    return [answer_of(row.get(column)) for row in rows]


def _version() -> str:
    try:
        return importlib.metadata.version("trl")
    except importlib.metadata.PackageNotFoundError:
        return ""
