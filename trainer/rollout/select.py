"""Which engine samples, and what takes its place when it fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from trainer.config import RunConfig
from trainer.config.agreement import complaints_of_vllm
from trainer.console import print_line, print_traceback
from trainer.model.budget import memory_of
from trainer.model.loading import (
    model_fingerprint,
    num_parameters,
    pick_device,
    read_settings,
)
from trainer.model.policy import Policy
from trainer.model.teacher import parks_teacher
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.cache import bytes_per_token, head_size, make_cache
from trainer.rollout.engine import (
    FURTHER_OFF,
    CheckSchedule,
    Collected,
    OnGroup,
    OnSlowed,
    Request,
    RolloutEngine,
    SamplingParams,
    Slowed,
    a_few,
    describe_gap,
    ignore,
    logprob_gap,
    max_logprob_gap,
    refuse_gap,
)
from trainer.rollout.prefetch import Snapshot, SnapshotEngine
from trainer.rollout.prefixes import PrefixStore
from trainer.rollout.server_engine import RolloutClient, VllmServerEngine
from trainer.rollout.speeds import read_speeds, work_of
from trainer.rollout.vllm import SamplerSettings, VllmProcess, why_not_rotated
from trainer.serving.client import read_token
from trainer.sizes.footprint import most_completions
from trainer.sizes.memory import EngineSizes, engine_sizes
from trainer.tokenizers import first_line
from trainer.types import Rollout

OWN_DECODER = "Cohort's decoder"
OWN_ENGINE = "built-in decoder"  # as a run names it
# vLLM takes about a minute to start, to compile and to record its graphs. The own
# decoder samples several steps of a smaller model meanwhile, and completions of a small
# one that are short as fast as vLLM.
_LEAST_PARAMETERS = 100_000_000
_START_SECONDS = 60
_FEW_PARAMETERS, _FEW_TOKENS = 1_000_000_000, 512
_LEAST_HEAD_SIZE = 32  # of vLLM's attention kernels
_REMEDY = (
    'Set rollout.engine to "transformers", choose another model, or start servers with '
    "the run's model and dtype."
)
_SFT = ("dataset", 0)  # a phase's source and evaluation, where none are sampled
_CACHE_BLOCK = 16  # tokens that vLLM's cache grows by


def make_engine(
    config: RunConfig,
    policy: Policy,
    *,
    on_slowed: OnSlowed = lambda _slowed: None,
    at_rest: threading.Event | None = None,
    began_with: str | None = None,
) -> RolloutEngine:
    """Return what samples from the policy, with its present weights.

    Args:
        config: of the run.
        policy: of a run of one process, or sharded over several, of which each has
            an engine of its own.
        on_slowed: told when the engine goes on in a slower way.
        at_rest: set while the policy is not trained in another thread; None: always.
        began_with: the `engine_name` that "auto" was for a run that is resumed.

    Raises:
        ValueError: vLLM was asked for, and is not there or cannot run the model; no
            such server.
    """
    is_alone = policy.whole is policy  # else its whole copy is a snapshot
    takes_snapshot = is_alone and config.has_snapshot
    kind = SnapshotEngine if takes_snapshot else TransformersEngine
    own = partial(own_decoder, partial(kind, policy), config, on_slowed=on_slowed)
    match config.rollout.engine:
        case "transformers":
            return own()
        case "vllm_server" if takes_snapshot:
            snapshot = Snapshot(policy)
            return ask_servers(
                config, snapshot.policy, before_sync=snapshot.take, on_slowed=on_slowed
            )
        case "vllm_server":
            return ask_servers(config, policy, on_slowed=on_slowed)
        case "vllm":
            vllm = start_vllm(config, policy)
            return FallbackEngine(
                policy.whole, vllm, at_rest=at_rest, on_slowed=on_slowed
            )
        case "auto":
            if reason := why_not_vllm(
                config,
                policy.whole,
                is_alone=is_alone,
                began_with=began_with,
            ):
                if policy.device.type == "cuda":
                    print_line(f"sampling with {OWN_DECODER}: {reason}")
                return own()
            try:
                vllm = start_vllm(config, policy)
            except Exception as error:  # noqa: BLE001 - whatever it is, there is another
                reason = _reason(error)
            else:
                able = None
                with suppress(ValueError):  # of layers that keep another state
                    make_cache(policy.model.config)
                    able = own
                return FallbackEngine(
                    policy.whole, vllm, own=able, at_rest=at_rest, on_slowed=on_slowed
                )
            on_slowed(_left(reason))
            return own()


def ask_servers(
    config: RunConfig,
    policy: Policy,
    *,
    before_sync: Callable[[], None] = lambda: None,
    on_slowed: OnSlowed,
) -> FallbackEngine:
    """Return the servers that `config.rollout` names, with the weights of a policy that
    stands still and is compared with them.

    Raises:
        ValueError: one is not there, holds another model, or another run holds it.
    """
    assert config.rollout.token_file is not None
    token = read_token(Path(config.rollout.token_file))
    fingerprint = model_fingerprint(config.model.path, revision=config.model.revision)
    servers = [
        RolloutClient(
            url,
            token=token,
            fingerprint=fingerprint,
            num_gpus=config.rollout.server_gpus,
        )
        for url in config.rollout.urls
    ]
    engine = VllmServerEngine(policy, servers, before_sync=before_sync)
    return FallbackEngine(policy, engine, on_slowed=on_slowed)


def check_decoder(config: RunConfig) -> None:
    """Refuse a model that has to be sampled by the own decoder and cannot be.

    The model's settings tell it, before any weight is loaded.

    Raises:
        ValueError: the decoder does not support a state that its layers keep.
    """
    phases = [phase.config for phase in config.phase_configs]
    on_gpu = pick_device(config.model).type == "cuda"
    may_be_vllm = on_gpu and find_spec("vllm") is not None
    is_own = config.rollout.engine == "transformers" or (
        config.rollout.engine == "auto" and not may_be_vllm
    )
    if any(
        phase.rollout.source == "start"
        or (is_own and (phase.rollout.source, phase.evaluation.every_steps) != _SFT)
        for phase in phases
    ):
        make_cache(read_settings(config.model.path, revision=config.model.revision))


def why_not_vllm(
    config: RunConfig,
    policy: Policy,
    *,
    is_alone: bool = True,
    began_with: str | None = None,
) -> str:
    """Return why "auto" takes the own decoder at once; empty: it tries vLLM."""
    model, phases = policy.model, config.phase_configs
    if policy.device.type != "cuda":
        return "there is no GPU"
    if find_spec("vllm") is None:
        return "vLLM is not installed"
    if model.dtype not in (torch.bfloat16, torch.float16):
        return "the model is in float32"  # in which vLLM's fast kernels do not compute
    if config.model.quantization != "none":
        return "vLLM does not support these 4-bit weights"
    if all(phase.config.rollout.source != "policy" for phase in phases):
        return "the completions to train on are not sampled from the policy"
    for phase in phases:
        for complaint in complaints_of_vllm(phase.config):
            return complaint
    if reason := _why_not_faster(
        config, policy, is_alone=is_alone, began_with=began_with
    ):
        return reason
    if (size := head_size(model.config)) < _LEAST_HEAD_SIZE:
        return f"vLLM has no kernels for a head size of {size}"
    return why_not_rotated(policy, _longest(config, policy))


def _why_not_faster(
    config: RunConfig, policy: Policy, *, is_alone: bool, began_with: str | None
) -> str:
    """Return why vLLM would cost time: as measured here, or else by the sizes.

    Of several processes each may see other figures, so those go by the sizes.
    """
    if began_with is not None:
        return "the run began with it" if began_with == OWN_ENGINE else ""
    speeds = read_speeds(work_of(config, policy)) if is_alone else {}
    own, vllm = speeds.get(OWN_ENGINE), speeds.get(f"vLLM {version('vllm')}")
    if own is not None and vllm is not None:
        tokens = own.step_tokens * config.optim.num_steps
        saved = tokens / own.rate - tokens / vllm.rate
        if saved > _START_SECONDS:
            return ""
        return (
            f"runs like this sampled {own.rate:,.0f} tokens/s with it on this GPU, and "
            f"with vLLM, which starts slowly, {vllm.rate:,.0f}"
        )
    count = policy.num_parameters
    longest = max(phase.config.longest_completion for phase in config.phase_configs)
    if count < _LEAST_PARAMETERS or (
        count < _FEW_PARAMETERS and longest <= _FEW_TOKENS
    ):
        return (
            f"vLLM starts slowly for a model of {count:,} parameters and completions "
            f"of {longest:,} tokens"
        )
    return ""


def start_vllm(config: RunConfig, policy: Policy) -> VllmServerEngine:
    """Start vLLM in a child of this process, with the policy's weights.

    A child that dies is started again where the weights that it sampled with are there:
    those of a policy that nothing trains meanwhile, or of the copy that a process has.

    Raises:
        ValueError: vLLM is not installed, or cannot run the model.
    """
    whole = policy.whole
    if reason := why_not_rotated(whole, _longest(config, whole)):
        raise ValueError(f'{reason}. Set rollout.engine to "transformers".')
    settings = _settings(config, whole, num_shards=policy.num_shards)
    restarts = whole is not policy or not config.samples_ahead
    child = VllmProcess(settings, whole.device, restarts=restarts)
    return VllmServerEngine(whole, [child], before_sync=policy.gather_whole)


def uses_own_decoder(engine: RolloutEngine) -> bool:
    """Return whether keys and values come and go with each batch, in this process."""
    if isinstance(engine, FallbackEngine):
        return engine.has_fallen_back
    return isinstance(engine, TransformersEngine)


def lasting_engine(engine: RolloutEngine) -> str | None:
    """Return what a resumed run goes on with; None: it chooses again, as this one has
    left what it began with.
    """
    is_left = isinstance(engine, FallbackEngine) and engine.has_fallen_back
    return None if is_left else engine_name(engine)


def engine_name(engine: RolloutEngine) -> str:
    """Name it as a run tells it: vLLM 0.32.0."""
    if uses_own_decoder(engine):
        return OWN_ENGINE
    return engine.kind if isinstance(engine, FallbackEngine) else RolloutClient.kind


class FallbackEngine:
    """vLLM, here or on servers, as long as its log-probs are the policy's.

    Before it first samples, and again when weights have changed once, a few of its
    completions are compared with the policy's own pass. Where that or anything else
    fails, the own decoder takes over, and samples what is missing. Where vLLM or
    servers were asked for, or the own decoder cannot sample from the model, `own` is
    None: errors are raised, and log-probs that are off give a warning, or above 0.3
    nats an error.
    """

    def __init__(
        self,
        policy: Policy,
        vllm: VllmServerEngine,
        *,
        own: Callable[[], TransformersEngine] | None = None,
        at_rest: threading.Event | None = None,
        on_slowed: OnSlowed,
    ) -> None:
        self._policy = policy
        self._vllm: VllmServerEngine | None = vllm
        self._make_own = own
        self._own: TransformersEngine | None = None
        if at_rest is None:
            at_rest = threading.Event()
            at_rest.set()
        self._at_rest = at_rest
        self._on_slowed = on_slowed
        self._few: tuple[list[Request], SamplingParams] | None = None
        self._schedule = CheckSchedule()

    @property
    def kind(self) -> str:
        return "" if self._vllm is None else self._vllm.kind

    @property
    def has_fallen_back(self) -> bool:
        return self._vllm is None

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
        self._few = self._few or a_few(requests, params)
        # one that trains meanwhile cannot be compared; then it is when it is synced
        if self._at_rest.is_set() and self._schedule.begin(requests):
            self._check()
        self._attempt(lambda vllm: vllm.collect(requests, params, collected), collected)
        if self._own is not None and not collected.is_complete:
            self._own.collect(requests, params, collected)
        return collected.groups()

    def sync_weights(self) -> None:
        if self._own is not None:
            self._own.sync_weights()
            return
        self._attempt(VllmServerEngine.sync_weights)
        self._schedule.after_sync()
        if self._few is not None and self._schedule.begin(self._few[0]):
            self._check()

    def rest(self) -> None:
        if self._own is not None:
            self._own.rest()
        self._attempt(VllmServerEngine.rest)

    def close(self) -> None:
        if self._vllm is not None:
            self._vllm.close()

    def _attempt(
        self,
        act: Callable[[VllmServerEngine], None],
        collected: Collected | None = None,
    ) -> None:
        """Let vLLM do something; where it cannot, the own decoder takes over."""
        if self._vllm is None:
            return
        try:
            act(self._vllm)
            return
        except Exception as error:
            is_listeners = collected is not None and error is collected.error
            if self._make_own is None or is_listeners:
                raise
            print_traceback(error)
            reason = _reason(error)
        # out of the handler, so that the error does not hold what is to be freed
        self._take_over(reason)

    def _check(self) -> None:
        """Leave vLLM if its log-probs are not those of the policy's pass.

        Raises:
            ValueError: it cannot be left, and they are too far off to be trained on.
        """
        assert self._few is not None
        few, params = self._few
        gaps: list[float] = []
        self._attempt(
            lambda vllm: gaps.append(
                logprob_gap(
                    self._policy,
                    few,
                    vllm.sample(few, params),
                    temperature=params.temperature,
                )
            )
        )
        if not gaps or gaps[0] <= max_logprob_gap(self._policy):
            return
        reason = f"its {describe_gap(gaps[0])}"
        if self._make_own is not None:
            own = TransformersEngine(self._policy, max_batch_rows=64, decoding="plain")
            if not gaps[0] <= FURTHER_OFF * own.measure_gap(few, params):
                self._take_over(reason)
                return
        refuse_gap(gaps[0], sampler=self.kind, remedy=_REMEDY)
        self._on_slowed(
            Slowed(
                code="engine_fallback",
                reason=reason,
                failed=f"The check of {self.kind}",
                way=self.kind,
            )
        )

    def _take_over(self, reason: str) -> None:
        """Close vLLM and let the own decoder sample from here on."""
        vllm, self._vllm = self._vllm, None
        assert vllm is not None
        assert self._make_own is not None
        # else weights would be copied while they move
        self._at_rest.wait()
        if self._policy.device.type == "cuda":
            torch.cuda.synchronize(self._policy.device)
        try:
            vllm.close()
        except Exception as error:  # noqa: BLE001 - it is left anyway
            print_traceback(error)
        self._own = self._make_own()
        self._on_slowed(_left(reason))


def _left(reason: str) -> Slowed:
    return Slowed(code="engine_fallback", reason=reason, failed="vLLM", way=OWN_DECODER)


def _reason(error: Exception) -> str:
    cause = error.__cause__ or error
    return f"{type(cause).__name__}: {first_line(cause)}"


def own_decoder(
    make: Callable[..., TransformersEngine],
    config: RunConfig,
    *,
    on_slowed: OnSlowed = lambda _slowed: None,
) -> TransformersEngine:
    """Return the engine that `make` makes, as a run samples by it."""
    engine = make(
        max_batch_rows=config.rollout.max_batch_rows, decoding=config.rollout.decoding
    )
    if config.environment.is_there:
        engine.prefixes = PrefixStore()
    engine.on_slowed = on_slowed
    return engine


def _settings(config: RunConfig, policy: Policy, *, num_shards: int) -> SamplerSettings:
    model, rollout = config.model, config.rollout
    sizes = _sizes(config, policy, num_shards=num_shards)
    return SamplerSettings(
        model=model.path,
        revision=model.revision,
        dtype=policy.model.dtype,
        max_length=_longest(config, policy),
        max_rows=rollout.max_batch_rows,
        cache_gib=sizes.cache_bytes / 2**30,
        tensor_parallel_size=rollout.tensor_parallel_size,
        lora_rank=model.lora_rank,
        sleeps=sizes.sleeps,
    )


def _sizes(config: RunConfig, policy: Policy, *, num_shards: int) -> EngineSizes:
    """Choose by the memory that is free once the model is loaded.

    Optimizer and reference are loaded later, and are there whenever vLLM samples.
    """
    rollout, memory = config.rollout, memory_of(policy.device)
    num_parts, dtype = rollout.tensor_parallel_size, policy.model.dtype
    num_ranks = config.distributed.num_ranks
    rows = min(-(-_most_rows(config) // num_ranks), rollout.max_batch_rows)
    row = bytes_per_token(policy.model.config, dtype) // num_parts
    row *= _longest(config, policy) + _CACHE_BLOCK
    weights = policy.model.num_parameters() * dtype.itemsize
    free = None
    if memory is not None:
        # What training holds at any time, beside the policy's weights.
        num_trained = sum(
            p.numel() for p in policy.model.parameters() if p.requires_grad
        )
        num_trained //= num_shards  # of which each has its part
        # two moments, of which those in 8 bits are less, and a float32 copy
        bytes_per_weight = 8 if policy.model.dtype == torch.float32 else 12
        references = [
            _reference_bytes(phase.config, policy)
            for phase in config.phase_configs
            if phase.reference_kind == "frozen"
        ]
        static = bytes_per_weight * num_trained
        static += max(references, default=0) // num_shards
        free = memory.free_bytes() - static
    return engine_sizes(
        config,
        wanted_bytes=rows * row,
        least_bytes=row,
        weight_bytes=weights // num_parts,
        free=free,
        gpu_bytes=None if memory is None else memory.total_bytes(),
        on_gpu=memory is not None,
    )


def _reference_bytes(config: RunConfig, policy: Policy) -> int:
    """Return bytes of a frozen reference's weights that stay on the GPU."""
    reference, each = config.reference, policy.model.dtype.itemsize
    if reference.model is None:
        return policy.model.num_parameters() * each
    if parks_teacher(config, policy):
        return 0
    return num_parameters(reference.model, revision=reference.revision) * each


def _most_rows(config: RunConfig) -> int:
    """Return completions sampled together; of further sets the sizes are not known
    here.
    """
    most = 0
    for phase in config.phase_configs:
        own = phase.config
        if own.evaluation.every_steps and own.evaluation.sets:
            return own.rollout.max_batch_rows
        most = max(most, most_completions(own, own.data.num_eval_rows))
    return most


def _longest(config: RunConfig, policy: Policy) -> int:
    """Return tokens of the longest prompt with its completion, as far as the model
    goes.
    """
    wanted = config.longest_sequence
    return min(wanted, policy.num_positions or wanted)
