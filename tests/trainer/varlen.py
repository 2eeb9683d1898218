"""torch's attention kernel for sequences one behind another, in plain operations."""

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
