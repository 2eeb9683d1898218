"""TRL's GRPOTrainer, watched:

    from trainer.client.trl import watch

    trainer = GRPOTrainer(…)
    watch(trainer, name="my-run")  # the one line
    trainer.train()

Curves, all completions of every group, rewards by function and advantages of every
step, whatever logging_steps is; held-out scores as they are logged. Of several
processes the main one reports, which has all of them gathered.

Nothing of TRL is public about this: completions are in `trainer._logs`, which TRL fills
whenever it has generated (0.19 and later; seen with 1.16), and the tokens pass through
`_calculate_rewards`. Both are looked at behind TRL's own calls. Where one is missing,
what it has is not told, and the training continues.
"""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.client.http import Server
from trainer.client.lines import Completion, answer_of, number, text_of
from trainer.client.reporter import Reporter

logger = logging.getLogger("cohort")
ANSWERS = ("answer", "solution", "ground_truth", "target")
FOLDER = "cohort"  # in the trainer's output_dir


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
    except Exception:
        logger.exception("Cohort does not watch this trainer.")
    return watcher


def _quiet(event: Callable[..., None]) -> Callable[..., None]:
    """An error of ours is no error of the training's; after one we look no more."""

    def call(self: Watcher, *args: Any, **kwargs: Any) -> None:
        if self.is_off and event.__name__ != "on_train_end":  # that closes
            return
        try:
            event(self, *args, **kwargs)
        except Exception:
            self.is_off = True
            logger.exception("Cohort stops watching; the training continues.")

    return call


class Watcher:
    """A callback of transformers' Trainer, without importing transformers."""

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

    def attach(self) -> None:
        trainer = self.trainer
        if not hasattr(trainer, "_logs"):
            logger.warning(
                "This TRL keeps no completions in `_logs`, so Cohort gets curves only."
            )
        elif hasattr(trainer, "_generate_and_score_completions"):
            self._look_behind("_generate_and_score_completions", self._generated)
            if hasattr(trainer, "_calculate_rewards"):
                self._look_behind("_calculate_rewards", self._scored)
        trainer.add_callback(self)

    def _look_behind(self, method: str, look: Callable[..., None]) -> None:
        theirs = getattr(self.trainer, method)

        def then_look(*args: Any, **kwargs: Any) -> Any:
            found = theirs(*args, **kwargs)
            look(*args, **kwargs)
            return found

        setattr(self.trainer, method, then_look)

    def __getattr__(self, name: str) -> Any:
        """Of the events of a callback that are not ours: nothing is done."""
        if name.startswith("on_"):
            return lambda *_, **__: None
        raise AttributeError(name)

    @_quiet
    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not state.is_world_process_zero:
            self.is_off = True
            return
        step = int(state.global_step)
        folder = Path(self._folder or Path(args.output_dir) / FOLDER)
        if step == 0:
            folder = _free(folder)
        self._step = step
        self.reporter = Reporter(
            self._name or args.run_name or Path(args.output_dir).name or "TRL",
            num_steps=int(state.max_steps) or None,
            model=_model_of(self.trainer),
            settings=_settings(args),
            rules=_rules(self.trainer),
            tool="TRL",
            version=_version(),
            folder=folder,
            from_step=step,
            **self._options,
        )

    @_quiet
    def _scored(self, inputs: Any, *args: Any, **kwargs: Any) -> None:
        """Of (inputs, prompts, completions, completion_ids_list)."""
        ids = kwargs.get("completion_ids_list", args[2] if len(args) > 2 else None)
        self._ids = ids if isinstance(ids, list) else []
        self._rows = inputs if isinstance(inputs, list) else []

    @_quiet
    def _generated(self, *_: Any, **__: Any) -> None:
        if self.reporter is None or not self.trainer.model.training:
            return
        logs = self.trainer._logs
        prompts = list(logs["prompt"])
        found = _completions(self.trainer, list(logs["completion"]), self._ids)
        answers = _answers(self._rows, len(prompts))
        size = int(getattr(self.trainer, "num_generations", 0)) or 1
        step = int(self.trainer.state.global_step) + 1
        for first in range(0, len(prompts), size):
            self.reporter.group(
                step,
                text_of(prompts[first]),
                found[first : first + size],
                answer=answers[first],
            )

    @_quiet
    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._tell_step()

    @_quiet
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._tell_step()
        self._step, self._pending = int(state.global_step), {}

    @_quiet
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
            self.reporter.evaluated(int(state.global_step), "held-out", held_out)
        elif self._pending is not None and int(state.global_step) == self._step:
            self._pending = dict(logs)
            self._tell_step()  # the page need not wait for the next step

    def _tell_step(self) -> None:
        if self._pending is not None and self.reporter is not None:
            self.reporter.step(self._step, self._pending)
        self._pending = None

    @_quiet
    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._tell_step()
        if self.reporter is None:
            return
        if state.global_step >= state.max_steps:
            self.reporter.finish()
        else:
            self.reporter.stop()
        self.reporter.close()
        self.reporter = None


def _free(folder: Path) -> Path:
    """A training from its first step on is another run than the one kept there."""
    taken = [folder, *(folder.with_name(f"{folder.name}-{n}") for n in range(2, 1_000))]
    return next(one for one in taken if not (one / "run.json").exists())


def _completions(
    trainer: Any, texts: Sequence[Any], ids: Sequence[Sequence[int]]
) -> list[Completion]:
    logs = trainer._logs
    rules = {str(name): list(scores) for name, scores in logs["rewards"].items()}
    advantages = list(logs["advantages"])
    weights = _rules(trainer)
    # Several processes have each their own tokens, and only the texts of all.
    are_all = len(ids) == len(texts)
    ends = _end_tokens(trainer)
    found = []
    for at, text in enumerate(texts):
        scores = {name: number(values[at]) for name, values in rules.items()}
        tokens = ids[at] if are_all else None
        found.append(
            Completion(
                text=text_of(text),
                reward=_reward(scores, weights),
                rules=scores,
                advantage=number(advantages[at]),
                num_tokens=None if tokens is None else len(tokens),
                is_truncated=tokens[-1] not in ends if tokens and ends else None,
            )
        )
    return found


def _reward(
    scores: Mapping[str, float | None], weights: Mapping[str, float]
) -> float | None:
    """As TRL adds them: what a function did not score counts nothing."""
    parts = [weights.get(n, 1.0) * s for n, s in scores.items() if s is not None]
    return sum(parts) if parts else None


def _rules(trainer: Any) -> dict[str, float]:
    names = [str(name) for name in getattr(trainer, "reward_func_names", ())]
    weights = getattr(trainer, "reward_weights", None)
    given = [1.0] * len(names) if weights is None else weights.tolist()
    return dict(zip(names, map(float, given), strict=False))


def _end_tokens(trainer: Any) -> set[int]:
    one = getattr(trainer, "eos_token_id", None)
    ends = set(getattr(trainer, "eos_token_ids", None) or [one])
    ends.add(getattr(trainer, "pad_token_id", None))
    tokenizer = getattr(trainer, "_tokenizer", None)
    ends.add(getattr(tokenizer, "pad_token_id", None))
    return {int(end) for end in ends if end is not None}


def _answers(rows: Sequence[Mapping[str, Any]], num: int) -> list[str | None]:
    if len(rows) != num or not rows:
        return [None] * num
    column = next((name for name in ANSWERS if name in rows[0]), None)
    if column is None:
        return [None] * num
    return [answer_of(row.get(column)) for row in rows]


def _model_of(trainer: Any) -> str:
    config = getattr(getattr(trainer, "model", None), "config", None)
    return str(getattr(config, "_name_or_path", "") or "")[:200]


def _settings(args: Any) -> dict[str, Any]:
    """As transformers tells others: tokens of hubs are hidden in it."""
    told = args.to_sanitized_dict() if hasattr(args, "to_sanitized_dict") else {}
    return {name: value for name, value in told.items() if value is not None}


def _version() -> str:
    try:
        return importlib.metadata.version("trl")
    except importlib.metadata.PackageNotFoundError:
        return ""
