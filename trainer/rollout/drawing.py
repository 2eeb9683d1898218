"""Choosing the next token of each row."""

from __future__ import annotations

import torch


def draw_tokens(
    logits: torch.Tensor,
    uniform: torch.Tensor,
    *,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token per row by inverting the distribution function at `uniform`.

    Args:
        logits: float32 [rows, V].
        uniform: [rows], in [0, 1).
        temperature: 0 takes the likeliest token.
        top_p: draw among the likeliest tokens that hold this share.
        top_k: draw among so many likeliest tokens; 0: among all.

    Returns:
        (token ids [rows], their log-probs [rows]). The log-probs are those of the whole
        vocabulary at this temperature, whatever part of it was drawn from.
    """
    if temperature == 0:
        logprobs = torch.log_softmax(logits, dim=-1)
        chosen = logits.argmax(dim=-1)
        return chosen, logprobs.gather(1, chosen[:, None]).squeeze(1)
    if temperature != 1:
        logits = logits / temperature
    probs = torch.softmax(logits, dim=-1)
    kept = probs
    if top_p < 1 or top_k > 0:
        kept = keep_likeliest(probs, top_p=top_p, top_k=top_k)
    mass = kept.cumsum(dim=-1)
    # scaled by the last value, since rounding leaves the sum a little off 1
    total = mass[:, -1:].contiguous()
    chosen = torch.searchsorted(mass, uniform[:, None] * total, right=True)
    # The product may round up to the total, behind which no token has any mass.
    chosen = chosen.minimum(torch.searchsorted(mass, total))
    # what was drawn is not so unlikely that its probability would be rounded to 0
    return chosen.squeeze(1), probs.gather(1, chosen).log().squeeze(1)


def keep_likeliest(probs: torch.Tensor, *, top_p: float, top_k: int) -> torch.Tensor:
    """Set all but the likeliest tokens of each row to 0; the rest stays as it is.

    First the `top_k` likeliest are kept, then of these the fewest whose probabilities
    add up to at least `top_p` of what they all hold (arXiv:1904.09751). Of equally
    likely tokens the lower ids are kept, so a row's outcome does not depend on the rows
    beside it.

    >>> probs = torch.tensor([[0.2, 0.5, 0.1, 0.2]])
    >>> keep_likeliest(probs, top_p=0.6, top_k=0)
    tensor([[0.2000, 0.5000, 0.0000, 0.0000]])
    """
    size = probs.shape[1]
    if top_k > 0:
        values = probs.topk(min(top_k, size)).values
        total = values.sum(dim=1, keepdim=True)
    else:
        # V tokens below (1 - top_p) / V hold less than what may be left out, so they
        # need no sorting; half of it leaves room for rounding.
        floor = (1 - top_p) / (2 * size)
        values = probs.topk(int((probs >= floor).sum(dim=1).max())).values
        total = probs.sum(dim=1, keepdim=True)
    num_kept = torch.full_like(total, values.shape[1], dtype=torch.long)
    if top_p < 1:
        before = values.cumsum(dim=1) - values
        num_kept = (before < top_p * total).sum(dim=1, keepdim=True)
    last = values.gather(1, num_kept - 1)
    at_least = probs >= last
    if ((num_likely := at_least.sum(dim=1, keepdim=True)) > num_kept).any():
        # more are as likely as the last one kept than there is room for
        ties = probs == last
        room = num_kept - num_likely + ties.sum(dim=1, keepdim=True)
        at_least &= ~ties | (ties.cumsum(dim=1) <= room)
    return torch.where(at_least, probs, 0.0)
