"""A policy in parts, in one process, in two on one GPU, and on two GPUs: see check.py.

FSDP2 leaves collectives out where there is one process. So two share the GPU, with gloo
between them, since NCCL refuses two processes of one device.
"""

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from tests.gpu.runs import train
from tests.gpu.setup import Failed, Setup, Skip, micro_batch, random_policy
from tests.gpu.updates import make_config
from tests.trainer.samples import update
from tests.trainer.several import run_several
from tests.trainer.tiny import only, read_events, write_config
from trainer.grpo import add_gradients
from trainer.model import policy as policies
from trainer.model.budget import MemoryBudget
from trainer.model.optimizer import Optimizer
from trainer.model.packing import Batch
from trainer.model.policy import Policy
from trainer.parallel.fsdp import Pace, ShardedPolicy, _Collective, whole
from trainer.parallel.world import World
from trainer.run.outcome import LossTerms

CLOSE = 1e-3  # nats, of a loss of about 1
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "recomputing": {"gradient_checkpointing": True},
    "LoRA": {"lora_rank": 16},
}
ROOM = 300  # predicted tokens that a pass of a run bears where memory runs out


def sharded(setup: Setup) -> None:
    """Three updates of parts as of the whole, gathered, and after passes that failed;
    a reference in parts as a whole one; runs of two processes on one device, with a
    reference, as of one."""
    backend = "cpu:gloo,cuda:nccl" if setup.device == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        _collectives(setup)
        for name, settings in KINDS.items():
            setup.figures[name] = _updates_in_parts(setup, settings)
            if setup.device == "cuda":
                torch.cuda.empty_cache()
        setup.figures["reference"] = _reference_in_parts(setup)
    finally:
        dist.destroy_process_group()
    before = share_device if setup.device == "cuda" else memory_runs_out
    _compare_runs(setup, partial(_two_at_once, setup, before=before), halves=True)


def _collectives(setup: Setup) -> None:
    """By the backend of the device, in both number formats."""
    pace, group = Pace(), dist.group.WORLD
    assert group is not None
    for dtype in (torch.float32, torch.bfloat16):
        sent = torch.randn(1000, device=setup.device, dtype=dtype)
        received = [torch.zeros_like(sent) for _ in range(2)]
        gather = _Collective(dist.all_gather_single, pace)
        gather(received[0], sent, group)
        scatter = _Collective(dist.reduce_scatter_single, pace)
        scatter(received[1], sent, group, op=dist.ReduceOp.SUM)
        if not all(torch.equal(each, sent) for each in received):
            raise Failed(f"a collective of one process changed {dtype} numbers")


def _updates_in_parts(setup: Setup, settings: dict[str, Any]) -> str:
    expected = _updates_of(setup, random_policy(setup, **settings))
    policy = ShardedPolicy(random_policy(setup, **settings), World())
    found = _updates_of(setup, policy)
    policy.gather_whole()
    parts = dict(policy.model.named_parameters())
    for name, weight in policy.whole.model.named_parameters():
        if not torch.equal(weight, whole(parts[name].detach()).to(weight.dtype)):
            raise Failed(f"{name} was not gathered")
    gaps = [abs(one - other) for one, other in zip(found, expected, strict=True)]
    summary = (
        f"losses {', '.join(f'{loss:.4f}' for loss in found)}, off {max(gaps):.2g}"
    )
    if not max(gaps) <= CLOSE * max(1.0, *map(abs, expected)):
        raise Failed(f"losses of parts are not those of the whole: {summary}")
    return f"{summary}; {_after_failed_passes(setup, policy)}"


def _reference_in_parts(setup: Setup) -> str:
    """Log-probs, and a KL over the vocabulary of the policy before its first update."""
    policy = ShardedPolicy(random_policy(setup), World())
    micro = micro_batch(setup, policy, tokens=setup.size(8_192, 256))
    with torch.no_grad():
        expected, _ = random_policy(setup).logprobs(micro, temperature=1.0)
        gaps = []
        for keeps_ends in (False, True):
            reference = random_policy(setup)
            reference.model.requires_grad_(requires_grad=False)
            reference = policy.shard(reference, keeps_ends=keeps_ends)
            found, _ = reference.logprobs(micro, temperature=1.0)
            gaps.append((found - expected).abs().max().item())
        *_, kl = policy.logprobs_and_kl(micro, reference, temperature=1.0)
    gaps.append(kl.abs().max().item())
    summary = f"log-probs off {gaps[0]:.2g}, {gaps[1]:.2g}; KL {gaps[2]:.2g}"
    if not max(gaps) <= CLOSE:
        raise Failed(f"a reference in parts is not the whole one: {summary}")
    return summary


def _updates_of(setup: Setup, policy: Policy) -> list[float]:
    """Losses of three updates, the first of which is on the policy."""
    config, losses = make_config(), []
    micro = micro_batch(setup, policy, tokens=setup.size(8_192, 256))
    optimizer, totals = Optimizer(policy, config.optim), Batch(micro.samples).totals
    for _ in range(3):
        found = update(
            *(policy, optimizer, [micro]),
            totals=totals,
            config=config,
            learning_rate=1e-5,
        )
        losses.append(found.loss)
    return losses


def _after_failed_passes(setup: Setup, policy: ShardedPolicy) -> str:
    """The gradient of passes that ran out of memory, going forward and backward."""
    config, sizes = make_config(), list[int]()
    optimizer = Optimizer(policy, config.optim)
    tokens = setup.size(8_192, 512)
    batch = Batch(micro_batch(setup, policy, tokens=tokens).samples)
    terms = LossTerms(config, batch.totals)
    norms, work = [], partial(add_gradients, policy, optimizer, terms=terms)
    for room in (tokens, tokens // 5):
        budget = MemoryBudget(
            tokens,
            on_halved=lambda size, _: sizes.append(size),
            shared=_Counted(policy),
        )
        minibatch = budget.cut(batch, policy)
        minibatch.set_advantages(torch.linspace(-1, 1, len(batch.samples)).numpy())
        with refusing(room):
            budget.run(minibatch, work)
        norms.append(optimizer.gradient_norm().item())
        optimizer.clear()
    summary = f"halved to {sizes}, gradient {norms[1]:.4g} of {norms[0]:.4g}"
    if len(sizes) < 2 or not abs(norms[1] / norms[0] - 1) <= 1e-2:
        raise Failed(f"passes that failed left another gradient: {summary}")
    return summary


class _Counted:
    """FSDP2 leaves out the collectives of one process, which the pace would count."""

    def __init__(self, policy: ShardedPolicy) -> None:
        self._policy = policy

    def begin_pass(self) -> None:
        self._policy.begin_pass()
        self._policy.pace.takes_part()

    def catch_up(self) -> None:
        self._policy.catch_up()


@contextmanager
def refusing(room: int) -> Iterator[None]:
    with mock.patch.object(policies, "token_logprobs", _refusing(room)):
        yield


def _refusing(room: int) -> Callable[..., Any]:
    """Log-probs for which memory runs out above some number of tokens: first going
    forward, then going backward."""
    through, refused = policies.token_logprobs, list[int]()

    def refuse(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    def computed(hidden: torch.Tensor, *rest: Any, **options: Any) -> Any:
        if hidden.requires_grad and len(hidden) > room:
            refused.append(len(hidden))
            if len(refused) == 1:
                refuse()
            hidden.register_hook(refuse)
        return through(hidden, *rest, **options)

    return computed


# --- runs of two processes


def memory_runs_out(rank: int) -> None:
    """In the second process."""
    if rank == 1:
        policies.token_logprobs = _refusing(ROOM)


def share_device(rank: int) -> None:
    """Let both processes use the one GPU, and memory run out in the second."""
    join = dist.init_process_group
    torch.cuda.device_count = lambda: 2
    torch.cuda.set_device = lambda _device: None

    def joined(**options: Any) -> None:
        join(**options | {"backend": "cpu:gloo,cuda:gloo"})

    dist.init_process_group = joined
    memory_runs_out(rank)


def _two_at_once(
    setup: Setup, config: Path, out: Path, *, before: Callable[[int], None]
) -> None:
    log = setup.folder / "two.log"
    codes, output = run_several(
        *(2, "run", config, "--out", out), output=log, before=before
    )
    if codes != [0, 0]:
        sys.stderr.write(output)
        raise Failed(f"exit codes {codes}: {output.strip()[-300:]}")


def _compare_runs(
    setup: Setup, run_two: Callable[[Path, Path], None], *, halves: bool
) -> None:
    """Two processes against one, by the starter's own completions, so that both train
    on the same tokens whatever rounding does to sampling."""
    place = setup.folder / ("sharing" if halves else "apart")
    folders = {count: place / str(count) for count in (1, 2)}
    for count, folder in folders.items():
        write_config(folder, _tree(setup, count))

    def start(count: int) -> list[dict[str, Any]]:
        config, out = folders[count] / "run.json", folders[count] / "out"
        if count == 1:
            train(config, "--out", out)
        else:
            run_two(config, out)
        return read_events(out / "events.jsonl")

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(start, folders)
    (started,) = only(two, "run_started")
    if not started["device"].startswith("2 ×"):
        raise Failed(f"a run of two processes was on {started['device']}")
    losses = [
        [each["metrics"]["loss"] for each in only(events, "step_finished")]
        for events in (one, two)
    ]
    gap = max(abs(a - b) / abs(b) for a, b in zip(*losses, strict=True))
    halved = [each["value"] for each in only(two, "warned")]
    setup.figures["two processes"] = (
        f"losses {', '.join(f'{loss:.4f}' for loss in losses[1])}, off {gap:.2g}"
        + (f"; halved to {halved}" if halves else "")
    )
    if not gap <= CLOSE:
        raise Failed("losses of two processes are not those of one")
    if halves and not halved:
        raise Failed("memory did not run out in the second process")


def _tree(setup: Setup, num_processes: int) -> dict[str, Any]:
    """A run of the starter on the completions of its rows."""
    return {
        "model": {
            "path": str(setup.starter / "model"),
            "device": setup.device,
            "dtype": "bfloat16" if setup.device == "cuda" else "float32",
        },
        "data": {
            "rows": str(setup.starter / "rows.jsonl"),
            "num_eval_rows": 8,
            "chat_template": "none",
            "max_prompt_tokens": 32,
            "completion_column": "completion",
        },
        "rollout": {
            "source": "dataset",
            "prompts_per_step": setup.size(64, 16),
            "group_size": 1,
            "max_new_tokens": 96,
        },
        "advantage": {"credit": "ones"},
        "loss": {"surrogate": "reinforce", "kl_coef": 0.05},
        "reward": {"recipe": json.loads((setup.starter / "recipe.json").read_text())},
        "optim": {"num_steps": 3, "learning_rate": 1e-4, "micro_batch_tokens": 1024},
        "evaluation": {"every_steps": 0},
        "checkpoint": {"every_steps": 0},
        "distributed": {"num_processes": num_processes},
    }


def two_gpus(setup: Setup) -> None:
    """A run of two processes, each on a GPU of its own with NCCL between them."""
    if setup.device == "cuda" and torch.cuda.device_count() < 2:
        raise Skip("there is one GPU")
    _compare_runs(setup, lambda config, out: train(config, "--out", out), halves=False)
