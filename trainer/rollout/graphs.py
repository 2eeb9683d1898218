"""Decoding on a GPU by replaying one step's kernels as a CUDA graph.

A token of a small or middle-sized model is hundreds of kernels of a few microseconds
each, and to start each one from Python takes longer than it runs. A graph starts all of
them at once. It needs tensors that stay where they are: see `FixedStep`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from trainer.rollout.llama import LlamaDecoder, bias_of

# Takes what is to be done again and again, and gives a quicker way to do it.
Recorder = Callable[[Callable[[], None]], Callable[[], None]]


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
    """See `Decoder`; a step is recorded anew when its tensors move.

    That is once for every block of tokens, and when rows leave: so they leave in
    larger numbers than they do elsewhere.
    """

    ended_share = 1 / 4

    def __init__(self, decoder: LlamaDecoder, record: Recorder) -> None:
        """`record` is `CudaGraphs`, but for a look at the steps without a GPU."""
        self._decoder = decoder
        self._record = record
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
            self._replay = self._record(step.run)
        self._replay()
        return step.hidden

    def keep(self, rows: torch.Tensor) -> None:
        self._step = self._replay = None
        self._decoder.keep(rows)


class CudaGraphs:
    """Records one CUDA graph after another, each in the memory of the one before."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graph = torch.cuda.CUDAGraph()
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        """Call `run` once, record it, and return what does it again."""
        self._graph.reset()
        own, current = self._stream, torch.cuda.current_stream(self._device)
        # libraries set themselves up with the first call, which is not to be recorded
        own.wait_stream(current)
        with torch.cuda.stream(own):
            run()
        current.wait_stream(own)
        with torch.cuda.graph(
            self._graph,
            pool=self._pool,
            stream=own,
            # another thread may train meanwhile, and ask for memory as it likes
            capture_error_mode="thread_local",
        ):
            run()
        return self._graph.replay
