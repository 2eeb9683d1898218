"""Sampling on a GPU, its ways apart: see check.py."""

import time
from collections.abc import Sequence

import torch

from tests.gpu.setup import (
    Failed,
    Setup,
    differences,
    random_policy,
    requests_of,
    rounding,
    same_share,
    timed,
)
from trainer.model.policy import Policy
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.decoder import DecodingMethod
from trainer.rollout.engine import Request, SamplingParams, Slowed
from trainer.types import Rollout


def sampling(setup: Setup) -> None:
    """Tokens a second, and how far log-probs of sampling are from recomputed ones."""
    policy, figures = random_policy(setup), setup.figures
    count, group, new = setup.size(64, 4), setup.size(8, 3), setup.size(256, 24)
    requests = requests_of(policy, count, group)
    reported: list[Slowed] = []
    params = SamplingParams(max_new_tokens=new, temperature=1.0)

    def engine(rows: int, ways: list[DecodingMethod]) -> TransformersEngine:
        found = TransformersEngine(policy, max_batch_rows=rows)
        found.on_slowed = reported.append
        # those that this model has on this device
        found._ways = [way for way in found._ways if way in ways]
        return found

    own = engine(count * group, ["graph", "lean"])
    begun = time.monotonic()
    own.sample(requests, SamplingParams(max_new_tokens=4, temperature=1.0))
    figures["first call s"] = round(time.monotonic() - begun, 2)
    found, seconds = timed(setup, lambda: own.sample(requests, params))
    figures["tokens/s"] = round(count * group * new / seconds)
    noise = rounding(setup, policy, requests, found)
    figures["rounding"] = f"{noise:.2g} nats"
    compare(setup, policy, requests, found, "", noise)
    again = own.sample(requests, params)
    figures["same tokens again"] = f"{same_share(found, again):.0%}"
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.02)
    moved = own.sample(requests, params)
    compare(setup, policy, requests, moved, " after an update", noise)
    few = requests[: setup.size(8, 1)]
    for way in ("lean", "plain"):
        slower = engine(64, [way])
        slower.sample(few, SamplingParams(max_new_tokens=4, temperature=1.0))
        found, seconds = timed(setup, lambda each=slower: each.sample(few, params))
        rate = round(len(few) * group * new / seconds)
        figures[f"tokens/s, {len(few) * group} rows, {way}"] = rate
        compare(setup, policy, few, found, f" {way}", noise)
    if reported:
        raise Failed(f"a slower way was taken: {reported[0].reason}")


def compare(
    setup: Setup,
    policy: Policy,
    requests: Sequence[Request],
    found: Sequence[tuple[Rollout, ...]],
    when: str,
    noise: float,
) -> None:
    """Failed where sampling and recomputing differ by more than rounding twice does."""
    gap = differences(policy, requests, found)
    mean, most = gap.mean().item(), gap.max().item()
    setup.figures[f"gap{when}"] = f"{mean:.2g} (max {most:.2g})"
    if not mean <= 2.5 * noise + 1e-5:
        raise Failed(f"log-probs of sampling are not the policy's{when}")
