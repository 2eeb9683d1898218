"""vLLM's process, in which a sampler of the tests is in vLLM's place."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from trainer.config import ModelConfig
from trainer.model.loading import AdapterWeights
from trainer.model.policy import load_policy
from trainer.rollout import vllm_worker
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.engine import Request, Sampled, SamplingParams, SeededPrompt
from trainer.rollout.vllm import SamplerSettings


class Sampler:
    """Samples with a model of its own, one prompt after the other.

    In its model's folder, a file tells what befalls it, once: its name, and behind how
    many completions.
    """

    version = "0.0"

    def __init__(self, settings: SamplerSettings) -> None:
        self._fault = Path(settings.model) / "fault"
        if self._is_due("start"):
            raise ValueError("there is no such model")
        self._policy = load_policy(
            ModelConfig(path=settings.model, device="cpu", dtype="float32")
        )
        self.lora_rank = settings.lora_rank

    def sample(
        self,
        prompts: Sequence[SeededPrompt],
        params: SamplingParams,
        *,
        eos_ids: Sequence[int],
        on_ended: Callable[[int, Sampled], None],
        on_step: Callable[[], None],
    ) -> None:
        engine = TransformersEngine(self._policy, max_batch_rows=64)
        for number, prompt in enumerate(prompts):
            if number == 3:
                self._befall()
            request = Request(token_ids=prompt.token_ids, seeds=(prompt.seed,))
            (((own),),) = engine.sample([request], params)
            on_step()
            sampled = Sampled(token_ids=own.token_ids, logprobs=own.logprobs)
            on_ended(number, sampled)

    def take_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        own = dict(self._policy.weights())
        with torch.no_grad():
            for name, weight in weights:
                own[name].copy_(weight)

    def finish_weights(self) -> None:
        if self._is_due("weights"):
            os.kill(os.getpid(), signal.SIGKILL)

    def can_take(self, names: Iterable[str]) -> bool:
        return False

    def load_adapters(self, adapters: AdapterWeights) -> None:
        raise AssertionError

    def sleep(self, *, keeps_weights: bool) -> None:
        if self._is_due("rest"):
            os.kill(os.getpid(), signal.SIGKILL)

    def _befall(self) -> None:
        if self._is_due("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._is_due("error"):
            raise RuntimeError("CUDA error: out of luck")
        while self._is_due("hang", forever=True):
            time.sleep(0.05)

    def _is_due(self, name: str, *, forever: bool = False) -> bool:
        is_due = self._fault.exists() and self._fault.read_text() == name
        if is_due and not forever:
            self._fault.unlink()
        return is_due


def main() -> None:
    place: Any = vllm_worker
    place.VllmSampler = Sampler
    vllm_worker.main(*sys.argv[1:])


if __name__ == "__main__":
    main()
