"""Log-probs of given tokens, without ever holding the logits of all of them."""

from __future__ import annotations

from typing import Any

import torch

# Logits held at a time, in numbers; 16 million float32 are 64 MiB.
_MAX_LOGITS = 16 * 2**20
# Below this many, the probabilities are kept for the backward pass, which saves
# computing them twice; 64 million float32 are 256 MiB.
_MAX_KEPT = 64 * 2**20


class _TokenLogProbs(torch.autograd.Function):
    """log softmax(h·Wᵀ·scale + b·scale)[target] and the entropy, in chunks of tokens.

    With p the probabilities, H the entropy, and gradients g of the log-prob and e of
    the entropy, the gradient of the scaled logits is g·(onehot - p) - e·p·(log p + H).
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        scale: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keeps = hidden.shape[0] * weight.shape[0] <= _MAX_KEPT and any(
            ctx.needs_input_grad[:3]
        )
        chosen, entropies, kept = [], [], []
        for place in _chunks(hidden.shape[0], weight.shape[0]):
            logprobs = _log_softmax(hidden[place], weight, bias, scale)
            chosen.append(logprobs.gather(1, targets[place, None]).squeeze(1))
            probs = logprobs.exp()
            entropies.append(-_sum_of_products(probs, logprobs))
            if keeps:
                kept.append(logprobs)
        entropy = torch.cat(entropies) if entropies else hidden.new_zeros(0).float()
        ctx.save_for_backward(hidden, weight, bias, targets, entropy, *kept)
        ctx.scale = scale
        # An unused entropy then arrives as None, and costs the backward pass nothing.
        ctx.set_materialize_grads(False)
        logprob = torch.cat(chosen) if chosen else hidden.new_zeros(0).float()
        return logprob, entropy

    @staticmethod
    def backward(
        ctx: Any, grad_logprob: torch.Tensor | None, grad_entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets, entropy, *kept = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        d_hidden = torch.empty_like(hidden) if needs_hidden else None
        # float32: in bfloat16 the sum over many chunks would drown the small ones
        d_weight = (
            torch.zeros_like(weight, dtype=torch.float32) if needs_weight else None
        )
        d_bias = torch.zeros_like(bias) if bias is not None and needs_bias else None
        for number, place in enumerate(_chunks(hidden.shape[0], weight.shape[0])):
            logprobs = (
                kept[number]
                if kept
                else _log_softmax(hidden[place], weight, bias, ctx.scale)
            )
            d_logits = _logit_gradient(
                logprobs,
                targets[place],
                None if grad_logprob is None else grad_logprob[place],
                None if grad_entropy is None else grad_entropy[place],
                entropy[place],
            )
            d_logits = d_logits.mul_(ctx.scale).to(weight.dtype)
            if d_hidden is not None:
                torch.mm(d_logits, weight, out=d_hidden[place])
            if d_weight is not None:
                _add_product(d_weight, d_logits, hidden[place])
            if d_bias is not None:
                d_bias += d_logits.sum(dim=0)
        if d_weight is not None:
            d_weight = d_weight.to(weight.dtype)
        return d_hidden, d_weight, d_bias, None, None


def _add_product(
    total: torch.Tensor, d_logits: torch.Tensor, hidden: torch.Tensor
) -> None:
    if total.dtype == hidden.dtype:
        total.addmm_(d_logits.T, hidden)  # without a copy as large as the weight
    else:
        total += d_logits.T @ hidden


def _chunks(num_tokens: int, vocabulary: int) -> list[slice]:
    size = max(1, _MAX_LOGITS // vocabulary)
    return [slice(first, first + size) for first in range(0, num_tokens, size)]


def _log_softmax(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    logits = torch.nn.functional.linear(hidden, weight, bias).float()
    return torch.log_softmax(logits * scale, dim=-1)


def _sum_of_products(probs: torch.Tensor, logprobs: torch.Tensor) -> torch.Tensor:
    # 0 · -inf is 0 here: a token that cannot occur carries no entropy
    return (probs * logprobs.clamp(min=-1e4)).sum(dim=-1)


def _logit_gradient(
    logprobs: torch.Tensor,
    targets: torch.Tensor,
    grad_logprob: torch.Tensor | None,
    grad_entropy: torch.Tensor | None,
    entropy: torch.Tensor,
) -> torch.Tensor:
    probs = logprobs.exp()
    slope = torch.zeros_like(entropy) if grad_logprob is None else -grad_logprob
    if grad_entropy is None:
        gradient = probs.mul_(slope[:, None])
    else:
        inner = (logprobs.clamp(min=-1e4) + entropy[:, None]) * -grad_entropy[:, None]
        gradient = probs.mul_(inner.add_(slope[:, None]))
    return gradient.scatter_add_(1, targets[:, None], -slope[:, None])


def token_logprobs(
    hidden: torch.Tensor,
    head: torch.nn.Linear,
    targets: torch.Tensor,
    *,
    temperature: float,
    logit_scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of each target and entropy of the distribution it was drawn from.

    Args:
        hidden: [N, H], the model's last hidden state where it predicts each token.
        head: the output embedding, [V, H].
        targets: [N] token ids.
        temperature: divides the logits, as it did when sampling.
        logit_scale: the model's own factor on its logits.

    Returns:
        (log-probs [N], entropies [N]), float32, nats.
    """
    logprob, entropy = _TokenLogProbs.apply(  # type: ignore[no-untyped-call]  # torch's
        hidden, head.weight, head.bias, targets, logit_scale / temperature
    )
    return logprob, entropy
