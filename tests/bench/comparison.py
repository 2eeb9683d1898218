"""Cohort and TRL doing the same work, taking turns, each in a process of its own."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from tests.bench.limits import (
    Rates,
    bytes_per_position,
    generation_seconds,
    scoring_seconds,
    update_seconds,
)
from tests.bench.machine import mebibytes, spread, tell
from tests.bench.ours import our_steps
from tests.bench.rates import MachineRates, measure_rates
from tests.bench.subprocesses import Subprocess, call_in_subprocess, take_turns
from tests.bench.theirs import micro_batch_rates, their_steps
from tests.bench.work import Lengths, Step, Work, median_phase, rates
from trainer.sizes.model_sizes import Dimensions, read_dimensions

# The phases of Cohort's step that have a limit.
_BOUNDED = {"generate": "sampling", "logprobs": "reference", "update": "update"}
_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What both did, and how fast the machine is."""

    work: Work
    ours: list[Step]
    theirs: list[Step]  # none where there is no TRL
    micro_batches: int  # of TRL
    machine: MachineRates


def compare(
    work: Work,
    *,
    num_steps: int,
    warmup: int = 2,
    micro_batches: Sequence[int] = (1, 2, 4, 8),
    deadline: float | None = None,
) -> Comparison:
    """Steps of both in turn, and the machine's rates.

    Args:
        work: what a step does.
        num_steps: measured ones.
        warmup: steps before them.
        micro_batches: TRL takes the fastest of these; none: TRL is left out.
        deadline: by the monotonic clock; no step is begun that would probably end
            later, though one is always measured.
    """
    best = micro_batches[0] if micro_batches else 0
    if len(micro_batches) > 1:
        tell(f"{work.name}: TRL with {micro_batches} micro-batches")
        found = call_in_subprocess(micro_batch_rates, work, micro_batches)
        best = max(found, key=lambda count: found[count])
    with contextlib.ExitStack() as stack:
        sides = [stack.enter_context(Subprocess(our_steps, work))]
        if best:
            theirs = Subprocess(their_steps, work, micro_batches=best)
            sides.append(stack.enter_context(theirs))
        for side in sides:
            side.wait_until_ready()
        taken = take_turns(
            sides, name=work.name, num_steps=num_steps, warmup=warmup, deadline=deadline
        )
    return Comparison(
        work=work,
        ours=taken[0],
        theirs=taken[1] if best else [],
        micro_batches=best,
        machine=rates_for(work, taken[0][0].lengths),
    )


def rates_for(work: Work, lengths: Lengths) -> MachineRates:
    """The machine's rates at the sizes of this work, measured in another process."""
    tell(f"{work.name}: the machine's own rates")
    sizes = read_dimensions(str(work.model))
    found = call_in_subprocess(
        measure_rates,
        sizes,
        device=work.device,
        dtype=work.dtype,
        rows=work.completions,
        micro_batch_tokens=work.micro_batch_tokens,
        position_bytes=bytes_per_position(
            sizes, lengths, bytes_each=_BYTES[work.dtype]
        ),
    )
    assert isinstance(found, MachineRates)
    return found


# --- tables

STEP_HEADER = (
    "prompts × G, new tokens, β",
    "TRL, tokens/s",
    "Cohort",
    "ratio",
    "TRL's peak MiB",
    "Cohort's",
    "ratio",
    "seconds of Cohort's step",
    "of TRL's",
)


def step_row(found: Comparison) -> list[str]:
    """Medians with their ranges; memory is the highest of each process."""
    ours, theirs = found.ours, found.theirs
    ratios = [a.rate / b.rate for a, b in zip(ours, theirs, strict=bool(theirs))]
    peaks = [max((s.peak_bytes for s in steps), default=0) for steps in (theirs, ours)]
    named = f" ({found.micro_batches} micro-batches)" if theirs else ""
    return [
        found.work.name,
        spread(rates(theirs), ",.0f") + named,
        spread(rates(ours), ",.0f"),
        spread(ratios, ".2f"),
        mebibytes(peaks[0]) if theirs else "–",
        mebibytes(peaks[1]),
        f"{peaks[1] / peaks[0]:.2f}" if theirs else "–",
        _phases(ours),
        _phases(theirs) if theirs else "–",
    ]


def _phases(steps: Sequence[Step]) -> str:
    names = ("generate", "score", "logprobs", "update", "sync")
    medians = {name: median_phase(steps, name) for name in names}
    return ", ".join(f"{name} {s:.2f}" for name, s in medians.items() if s >= 0.005)


LIMIT_HEADER = (
    "prompts × G, new tokens, β",
    "part of a step",
    "seconds",
    "least seconds",
    "share of the limit",
    "share at the model's own shapes",
)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Least seconds of the parts of a step."""

    generate: float
    logprobs: float
    update: float

    @property
    def step(self) -> float:
        return self.generate + self.logprobs + self.update


def least_seconds(
    work: Work, lengths: Lengths, *, decoding: Rates, training: Rates
) -> Bounds:
    sizes: Dimensions = read_dimensions(str(work.model))
    return Bounds(
        generate=generation_seconds(
            sizes, lengths, decoding, bytes_each=_BYTES[work.dtype]
        ),
        logprobs=scoring_seconds(sizes, lengths, training) if work.beta > 0 else 0.0,
        update=update_seconds(sizes, lengths, training),
    )


def limit_rows(found: Comparison) -> list[list[str]]:
    """Each part's seconds beside the least there can be, of the median step."""
    return [
        *_rows_of(found, found.ours, "Cohort", ("generate", "logprobs", "update")),
        *(_rows_of(found, found.theirs, "TRL", ("generate",)) if found.theirs else ()),
    ]


def _rows_of(
    found: Comparison, steps: Sequence[Step], who: str, parts: Sequence[str]
) -> list[list[str]]:
    work, machine = found.work, found.machine
    step = sorted(steps, key=lambda each: each.seconds)[len(steps) // 2]
    bound = least_seconds(
        work, step.lengths, decoding=machine.limit, training=machine.limit
    )
    own = least_seconds(
        work, step.lengths, decoding=machine.in_decoding, training=machine.in_training
    )
    rows = []
    for part in (*parts, "step"):
        seconds = step.seconds if part == "step" else step.phases.get(part, 0.0)
        least, least_own = getattr(bound, part), getattr(own, part)
        if least == 0 or seconds == 0:
            continue
        name = _BOUNDED.get(part, "whole step")
        if part == "step":
            tokens = step.lengths.num_tokens
            name += f" ({tokens / seconds:,.0f} of {tokens / least:,.0f} tokens/s)"
        rows.append(
            [
                work.name,
                f"{who}: {name}",
                f"{seconds:.3f}",
                f"{least:.3f}",
                f"{least / seconds:.0%}",
                f"{least_own / seconds:.0%}",
            ]
        )
    return rows


def rates_line(found: MachineRates) -> str:
    """The machine's rates in words."""
    return (
        f"The machine multiplies matrices at {_flops(found.matrix)} (large ones), "
        f"{_flops(found.training)} (training this model) and {_flops(found.decoding)} "
        f"(decoding it), and reads {found.read / 1e9:,.1f} GB/s of memory, "
        f"{found.reading / 1e9:,.1f} GB/s of what a token position reads."
    )


def _flops(rate: float) -> str:
    return (
        f"{rate / 1e12:,.1f} TFLOP/s" if rate >= 1e12 else f"{rate / 1e9:,.1f} GFLOP/s"
    )
