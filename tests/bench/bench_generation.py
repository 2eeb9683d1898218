"""Sampling alone beside transformers' `generate()`: useful tokens a second.

    python -m tests.bench.bench_generation --model FOLDER --prompts 16 --group 8

Both sample the same prompts with the same weights in one process and take turns.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tests.bench.bench_step import Steps, Work, say, spread, write_rows


def compare_generation(work: Work, *, num_rounds: int) -> str:
    """Useful tokens a second, ours and those of `generate()`, turn by turn."""
    # behind what says how torch's threads wait, which is read when torch is loaded
    import torch

    from trainer.config import DataConfig, ModelConfig
    from trainer.policy import load_policy
    from trainer.prompts import PromptRenderer, read_rows
    from trainer.rollout.engine import Request, SamplingParams
    from trainer.rollout.transformers_engine import TransformersEngine

    policy = load_policy(ModelConfig(path=str(work.model), device="cpu"))
    data = DataConfig(rows="-", chat_template="none", max_prompt_tokens=256)
    renderer = PromptRenderer(policy.tokenizer, data)
    prompts = [renderer.render(row) for row in read_rows(work.rows)]
    engine = TransformersEngine(policy, max_batch_rows=work.completions)
    params = SamplingParams(max_new_tokens=work.max_new_tokens, temperature=1.0)
    ours, theirs = Steps(), Steps()
    for turn in range(num_rounds + 1):
        first = turn * work.num_prompts % (len(prompts) - work.num_prompts)
        chosen = prompts[first : first + work.num_prompts]
        begin = time.perf_counter()
        groups = engine.sample(
            [
                Request(
                    prompt=prompt,
                    seeds=tuple(
                        turn * 10**6 + place * 10**3 + k for k in range(work.group_size)
                    ),
                )
                for place, prompt in enumerate(chosen)
            ],
            params,
        )
        ours.seconds.append(time.perf_counter() - begin)
        ours.tokens.append(sum(c.num_tokens for group in groups for c in group))

        width = max(len(prompt.token_ids) for prompt in chosen)
        rows = [p.token_ids for p in chosen for _ in range(work.group_size)]
        ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows])
        mask = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rows])
        begin = time.perf_counter()
        with torch.no_grad():
            found = policy.model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=work.max_new_tokens,
                do_sample=True,
                top_k=0,
                temperature=1.0,
                eos_token_id=list(policy.eos_ids),
                pad_token_id=policy.eos_ids[0],
            )[:, width:]
        theirs.seconds.append(time.perf_counter() - begin)
        ends = torch.isin(found, torch.tensor(policy.eos_ids))
        counts = torch.where(
            ends.any(dim=1), ends.int().argmax(dim=1) + 1, ends.shape[1]
        )
        theirs.tokens.append(int(counts.sum()))
    ratios = [a / b for a, b in zip(ours.rates[1:], theirs.rates[1:], strict=True)]
    return (
        f"| {work.num_prompts} × {work.group_size}, {work.max_new_tokens} new "
        f"| {spread(theirs.rates[1:], '.0f')} | {spread(ours.rates[1:], '.0f')} "
        f"| {spread(ratios, '.2f')} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=8)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Work(
            model=args.model,
            rows=write_rows(args.model, Path(name), prompt_words=6),
            num_prompts=args.prompts,
            group_size=args.group,
            max_new_tokens=args.new,
            beta=0.0,
            micro_batch_tokens=0,
        )
        say(compare_generation(work, num_rounds=args.rounds))


if __name__ == "__main__":
    main()
