"""TRL's steps: its GRPOTrainer with transformers' generation."""

import importlib.util
import json
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from tests.bench.subprocesses import READY, Give, peak_bytes
from tests.bench.work import RATE, Lengths, Step, Work, rates

_NEEDED = ("trl", "datasets", "accelerate")
Attach = Callable[[Any], Callable[[], dict[str, float]]]


def what_is_missing() -> str:
    """A sentence on what TRL's steps lack here, or nothing."""
    absent = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if not absent:
        return ""
    return (
        f"Nothing is compared with TRL: this Python has no {', '.join(absent)}. "
        f"`pip install {' '.join(_NEEDED)}` brings what is missing."
    )


def their_steps(
    give: Give,
    work: Work,
    *,
    micro_batches: int,
    num_steps: int = 1_000_000,
    attach: Attach | None = None,
) -> None:
    """READY, then step after step of TRL's own loop.

    TRL runs at its best: without gradient checkpointing, and in bfloat16 with weights
    and moments that are bfloat16 too, where Cohort's are float32. `attach` is called
    with the trainer before it begins; what it returns tells seconds by phase, as they
    have added up.
    """
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    from datasets import Dataset, disable_progress_bars
    from transformers import PreTrainedTokenizerFast
    from transformers.utils import logging as hf_logging
    from trl import GRPOConfig, GRPOTrainer

    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    disable_progress_bars()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(work.model)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    rows = [json.loads(line) for line in work.rows.read_text().splitlines()]
    clock = _clock(give, work, tokenizer)
    on_gpu = work.device == "cuda"
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=str(work.model),
            processing_class=tokenizer,
            reward_funcs=[clock.reward],
            train_dataset=Dataset.from_list(
                [{"prompt": row["prompt"]} for row in rows]
            ),
            callbacks=[clock],
            args=GRPOConfig(
                output_dir=folder,
                per_device_train_batch_size=work.completions // micro_batches,
                gradient_accumulation_steps=micro_batches,
                num_generations=work.group_size,
                max_completion_length=work.max_new_tokens,
                max_steps=num_steps,
                learning_rate=RATE,
                beta=work.beta,
                gradient_checkpointing=False,
                bf16=work.dtype == "bfloat16",
                model_init_kwargs={"dtype": work.dtype},
                report_to="none",
                save_strategy="no",
                logging_steps=1,
                disable_tqdm=True,
                use_cpu=not on_gpu,
                dataloader_pin_memory=on_gpu,
                log_completions=False,
            ),
        )
        trainer.model.generate = clock.timed(trainer.model.generate)
        if attach:
            clock.beside = attach(trainer)
        trainer.train()


def _clock(give: Give, work: Work, tokenizer: Any) -> Any:
    """A callback that times each step, with the reward function that it counts by."""
    import torch
    from transformers import TrainerCallback

    def now() -> float:
        if work.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    class Clock(TrainerCallback):
        beside: Callable[[], dict[str, float]] = dict

        def reward(
            self, prompts: list[str], completion_ids: list[list[int]], **_: Any
        ) -> list[float]:
            self.prompts = prompts
            self.counts += [len(ids) for ids in completion_ids]
            return [sum(ids) % 7 / 10 for ids in completion_ids]

        def timed(self, generate: Any) -> Any:
            def generate_on_the_clock(*args: Any, **options: Any) -> Any:
                begin = now()
                found = generate(*args, **options)
                self.generating += now() - begin
                return found

            return generate_on_the_clock

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            give(READY)

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.counts: list[int] = []
            self.generating = 0.0
            self.begin = now()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds, size = now() - self.begin, work.group_size
            texts = self.prompts[::size]
            counts = tuple(self.counts)
            give(
                Step(
                    seconds=seconds,
                    lengths=Lengths(
                        prompts=tuple(len(tokenizer.encode(text)) for text in texts),
                        groups=tuple(
                            counts[first : first + size]
                            for first in range(0, len(counts), size)
                        ),
                    ),
                    phases={"generate": self.generating, **self.beside()},
                    peak_bytes=peak_bytes(work.device),
                )
            )

    return Clock()


def micro_batch_rates(work: Work, counts: Sequence[int]) -> dict[int, float]:
    """TRL's median tokens a second with each number of micro-batches."""
    found = {}
    for count in counts:
        steps: list[Step] = []

        def keep(given: object, steps: list[Step] = steps) -> None:
            if isinstance(given, Step):
                steps.append(given)

        their_steps(keep, work, micro_batches=count, num_steps=4)
        found[count] = statistics.median(rates(steps[1:]))
    return found
