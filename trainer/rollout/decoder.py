"""One more token of each row, with nothing but the arithmetic that it takes.

transformers' forward pass serves any length and any option, and for a single token its
own bookkeeping takes longer than a small model's arithmetic. Models built like Llama
are therefore decoded by the few operations of `LlamaDecoder`, on the same weights.

On a GPU, one step's kernels are replayed as a CUDA graph: a token of a small or
middle-sized model is hundreds of kernels of a few microseconds
each, and to start each one from Python takes longer than it runs. A graph starts all of
them at once. It needs tensors that stay where they are: see `FixedStep`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Literal

import torch
from torch.nn import functional
from transformers.cache_utils import DynamicCache

from trainer.model.attention import (
    attend_to_all,
    joined,
    takes_keys_used,
    varlen_attention,
)
from trainer.model.loading import has_four_bits, is_built_like_llama
from trainer.model.logprobs import LogitMap, compiled, is_fused
from trainer.model.policy import Policy
from trainer.rollout.cache import States, is_growing, select_rows
from trainer.rollout.engine import SamplingParams
from trainer.rollout.llama import (
    LEAVING_SHARE,
    Layer,
    LlamaDecoder,
    SharedPrompts,
    attend_densely,
    bias_of,
)


def draw_tokens(
    logits: torch.Tensor,
    uniform: torch.Tensor,
    *,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    seen: torch.Tensor | None = None,
    repetition_penalty: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token per row by inverting the distribution function at `uniform`.

    Args:
        logits: float32 [rows, V].
        uniform: [rows], in [0, 1).
        temperature: 0 takes the likeliest token.
        top_p: draw among the likeliest tokens that hold this share.
        top_k: draw among so many likeliest tokens; 0: among all.
        min_p: draw among tokens that are at least this share as likely as the
            likeliest (arXiv:2407.01082).
        seen: bool [rows, V]: tokens whose logits `repetition_penalty` divides where
            they are above 0 and multiplies where they are below (arXiv:1909.05858).

    Returns:
        (token ids [rows], their log-probs [rows]). The log-probs are those of the whole
        vocabulary at this temperature, whatever part of it was drawn from.
    """
    preferred = logits
    if seen is not None:
        lowered = torch.where(
            logits > 0, logits / repetition_penalty, logits * repetition_penalty
        )
        preferred = torch.where(seen, lowered, logits)
    if temperature == 0:
        logprobs = torch.log_softmax(logits, dim=-1)
        chosen = preferred.argmax(dim=-1)
        return chosen, logprobs.gather(1, chosen[:, None]).squeeze(1)
    if temperature != 1:
        logits = logits / temperature
        preferred = logits if seen is None else preferred / temperature
    probs = torch.softmax(logits, dim=-1)
    drawn_from = probs if seen is None else torch.softmax(preferred, dim=-1)
    kept = drawn_from
    if top_p < 1 or top_k > 0:
        kept = keep_likeliest(drawn_from, top_p=top_p, top_k=top_k)
    if min_p > 0:
        least = min_p * drawn_from.amax(dim=1, keepdim=True)
        kept = torch.where(drawn_from >= least, kept, 0.0)
    mass = kept.cumsum(dim=-1)
    # scaled by the last value, since rounding leaves the sum a little off 1
    total = mass[:, -1:].contiguous()
    chosen = torch.searchsorted(mass, uniform[:, None] * total, right=True)
    # The product may round up to the total, behind which no token has any mass.
    chosen = chosen.minimum(torch.searchsorted(mass, total))
    if seen is not None:
        # Its own probability may be too small for a float32.
        return chosen.squeeze(1), torch.log_softmax(logits, dim=-1).gather(
            1, chosen
        ).squeeze(1)
    # what was drawn is not so unlikely that its probability would be rounded to 0
    return chosen.squeeze(1), probs.gather(1, chosen).log().squeeze(1)


# Numbers that a block's sum stands for while a token is drawn.
_BLOCK = 1024


def draw_next(
    policy: Policy,
    hidden: torch.Tensor,
    uniform: torch.Tensor,
    params: SamplingParams,
    *,
    seen: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what `draw_tokens` does, of last hidden states [rows, H].

    On a GPU the logits of a large vocabulary are read by compiled kernels, which keep
    none of them in float32.
    """
    draws_from_all = params.top_p == 1 and params.top_k == 0 and params.min_p == 0
    is_plain = draws_from_all and seen is None and params.temperature > 0
    if is_plain and is_fused(hidden, policy.head.weight):
        logit_map = policy.logit_map.at(params.temperature)
        drawn: tuple[torch.Tensor, torch.Tensor] = compiled(draw_by_blocks)(
            policy.head(hidden), uniform, logit_map
        )
        return drawn
    return draw_tokens(
        policy.logits(hidden),
        uniform,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        seen=seen,
        repetition_penalty=params.repetition_penalty,
    )


def draw_by_blocks(
    products: torch.Tensor, uniform: torch.Tensor, logit_map: LogitMap
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw as `draw_tokens` does from all tokens: first a block of them, then in it.

    Compiled, it reads the products twice and writes nothing as large: only the sums of
    blocks, and one block of each row.

    Args:
        products: of the head, [rows, V].
        uniform: [rows], in [0, 1).
        logit_map: makes logits of products, temperature included.

    Returns:
        (token ids [rows], their log-probs [rows]).
    """
    size = products.shape[1]
    top = logit_map(products.amax(dim=1, keepdim=True))
    places = torch.arange(-(-size // _BLOCK) * _BLOCK, device=products.device)
    places = places.view(-1, _BLOCK)
    # an index, not padding, of which a copy would be made
    logits = logit_map(products[:, places.clamp(max=size - 1)])
    in_blocks = torch.where(places < size, (logits - top[..., None]).exp(), 0.0)
    mass = in_blocks.sum(dim=2).cumsum(dim=1)
    total = mass[:, -1:]
    wanted = uniform[:, None] * total
    # at the end a product may round up to the total, behind which nothing has mass
    block = torch.minimum((mass <= wanted).sum(dim=1), (mass < total).sum(dim=1))
    before = functional.pad(mass, (1, 0)).gather(1, block[:, None])
    places = places[block]
    # computed again, for else those of all blocks would be kept
    logits = logit_map(products.gather(1, places.clamp(max=size - 1)))
    inner = torch.where(places < size, (logits - top).exp(), 0.0).cumsum(dim=1)
    place = torch.minimum(
        (before + inner <= wanted).sum(dim=1), (inner < inner[:, -1:]).sum(dim=1)
    )[:, None]
    logprobs = logits.gather(1, place) - top - total.log()
    return places.gather(1, place).squeeze(1), logprobs.squeeze(1)


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


# To record a graph again takes about 0.1 s, and a token of all rows some milliseconds.
# So rows leave only when half have ended and so many tokens may follow.
_LEAVING_SHARE = 1 / 2
_LEAST_TOKENS = 128


class FixedStep:
    """A decoder's step on tensors that stay where they are, for so many rows.

    FlashAttention looks at the written places of each row. Without it the step attends
    to all that there is room for, and the bias hides what is not written yet, as it
    does padding. Doing it again with the same inputs changes nothing.
    """

    def __init__(self, decoder: LlamaDecoder, num_rows: int) -> None:
        device = decoder.held[0].device
        self._decoder = decoder
        self.room = room = decoder.room
        self._chosen = torch.zeros(num_rows, dtype=torch.long, device=device)
        self._positions = torch.zeros_like(self._chosen)
        self._place = torch.zeros(1, dtype=torch.long, device=device)
        self.hidden = torch.empty(0)
        if decoder.is_by_token:
            num_padded = torch.zeros_like(self._chosen)  # places on a row's left
            if decoder.padding is not None:
                num_padded = (decoder.padding == 0).sum(dim=1)
            self._num_padded = num_padded
            self._rows = torch.arange(num_rows + 1, dtype=torch.int32, device=device)
            first = self._rows * room + functional.pad(num_padded, (0, 1))
            self._first_places = first.int()
            if decoder.prompts is not None:
                self._query_ends = self._rows * decoder.prompts.num_sharing
            return
        shape, dtype = (num_rows, 1, 1, room), decoder.held[0].dtype
        self._bias = torch.zeros(shape, dtype=dtype, device=device)
        if decoder.padding is not None:
            self._bias = bias_of(decoder.padding, room, dtype=dtype)
        self._bias[..., decoder.length - 1 :] = -torch.inf

    def load(self, chosen: torch.Tensor, positions: torch.Tensor, place: int) -> None:
        """Copy a step's inputs to where it reads them."""
        self._chosen.copy_(chosen)
        self._positions.copy_(positions)
        self._place.fill_(place)

    def run(self) -> None:
        """Set `hidden`, [rows, H]."""

        def put(held: torch.Tensor, states: torch.Tensor) -> None:
            held.index_copy_(2, self._place, states[:, :, None])

        if self._decoder.is_by_token:
            num_seen = (self._place + 1 - self._num_padded).int()
            attend = partial(self._attend_to_written, num_seen)
            if self._decoder.prompts is not None:
                attend = partial(self._attend_jointly, self._decoder.prompts, num_seen)
        else:
            self._bias.index_fill_(3, self._place, 0.0)
            attend = partial(attend_densely, span=self.room, bias=self._bias)
        self.hidden = self._decoder.forward(self._chosen, self._positions, put, attend)

    def _attend_to_written(
        self,
        num_seen: torch.Tensor,
        queries: torch.Tensor,
        held: torch.Tensor,
        layer: Layer,
    ) -> torch.Tensor:
        """See `attend_densely`; `num_seen`: int32 [rows], each row's written places."""
        tokens = held.transpose(1, 2).flatten(0, 1)
        attended = varlen_attention(
            queries.flatten(1, 2),
            tokens[:, : layer.num_kv],
            tokens[:, layer.num_kv :],
            self._rows,
            self._first_places,
            1,
            self.room,
            scale=layer.scale,
            keys_used=num_seen,
        )
        return attended.view_as(queries)

    def _attend_jointly(
        self,
        prompts: SharedPrompts,
        num_seen: torch.Tensor,
        queries: torch.Tensor,
        held: torch.Tensor,
        layer: Layer,
    ) -> torch.Tensor:
        """See `_attend_to_written`; to the prompts' places and to a row's own."""
        tokens, packed = held.transpose(1, 2).flatten(0, 1), queries.transpose(1, 2)
        packed = packed.flatten(0, 1)
        own = attend_to_all(
            packed,
            tokens[:, : layer.num_kv],
            tokens[:, layer.num_kv :],
            self._query_ends,
            self._first_places,
            prompts.num_sharing,
            self.room,
            scale=layer.scale,
            keys_used=num_seen,
        )
        join = compiled(joined) if packed.is_cuda else joined
        both = join(*prompts.attend(packed, layer), *own)
        attended: torch.Tensor = both.unflatten(0, (len(queries), -1))
        return attended.transpose(1, 2)


class GraphDecoder:
    """Replays the steps of another; recorded again when their tensors move."""

    def __init__(self, decoder: LlamaDecoder) -> None:
        self._decoder = decoder
        self._step: FixedStep | None = None
        self._replay: Callable[[], None] | None = None

    def step(self, chosen: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        place = self._decoder.advance()
        step = self._step
        if step is None or step.room != self._decoder.room:
            self._step = self._replay = None  # their memory is wanted for the next
            step = self._step = FixedStep(self._decoder, len(chosen))
        step.load(chosen, positions, place)
        if self._replay is None:
            self._replay = record(step.run)
        self._replay()
        return step.hidden

    def should_drop_ended(self, num_ended: int, num_rows: int, num_left: int) -> bool:
        return num_ended >= _LEAVING_SHARE * num_rows and num_left >= _LEAST_TOKENS

    def keep(self, rows: torch.Tensor) -> None:
        self._step = self._replay = None
        self._decoder.keep(rows)

    def states_of(self, row: int, span: slice) -> States:
        return self._decoder.states_of(row, span)


@cache
def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    """Return one for all graphs: cuBLAS keeps a workspace of 32 MiB for each stream."""
    return torch.cuda.Stream(device)


def record(run: Callable[[], None]) -> Callable[[], None]:
    """Call `run` once, record it, and return what does it again.

    Each graph has a memory pool of its own, which goes with it: a pool whose last graph
    is gone must not be recorded into again.
    """
    graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    own = _recording_stream(current.device)
    # libraries set themselves up with the first call, which is not to be recorded
    own.wait_stream(current)
    with torch.cuda.stream(own):
        run()
    current.wait_stream(own)
    try:
        with torch.cuda.graph(
            graph,
            stream=own,
            # another thread may train meanwhile, and ask for memory as it likes
            capture_error_mode="thread_local",
        ):
            run()
    finally:
        # a capture that is broken off leaves this thread on the recording stream
        torch.cuda.set_stream(current)
    return graph.replay


Decoding = Literal["auto", "plain"]
# Ways to decode, the fastest first: the operations of `LlamaDecoder` replayed as a CUDA
# graph, with FlashAttention that reads a prompt once for its group, with FlashAttention
# and with SDPA, the same operations without a graph, transformers' own forward pass.
DecodingMethod = Literal["shared", "flash", "graph", "lean", "plain"]


def decoding_methods(policy: Policy, decoding: Decoding) -> list[DecodingMethod]:
    """Return those that a policy's model allows, the fastest first."""
    if decoding == "plain" or not is_built_like_llama(policy.model):
        return ["plain"]
    # bitsandbytes unpacks weights by kernels that cannot be recorded
    if not is_gpu(policy.device) or has_four_bits(policy.model):
        return ["lean", "plain"]
    if policy.is_varlen and takes_keys_used():
        return ["shared", "flash", "graph", "lean", "plain"]
    return ["graph", "lean", "plain"]


def is_gpu(device: torch.device) -> bool:
    return device.type == "cuda"


def make_decoder(
    policy: Policy,
    cache: DynamicCache,
    padding: torch.Tensor,
    owners: torch.Tensor,
    *,
    max_new_tokens: int,
    way: DecodingMethod,
) -> Decoder:
    """Return a decoder that computes what the policy does.

    Args:
        policy: with the weights to decode with.
        cache: of the prompts, which it may use up.
        padding: [P, L], 0 where a prompt is padded on its left.
        owners: [rows], each row's prompt.
        max_new_tokens: steps there will be at most.
        way: one of `decoding_methods`.
    """
    if way == "plain" or not is_growing(cache):
        return AnyDecoder(policy, cache, padding, owners)
    lean = LlamaDecoder(
        policy,
        cache,
        padding,
        owners,
        max_new_tokens=max_new_tokens,
        is_fixed=way != "lean",
        is_by_token=way in ("shared", "flash"),
        shares_prompts=way == "shared",
    )
    return lean if way == "lean" else GraphDecoder(lean)


class AnyDecoder:
    """transformers' own forward pass."""

    def __init__(
        self,
        policy: Policy,
        cache: DynamicCache,
        padding: torch.Tensor,
        owners: torch.Tensor,
    ) -> None:
        select_rows(cache, owners)
        self._body = policy.body
        self._cache = cache
        self._padding = padding[owners]
        # transformers hands a mask of four dimensions on as it is. Eager attention, and
        # models that do not attend through its interface, add it to the logits.
        model = policy.model
        is_eager = model.config._attn_implementation == "eager"
        adds_mask = is_eager or not model.is_backend_compatible()
        self._shares_mask = is_growing(cache) and not adds_mask

    def step(self, chosen: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        self._padding = functional.pad(self._padding, (0, 1), value=1)
        mask = self._padding
        if self._shares_mask:
            # ready-made, so that transformers need not derive it at every token
            mask = mask.bool()[:, None, None, :]
        hidden: torch.Tensor = self._body(
            input_ids=chosen[:, None],
            attention_mask=mask,
            position_ids=positions[:, None],
            past_key_values=self._cache,
            use_cache=True,
        )[0]
        return hidden[:, -1]

    def should_drop_ended(self, num_ended: int, num_rows: int, num_left: int) -> bool:
        return num_ended >= LEAVING_SHARE * num_rows

    def keep(self, rows: torch.Tensor) -> None:
        select_rows(self._cache, rows)
        self._padding = self._padding[rows]

    def states_of(self, row: int, span: slice) -> States:
        layers: list[Any] = self._cache.layers
        return [
            (layer.keys[row, :, span].clone(), layer.values[row, :, span].clone())
            for layer in layers
        ]


Decoder = LlamaDecoder | GraphDecoder | AnyDecoder
