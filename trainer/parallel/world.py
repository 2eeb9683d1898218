"""The processes of a run: this process's rank, and communication between them.

A process has one rank and one GPU, or a share of the CPU cores. With one process,
nothing is sent and nothing waits.

A failing process writes its reason to the rendezvous store, which each process reads
once a second in a thread: with gloo a broken connection shows that a process ended, but
an NCCL kernel blocks, and the main thread with it. The thread also passes on to the
first process that the others move.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from trainer.config import DistributedConfig, RunConfig
from trainer.disk import DiskFull
from trainer.errors import Failure
from trainer.host import num_ticks, tick

_LOOK_SECONDS = 1.0
# For a process to end by itself once it could know, and for others to have looked.
_PATIENCE_SECONDS = 5.0
_CAUSE, _RECEIVED, _TICKS = "cause", "heard", "ticks"


@dataclass(frozen=True)
class Member:
    """The place of a process of the run."""

    host: str
    pid: int
    local_rank: int = 0
    local_size: int = 1


class Watchdog:
    """A process's eye on the others."""

    def __init__(self, store: Store, members: Sequence[Member], *, rank: int) -> None:
        self._store = store
        self._rank = rank
        self._size = len(members)
        here = socket.gethostname()  # process ids of other machines say nothing
        self._pids = {n: m.pid for n, m in enumerate(members) if m.host == here}
        self._ticks = 0
        self._found: Failure | None = None
        self._is_found = threading.Event()
        self._is_awake = threading.Event()  # the main thread knows that the run fails
        self._is_over = threading.Event()

    @contextmanager
    def watching(self, end: Callable[[Failure], None]) -> Iterator[None]:
        """Watch the other processes.

        If one fails and this process does not notice, `end` is called in a separate
        thread; it must end the process.
        """
        watch = threading.Thread(
            target=self._watch, args=(end,), daemon=True, name="watchdog"
        )
        watch.start()
        try:
            yield
        finally:
            self._is_awake.set()
            self._is_over.set()
            watch.join(_PATIENCE_SECONDS)

    def report(self, failure: Failure) -> None:
        """Leave the others word of why this process ends."""
        self._is_awake.set()
        self._is_over.set()
        word = json.dumps([self._rank, failure.sentence, failure.details])
        with suppress(dist.DistError):  # the store went with the first process
            self._store.compare_set(_CAUSE, "", word)  # the first one's stands
            if self._rank == 0:
                # The store goes with this process.
                deadline = time.monotonic() + _PATIENCE_SECONDS
                while time.monotonic() < deadline:
                    if self._store.add(_RECEIVED, 0) >= self._size - 1:
                        break
                    time.sleep(_LOOK_SECONDS / 10)

    def find(self) -> Failure | None:
        """Return what another process left, or which one went without a word."""
        self._is_awake.set()
        self._is_found.wait(_PATIENCE_SECONDS)
        return self._found

    def _watch(self, end: Callable[[Failure], None]) -> None:
        # a connection for each thread
        store: Store = self._store.clone()  # type: ignore[attr-defined]  # no stub
        while not self._is_over.wait(_LOOK_SECONDS):
            self._pass_on_ticks(store)
            self._found = self._left_in(store) or self._gone()
            if self._found is not None:
                self._is_found.set()
                if not self._is_awake.wait(_PATIENCE_SECONDS):
                    end(self._found)
                return

    def _pass_on_ticks(self, store: Store) -> None:
        """Progress in any process counts as a sign of life of the run. A process that
        only waits gives none, so a process that hangs is noticed.
        """
        with suppress(dist.DistError):  # the store went with the first process
            before = self._ticks
            self._ticks = num_ticks() if self._rank else store.add(_TICKS, 0)
            if self._ticks == before:
                return
            if self._rank:
                store.add(_TICKS, 1)
            else:
                tick()

    def _left_in(self, store: Store) -> Failure | None:
        try:
            if not store.check([_CAUSE]):
                return None
            rank, sentence, details = json.loads(store.get(_CAUSE))
            store.add(_RECEIVED, 1)
        except dist.DistError:
            return None  # the store went with the first process
        return Failure(f"Process {rank} of {self._size} failed: {sentence}", details)

    def _gone(self) -> Failure | None:
        for rank, pid in self._pids.items():
            if not _is_there(pid):
                return Failure(
                    f"Process {rank} of {self._size} was killed, by a person or by "
                    "the kernel when memory ran out. Resume from the last checkpoint."
                )
        return None


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


Value = TypeVar("Value")


class _Waits(threading.local):
    seconds = 0.0


_waits = _Waits()


@contextmanager
def waiting() -> Iterator[None]:
    """Note that what is inside waits for other processes."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        _waits.seconds += time.perf_counter() - begin


def waited_seconds() -> float:
    """Return how long this thread has waited for other processes, since it began.

    With NCCL, collectives of weights and gradients wait inside the GPU's queue and are
    not counted.
    """
    return _waits.seconds


# What torchrun and `trainer.parallel.launch` tell each process.
_TOLD = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, kw_only=True)
class World:
    """The processes of a run, as one of them sees them.

    All that is asked of it here is asked by each process, in the same order.
    """

    rank: int = 0
    size: int = 1
    nodes: int = 1  # of several processes each, and equally many; 1 also if not so
    timeout: timedelta | None = None  # of a collective; None: torch's own
    _watchdog: Watchdog | None = field(default=None, repr=False)
    # who asks one another; None: the group of the main threads
    _group: dist.ProcessGroup | None = field(default=None, repr=False)
    _second: dist.ProcessGroup | None = field(default=None, repr=False)

    @property
    def is_main(self) -> bool:
        """True where this process writes the log and the checkpoints."""
        return self.rank == 0

    @property
    def beside(self) -> World:
        """The same processes with a process group for sampling threads.

        In a shared group the collectives of two threads could mix.
        """
        if self.size == 1:
            return self
        assert self._second is not None
        return replace(self, _group=self._second, _second=None)

    def gather(self, value: Value) -> list[Value]:
        """Return every process's value, in the order of ranks."""
        if self.size == 1:
            return [value]
        values: list[Value | None] = [None] * self.size
        with waiting():
            dist.all_gather_object(values, value, group=self._group)
        return values  # type: ignore[return-value]  # each has been filled

    def share(self, items: Sequence[Value]) -> list[Value]:
        """This process's part of a list that all have; `join` undoes it."""
        return list(items[self.rank :: self.size])

    def join(self, own: Sequence[Value]) -> list[Value]:
        """Return the list that `share` was given, of what became of each process's
        part.
        """
        shares = self.gather(list(own))
        return [
            shares[index % self.size][index // self.size]
            for index in range(sum(len(share) for share in shares))
        ]

    def sum(self, value: float) -> float:
        """Added up in the order of ranks, so that all get the same bits."""
        return sum(self.gather(value)) if self.size > 1 else value

    def agree(self, *, wants: bool) -> bool:
        """Return whether any process wants it."""
        return any(self.gather(wants))

    def from_main(self, work: Callable[[], Value]) -> Value:
        """Return what the first process alone does, or the ValueError or DiskFull it
        meets.
        """
        if self.size == 1:
            return work()
        outcome: list[Value | ValueError | DiskFull | None] = [None]
        if self.is_main:
            try:
                outcome[0] = work()
            except DiskFull as lack:
                outcome[0] = lack
            except ValueError as error:
                refusal = ValueError(str(error))  # which any process can unpickle
                refusal.__cause__ = error
                outcome[0] = refusal
        with waiting():
            dist.broadcast_object_list(outcome, src=0, group=self._group)
        if isinstance(outcome[0], ValueError | DiskFull):
            raise outcome[0]
        return outcome[0]  # type: ignore[return-value]  # as `work` gave it

    def watched(self, end: Callable[[Failure], None]) -> AbstractContextManager[None]:
        """Call `end`, inside, when another process fails and this one is stuck."""
        if self._watchdog is None:
            return nullcontext()
        return self._watchdog.watching(end)

    def explain(self, error: BaseException) -> Failure:
        """Return the failure that ended the run, and its process if it is another one.

        When a process ends, its connections break and the others fail as well; the one
        that failed first stores its reason for them.
        """
        own = Failure.of(error)
        if self._watchdog is None:
            return own
        # A collective that failed is another process's doing. gloo's failures are plain
        # RuntimeErrors that name its source file.
        text = str(error)
        if isinstance(error, dist.DistError) or (
            isinstance(error, RuntimeError)
            and any(sign in text for sign in ("gloo/", "gloo::", "[Gloo]", "NCCL"))
        ):
            finding = self._watchdog.find()
            if finding is not None:
                return (
                    finding
                    if finding.details
                    else replace(finding, details=own.details)
                )
            own = replace(
                own,
                sentence=f"Another of the run's {self.size} processes ended or does "
                f"not respond: {own.sentence}",
            )
        self._watchdog.report(own)
        return own

    def close(self) -> None:
        """Wait for the others, then let go of them: the first one holds the store."""
        if self.size > 1:
            self.gather(None)
            dist.destroy_process_group()


ALONE = World()


def _patience(config: DistributedConfig, environment: Mapping[str, str]) -> timedelta:
    """Outlast, in a supervised run, the watchdog, after which the run resumes."""
    hang_seconds = float(environment.get("COHORT_HANG_SECONDS") or 0)
    return timedelta(seconds=max(config.timeout_seconds, 2 * hang_seconds))


def _num_nodes(members: Sequence[Member]) -> int:
    """Return the number of nodes, 1 if ranks do not go through them one by one, each
    with equally many processes and more than one.
    """
    size = members[0].local_size
    places = [(member.local_rank, member.local_size) for member in members]
    is_even = places == [(rank % size, size) for rank in range(len(members))]
    is_even = is_even and size > 1 and len(members) % size == 0
    return len(members) // size if is_even else 1


def join_world(config: RunConfig) -> World:
    """Initialise torch.distributed if torchrun or `parallel.launch` started several.

    Raises:
        ValueError: there are fewer GPUs on this machine than processes, or the
            environment is incomplete.
    """
    environment = os.environ
    if int(environment.get("WORLD_SIZE", "1")) == 1:
        return ALONE
    if missing := [name for name in _TOLD if name not in environment]:
        raise ValueError(
            f"WORLD_SIZE is {environment['WORLD_SIZE']}, but {', '.join(missing)} is "
            "not set. Start the processes with torchrun, or unset WORLD_SIZE."
        )
    on_gpus = torch.cuda.is_available() and config.model.device != "cpu"
    if on_gpus:
        count, wanted = torch.cuda.device_count(), int(environment["LOCAL_WORLD_SIZE"])
        if count < wanted:
            raise ValueError(
                f"This machine has {count} GPUs, but {wanted} processes. Start one "
                'process per GPU, or set model.device to "cpu".'
            )
        torch.cuda.set_device(int(environment["LOCAL_RANK"]))
    patience = _patience(config.distributed, environment)
    is_one_machine = environment.get("LOCAL_WORLD_SIZE") == environment["WORLD_SIZE"]
    if sys.platform == "linux" and is_one_machine:
        # a machine's name need not lead to an address that it listens on
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store, rank, size = next(rendezvous("env://", timeout=patience))
    dist.init_process_group(
        # gloo carries what is agreed upon, NCCL weights and gradients on GPUs
        backend="cpu:gloo,cuda:nccl" if on_gpus else "gloo",
        store=PrefixStore("world", store),
        rank=rank,
        world_size=size,
        timeout=patience,
    )
    members: list[Member | None] = [None] * size
    local = (int(environment[name]) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    dist.all_gather_object(members, Member(socket.gethostname(), os.getpid(), *local))
    known = [member for member in members if member is not None]
    return World(
        rank=rank,
        size=size,
        nodes=_num_nodes(known),
        timeout=patience,
        _watchdog=Watchdog(PrefixStore("cohort", store), known, rank=rank),
        _second=dist.new_group(backend="gloo", timeout=patience),
    )
