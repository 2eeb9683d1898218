"""The next step's batch, sampled from a snapshot of the weights during training."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from trainer.gathering import SampledBatch
from trainer.model.policy import Policy
from trainer.output.metrics import Stopwatch
from trainer.parallel.fsdp import copy_weights
from trainer.rollout.builtin import TransformersEngine
from trainer.rollout.decoder import Decoding
from trainer.stopping import SAMPLING_THREAD


class Snapshot:
    """The policy as it was when it was last taken.

    Weights that are not trained are shared with it: under LoRA adapters, nearly all.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.policy = policy.copied(shares_fixed=True)

    def take(self) -> None:
        """Take over the policy's present weights."""
        copy_weights(self._policy, self.policy)


class SnapshotEngine(TransformersEngine):
    """Samples from the weights that the policy had when they were last synchronised."""

    has_memory_alone = False

    def __init__(
        self, policy: Policy, *, max_batch_rows: int, decoding: Decoding = "auto"
    ) -> None:
        self._snapshot = Snapshot(policy)
        super().__init__(
            self._snapshot.policy, max_batch_rows=max_batch_rows, decoding=decoding
        )

    def sync_weights(self) -> None:
        super().sync_weights()
        self._snapshot.take()


Sample = Callable[[Stopwatch], SampledBatch]


class Prefetch:
    """Holds the batch of the next step, once it is there, and samples it in a thread.

    The thread lives no longer than `beside`, so between steps nothing is sampled:
    weights are synchronised, held-out prompts sampled and checkpoints written by one
    thread alone.
    """

    def __init__(self, device: torch.device) -> None:
        self.batch: SampledBatch | None = None
        self.at_rest = threading.Event()  # not set while the policy is trained beside
        self.at_rest.set()
        self._device = device
        self._flight: Future[SampledBatch] | None = None
        self._stream: torch.cuda.Stream | None = None

    def take(self, step: int) -> SampledBatch | None:
        """Return the batch of a step, if it was sampled ahead; it is let go of here."""
        batch, self.batch = self.batch, None
        assert batch is None or batch.step == step
        return batch

    def drop(self) -> None:
        """Let the next step sample again, by the weights that it begins with."""
        self.batch = None

    @contextmanager
    def beside(self, sample: Sample, *, watch: Stopwatch) -> Iterator[None]:
        """Sample while what is inside is done, and wait for it at the end.

        An error inside is raised at once and ends the run.

        Args:
            sample: gathers the batch, and measures its times by its own watch.
            watch: measures the waiting as "generate".

        Raises:
            BaseException: what `sample` raised, here or from `check`.
        """
        own = Stopwatch()
        self.at_rest.clear()
        self._flight = _begin(lambda: sample(own), place=self._place())
        try:
            yield
            self.at_rest.set()
            with watch.phase("generate"):
                self.batch = self._flight.result()
        finally:
            self.at_rest.set()
            self._flight = None
        watch.add_ahead(own)

    def check(self) -> None:
        """Raise what sampling has failed of by now, if it has."""
        if self._flight is not None and self._flight.done():
            self._flight.result()

    def _place(self) -> AbstractContextManager[object]:
        """Return a queue of the GPU's own, else one thread's kernels wait for the
        other's.
        """
        if self._device.type != "cuda":
            return nullcontext()
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        # behind the weights that were last synchronised
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._stream)


def _begin(
    sample: Callable[[], SampledBatch], *, place: AbstractContextManager[object]
) -> Future[SampledBatch]:
    """Sample in a thread of its own."""
    future, num_threads = Future[SampledBatch](), torch.get_num_threads()

    def run() -> None:
        # OpenMP would give a new thread all cores until torch is asked for something
        torch.set_num_threads(num_threads)
        try:
            with place:
                batch = sample()
        except BaseException as error:  # noqa: BLE001 - it is raised in the other thread
            future.set_exception(error)
        else:
            future.set_result(batch)

    # a daemon, since a run that fails does not wait for it (`trainer.stopping`)
    threading.Thread(target=run, name=SAMPLING_THREAD, daemon=True).start()
    return future
