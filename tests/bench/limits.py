"""The least time that a step's work takes on a machine, whatever the program.

Two things bound it: how fast matrices are multiplied, and how fast memory is read.
Both are measured (`tests.bench.rates`); how much there is to multiply and to read
follows from the model's sizes and the lengths of what was sampled. What is left out
(norms, softmax, drawing tokens, the optimizer) only adds to it, so nothing is faster.

Sources: a multiplication and an addition per weight and token, 2·N, in the forward
pass (arXiv:2001.08361, section 2.1); twice that backward, so 6·N in all, and attention
beside it (arXiv:2204.02311, appendix B); the weights and the cache read once for each
token position when decoding (arXiv:2211.05102, section 2).
"""

from dataclasses import dataclass

from tests.bench.work import Lengths
from trainer.sizes.model_sizes import Dimensions


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a machine does in a second."""

    matrix: float  # FLOP
    read: float  # bytes


def forward_flops(sizes: Dimensions, lengths: Lengths) -> float:
    """FLOP of a forward pass that predicts every completion token, prompts once.

    2·N·M + 2·V·H·S + 4·A·Σ pairs, with N the weights of the layers' linear maps, M
    the tokens that go through them, S the tokens predicted, A = layers · heads · head
    size, and a pair for every token that a token attends to. A completion of n tokens
    brings n - 1 to M, since its last one predicts nothing, and n to S. Of a prompt of
    L tokens and such a completion, L·(L + 1)/2 and (n - 1)·L + n·(n - 1)/2 pairs.

    >>> sizes = Dimensions(
    ...     layers=2, hidden=8, heads=2, kv_heads=1, head_size=4, inner=16,
    ...     vocabulary=100, positions=0, is_gated=True, is_tied=True,
    ... )
    >>> forward_flops(sizes, Lengths(prompts=(3,), groups=((2, 1),)))
    14656
    """
    tokens, pairs = 0, 0
    for prompt, group in zip(lengths.prompts, lengths.groups, strict=True):
        tokens += prompt + sum(n - 1 for n in group)
        pairs += prompt * (prompt + 1) // 2
        pairs += sum((n - 1) * prompt + n * (n - 1) // 2 for n in group)
    return (
        2 * sizes.num_linear * tokens
        + 2 * _head(sizes) * lengths.num_tokens
        + 4 * _attention(sizes) * pairs
    )


def update_seconds(sizes: Dimensions, lengths: Lengths, rates: Rates) -> float:
    """Least seconds of a gradient: thrice the forward pass, by multiplication alone."""
    return 3 * forward_flops(sizes, lengths) / rates.matrix


def scoring_seconds(sizes: Dimensions, lengths: Lengths, rates: Rates) -> float:
    """Least seconds of log-probs without a gradient, such as the reference's."""
    return forward_flops(sizes, lengths) / rates.matrix


def generation_seconds(
    sizes: Dimensions, lengths: Lengths, rates: Rates, *, bytes_each: int
) -> float:
    """Least seconds of sampling, all completions at once, a token position at a time.

    Each position takes the longer of what it reads and what it multiplies:

        max(bytes / read rate, FLOP / matrix rate)

    bytes are the weights once, and the keys and values of all tokens so far: a
    completion's own, and a prompt's once for its whole group, as in arXiv:2402.05099.
    Position 0 is the prompts' forward pass. Completions that have ended cost nothing.
    The output embedding is counted as read at each position, the input's not at all.

    Args:
        sizes: of the model.
        lengths: of prompts and completions.
        rates: of the machine.
        bytes_each: of a weight, a key or a value.
    """
    seconds = 0.0
    for num_bytes, flops in _positions(sizes, lengths):
        seconds += max(bytes_each * num_bytes / rates.read, flops / rates.matrix)
    return seconds


def bytes_per_position(
    sizes: Dimensions, lengths: Lengths, *, bytes_each: int
) -> float:
    """What a position of sampling reads, as a mean over the positions."""
    read = [num_bytes for num_bytes, _ in _positions(sizes, lengths)]
    return bytes_each * sum(read) / len(read)


def _positions(sizes: Dimensions, lengths: Lengths) -> list[tuple[int, int]]:
    """(numbers read, FLOP) of each position."""
    weights = sizes.num_linear + _head(sizes)
    cached = 2 * sizes.layers * sizes.kv_size  # numbers of a token
    longest = max(map(max, lengths.groups))
    prefill = forward_flops(
        sizes,
        Lengths(prompts=lengths.prompts, groups=((1,),) * len(lengths.prompts)),
    )
    found = [(weights, int(prefill))]
    for place in range(1, longest):  # this token of each completion is fed
        read, rows, pairs = weights, 0, 0
        for prompt, group in zip(lengths.prompts, lengths.groups, strict=True):
            live = sum(1 for n in group if n > place)
            rows += live
            pairs += live * (prompt + place)
            read += cached * (live * place + (prompt if live else 0))
        found.append((read, 2 * weights * rows + 4 * _attention(sizes) * pairs))
    return found


def _head(sizes: Dimensions) -> int:
    """Weights of the output embedding."""
    return sizes.vocabulary * sizes.hidden


def _attention(sizes: Dimensions) -> int:
    """Products of one kind that a pair of tokens takes: queries with keys."""
    return sizes.layers * sizes.query_size
