"""Architectures on a GPU: see check.py."""

import re

import torch

from tests.gpu.setup import Failed, Setup
from tests.trainer.architectures import (
    MAX_ROUNDINGS,
    explained,
    is_rounding,
    kinds_on_page,
    load,
    mean_gap,
    plain_of,
    update,
    use_weights_of,
    write_architecture,
)
from tests.trainer.tiny_architectures import ARCHITECTURES

CHOSEN = (
    *("Llama", "Gemma 2", "Mixtral", "OPT"),  # all that the small form has
    *("Qwen3", "Gemma 3", "Gemma 4 (two head sizes)", "Phi 3", "SmolLM3", "OLMo 2"),
    *("Granite", "Qwen3 MoE", "GPT-OSS", "DeepSeek V3"),
)
RECOMPUTED = ("OPT",)
# A mixture may route a token to another expert. A wrong gradient is off by about 1.
GRADIENT_SLACK = 0.1


def architectures(setup: Setup) -> None:
    """Log-probs and gradients in bfloat16 against float32 by transformers itself.

    On a GPU all that can be packed is, with attention by one kernel.
    """
    failed = {}
    for name in CHOSEN[: setup.size(len(CHOSEN), 4)]:
        try:
            setup.figures[name] = _try_one(setup, name)
        except Exception as error:  # noqa: BLE001 - the others are of interest, too
            failed[name] = f"{type(error).__name__}: {error}"
            setup.figures[name] = "failed"
    if failed:
        name, reason = next(iter(failed.items()))
        raise Failed(f"{len(failed)} failed ({', '.join(failed)}); {name}: {reason}")


def gradient_gap(
    found: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]
) -> float:
    """The size of what two gradients differ by, beside that of the exact one."""
    gaps = [(found[name].float() - exact[name]).norm() for name in exact]
    sizes = [each.norm() for each in exact.values()]
    return (torch.stack(gaps).norm() / torch.stack(sizes).norm()).item()


def _try_one(setup: Setup, name: str) -> str:
    """What it gets and how far it is off, in nats a token."""
    architecture, folder = ARCHITECTURES[name], setup.folder / re.sub(r"\W", "-", name)
    write_architecture(architecture, folder)
    settings = {"device": setup.device, "dtype": "bfloat16"}
    policy, reason = explained(
        lambda: load(folder, gradient_checkpointing=name in RECOMPUTED, **settings)
    )
    if policy is None:
        return f"refused: {reason}"
    found = update(policy)
    plain = plain_of(architecture, folder)
    rounded = plain_of(architecture, folder, torch.bfloat16, device=setup.device)
    use_weights_of(plain, rounded)
    exact = plain.values(), plain.gradients()
    gap, rounding = (
        mean_gap(values, exact[0]) for values in (found[0], rounded.values())
    )
    slope, usual = (
        gradient_gap(gradients, exact[1])
        for gradients in (found[1], rounded.gradients())
    )
    form = "varlen" if policy.is_varlen else policy.form
    text = f"{form} {gap:.2g} of {rounding:.2g}, gradient {slope:.2g} of {usual:.2g}"
    is_near = slope <= MAX_ROUNDINGS * usual + GRADIENT_SLACK
    if not (is_near and is_rounding(gap, rounding)):
        raise Failed(f"further off than rounding: {text}")
    kinds = kinds_on_page()
    expected, _ = kinds.get(name) or kinds[re.sub(r" \([^)]*\)$", "", name)]
    if setup.device == "cuda" and expected != "padded":
        expected = "varlen"
    if form != expected:
        raise Failed(f"{form} where {expected} was expected ({policy.slowed}): {text}")
    return text
