"""Sampling alone beside transformers' `generate()`: useful tokens a second.

    python -m tests.bench.bench_generation --model FOLDER --prompts 16 --group 8

Both sample the same prompts with the same weights in one process and take turns.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.comparison import least_seconds, rates_for, rates_line
from tests.bench.machine import heading, say, spread, table, tell
from tests.bench.rates import MachineRates
from tests.bench.subprocesses import call_in_subprocess
from tests.bench.work import Lengths, Step, Work, rates, write_rows
from trainer.data import Prompt
from trainer.model.policy import Policy

# Tokens of the first round, which is not counted.
_WARMUP_TOKENS = 64
HEADER = (
    "prompts × G, new tokens",
    "`generate()`, tokens/s",
    "Cohort",
    "ratio",
    "the limit",
    "`generate()`'s share of it",
    "Cohort's",
)
# Prompts, the round's number and the new tokens, to the tokens of each.
Sample = Callable[[Sequence[Prompt], int, int], Lengths]


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """What both sampled, and how fast the machine is."""

    work: Work
    ours: list[Step]
    theirs: list[Step]
    machine: MachineRates


def compare_generation(
    work: Work, *, num_rounds: int, deadline: float | None = None
) -> Sampled:
    """Rounds of both in turn; by the deadline as in `comparison.compare`."""
    ours, theirs = call_in_subprocess(
        sample_in_turn, work, num_rounds=num_rounds, deadline=deadline
    )
    machine = rates_for(work, ours[0].lengths)
    return Sampled(work=work, ours=ours, theirs=theirs, machine=machine)


def sample_in_turn(
    work: Work, *, num_rounds: int, deadline: float | None
) -> tuple[list[Step], list[Step]]:
    from transformers.utils import logging

    from trainer.config import DataConfig, ModelConfig
    from trainer.data import PromptRenderer, read_rows
    from trainer.model.policy import load_policy

    logging.disable_progress_bar()
    policy = load_policy(
        ModelConfig.model_validate(
            {"path": str(work.model), "device": work.device, "dtype": work.dtype}
        )
    )
    data = DataConfig(rows="-", chat_template="none", max_prompt_tokens=256)
    renderer = PromptRenderer(policy.tokenizer, data)
    prompts = [renderer.render(row) for row in read_rows(work.rows)]
    sides = (_our_sampler(policy, work), _their_sampler(policy, work))
    taken: tuple[list[Step], list[Step]] = ([], [])
    for number in range(num_rounds + 1):
        first = number * work.num_prompts % max(1, len(prompts) - work.num_prompts)
        chosen = prompts[first : first + work.num_prompts]
        limit = work.max_new_tokens if number else _WARMUP_TOKENS
        begin = time.monotonic()
        for sample, steps in zip(sides, taken, strict=True):
            start = time.perf_counter()
            lengths = sample(chosen, number, min(limit, work.max_new_tokens))
            seconds = time.perf_counter() - start
            if number:
                steps.append(Step(seconds=seconds, lengths=lengths))
        spent = time.monotonic() - begin
        what = f"round {number} of {num_rounds}" if number else "warm-up"
        tell(f"{_name(work)}: {what}, {spent:.1f} s")
        is_late = deadline is not None and time.monotonic() + spent > deadline
        if is_late and number:
            break
    return taken


def _our_sampler(policy: Policy, work: Work) -> Sample:
    from trainer.rollout.builtin import TransformersEngine
    from trainer.rollout.engine import Request, SamplingParams

    engine = TransformersEngine(policy, max_batch_rows=work.completions)

    def sample(prompts: Sequence[Prompt], number: int, max_new_tokens: int) -> Lengths:
        requests = [
            Request(
                token_ids=prompt.token_ids,
                seeds=tuple(
                    number * 10**6 + index * 10**3 + k for k in range(work.group_size)
                ),
            )
            for index, prompt in enumerate(prompts)
        ]
        params = SamplingParams(max_new_tokens=max_new_tokens, temperature=1.0)
        groups = engine.sample(requests, params)
        return Lengths(
            prompts=tuple(len(prompt.token_ids) for prompt in prompts),
            groups=tuple(tuple(c.num_tokens for c in group) for group in groups),
        )

    return sample


def _their_sampler(policy: Policy, work: Work) -> Sample:
    import torch

    device, size = policy.device, work.group_size
    ends = torch.tensor(policy.eos_ids, device=device)

    def sample(prompts: Sequence[Prompt], _: int, max_new_tokens: int) -> Lengths:
        width = max(len(prompt.token_ids) for prompt in prompts)
        rows = [p.token_ids for p in prompts for _ in range(size)]
        ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows])
        mask = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rows])
        with torch.no_grad():
            found = policy.model.generate(
                input_ids=ids.to(device),
                attention_mask=mask.to(device),
                max_new_tokens=max_new_tokens,
                do_sample=True,
                top_k=0,
                temperature=1.0,
                eos_token_id=list(policy.eos_ids),
                pad_token_id=0,
            )[:, width:]
        is_end = torch.isin(found, ends)
        counts = torch.where(
            is_end.any(dim=1), is_end.int().argmax(dim=1) + 1, found.shape[1]
        ).tolist()
        return Lengths(
            prompts=tuple(len(prompt.token_ids) for prompt in prompts),
            groups=tuple(
                tuple(counts[first : first + size])
                for first in range(0, len(counts), size)
            ),
        )

    return sample


def row(found: Sampled) -> list[str]:
    """Medians with their ranges; each round's share is of its own lengths' limit."""
    ours, theirs = found.ours, found.theirs
    ratios = [a.rate / b.rate for a, b in zip(ours, theirs, strict=True)]
    least = [_least(found, step) for step in ours]
    fastest = [step.lengths.num_tokens / s for step, s in zip(ours, least, strict=True)]
    return [
        _name(found.work),
        spread(rates(theirs), ",.0f"),
        spread(rates(ours), ",.0f"),
        spread(ratios, ".2f"),
        spread(fastest, ",.0f"),
        spread([_least(found, step) / step.seconds for step in theirs], ".0%"),
        spread([s / step.seconds for s, step in zip(least, ours, strict=True)], ".0%"),
    ]


def _least(found: Sampled, step: Step) -> float:
    limit = found.machine.limit
    return least_seconds(
        found.work, step.lengths, decoding=limit, training=limit
    ).generate


def _name(work: Work) -> str:
    return f"{work.num_prompts} × {work.group_size}, {work.max_new_tokens} new"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=8)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        work = Work(
            model=args.model,
            rows=write_rows(args.model, Path(name)),
            num_prompts=args.prompts,
            group_size=args.group,
            max_new_tokens=args.new,
        )
        found = compare_generation(work, num_rounds=args.rounds)
    say(heading("tests.bench.bench_generation"))
    say(table(HEADER, [row(found)]))
    say(rates_line(found.machine))


if __name__ == "__main__":
    main()
