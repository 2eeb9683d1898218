"""Log-probs of given tokens, without the logits of all tokens in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from trainer.console import print_traceback
from trainer.errors import is_out_of_memory

# Logits held at a time, in numbers; 16 million float32 are 64 MiB.
_MAX_LOGITS = 16 * 2**20
# On a GPU as many tokens at a time, if an eighth of its free memory holds the logits,
# and their probabilities and gradient where these are not made on the way. Each chunk
# goes through the whole gradient of the weight: 16,000 tokens of a vocabulary of
# 152,000 took 450 ms in chunks of 110 and 315 ms in chunks of 1,024 (H100, 0.5B).
_GPU_TOKENS = 2_048
_BYTES_PER_LOGIT = 12
# Below this many, the probabilities are kept for the backward pass, which saves
# computing them twice; 64 million float32 are 256 MiB.
_MAX_KEPT = 64 * 2**20
# Stands in for -inf: 0 · -1e4 is 0, 0 · -inf is no number.
_LOWEST = -1e4
# On a GPU, logits of a larger vocabulary go through one compiled kernel, and those of a
# smaller one are made again for the backward pass: a choice by the number of tokens
# would make the memory of a pass no straight line.
_FUSED_VOCABULARY = 16_384


class LogitMap(NamedTuple):
    """The map that a model applies to the product z of its head: c·tanh(s·z / c), or
    s·z.

    Cohere and Granite scale their logits; Gemma bounds them (arXiv:2408.00118).
    """

    scale: float = 1.0  # s
    cap: float | None = None  # c

    def __call__(self, product: torch.Tensor) -> torch.Tensor:
        """Return logits in float32, or what is wider."""
        logits = product.to(_wide(product.dtype))
        if self.scale != 1:
            logits = logits * self.scale
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap

    def gradient_(
        self, d_logits: torch.Tensor, logits: torch.Tensor | None
    ) -> torch.Tensor:
        """Make the gradient of logits y that of the product: s·(1 - (y/c)²) times it.

        `logits` are needed only where there is a bound.
        """
        if self.scale != 1:
            d_logits = d_logits.mul_(self.scale)
        if self.cap is None or logits is None:
            return d_logits
        return d_logits.mul_(1 - (logits / self.cap).square())

    def at(self, temperature: float) -> LogitMap:
        """Return the same with its logits divided by a temperature."""
        cap = None if self.cap is None else self.cap / temperature
        return LogitMap(self.scale / temperature, cap)


PLAIN = LogitMap()


class _Reference(NamedTuple):
    """The logits that the divergence is measured against; it gets no gradient."""

    hidden: torch.Tensor  # [N, H]
    weight: torch.Tensor  # [V, H]
    bias: torch.Tensor | None
    logit_map: LogitMap


class _TokenLogProbs(torch.autograd.Function):
    """log softmax(f(h·Wᵀ + b))[target], entropy and KL, in chunks of tokens.

    f is the model's `LogitMap` at the temperature. With p the probabilities, q the
    reference's, H = -Σ p·log p the entropy, D = Σ p·log(p/q) the divergence, and
    gradients g of the log-prob, e of the entropy and k of the divergence, the gradient
    of the logits is g·(onehot - p) - e·p·(log p + H) + k·p·(log(p/q) - D).
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        logit_map: LogitMap,
        reference: _Reference | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        num_tokens, vocabulary = hidden.shape[0], weight.shape[0]
        num_values = num_tokens * vocabulary * (1 if reference is None else 2)
        keeps = num_values <= _MAX_KEPT and any(ctx.needs_input_grad[:3])
        keeps = keeps and not hidden.is_cuda
        logprob, entropy, kl, log_sum = (
            hidden.new_zeros(num_tokens, dtype=_wide(hidden.dtype)) for _ in range(4)
        )
        stored = []
        size = ctx.chunk_size = _chunk_size(vocabulary, hidden.device)
        for place in _chunks(num_tokens, size):
            logits = _logits(hidden[place], weight, bias, logit_map)
            logprobs = torch.log_softmax(logits, dim=-1, dtype=entropy.dtype)
            logprob[place] = logprobs.gather(1, targets[place, None]).squeeze(1)
            if logit_map.cap is not None:  # which bounds them, so no logit is -inf
                log_sum[place] = logits[:, 0] - logprobs[:, 0]
            probs = logprobs.exp()
            # 0 · -inf is 0 here: a token that cannot occur carries no entropy
            entropy[place] = -(probs * logprobs.clamp(min=_LOWEST)).sum(dim=-1)
            if keeps:
                stored.append(logprobs)
            if reference is not None:
                gaps = _gaps(logprobs, reference, place)
                kl[place] = (probs * gaps).sum(dim=-1)
                if keeps:
                    stored.append(gaps)
        ctx.save_for_backward(
            hidden, weight, bias, targets, entropy, kl, log_sum, *stored
        )
        ctx.logit_map, ctx.reference = logit_map, reference
        # An unused entropy then arrives as None, and costs the backward pass nothing.
        ctx.set_materialize_grads(False)
        return logprob, entropy, None if reference is None else kl

    @staticmethod
    def backward(
        ctx: Any,
        grad_logprob: torch.Tensor | None,
        grad_entropy: torch.Tensor | None,
        grad_kl: torch.Tensor | None,
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets, entropy, kl, log_sum, *kept = ctx.saved_tensors
        logit_map: LogitMap = ctx.logit_map
        gradients = _HeadGradients(ctx.needs_input_grad, hidden, weight, bias)
        stored = iter(kept)
        for place in _chunks(hidden.shape[0], ctx.chunk_size):
            logprobs = (
                next(stored)
                if kept
                else _log_softmax(hidden[place], weight, bias, logit_map)
            )
            logits = None
            if logit_map.cap is not None:
                logits = logprobs + log_sum[place, None]
            slopes = torch.zeros_like(entropy[place])[:, None]
            if grad_logprob is not None:
                slopes = slopes - grad_logprob[place, None]
            if grad_entropy is not None:
                surprise = logprobs.clamp(min=_LOWEST) + entropy[place, None]
                slopes = slopes - surprise.mul_(grad_entropy[place, None])
            if ctx.reference is not None:
                gaps = next(stored) if kept else _gaps(logprobs, ctx.reference, place)
                if grad_kl is not None:
                    slopes = slopes + (gaps - kl[place, None]) * grad_kl[place, None]
            d_logits = (logprobs.exp() if kept else logprobs.exp_()).mul_(slopes)
            if grad_logprob is not None:
                d_logits.scatter_add_(
                    1, targets[place, None], grad_logprob[place, None]
                )
            d_logits = logit_map.gradient_(d_logits, logits)
            gradients.add(place, d_logits.to(weight.dtype))
        return *gradients.found(), None, None, None


class _HeadGradients:
    """Gradients of hidden states, weight and bias, added up over chunks of tokens."""

    def __init__(
        self,
        needed: Sequence[bool],
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> None:
        self._hidden, self._weight = hidden, weight
        self._d_hidden = torch.empty_like(hidden) if needed[0] else None
        # not bfloat16: there the sum over many chunks would drown the small ones
        self._d_weight = (
            torch.zeros_like(weight, dtype=_wide(weight.dtype)) if needed[1] else None
        )
        self._d_bias = (
            torch.zeros_like(bias) if bias is not None and needed[2] else None
        )

    def add(self, place: slice, d_logits: torch.Tensor) -> None:
        hidden, total = self._hidden[place], self._d_weight
        if self._d_hidden is not None:
            torch.mm(d_logits, self._weight, out=self._d_hidden[place])
        if total is not None and total.dtype == hidden.dtype:
            total.addmm_(d_logits.T, hidden)  # without a copy as large as the weight
        elif total is not None:
            total += d_logits.T @ hidden
        if self._d_bias is not None:
            self._d_bias += d_logits.sum(dim=0)

    def found(self) -> tuple[torch.Tensor | None, ...]:
        d_weight = self._d_weight
        if d_weight is not None:
            d_weight = d_weight.to(self._weight.dtype)
        return self._d_hidden, d_weight, self._d_bias


class _FusedLogProbs(torch.autograd.Function):
    """`_TokenLogProbs` without a reference, for a GPU and a large vocabulary.

    torch.compile makes one kernel of all that is done to a chunk's logits, which takes
    a fifth of the time: each of the operations goes through memory by itself.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        logit_map: LogitMap,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        parts = []
        ctx.chunk_size = _chunk_size(weight.shape[0], hidden.device)
        for place in _chunks(hidden.shape[0], ctx.chunk_size):
            logits = functional.linear(hidden[place], weight, bias)
            parts.append(compiled(_chunk_values)(logits, targets[place], logit_map))
        logprob, entropy, log_sum = (
            torch.cat(part) for part in zip(*parts, strict=True)
        )
        ctx.save_for_backward(hidden, weight, bias, targets, entropy, log_sum)
        ctx.logit_map = logit_map
        ctx.set_materialize_grads(False)
        return logprob, entropy

    @staticmethod
    def backward(
        ctx: Any, grad_logprob: torch.Tensor | None, grad_entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets, entropy, log_sum = ctx.saved_tensors
        gradients = _HeadGradients(ctx.needs_input_grad, hidden, weight, bias)
        if grad_logprob is None:
            grad_logprob = torch.zeros_like(entropy)
        for place in _chunks(hidden.shape[0], ctx.chunk_size):
            d_logits = compiled(_chunk_gradient)(
                functional.linear(hidden[place], weight, bias),
                targets[place],
                log_sum[place],
                entropy[place],
                grad_logprob[place],
                None if grad_entropy is None else grad_entropy[place],
                ctx.logit_map,
            )
            gradients.add(place, d_logits)
        return *gradients.found(), None, None


def _chunk_values(
    logits: torch.Tensor, targets: torch.Tensor, logit_map: LogitMap
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Get log-probs, entropies and log Σ exp of a chunk's products [C, V], each [C]."""
    logits = logit_map(logits)
    log_sum = torch.logsumexp(logits, dim=-1)
    logprobs = logits - log_sum[:, None]
    # 0 · -inf is 0 here: a token that cannot occur carries no entropy
    entropy = -(logprobs.exp() * logprobs.clamp(min=_LOWEST)).sum(dim=-1)
    return logprobs.gather(1, targets[:, None]).squeeze(1), entropy, log_sum


def _chunk_gradient(
    logits: torch.Tensor,
    targets: torch.Tensor,
    log_sum: torch.Tensor,
    entropy: torch.Tensor,
    grad_logprob: torch.Tensor,
    grad_entropy: torch.Tensor | None,
    logit_map: LogitMap,
) -> torch.Tensor:
    """Return the gradient of a chunk's products [C, V], in their number format."""
    dtype, logits = logits.dtype, logit_map(logits)
    logprobs = logits - log_sum[:, None]
    slopes = -grad_logprob[:, None]
    if grad_entropy is not None:
        surprise = logprobs.clamp(min=_LOWEST) + entropy[:, None]
        slopes = slopes - surprise * grad_entropy[:, None]
    is_target = torch.arange(logits.shape[1], device=logits.device) == targets[:, None]
    chosen = torch.where(is_target, grad_logprob[:, None], 0.0)
    return logit_map.gradient_(logprobs.exp() * slopes + chosen, logits).to(dtype)


def compile_for_all_sizes(work: Callable[..., Any]) -> Callable[..., Any]:
    """Return the work compiled once for tensors of any sizes."""
    # else a dozen processes are started, and stay
    torch._inductor.config.compile_threads = 1
    return torch.compile(work, dynamic=True)


@cache
def compiled(work: Callable[..., Any]) -> Callable[..., Any]:
    """Return the work as one kernel; as it is where it cannot be compiled."""
    fused, failed = compile_for_all_sizes(work), False

    def run(*inputs: Any) -> Any:
        nonlocal failed
        if failed:
            return work(*inputs)
        try:
            return fused(*inputs)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            failed = True
            print_traceback(error)
            return work(*inputs)

    return run


def is_fused(hidden: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return whether a compiler's seconds are worth while, whatever the number of
    tokens.
    """
    return hidden.is_cuda and weight.shape[0] > _FUSED_VOCABULARY


def _chunk_size(vocabulary: int, device: torch.device) -> int:
    """Return tokens whose logits are held at a time."""
    size = max(1, _MAX_LOGITS // vocabulary)
    if device.type != "cuda" or size >= _GPU_TOKENS:
        return size
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return max(size, min(_GPU_TOKENS, free // 8 // (_BYTES_PER_LOGIT * vocabulary)))


def _chunks(num_tokens: int, size: int) -> list[slice]:
    return [slice(first, first + size) for first in range(0, num_tokens, size)]


def _wide(dtype: torch.dtype) -> torch.dtype:
    """float32, or what holds more."""
    return torch.promote_types(dtype, torch.float32)


def _logits(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    logit_map: LogitMap,
) -> torch.Tensor:
    product = functional.linear(hidden, weight, bias)
    # log_softmax widens them on its way
    return product if logit_map == PLAIN else logit_map(product)


def _log_softmax(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    logit_map: LogitMap,
) -> torch.Tensor:
    logits = _logits(hidden, weight, bias, logit_map)
    return torch.log_softmax(logits, dim=-1, dtype=_wide(logits.dtype))


def _gaps(logprobs: torch.Tensor, reference: _Reference, place: slice) -> torch.Tensor:
    """log(p/q) of every token of the vocabulary."""
    other = _log_softmax(
        reference.hidden[place],
        reference.weight,
        reference.bias,
        reference.logit_map,
    )
    return logprobs.clamp(min=_LOWEST) - other.clamp_(min=_LOWEST)


def token_logprobs(
    hidden: torch.Tensor,
    head: torch.nn.Linear,
    targets: torch.Tensor,
    *,
    temperature: float,
    logit_map: LogitMap = PLAIN,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of each target and entropy of the distribution it was drawn from.

    Args:
        hidden: [N, H], the model's last hidden state where it predicts each token.
        head: the output embedding, [V, H].
        targets: [N] token ids.
        temperature: divides the logits, as it did when sampling.
        logit_map: what the model does to its head's product.

    Returns:
        (log-probs [N], entropies [N]), float32, nats.
    """
    inputs = hidden, head.weight, head.bias, targets, logit_map.at(temperature)
    if is_fused(hidden, head.weight):
        logprob, entropy = _FusedLogProbs.apply(*inputs)  # type: ignore[no-untyped-call]  # torch's
    else:
        logprob, entropy, _ = _TokenLogProbs.apply(*inputs, None)  # type: ignore[no-untyped-call]  # torch's
    return logprob, entropy


def token_logprobs_and_kl(
    hidden: torch.Tensor,
    head: torch.nn.Linear,
    targets: torch.Tensor,
    *,
    reference_hidden: torch.Tensor,
    reference_head: torch.nn.Linear,
    temperature: float,
    logit_map: LogitMap = PLAIN,
    reference_logit_map: LogitMap = PLAIN,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`token_logprobs` with the divergence from a reference at each token.

    D = Σ_v p_v·(log p_v - log q_v) over the whole vocabulary, p the policy's and q the
    reference's probabilities, both at the temperature. Its gradient is exact; never
    are the logits of all tokens held at once.

    Returns:
        (log-probs [N], entropies [N], divergences [N]), float32, nats.
    """
    reference = _Reference(
        hidden=reference_hidden.detach(),
        weight=reference_head.weight,
        bias=reference_head.bias,
        logit_map=reference_logit_map.at(temperature),
    )
    values: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _TokenLogProbs.apply(  # type: ignore[no-untyped-call]  # torch's
        hidden, head.weight, head.bias, targets, logit_map.at(temperature), reference
    )
    return values
