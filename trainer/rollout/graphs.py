"""Decoding on a GPU by replaying one step's kernels as a CUDA graph.

A token of a small or middle-sized model is hundreds of kernels of a few microseconds
each, and to start each one from Python takes longer than it runs. A graph starts all of
them at once. It needs tensors that stay where they are: see `FixedStep`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from trainer.rollout.llama import LlamaDecoder, bias_of

# To record a graph anew takes as long as hundreds of tokens. So rows leave only when
# most have ended and so many tokens may follow.
_LEAVING_SHARE = 3 / 4
_LEAST_TOKENS = 512


class FixedStep:
    """A decoder's step on tensors that stay where they are, for so many rows.

    It attends to all that there is room for: what is not written yet is hidden by the
    bias, as padding is. Doing it again with the same inputs changes nothing.
    """

    def __init__(self, decoder: LlamaDecoder, num_rows: int) -> None:
        device = decoder.held[0].device
        self._decoder = decoder
        self.room = room = decoder.room
        self._chosen = torch.zeros(num_rows, dtype=torch.long, device=device)
        self._positions = torch.zeros_like(self._chosen)
        self._place = torch.zeros(1, dtype=torch.long, device=device)
        shape, dtype = (num_rows, 1, 1, room), decoder.held[0].dtype
        self._bias = torch.zeros(shape, dtype=dtype, device=device)
        if decoder.padding is not None:
            self._bias = bias_of(decoder.padding, room, dtype=dtype)
        self._bias[..., decoder.length - 1 :] = -torch.inf
        self.hidden = torch.empty(0)

    def load(self, chosen: torch.Tensor, positions: torch.Tensor, place: int) -> None:
        """Copy a step's inputs to where it reads them."""
        self._chosen.copy_(chosen)
        self._positions.copy_(positions)
        self._place.fill_(place)

    def run(self) -> None:
        """Set `hidden`, [rows, H]."""
        self._bias.index_fill_(3, self._place, 0.0)

        def put(held: torch.Tensor, states: torch.Tensor) -> None:
            held.index_copy_(2, self._place, states[:, :, None])

        self.hidden = self._decoder.forward(
            self._chosen, self._positions, put, span=self.room, bias=self._bias
        )


class GraphDecoder:
    """See `Decoder`; a step is recorded anew when its tensors move."""

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


@cache
def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all graphs: cuBLAS keeps a workspace of 32 MiB for each stream."""
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
