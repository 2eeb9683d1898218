"""Reference models: none, the base model of adapters, or a copy; KL on a sample."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trainer.config import ReferenceConfig, RunConfig
from trainer.config.run import PhaseConfig
from trainer.errors import is_out_of_memory
from trainer.model.loading import model_fingerprint, read_settings
from trainer.model.microbatches import Minibatch
from trainer.model.packing import Batch, MicroBatch
from trainer.model.policy import Policy, load_policy
from trainer.model.teacher import parks_teacher
from trainer.parallel.fsdp import spread_like, whole
from trainer.seeding import derive, permutation
from trainer.serving.client import read_token
from trainer.serving.reference_client import ServerReference
from trainer.serving.vllm_reference import VllmReference
from trainer.tensorfile import TensorWriter, read_shapes, read_tensors
from trainer.tokenizers import first_line


def make_reference(
    phase: PhaseConfig, policy: Policy, *, saved: Path | None = None
) -> Reference | None:
    """Return the reference of a run or phase; None if it has none.

    Args:
        phase: the phase, or the run without phases. The frozen reference of a phase
            that continues another one's weights is the current policy, not the starting
            model.
        policy: the policy to compare with it.
        saved: the folder that `save` wrote, when resuming with an updated reference.

    Raises:
        ValueError: the model cannot be loaded or the server cannot be used.
    """
    config = phase.config
    match phase.reference_kind:
        case "none":
            return None
        case "base":
            return base_of(policy, config)
        case "server":
            return reference_server(config)
        case "frozen" if config.reference.model is not None:
            return load_teacher(config, policy)
        case "frozen":
            start = policy.shard(
                load_start(config, policy, will_move=phase.reference_moves),
                keeps_ends=config.loss.kl_estimator == "full",
            )
            reference = FrozenReference(
                start, config.reference, has_moved=phase.goes_on
            )
            if saved is not None:
                reference.restore(saved)
            elif phase.goes_on:
                reference.become(policy)
            return reference


def base_of(policy: Policy, config: RunConfig) -> BaseReference:
    """Return the policy without its adapters, where no one else switches them."""
    whole = policy.whole
    if config.rollout.one_step_off and whole is not policy:
        # it is sampled from at the same time, with its adapters on
        whole = whole.copied(shares_fixed=True)
    return BaseReference(whole)


def reference_server(config: RunConfig) -> ServerReference | VllmReference:
    """Return the server that `config.reference` names, asked for its model.

    Raises:
        ValueError: it is not there, or holds another model.
    """
    wanted = config.reference
    assert wanted.url is not None
    assert wanted.token_file is not None
    token = read_token(Path(wanted.token_file))
    source, revision = config.model.path, config.model.revision
    if wanted.model is not None:
        source, revision = wanted.model, wanted.revision
    reference = (
        VllmReference(
            wanted.url,
            token=token,
            model=source,
            longest=config.longest_read,
        )
        if wanted.protocol == "vllm"
        else ServerReference(
            wanted.url,
            token=token,
            fingerprint=model_fingerprint(source, revision=revision),
        )
    )
    if wanted.model is not None:
        settings = read_settings(source, revision=revision)
        reference.vocabulary = settings.get_text_config().vocab_size
    reference.check_model()
    return reference


def load_start(config: RunConfig, policy: Policy, *, will_move: bool = False) -> Policy:
    """Return the model that the run of a policy started from, held fixed.

    One whose weights `will_move` is not quantized: 4 bits cannot take them over.
    """
    return _load_fixed(config, policy, **{"quantization": "none"} if will_move else {})


def load_teacher(config: RunConfig, policy: Policy) -> FrozenReference:
    """Return the teacher that `config.reference` names, parked where it must be."""
    wanted = config.reference
    teacher = policy.shard(
        _load_fixed(
            config,
            policy,
            path=wanted.model,
            revision=wanted.revision,
            quantization="none",
        ),
        keeps_ends=config.loss.kl_estimator == "full",
    )
    reference = (
        ParkedReference(teacher, home=torch.device("cpu"))
        if parks_teacher(config, policy)
        else FrozenReference(teacher, ReferenceConfig())
    )
    width = teacher.head.weight.shape[0]
    if width < policy.head.weight.shape[0]:
        reference.vocabulary = width
    return reference


def _load_fixed(config: RunConfig, policy: Policy, **changes: Any) -> Policy:
    """Return a model of the run with some other settings, held fixed."""
    changes |= {"lora_rank": 0, "gradient_checkpointing": False}
    fixed = load_policy(config.model.model_copy(update=changes))
    fixed.fix_longest(policy.whole.longest)
    fixed.model.eval().requires_grad_(requires_grad=False)
    return fixed


class BaseReference:
    """The policy with its adapters, if it has any, switched off while it is asked."""

    vocabulary: int | None = None  # of a teacher that has fewer tokens

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def add_logprobs(
        self, micro_batches: Sequence[MicroBatch], *, temperature: float
    ) -> None:
        """Fill in each micro-batch's `reference_logprobs`."""
        with torch.no_grad(), self.policy.adapters_off():
            for micro in micro_batches:
                # all processes go through a model in parts equally often
                parts = micro.for_reference(
                    vocabulary=self.vocabulary,
                    at_once=not self.policy.passes_alone,
                    is_packed=self.policy.is_packed,
                )
                values = [
                    self.policy.logprobs(part, temperature=temperature)[0]
                    for part in parts
                ]
                micro.take_reference(parts, values)

    def after_step(self, step: int, policy: Policy) -> None:
        """Stay as it is; another one resets to the policy or moves towards it, where
        this step is due for it.

        Steps count from 1, since the beginning of the phase.
        """


# Gives log-probs that do not depend on the step's update.
Reference = BaseReference | ServerReference | VllmReference

_WEIGHTS = "weights.safetensors"


class FrozenReference(BaseReference):
    """A separate model, which updates of the policy do not change.

    With `reset_every_steps` = n the policy becomes the reference after each n-th step
    (arXiv:2402.03300, Algorithm 1); with `mix_every_steps` the reference becomes
    α · policy + (1 - α) · reference, α = `mix_alpha` (arXiv:2404.09656).
    """

    def __init__(
        self, model: Policy, config: ReferenceConfig, *, has_moved: bool = False
    ) -> None:
        super().__init__(model)
        self.has_moved = has_moved  # so a checkpoint must hold its weights
        self._config = config
        self._masters = _masters(model) if config.mix_every_steps else {}

    def after_step(self, step: int, policy: Policy) -> None:
        config = self._config
        if config.reset_every_steps and step % config.reset_every_steps == 0:
            self.become(policy)
        elif config.mix_every_steps and step % config.mix_every_steps == 0:
            self._mix(policy, share=config.mix_alpha)

    def become(self, policy: Policy) -> None:
        """Take over the policy's present weights, its adapters merged into them."""
        self._mix(policy, share=1.0)

    def _mix(self, policy: Policy, *, share: float) -> None:
        own = self._weights()
        with torch.no_grad():
            for name, weight in policy.weights():
                target = own[name]
                exact = self._masters.get(name, target)
                values = spread_like(exact, weight.to(exact.dtype))
                if share == 1.0:
                    exact.copy_(values)
                else:
                    exact.lerp_(values, share)
                if exact is not target:
                    target.copy_(exact)
        self.has_moved = True

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Give the whole weights that `save` writes, one after the other.

        All processes must go through them together.
        """
        return ((name, whole(part)) for name, part in self._parts().items())

    def save(
        self, folder: Path, tensors: Iterable[tuple[str, torch.Tensor]] | None = None
    ) -> None:
        """Write the weights into a new folder; `tensors` gives them."""
        folder.mkdir(parents=True)
        parts = self._parts().items()
        shapes = [(name, part.dtype, part.shape) for name, part in parts]
        with TensorWriter(folder / _WEIGHTS, shapes) as file:
            for name, tensor in self.tensors() if tensors is None else tensors:
                file.add(name, tensor)

    def restore(self, folder: Path) -> None:
        """Go on from what `save` wrote.

        Raises:
            ValueError: the weights are those of another model.
        """
        weights = self._weights()
        shapes = {name: weight.shape for name, weight in weights.items()}
        if read_shapes(folder / _WEIGHTS) != shapes:
            raise ValueError(
                f"{folder} contains the reference of another model. Resume with the "
                "configuration of the checkpoint."
            )
        with torch.no_grad():
            for name, tensor in read_tensors(folder / _WEIGHTS):
                weights[name].copy_(spread_like(weights[name], tensor))
                if name in self._masters:
                    exact = self._masters[name]
                    exact.copy_(spread_like(exact, tensor))
        self.has_moved = True

    def _parts(self) -> dict[str, torch.Tensor]:
        """Return this process's part of what `save` writes."""
        return self._weights() | self._masters

    def _weights(self) -> dict[str, torch.Tensor]:
        return dict(self.policy.model.named_parameters())


def _masters(model: Policy) -> dict[str, torch.Tensor]:
    """Return weights in float32 where they are kept in less.

    A small share of a small difference would be rounded away in bfloat16, each time.
    """
    return {
        name: weight.detach().float()
        for name, weight in model.model.named_parameters()
        if weight.dtype != torch.float32
    }


# An update takes as long as three passes, or two with adapters, and sampling as long as
# one at least. So a pass over one token in 50 is 0.5 % of a step, and at most 1 %; as
# much again goes into what each pass takes, however small, if it is of 100 tokens.
_ONE_IN = 50
_FEWEST = 100  # tokens
# 1 GB of weights takes 0.2 s at most to a GPU, a step of their model a second or more.
_PARKED_EVERY = 16  # steps


def make_kl_sample(config: RunConfig, policy: Policy) -> KLSample | None:
    """Return what measures a KL that nothing depends on; None: there is none to
    measure.
    """
    if not config.samples_kl:
        return None
    if config.model.lora_rank > 0:
        return KLSample(base_of(policy, config), seed=config.seed)
    start = load_start(config, policy)
    if policy.device.type == "cpu":
        return KLSample(FrozenReference(start, ReferenceConfig()), seed=config.seed)
    parked = ParkedReference(start, home=torch.device("cpu"))
    return KLSample(parked, seed=config.seed, every=_PARKED_EVERY)


class ParkedReference(FrozenReference):
    """A frozen model that lies in main memory and is on its device for a pass only.

    That is before an update, so it takes less there than the gradients that follow.
    """

    def __init__(self, model: Policy, *, home: torch.device) -> None:
        super().__init__(model, ReferenceConfig())
        self._device = model.device
        model.model.to(device=home)  # type: ignore[call-arg]  # torch overloads it

    def add_logprobs(
        self, micro_batches: Sequence[MicroBatch], *, temperature: float
    ) -> None:
        model = self.policy.model
        tensors = [*model.parameters(), *model.buffers()]
        parked = [tensor.data for tensor in tensors]
        try:
            for tensor in tensors:
                tensor.data = tensor.data.to(self._device)
            super().add_logprobs(micro_batches, temperature=temperature)
        finally:
            for tensor, data in zip(tensors, parked, strict=True):
                tensor.data = data


class KLSample:
    """Completions of a step's batch whose KL to a reference is measured.

    Over the steps, the reference passes 1 in 50 of the tokens that an update does. A
    sample is of a completion and of 100 tokens at least: where a step's share is less,
    it is of every 2nd step, or 4th, or 8th, always with the first.
    """

    def __init__(self, reference: BaseReference, *, seed: int, every: int = 1) -> None:
        """`every`: steps from one sample to the next, at least; a power of 2."""
        self.reference = reference
        self._seed = seed
        self._every = every

    def places(self, batch: Batch, *, step: int) -> list[int]:
        """Return indices of the chosen completions in a step's batch.

        The choice ignores lengths, else short completions would be over-represented.
        """
        # those with a token that the loss covers
        covered = [index for index, mask in enumerate(batch.covered) if mask.any()]
        samples = [batch.samples[index] for index in covered]
        if not samples:
            return []
        prompts = {sample.prompt_ids for sample in samples}
        own = sum(len(sample.completion_ids) for sample in samples)
        tokens = sum(map(len, prompts)) + own  # an update passes each prompt once
        mean = sum(sample.num_tokens for sample in samples) / len(samples)
        every = self._every
        while every * tokens < _ONE_IN * max(_FEWEST, mean):
            every *= 2
        if (step - 1) % every:
            return []
        count = int(every * tokens / (_ONE_IN * mean))
        order = permutation(derive(self._seed, "kl", step), len(samples))
        return sorted(covered[index] for index in order[:count])

    def add_logprobs(
        self,
        minibatches: Sequence[Minibatch],
        *,
        step: int,
        temperature: float,
        max_tokens: int,
    ) -> str:
        """Fill in the sample's reference log-probs, NaN elsewhere, if any is due.

        Returns:
            Why memory does not suffice for it; "" where it does.
        """
        samples = [s for minibatch in minibatches for s in minibatch.batch.samples]
        whole = replace(minibatches[0].batch, samples=(*samples,))
        chosen = self.places(whole, step=step)
        if not chosen:
            return ""
        micros = [m for minibatch in minibatches for m in minibatch.micro_batches]
        here = {index for micro in micros for index in micro.members}
        own = [index for index in chosen if index in here]  # of this process
        batch = replace(whole, samples=tuple(samples[index] for index in own))
        answers: list[torch.Tensor] = []
        while own and not answers:
            try:
                answers = self._logprobs(
                    batch,
                    device=micros[0].mask.device,
                    temperature=temperature,
                    max_tokens=max_tokens,
                )
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                reason = first_line(error)
                if max_tokens <= min(sample.num_tokens for sample in batch.samples):
                    return reason
                max_tokens //= 2
        rows = dict(zip(own, answers, strict=True))
        for micro in micros:
            logprobs = torch.full_like(micro.mask, math.nan)
            for row, index in enumerate(micro.members):
                if index in rows:
                    values = rows[index][: logprobs.shape[1]]
                    logprobs[row, : len(values)] = values
            micro.reference_logprobs = logprobs
        return ""

    def _logprobs(
        self,
        batch: Batch,
        *,
        device: torch.device,
        temperature: float,
        max_tokens: int,
    ) -> list[torch.Tensor]:
        """Return the reference's log-probs of each sample, padded."""
        is_packed = self.reference.policy.is_packed
        micros = batch.micro_batches(
            max_tokens=max_tokens, device=device, is_packed=is_packed
        )
        self.reference.add_logprobs(micros, temperature=temperature)
        by_index = {
            index: values
            for micro in micros
            if micro.reference_logprobs is not None
            for index, values in zip(
                micro.members, micro.reference_logprobs, strict=True
            )
        }
        return [by_index[index] for index in range(len(batch.samples))]
