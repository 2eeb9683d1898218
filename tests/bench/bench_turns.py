"""A conversation's CPU time with and without keeping keys and values between turns.

    python -m tests.bench.bench_turns --size SmolLM2-135M --prompts 2 --group 4

Three ways to sample as many tokens take turns in one process: as several turns with
`PrefixStore`, as several turns without it, and as one turn. What lies between two turns
of the model is a reply of a few tokens; the one turn has as many in its prompts. No
completion ends before its limit.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.bench.machine import heading, say, spread, table, tell
from tests.bench.random_models import SIZES, make_model
from trainer.config import ModelConfig
from trainer.model.policy import Policy, load_policy
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.engine import Request, SamplingParams
from trainer.rollout.prefixes import PrefixStore

HEADER = (
    "prompts × G, prompt tokens, turns × tokens, reply",
    "one turn, CPU s",
    "turns with prefixes",
    "without",
    "with / one turn",
    "with / without",
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path)
    parser.add_argument("--size", choices=SIZES, help="of random weights")
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--group", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--reply", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        model = args.model or make_model(args.size, Path(name))
        policy = load_policy(ModelConfig(path=str(model), device="cpu"))
    policy.eos_ids = (policy.num_embeddings,)
    whole = args.turns * args.new
    ways: list[Callable[[int], None]] = [
        partial(_play, policy, args, turns=1, new=whole, keeps=False),
        partial(_play, policy, args, turns=args.turns, new=args.new, keeps=True),
        partial(_play, policy, args, turns=args.turns, new=args.new, keeps=False),
    ]
    seconds: list[list[float]] = []
    for number in range(args.rounds + 1):  # the first is not counted
        seconds.append([_cpu_seconds(way, number) for way in ways])
        tell(f"round {number}: " + ", ".join(f"{each:.2f}" for each in seconds[-1]))
    one, kept, prefilled = (list(column) for column in zip(*seconds[1:], strict=True))
    work = (
        f"{args.prompts} × {args.group}, {args.prompt_tokens}, "
        f"{args.turns} × {args.new}, {args.reply}"
    )
    row = [
        work,
        *(spread(column, ".2f") for column in (one, kept, prefilled)),
        *(
            spread([a / b for a, b in zip(kept, others, strict=True)], ".2f")
            for others in (one, prefilled)
        ),
    ]
    say(heading("tests.bench.bench_turns"))
    say(table(HEADER, [row]))


def _cpu_seconds(way: Callable[[int], None], number: int) -> float:
    """Of all threads of this process."""
    start = time.process_time()
    way(number)
    return time.process_time() - start


def _play(
    policy: Policy,
    args: argparse.Namespace,
    number: int,
    *,
    turns: int,
    new: int,
    keeps: bool,
) -> None:
    engine = TransformersEngine(policy, max_batch_rows=args.prompts * args.group)
    engine.check.is_due = False  # it is done once in a run
    engine.prefixes = PrefixStore() if keeps else None
    chance, params = (
        random.Random(number),
        SamplingParams(max_new_tokens=new, temperature=1.0),
    )
    words = range(3, policy.num_embeddings)
    prompt_tokens = args.prompt_tokens + (args.turns - turns) * args.reply
    requests = [
        Request(
            token_ids=tuple(chance.choices(words, k=prompt_tokens)),
            seeds=tuple(chance.randrange(2**30) for _ in range(args.group)),
        )
        for _ in range(args.prompts)
    ]
    for _ in range(turns):
        groups = engine.sample(requests, params)
        requests = [
            Request(
                token_ids=request.token_ids
                + completion.token_ids
                + tuple(chance.choices(words, k=args.reply)),
                seeds=(seed + 1,),
            )
            for request, group in zip(requests, groups, strict=True)
            for seed, completion in zip(request.seeds, group, strict=True)
        ]


if __name__ == "__main__":
    main()
