"""torch's attention kernel for sequences one behind another, in plain operations."""

from typing import Any

import torch


def reference(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    query_ends: torch.Tensor,
    key_ends: torch.Tensor,
    most_queries: int,
    most_keys: int,
    *,
    scale: float,
    window: int | None = None,
    keys_used: torch.Tensor | None = None,
) -> torch.Tensor:
    """What it computes: sequence by sequence, the ends aligned."""
    copies = queries.shape[1] // keys.shape[1]
    keys, values = (each.repeat_interleave(copies, dim=1) for each in (keys, values))
    found = []
    for index in range(len(query_ends) - 1):
        asking = queries[query_ends[index] : query_ends[index + 1]]
        span = slice(int(key_ends[index]), int(key_ends[index + 1]))
        if keys_used is not None:
            span = slice(span.start, span.start + int(keys_used[index]))
        count, num_keys = len(asking), len(keys[span])
        assert 0 < count <= most_queries
        assert num_keys <= most_keys
        offset = (
            torch.arange(count)[:, None] + num_keys - count - torch.arange(num_keys)
        )
        sees = (offset >= 0) & (offset < (window or num_keys + 1))
        logits = torch.einsum("qhd,khd->hqk", asking, keys[span]) * scale
        shares = logits.masked_fill(~sees, -torch.inf).softmax(dim=-1)
        found.append(torch.einsum("hqk,khd->qhd", shares, values[span]))
    return torch.cat(found)


def slow_kernel(
    looked_at: list[int],
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    query_ends: torch.Tensor,
    key_begins: torch.Tensor,
    most_queries: int,
    most_keys: int,
    **options: Any,
) -> Any:
    """`varlen_attn` of a decoding step: each query sees all keys used of its sequence.

    It notes how many each sequence looked at.
    """
    used = options["seqused_k"]
    assert query_ends.dtype == key_begins.dtype == used.dtype == torch.int32
    assert len(query_ends) == len(key_begins) == len(used) + 1
    # only of one query is it the same whether it sees what comes behind it
    assert (
        options["window_size"] in [(-1, -1), (-1, 0)][: 2 if most_queries == 1 else 1]
    )
    assert queries.stride(-1) == keys.stride(-1) == values.stride(-1) == 1
    found = torch.empty_like(queries)
    log_sums = torch.empty(queries.shape[1], len(queries))
    sharing = queries.shape[1] // keys.shape[1]
    for sequence, count in enumerate(used.tolist()):
        asking = slice(int(query_ends[sequence]), int(query_ends[sequence + 1]))
        assert 0 < asking.stop - asking.start <= most_queries
        first = int(key_begins[sequence])
        assert 0 < count <= most_keys
        assert first + count <= len(keys)
        looked_at.append(count)
        seen = slice(first, first + count)
        own_keys = keys[seen].repeat_interleave(sharing, dim=1)
        own_values = values[seen].repeat_interleave(sharing, dim=1)
        logits = torch.einsum("qhd,khd->hqk", queries[asking], own_keys)
        logits = (logits * options["scale"]).float()
        log_sums[:, asking] = logits.logsumexp(dim=2)
        shares = logits.softmax(dim=2)
        found[asking] = torch.einsum("hqk,khd->qhd", shares, own_values.float()).to(
            queries
        )
    assert int(query_ends[-1]) == len(queries)
    if "return_aux" not in options:
        return found
    assert options["return_aux"].lse
    return found, log_sums
