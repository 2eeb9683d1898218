"""Micro-batches: sequences that go through the model together, in a token budget.

There is no padding, and prompts are shared. All tokens form one row: first each
distinct prompt once, then the completions, longest first. Token-wise layers process the
row as it is; a completion's tokens also attend to its prompt (`model.attention`). A
completion's last token predicts nothing and is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, pairwise

import numpy as np
import torch

from trainer.algorithm.advantages import Floats
from trainer.algorithm.entropy import Bools
from trainer.algorithm.loss import NOT_ASKED, BatchTotals
from trainer.config import LossConfig
from trainer.events import EndReason
from trainer.model.attention import Attention, Copies, Moved, make_attention, sent
from trainer.types import Group


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A micro-batch's tokens in one row of N."""

    input_ids: torch.Tensor  # [N]
    positions: torch.Tensor  # [N]
    query_rows: torch.Tensor  # [K], tokens of the row that something is predicted from
    row_of_token: torch.Tensor  # [N], where among these a token is, if it is
    other_rows: torch.Tensor  # [N - K], the others: most of the prompts'
    scored_rows: torch.Tensor  # [M], where among these each scored token is predicted
    scored_rows_cuda: Copies  # the same, for a pass on a GPU
    attention: Attention

    def take_query_rows(self, hidden: torch.Tensor) -> torch.Tensor:
        """Take, of hidden states [N, H], those that something is predicted from, [K,
        H].
        """
        query_states: torch.Tensor = Moved.apply(  # type: ignore[no-untyped-call]  # torch's
            hidden, self.query_rows, self.row_of_token, self.other_rows
        )
        return query_states


def make_layout(
    sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    firsts: Sequence[int],
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    is_varlen: bool = False,
) -> Layout:
    """Return the layout of some prompts with their completions.

    Args:
        sequences: token ids of a prompt and of its completion, both at least one.
        firsts: for each, the offset in prompt and completion of the first token that is
            scored; all behind it are.
        device: where the model is.
        dtype: of its activations.
        is_varlen: whether one kernel takes all sequences (`VarlenAttention`).
    """
    prompts = list(dict.fromkeys(prompt for prompt, _ in sequences))
    prompts.sort(key=len, reverse=True)
    number = {prompt: place for place, prompt in enumerate(prompts)}
    order = sorted(range(len(sequences)), key=lambda row: -len(sequences[row][1]))
    written = [sequences[row][1][:-1] for row in order]
    owners = [number[sequences[row][0]] for row in order]

    rows = [*prompts, *written]
    starts = [0, *accumulate(len(ids) for ids in rows)]
    begin = dict(zip(order, starts[len(prompts) : -1], strict=True))
    scored: list[range] = []
    for row, ((prompt, completion), first) in enumerate(
        zip(sequences, firsts, strict=True)
    ):
        start = starts[number[prompt]]
        scored.append(range(start + first - 1, start + len(prompt)))
        scored.append(range(begin[row], begin[row] + len(completion) - 1))
    lengths = [len(prompt) for prompt in prompts]
    offsets = [0] * len(prompts) + [lengths[owner] for owner in owners]
    # completions of one prompt are all begun from its last token
    query_rows, scored_rows = _joined(scored).unique(return_inverse=True)
    row_of_token = torch.zeros(starts[-1], dtype=torch.long)
    row_of_token[query_rows] = torch.arange(len(query_rows))
    is_query_row = torch.zeros(starts[-1], dtype=torch.bool)
    is_query_row[query_rows] = True
    return Layout(
        input_ids=sent(token_tensor(rows), device),
        positions=sent(
            _joined(
                range(offset, offset + len(ids))
                for ids, offset in zip(rows, offsets, strict=True)
            ),
            device,
        ),
        query_rows=sent(query_rows, device),
        row_of_token=sent(row_of_token, device),
        other_rows=sent((~is_query_row).nonzero().squeeze(1), device),
        scored_rows=sent(scored_rows, device),
        scored_rows_cuda=Copies.make(scored_rows.numpy(), device=device),
        attention=make_attention(
            lengths,
            [len(ids) for ids in written],
            owners,
            device=device,
            dtype=dtype,
            is_varlen=is_varlen,
        ),
    )


def token_tensor(rows: Iterable[Sequence[int]]) -> torch.Tensor:
    """Return the tokens of some rows, one row behind another, on the CPU."""
    # torch would take several times as long over a list
    return torch.from_numpy(np.fromiter(chain.from_iterable(rows), dtype=np.int64))


def _joined(ranges: Iterable[range]) -> torch.Tensor:
    """Return the numbers of some ranges, one range behind another."""
    ends = torch.tensor([(span.start, span.stop) for span in ranges])
    counts = ends[:, 1] - ends[:, 0]
    before = counts.cumsum(0) - counts
    return torch.repeat_interleave(ends[:, 0] - before, counts) + torch.arange(
        int(counts.sum())
    )


@dataclass(frozen=True, kw_only=True)
class TrainingSample:
    """A prompt with one completion.

    >>> TrainingSample(
    ...     prompt_ids=(5, 9), completion_ids=(7, 2), sampling_logprobs=(-0.1, -0.7)
    ... )
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    sampling_logprobs: tuple[float, ...]
    end_reason: EndReason = "stop"
    end_tokens: tuple[int, ...] = ()  # places of those that ended turns
    # Of each of the completion's tokens, whether the policy wrote it; None: all.
    loss_mask: tuple[bool, ...] | None = None
    # The prompt that the reference reads; None: this one, (): it is not asked.
    reference_prompt_ids: tuple[int, ...] | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(kw_only=True)
class MicroBatch:
    """B sequences of at most L tokens, with at most T tokens each that get a log-prob.

    These are the completion's, and with `include_prompt` the prompt's too, but for its
    first, which nothing predicts. Padding is on the right, where causal attention
    cannot see it, so no attention mask is needed. `places` are where in the flattened
    [B·L] the model predicts such a token; `slots` where in the flattened [B·T] it
    belongs.
    """

    members: list[int]  # places in the step's batch
    samples: list[TrainingSample]
    firsts: list[int]  # offset in each of its first token that gets a log-prob
    input_ids: torch.Tensor  # [B, L]
    places: torch.Tensor  # [N]
    slots: torch.Tensor  # [N]
    targets: torch.Tensor  # [N]
    mask: torch.Tensor  # [B, T], 1 on the tokens that the loss covers
    covered: torch.Tensor  # [K], places of these in the flattened [B·T]
    completion_mask: torch.Tensor  # [B, T], 1 on the policy's tokens, covered or not
    advantages: torch.Tensor  # [B] or [B, T], 0 until they are set
    sampling_logprobs: torch.Tensor  # [B, T], NaN where not sampled, 0 on padding
    old_logprobs: torch.Tensor | None = None  # [B, T], once the first update ran
    # [B, T], of its pass, where the old ones are the sampler's
    first_logprobs: torch.Tensor | None = None
    entropy: torch.Tensor | None = None  # [B, T], of the old policy where it is read
    kept: torch.Tensor | None = None  # [B, T], 0 on tokens of too low an entropy
    chosen: torch.Tensor | None = None  # [B, T], 1 on those chosen by covariance
    reference_logprobs: torch.Tensor | None = None  # [B, T]
    is_filler: bool = False  # another process has it too, with all that it teaches
    _layouts: dict[tuple[torch.dtype, bool], Layout] = field(default_factory=dict)

    @property
    def completions(self) -> list[slice]:
        """The completion's tokens in each of the B rows."""
        return [
            slice(len(sample.prompt_ids) - first, sample.num_tokens - first)
            for sample, first in zip(self.samples, self.firsts, strict=True)
        ]

    def layout(self, dtype: torch.dtype, *, is_varlen: bool = False) -> Layout:
        """Return its tokens without padding, for activations of a number format."""
        kind = dtype, is_varlen
        if kind not in self._layouts:
            self._layouts[kind] = make_layout(
                [(sample.prompt_ids, sample.completion_ids) for sample in self.samples],
                self.firsts,
                device=self.mask.device,
                dtype=dtype,
                is_varlen=is_varlen,
            )
        return self._layouts[kind]

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """Return values of the N tokens as [B, T], 0 on padding."""
        flat = values.new_zeros(self.mask.numel())
        return flat.index_copy(0, self.slots, values).view_as(self.mask)

    def for_reference(
        self,
        *,
        vocabulary: int | None = None,
        at_once: bool = True,
        is_packed: bool = False,
    ) -> list[MicroBatch]:
        """Return the sequences as the reference reads them.

        Args:
            vocabulary: of a reference with fewer tokens than the policy. One beyond
                them, which stands for no text, becomes the last.
            at_once: together, however long its prompts are; else in parts of no more
                tokens than here.
            is_packed: as `Policy.is_packed` tells of the reference.
        """
        samples = self.samples
        if vocabulary is not None:
            samples = [_within(sample, vocabulary) for sample in samples]
        samples = [
            replace(sample, prompt_ids=sample.reference_prompt_ids)
            if sample.reference_prompt_ids
            else sample
            for sample in samples
        ]
        if samples == self.samples:
            return [self]
        most = sum(sample.num_tokens for sample in self.samples)
        return Batch(tuple(samples)).micro_batches(
            max_tokens=sys.maxsize if at_once else most,
            device=self.mask.device,
            is_packed=is_packed,
        )

    def take_reference(
        self, parts: Sequence[MicroBatch], values: Sequence[torch.Tensor]
    ) -> None:
        """Keep the log-probs that the reference gave of `for_reference`.

        NOT_ASKED where it was not, or read no such token.
        """
        logprobs = values[0]
        if parts[0] is not self:
            logprobs, tokens = torch.full_like(self.mask, NOT_ASKED), self.completions
            for part, given in zip(parts, values, strict=True):
                for row, own in zip(part.members, given, strict=True):
                    size = len(self.samples[row].completion_ids)
                    logprobs[row, tokens[row]] = own[:size]
        for row, sample in enumerate(self.samples):
            if sample.reference_prompt_ids == ():
                logprobs[row] = NOT_ASKED
        self.reference_logprobs = logprobs


@dataclass(frozen=True)
class Batch:
    """The completions of one step, or of a part of it, group after group."""

    samples: tuple[TrainingSample, ...]
    loss: LossConfig = field(default_factory=LossConfig)  # says which tokens count
    group_sizes: tuple[int, ...] | None = None  # None: one group
    first: int = 0  # place of the first sample in the step's batch

    @property
    def places(self) -> frozenset[int]:
        """Places of its samples in the step's batch."""
        return frozenset(range(self.first, self.first + len(self.samples)))

    @property
    def covered(self) -> list[Bools]:
        """A mask for each sample, of its tokens with a log-prob: those in the loss."""
        return [_covered(sample, self.loss) for sample in self.samples]

    @property
    def totals(self) -> BatchTotals:
        """A masked token counts no longer, a wholly masked sequence still does."""
        return BatchTotals(
            num_tokens=sum(int(covered.sum()) for covered in self.covered),
            num_sequences=len(self.samples),
        )

    def minibatches(self, count: int) -> list[Batch]:
        """Cut between groups into `count` parts whose groups differ by one at most.

        Fewer groups than `count` give a part each.
        """
        sizes = self.group_sizes or (len(self.samples),)
        count = min(count, len(sizes))
        cuts = [part * len(sizes) // count for part in range(count + 1)]
        parts, first = [], 0
        for begin, end in pairwise(cuts):
            size = sum(sizes[begin:end])
            parts.append(
                replace(
                    self,
                    samples=self.samples[first : first + size],
                    group_sizes=sizes[begin:end],
                    first=self.first + first,
                )
            )
            first += size
        return parts

    def cut(self, *, max_tokens: int, is_packed: bool = False) -> list[list[int]]:
        """Return places of the samples in parts of at most `max_tokens`, the largest
        first.

        A sample beyond that goes alone. Packed samples share their prompts, so they
        stay together by prompt; padded ones by length.
        """
        if is_packed:
            return split_by_prompt(self.samples, max_tokens=max_tokens)
        lengths = [sample.num_tokens for sample in self.samples]
        return split_by_length(lengths, max_tokens=max_tokens)

    def pack(self, rows: list[int], *, device: torch.device) -> MicroBatch:
        chosen = [self.samples[row] for row in rows]
        firsts = [_first_scored(sample, self.loss) for sample in chosen]
        length = max(sample.num_tokens for sample in chosen)
        width = max(
            sample.num_tokens - first
            for sample, first in zip(chosen, firsts, strict=True)
        )
        lengths = torch.tensor([sample.num_tokens for sample in chosen])[:, None]
        prompts = torch.tensor([len(sample.prompt_ids) for sample in chosen])[:, None]
        begins = torch.tensor(firsts)[:, None]

        offsets = torch.arange(length)
        input_ids = torch.zeros(len(chosen), length, dtype=torch.long)
        input_ids[offsets < lengths] = token_tensor(
            (*sample.prompt_ids, *sample.completion_ids) for sample in chosen
        )
        scored = (offsets >= begins) & (offsets < lengths)
        row, offset = scored.nonzero(as_tuple=True)
        targets = input_ids[scored]
        slots = row * width + offset - begins[row, 0]

        offsets = torch.arange(width) + begins  # [B, T], of each log-prob's token
        is_completion = (offsets >= prompts) & (offsets < lengths)
        sampling = torch.where(offsets < prompts, torch.nan, 0.0)
        logprobs = chain.from_iterable(sample.sampling_logprobs for sample in chosen)
        sampling[is_completion] = torch.from_numpy(
            np.fromiter(logprobs, dtype=np.float32)
        )
        mask = offsets < lengths
        mask[mask.clone()] = _joined_masks(
            [_covered(sample, self.loss) for sample in chosen]
        )
        loss_mask = is_completion.clone()
        loss_mask[is_completion] = _joined_masks(
            [_loss_mask(sample) for sample in chosen]
        )
        sampling = sent(sampling, device)
        uses_sampling = self.loss.old_logprobs == "sampling"
        return MicroBatch(
            members=[self.first + row for row in rows],
            samples=chosen,
            firsts=firsts,
            input_ids=sent(input_ids, device),
            # the token at an offset is predicted from the hidden state before it
            places=sent(row * length + offset - 1, device),
            slots=sent(slots, device),
            targets=sent(targets, device),
            mask=sent(mask.float(), device),
            covered=sent(mask.flatten().nonzero().squeeze(1), device),
            completion_mask=sent(loss_mask.float(), device),
            advantages=torch.zeros(len(chosen), device=device),
            sampling_logprobs=sampling,
            old_logprobs=sampling if uses_sampling else None,
        )

    def micro_batches(
        self, *, max_tokens: int, device: torch.device, is_packed: bool = False
    ) -> list[MicroBatch]:
        parts = self.cut(max_tokens=max_tokens, is_packed=is_packed)
        return [self.pack(rows, device=device) for rows in parts]


def batch_of(
    groups: Sequence[Group],
    loss: LossConfig | None = None,
    *,
    reference_prompts: Sequence[tuple[int, ...] | None] | None = None,
) -> Batch:
    """Return the completions of some groups, group after group.

    Args:
        reference_prompts: of each completion, as `TrainingSample` has it.
    """
    own = iter(reference_prompts or ())
    return Batch(
        tuple(
            TrainingSample(
                prompt_ids=group.prompt.token_ids,
                completion_ids=completion.token_ids,
                sampling_logprobs=completion.logprobs,
                end_reason=completion.end_reason,
                end_tokens=completion.end_tokens,
                loss_mask=completion.loss_mask if len(completion.turns) > 1 else None,
                reference_prompt_ids=next(own, None),
            )
            for group in groups
            for completion in group.completions
        ),
        loss=LossConfig() if loss is None else loss,
        group_sizes=tuple(len(group.completions) for group in groups),
    )


def set_advantages(
    micro_batches: Sequence[MicroBatch],
    advantages: Floats | Sequence[Floats],
) -> None:
    """Hand out the advantages of the step's batch to micro-batches of it.

    Args:
        advantages: [P, G], one for each completion; or for each completion in the
            batch's order those of its tokens, [num_tokens].
    """
    if isinstance(advantages, np.ndarray):
        flat = torch.from_numpy(advantages).flatten().float()
        for micro in micro_batches:
            micro.advantages = sent(flat[micro.members], micro.mask.device)
        return
    for micro in micro_batches:
        spread = torch.zeros(micro.mask.shape)  # on the host: a mask would wait for it
        for row, (member, tokens) in enumerate(
            zip(micro.members, micro.completions, strict=True)
        ):
            spread[row, tokens] = torch.from_numpy(advantages[member]).float()
        micro.advantages = sent(spread, micro.mask.device)


def split_by_length(lengths: Sequence[int], *, max_tokens: int) -> list[list[int]]:
    """Return places of sequences, longest first, cut so that rows × longest ≤
    max_tokens.

    The longest come first, so a step that does not fit in memory fails at once.

    >>> split_by_length([2, 9, 3, 8], max_tokens=18)
    [[1, 3], [2, 0]]
    """
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    parts: list[list[int]] = []
    for place in order:
        longest = lengths[parts[-1][0]] if parts else 0
        if parts and (len(parts[-1]) + 1) * longest <= max_tokens:
            parts[-1].append(place)
        else:
            parts.append([place])
    return parts


def split_by_prompt(
    samples: Sequence[TrainingSample], *, max_tokens: int
) -> list[list[int]]:
    """Return places of samples in parts that each have at most `max_tokens` packed
    tokens.

    A prompt counts once in a part, and a quarter more for each completion, whose
    attention has a copy of its keys. Prompts go into the first part that has room for
    all of their completions, the largest first; one with too many for any is divided.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for place, sample in enumerate(samples):
        groups.setdefault(sample.prompt_ids, []).append(place)

    def cost(place: int) -> float:
        sample = samples[place]
        return len(sample.completion_ids) + len(sample.prompt_ids) / 4

    pieces: list[tuple[float, list[int]]] = []
    for prompt, places in groups.items():
        size, piece = float(len(prompt)), list[int]()
        for place in sorted(
            places, key=lambda place: -len(samples[place].completion_ids)
        ):
            if piece and size + cost(place) > max_tokens:
                pieces.append((size, piece))
                size, piece = float(len(prompt)), []
            size += cost(place)
            piece.append(place)
        pieces.append((size, piece))
    pieces.sort(key=lambda part: -part[0])
    parts: list[tuple[float, list[int]]] = []
    for size, piece in pieces:
        for number, (filled, places) in enumerate(parts):
            if filled + size <= max_tokens:
                parts[number] = filled + size, [*places, *piece]
                break
        else:
            parts.append((size, piece))
    return [places for _, places in sorted(parts, key=lambda part: -part[0])]


def _within(sample: TrainingSample, vocabulary: int) -> TrainingSample:
    """Return a sample whose tokens a smaller vocabulary has."""
    parts = sample.prompt_ids, sample.completion_ids
    if max(chain(*parts)) < vocabulary:
        return sample
    prompt, completion = (
        tuple(min(token, vocabulary - 1) for token in part) for part in parts
    )
    return replace(sample, prompt_ids=prompt, completion_ids=completion)


def _first_scored(sample: TrainingSample, loss: LossConfig) -> int:
    """Offset in the sequence of the first token that gets a log-prob."""
    return 1 if loss.include_prompt else len(sample.prompt_ids)


def _loss_mask(sample: TrainingSample) -> Bools:
    """Tell of each token of the completion whether the policy wrote it."""
    if sample.loss_mask is None:
        return np.ones(len(sample.completion_ids), dtype=bool)
    return np.array(sample.loss_mask, dtype=bool)


def _covered(sample: TrainingSample, loss: LossConfig) -> Bools:
    """Tell of each token that gets a log-prob whether the loss covers it."""
    num_prompt = len(sample.prompt_ids) - _first_scored(sample, loss)
    covered = np.concatenate([np.ones(num_prompt, dtype=bool), _loss_mask(sample)])
    if loss.mask_truncated and sample.end_reason in ("length", "turns", "timeout"):
        covered[:] = False
    if loss.mask_end_token:
        covered[[num_prompt + place for place in sample.end_tokens]] = False
    return covered


def _joined_masks(masks: Sequence[Bools]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(masks))
