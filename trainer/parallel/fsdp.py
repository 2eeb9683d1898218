"""A policy with weights sharded over the processes of a run (FSDP2).

Each process keeps a shard of every weight, in float32, with its gradient and moments. A
layer's weights are gathered before its pass and freed after it; its gradients are
summed over all processes and scattered to their shards. A frozen reference is sharded
likewise.

Where the shards of one node's processes hold the model, each node has all of them
(HSDP): passes send nothing between nodes, and gradients are summed between nodes once
an update. Neither that nor a sharded reference was run over NCCL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import MethodType
from typing import Any, TypeVar
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from trainer.model.kernels import FLAT_LAYER, flat_layer
from trainer.model.packing import MicroBatch
from trainer.model.policy import Policy
from trainer.parallel.world import World, waiting

Result = TypeVar("Result")


class _ShardedModel(Policy):
    """A model in parts, whose passes all processes go through at the same time, each
    with micro-batches of its own, and each with equally many.
    """

    passes_alone = False

    def __init__(
        self,
        policy: Policy,
        mesh: DeviceMesh,
        *,
        computes_in: torch.dtype | None,
        keeps_ends: bool = False,
    ) -> None:
        """
        Args:
            policy: the model, which is whole.
            mesh: the processes that each get a part, in one dimension.
            computes_in: the format of a gathered weight; None: that of its shard.
            keeps_ends: leave the weights outside of all layers whole.
        """
        super().__init__(policy.model, policy.tokenizer, adapters=policy._adapters)
        self.form, self.is_varlen = policy.form, policy.is_varlen
        self.longest = policy.longest
        self.pace = Pace()
        self._root = _shard(
            policy.model,
            mesh,
            computes_in=computes_in,
            pace=self.pace,
            keeps_ends=keeps_ends,
        )

    def logprobs(
        self, micro: MicroBatch, *, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        plain = super().logprobs
        return self._inside(lambda: plain(micro, temperature=temperature))

    def _inside(self, work: Callable[[], Result]) -> Result:
        """Do what needs the root's weights, the output embedding's among them."""
        result: Result = self._root(work)
        return result

    def begin_pass(self) -> None:
        self.pace.begin()

    def catch_up(self) -> None:
        """Make ready to go through a failed pass again, as `Pace` tells."""
        root: Any = self._root  # `fully_shard` changed its class
        if self.pace.num_begun > 0:  # else torch has not set it up, or it is idle
            root.reset_iter_state()
        self.pace.catch_up()


class _HeadedReference(_ShardedModel):
    """A frozen model in parts, but for its embeddings, which a full KL reads outside of
    its passes.
    """

    def hidden(self, micro: MicroBatch) -> torch.Tensor:
        plain = super().hidden
        (hidden,) = self._inside(lambda: (plain(micro),))
        return hidden

    def logprobs(
        self, micro: MicroBatch, *, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return Policy.logprobs(self, micro, temperature=temperature)


class ShardedPolicy(_ShardedModel):
    """A policy in parts, and a whole copy of it on each process to sample from."""

    def __init__(
        self, policy: Policy, world: World, *, num_shards: int | None = None
    ) -> None:
        """
        Args:
            policy: the model that is trained.
            world: the processes.
            num_shards: processes of a node, if each node has all parts of the model;
                None: as many parts as processes.
        """
        self.whole_copy = policy.copied()
        dtypes = {p.dtype for p in policy.model.parameters() if p.requires_grad}
        if len(dtypes) > 1:
            raise ValueError(
                f"The weights of {type(policy.model).__name__} have several data types "
                f"({', '.join(sorted(str(dtype) for dtype in dtypes))}) and cannot be "
                'sharded. Set model.dtype to "float32".'
            )
        self.shards_are_masters = dtypes.pop() != torch.float32
        kept = self.whole_copy.model.dtype if self.shards_are_masters else None
        mesh = _mesh(policy.device.type, world, num_shards or world.size)
        self.replicas = mesh.get_group("replicate") if mesh.ndim > 1 else None
        self._mesh = mesh["shard"]
        self.num_shards = self._mesh.size()
        self._references = WeakSet[_ShardedModel]()
        super().__init__(policy, self._mesh, computes_in=kept)

    def shard(self, fixed: Policy, *, keeps_ends: bool) -> Policy:
        kind = _HeadedReference if keeps_ends else _ShardedModel
        reference = kind(fixed, self._mesh, computes_in=None, keeps_ends=keeps_ends)
        self._references.add(reference)
        return reference

    @property
    def whole(self) -> Policy:
        return self.whole_copy

    def gather_whole(self) -> None:
        copy_weights(self, self.whole_copy)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        self.gather_whole()
        return self.whole_copy.weights()

    def logprobs_and_kl(
        self, micro: MicroBatch, reference: Policy, *, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        plain = super().logprobs_and_kl
        return self._inside(lambda: plain(micro, reference, temperature=temperature))

    def begin_pass(self) -> None:
        super().begin_pass()
        for reference in self._references:
            reference.begin_pass()

    def catch_up(self) -> None:
        super().catch_up()
        for reference in self._references:
            reference.catch_up()


class Pace:
    """Counts the collectives of a pass, so that a failed pass can complete them.

    A process that runs out of memory during a pass leaves the others waiting in the
    next collective. So it repeats the pass on a tiny input, skips the collectives it
    has done, and takes part in the rest.
    """

    def __init__(self) -> None:
        self.num_begun = 0
        self._num_left_out = 0

    def begin(self) -> None:
        self.num_begun = self._num_left_out = 0

    def catch_up(self) -> None:
        self._num_left_out, self.num_begun = self.num_begun, 0

    def takes_part(self) -> bool:
        """Return whether the collective that is due now has not been done before."""
        self.num_begun += 1
        return self.num_begun > self._num_left_out


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with all its parts, which all processes must ask for."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def spread_like(target: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Whole values on the target's device, or this process's part of them."""
    values = values.to(target.device)
    if not isinstance(target, DTensor):
        return values
    return distribute_tensor(
        values, target.device_mesh, target.placements, src_data_rank=None
    )


def copy_weights(source: Policy, target: Policy) -> None:
    """Copy trained weights in place, one after the other, each whole or in parts."""
    weights = dict(source.model.named_parameters())
    with torch.no_grad():
        for name, weight in target.model.named_parameters():
            if (source_weight := weights[name]).requires_grad:
                values = whole(source_weight.detach().to(weight.dtype))
                weight.copy_(spread_like(weight, values))


def add_replicas(
    gradients: Iterable[torch.Tensor], replicas: dist.ProcessGroup
) -> None:
    """Add to each gradient those of the same weights on other nodes, in place."""
    for gradient in gradients:
        assert isinstance(gradient, DTensor)
        with waiting():
            dist.all_reduce(gradient.to_local(), group=replicas)


def _mesh(device_type: str, world: World, num_shards: int) -> DeviceMesh:
    """Return the processes, as [nodes, processes of a node] if each node has a whole
    model in parts.
    """
    if num_shards == world.size:
        return init_device_mesh(device_type, (world.size,), mesh_dim_names=("shard",))
    ranks = torch.arange(world.size).view(-1, num_shards)
    groups = [
        dist.new_subgroups_by_enumeration(members.tolist(), timeout=world.timeout)[0]
        for members in (ranks.T, ranks)
    ]
    return DeviceMesh.from_group(
        groups, device_type, mesh=ranks, mesh_dim_names=("replicate", "shard")
    )


class _Root(torch.nn.Module):
    """Gathers the weights outside of all layers around whatever is done inside."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, work: Callable[[], tuple[torch.Tensor, ...]]
    ) -> tuple[torch.Tensor, ...]:
        # A view would lose the hook that gathers the weights again going backward.
        return tuple(tensor.clone() for tensor in work())


def _shard(
    model: PreTrainedModel,
    mesh: DeviceMesh,
    *,
    computes_in: torch.dtype | None,
    pace: Pace,
    keeps_ends: bool,
) -> _Root:
    precision = MixedPrecisionPolicy(
        param_dtype=computes_in, reduce_dtype=torch.float32
    )
    root = _Root(model)
    # the root's too: weights that stay gathered would miss the next update
    settings: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": precision,
        "reshard_after_forward": True,
    }
    # The blocks that transformers itself keeps in one piece, inner ones first.
    names = set(model._no_split_modules or ())
    layers = [part for part in model.modules() if type(part).__name__ in names][::-1]
    for part in (*layers, root):
        # float32 not all at once: the model is still whole on each process
        for parameter in part.parameters():
            if parameter.requires_grad and parameter.dtype != torch.float32:
                parameter.data = parameter.data.float()
        if keeps_ends and part is root:
            settings["ignored_params"] = {
                p for p in root.parameters() if not isinstance(p, DTensor)
            }
        fully_shard(part, **settings)
        assert isinstance(part, FSDPModule)
        # The loss is divided by the whole batch's totals, so gradients are added.
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(enable=True)
        # torch asks for classes of its own, and takes what has their form
        part.set_custom_all_gather(_Collective(dist.all_gather_single, pace))  # type: ignore[arg-type]
        part.set_custom_reduce_scatter(_Collective(dist.reduce_scatter_single, pace))  # type: ignore[arg-type]
    for layer in layers:
        setattr(layer, FLAT_LAYER, MethodType(flat_layer, layer))
        register_fsdp_forward_method(layer, FLAT_LAYER)
    return root


class _Collective:
    """A collective of FSDP, which a pass that catches up skips if it has done it."""

    def __init__(self, collective: Callable[..., dist.Work | None], pace: Pace) -> None:
        self._collective = collective
        self._pace = pace

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        **options: Any,
    ) -> dist.Work | None:
        if not self._pace.takes_part():
            output_tensor.zero_()
            return None
        with waiting():
            return self._collective(output_tensor, input_tensor, group=group, **options)
