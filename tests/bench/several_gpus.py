"""What several GPUs and hosts send one another in a step, and what that costs.

`python -m tests.bench.several_gpus` simulates a step layer by layer and prints the
tables that trainer/DECISIONS.md, 1, rests on. It needs no GPU and no torch: the
machines are assumptions, named here, and the volumes follow from the code.
"""

from __future__ import annotations

import pickle
import random
import sys
from dataclasses import dataclass, replace

GB = 1e9
BF16, FLOAT32 = 2, 4  # bytes


@dataclass(frozen=True, kw_only=True)
class Model:
    name: str
    parameters: float
    layers: int
    embedding: float  # parameters outside of the layers, gathered with the root
    kv_bytes_per_token: float

    @property
    def layer(self) -> float:
        return (self.parameters - self.embedding) / self.layers


@dataclass(frozen=True, kw_only=True)
class Machines:
    """Hosts of 8 GPUs. Bandwidths are what collectives reach, not what is printed."""

    name: str
    hosts: int
    gpus_per_host: int = 8
    memory: float = 80 * GB
    flops: float = 989e12 * 0.4  # H100, dense bf16, at 40 % of its peak
    hbm: float = 3.35e12 * 0.7
    nvlink: float = 360 * GB  # a GPU, of 450 in one direction
    network: float = 320 * GB  # a host: 8 × 400 Gb/s, of which 80 % is reached
    latency: float = 30e-6  # of a collective
    token_floor: float = 0.012  # seconds a decoding step takes, however few rows
    vllm_floor: float = 0.004  # the same in vLLM, whose kernels are launched as graphs
    all_reduce: float = 20e-6  # seconds, of a token's hidden states over NVLink
    upload: float = 1 * GB  # weights to a rollout server, over HTTP
    uploads: float = 4 * GB  # of a process to all of its servers

    @property
    def gpus(self) -> int:
        return self.hosts * self.gpus_per_host


@dataclass(frozen=True, kw_only=True)
class Work:
    """A step of GRPO."""

    prompts: int = 128
    group_size: int = 16
    prompt_tokens: int = 256
    max_new_tokens: int = 4_096
    median_new_tokens: int = 900
    micro_batch_tokens: int = 16_384
    updates: int = 1
    has_reference: bool = True


QWEN_1B = Model(
    name="1.5B",
    parameters=1.54e9,
    layers=28,
    embedding=0.23e9,
    kv_bytes_per_token=28_672,
)
QWEN_7B = Model(
    name="7B", parameters=7.6e9, layers=28, embedding=1.09e9, kv_bytes_per_token=57_344
)
QWEN_14B = Model(
    name="14B",
    parameters=14.8e9,
    layers=48,
    embedding=1.56e9,
    kv_bytes_per_token=196_608,
)
ONE_HOST = Machines(name="8 GPUs, NVLink", hosts=1)
FOUR_HOSTS = Machines(name="4 × 8, 3.2 Tb/s a host", hosts=4)
SLOW_HOSTS = Machines(name="4 × 8, 100 Gb/s a host", hosts=4, network=10 * GB)


def collective_seconds(num_bytes: float, machines: Machines) -> float:
    """A ring all-gather or reduce-scatter of a tensor of so many bytes.

    Each GPU passes on all but its own part; each host takes in all but its own GPUs'.
    """
    gpus, hosts = machines.gpus, machines.hosts
    inside = num_bytes * (gpus - 1) / gpus / machines.nvlink
    between = num_bytes * (hosts - 1) / hosts / machines.network
    return machines.latency + max(inside, between)


def pass_seconds(
    model: Model, machines: Machines, *, tokens: int, backward: bool
) -> tuple[float, float]:
    """Seconds of one micro-batch on each GPU, and of them those spent waiting.

    Two queues, as on a GPU: what computes and what communicates. The next layer's
    weights are on their way while one is computed (FSDP2's implicit prefetch); going
    backward, so are the last one's gradients.
    """
    flops = 2 * model.layer * tokens / machines.flops
    gather = collective_seconds(model.layer * BF16, machines)
    scatter = collective_seconds(model.layer * FLOAT32, machines)
    root = collective_seconds(model.embedding * BF16, machines)
    link = root  # when the link is free again
    now = root  # when the computing is through
    for _ in range(model.layers):
        link += gather
        now = max(now, link) + flops
    busy = model.layers * flops
    head = 2 * model.embedding * tokens / machines.flops
    now, busy = now + head, busy + head
    if not backward:
        return now, now - busy
    now, busy = now + 2 * head, busy + 2 * head
    link = now + root
    for _ in range(model.layers):
        link += gather
        now = max(now, link) + 2 * flops
        link = max(link, now - 2 * flops) + scatter
    end = max(now, link) + collective_seconds(model.embedding * FLOAT32, machines)
    return end, end - busy - 2 * model.layers * flops


def sampled_lengths(work: Work, *, seed: int) -> list[list[int]]:
    """Completion lengths by prompt: long tails, cut at the limit."""
    rng = random.Random(seed)
    return [
        [
            min(
                work.max_new_tokens,
                int(work.median_new_tokens * 2.718 ** rng.gauss(0, 0.8)) + 1,
            )
            for _ in range(work.group_size)
        ]
        for _ in range(work.prompts)
    ]


@dataclass(frozen=True, kw_only=True)
class Engines:
    """What samples: so many copies of the model, each split over so many GPUs."""

    count: int
    gpus_each: int
    floor: float
    all_reduce: float = 0.0  # seconds; two a layer where a copy is split

    @classmethod
    def own(cls, machines: Machines) -> Engines:
        """Each process samples from a copy of its own, by transformers' engine."""
        return cls(count=machines.gpus, gpus_each=1, floor=machines.token_floor)

    @classmethod
    def vllm(cls, machines: Machines, *, count: int, gpus_each: int = 1) -> Engines:
        return cls(
            count=count,
            gpus_each=gpus_each,
            floor=machines.vllm_floor,
            all_reduce=machines.all_reduce if gpus_each > 1 else 0.0,
        )


def rollout_seconds(
    model: Model,
    machines: Machines,
    lengths: list[list[int]],
    work: Work,
    engines: Engines,
) -> list[float]:
    """Seconds that each engine samples its share, prompts dealt out in turn."""
    times = []
    for rank in range(engines.count):
        own = sorted(n for group in lengths[rank :: engines.count] for n in group)
        seconds, done = 0.0, 0
        for place, length in enumerate(own):
            live = len(own) - place
            read = model.parameters * BF16 + live * model.kv_bytes_per_token * (
                work.prompt_tokens + (done + length) / 2
            )
            step = max(engines.floor, read / engines.gpus_each / machines.hbm)
            step += 2 * model.layers * engines.all_reduce
            seconds += (length - done) * step
            done = length
        times.append(seconds)
    return times


def memory(model: Model, machines: Machines, work: Work) -> float:
    """Bytes a GPU holds between passes: two whole models, and its part of the rest."""
    whole = BF16 * (2 if work.has_reference else 1)
    shards = FLOAT32 * 4 / machines.gpus  # weight, gradient, two moments
    return model.parameters * (whole + shards)


def bytes_of_a_token() -> float:
    """Of a completion, as it is sent: id, log-prob, and its text."""
    rng = random.Random(0)
    count = 10_000
    completion = (
        tuple(rng.randrange(150_000) for _ in range(count)),
        tuple(-rng.random() for _ in range(count)),
        "word" * count,
    )
    return len(pickle.dumps(completion)) / count


@dataclass(frozen=True, kw_only=True)
class Step:
    rounds: int  # micro-batches of each GPU
    sample: float
    straggling: float  # of it, what the mean GPU waits for the last
    train: float
    waiting: float  # of it, what is spent waiting for weights and gradients
    sync: float
    weights_sent: float  # bytes through each GPU's links
    completions_sent: float

    @property
    def seconds(self) -> float:
        return self.sample + self.train + self.sync


def simulate(model: Model, machines: Machines, work: Work, *, seed: int = 0) -> Step:
    lengths = sampled_lengths(work, seed=seed)
    samples = rollout_seconds(model, machines, lengths, work, Engines.own(machines))
    tokens = sum(n + work.prompt_tokens for group in lengths for n in group)
    rounds = -(-tokens // (work.micro_batch_tokens * machines.gpus))
    one = pass_seconds(model, machines, tokens=work.micro_batch_tokens, backward=True)
    # the reference is whole on each GPU: nothing is sent for it
    reference = 2 * model.parameters * tokens / machines.gpus / machines.flops
    train = work.updates * rounds * one[0] + reference * work.has_reference
    per_round = model.parameters * (2 * BF16 + FLOAT32)
    return Step(
        rounds=rounds,
        sample=max(samples),
        straggling=max(samples) - sum(samples) / len(samples),
        train=train,
        waiting=work.updates * rounds * one[1],
        sync=collective_seconds(model.parameters * BF16, machines),
        weights_sent=work.updates * rounds * per_round + model.parameters * BF16,
        completions_sent=sum(n for group in lengths for n in group)
        * bytes_of_a_token(),
    )


def simulate_apart(
    model: Model, machines: Machines, work: Work, *, trainers: int, engines: Engines
) -> Step:
    """A step in which some GPUs train and vLLM samples on others.

    The first trainer asks the servers for all, and sends them the weights. They take
    turns: nobody trains while completions are sampled, nor samples while others train.
    """
    training = simulate(model, replace(machines, gpus_per_host=trainers), work)
    lengths = sampled_lengths(work, seed=0)
    samples = rollout_seconds(model, machines, lengths, work, engines)
    weights = model.parameters * BF16
    # the first process sends them to all servers at the same time
    upload = weights * max(1 / machines.upload, engines.count / machines.uploads)
    return replace(
        training,
        sample=max(samples),
        straggling=max(samples) - sum(samples) / len(samples),
        sync=training.sync + upload,
    )


def check(machines: Machines) -> None:
    """Figures that can be had by hand, so that the table can be believed."""
    # 15.2 GB of bfloat16 through 7/8 of a ring at 360 GB/s
    by_hand = 15.2 / 360 * 7 / 8
    assert abs(collective_seconds(15.2 * GB, ONE_HOST) - by_hand) < 1e-3
    # with links that cost nothing a pass is its arithmetic: 6 · parameters · tokens
    free = replace(machines, nvlink=1e30, network=1e30, latency=0.0)
    seconds, waiting = pass_seconds(QWEN_7B, free, tokens=8_192, backward=True)
    assert abs(seconds - 6 * QWEN_7B.parameters * 8_192 / free.flops) < 1e-6
    assert abs(waiting) < 1e-6
    # with arithmetic that costs nothing it is what is sent: 2 + 2 + 4 bytes a weight
    idle = replace(machines, flops=1e30, latency=0.0)
    seconds, _ = pass_seconds(QWEN_7B, idle, tokens=8_192, backward=True)
    sent = collective_seconds(QWEN_7B.parameters * 8, idle)
    assert abs(seconds / sent - 1) < 1e-6
    # reading is all that such engines do, and two GPUs read twice as fast
    work = Work(prompts=8)
    one, two = (
        rollout_seconds(
            QWEN_7B,
            machines,
            sampled_lengths(work, seed=0),
            work,
            Engines(count=2, gpus_each=gpus, floor=0.0),
        )
        for gpus in (1, 2)
    )
    assert all(abs(a / b - 2) < 1e-6 for a, b in zip(one, two, strict=True))


ARRANGEMENTS = (  # GPUs that train, servers, GPUs of each server
    (1, 1, 1),
    (1, 7, 1),
    (2, 6, 1),
    (2, 3, 2),
    (4, 4, 1),
)


def table_apart() -> str:
    """The same step on one host, part of whose GPUs sample with vLLM."""
    lines = [
        "| Model | Train | Servers | GB held by a trainer's GPU | Sampling "
        "| Training | Sync | Step |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for model in (QWEN_1B, QWEN_7B):
        work = Work()
        together = simulate(model, ONE_HOST, work)
        held = memory(model, ONE_HOST, work) / GB
        lines.append(
            f"| {model.name} | 8 | none: they sample | {held:.0f} "
            f"| {together.sample:.0f} s | {together.train:.0f} s "
            f"| {together.sync:.1f} s | {together.seconds:.0f} s |"
        )
        for trainers, count, each in ARRANGEMENTS:
            part = replace(ONE_HOST, gpus_per_host=trainers)
            held = memory(model, part, work) / GB
            if held * GB > part.memory:
                continue
            engines = Engines.vllm(ONE_HOST, count=count, gpus_each=each)
            step = simulate_apart(
                model, ONE_HOST, work, trainers=trainers, engines=engines
            )
            servers = f"{count}" if each == 1 else f"{count} on {each} GPUs each"
            lines.append(
                f"| {model.name} | {trainers} | {servers} | {held:.0f} "
                f"| {step.sample:.0f} s | {step.train:.0f} s | {step.sync:.1f} s "
                f"| {step.seconds:.0f} s |"
            )
    return "\n".join(lines)


def table() -> str:
    lines = [
        "| Model | Machines | GB held by a GPU | Rounds | Sampling | of it waiting | "
        "Training | of it waiting | Sync | Sent by a GPU | Completions |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for model in (QWEN_1B, QWEN_7B, QWEN_14B):
        for machines in (ONE_HOST, FOUR_HOSTS, SLOW_HOSTS):
            check(machines)
            work = Work(has_reference=model is not QWEN_14B)
            step = simulate(model, machines, work)
            held = memory(model, machines, work)
            lines.append(
                f"| {model.name}{'' if work.has_reference else ', no reference'} "
                f"| {machines.name} | {held / GB:.0f} | {step.rounds} "
                f"| {step.sample:.0f} s | {step.straggling:.0f} s "
                f"| {step.train:.0f} s | {step.waiting:.1f} s | {step.sync:.2f} s "
                f"| {step.weights_sent / GB:.0f} GB "
                f"| {step.completions_sent / 1e6:.0f} MB |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(f"{table()}\n\n{table_apart()}\n")
