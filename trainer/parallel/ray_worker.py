"""What a run starts on the nodes of a Ray cluster: a relay, and one worker a rank.

The driver sends this module by value, so it imports nothing else of Cohort: what a node
has installed is compared before it is used.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import ray
from ray.train import get_context
from ray.train.backend import Backend, BackendConfig

_TMP = Path("/tmp")  # nosec B108 # noqa: S108 - for folders of our own with mode 0700
PULSE_FILE = "pulse"
STOP, STACKS, KILL, CHANGES = "stop", "stacks", "kill", "changes"
EVENTS = "events.jsonl"
CHANGES_FILE = "changes.json"
CHECKPOINTS = "checkpoints"
_MANIFEST = "manifest.json"
# Of what a worker sends: appended to a file, written as one, or said of checkpoints.
APPEND, WRITE, SAVED, PULSE = "append", "write", "saved", "pulse"
# On these, `makedirs` would create a mistyped bucket.
_OBJECT_STORES = {"s3", "gs", "abfs", "oss", "oci"}
_SIGNALS = {STOP: signal.SIGTERM, STACKS: signal.SIGUSR1}
_POLL_SECONDS = 0.1
_ORDER_SECONDS = 1.0  # that a question for orders may take; the sign of life of a rank
_NEWS_SECONDS = 0.25
_NEW_LOCK_SECONDS = 60.0
_LOG_CAP_BYTES = 32 * 2**20
_LOG_KEPT_BYTES = 8 * 2**20
_PIECE_BYTES = 4 * 2**20
_HELD_BYTES = 64 * 2**20  # that the relay holds before a worker waits
_FILE_BYTES = 64 * 2**20  # the largest that comes back beside log and checkpoints


class Relay:
    """An actor beside the driver: orders go one way, facts and exit codes the other."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._facts: dict[int, dict[str, Any]] = {}
        self._start: dict[str, Any] | None = None
        self._orders: list[tuple[str, str]] = []
        self._mail: list[tuple[int, str, str, bytes]] = []  # not acknowledged
        self._num_sent = 0
        self._seen: dict[int, float] = {}
        self._ends: dict[int, int] = {}

    async def join(self, rank: int, facts: dict[str, Any]) -> None:
        """Once a rank: Ray Train shall not start any of them again."""
        if rank in self._facts:
            raise RuntimeError(f"rank {rank} has joined before")
        self._facts[rank] = facts
        await self._tell(rank)

    async def start(self, start: dict[str, Any]) -> None:
        """Tell where the ranks meet; empty: they end."""
        self._start = start
        await self._tell()

    async def wait_for_start(self, rank: int) -> dict[str, Any] | None:
        """Return None where it is not yet known."""
        await self._tell(rank)
        await self._wait(lambda: self._start is not None, _ORDER_SECONDS)
        return self._start

    async def order(self, what: str, text: str = "") -> None:
        self._orders.append((what, text))
        await self._tell()

    async def orders(self, rank: int, num_known: int) -> list[tuple[str, str]]:
        await self._tell(rank)
        await self._wait(lambda: len(self._orders) > num_known, _ORDER_SECONDS)
        return self._orders[num_known:]

    async def end(self, rank: int, code: int) -> None:
        self._ends[rank] = code
        await self._tell(rank)

    async def send(self, kind: str, name: str, data: bytes) -> int:
        """Kept until the driver has it on disk; a number to wait for that by."""
        while sum(len(letter[3]) for letter in self._mail) > _HELD_BYTES:
            await self._wait(lambda: False, _NEWS_SECONDS)
        self._num_sent += 1
        self._mail.append((self._num_sent, kind, name, data))
        await self._tell()
        return self._num_sent

    async def is_received(self, number: int) -> bool:
        def is_gone() -> bool:
            return not self._mail or self._mail[0][0] > number

        await self._wait(is_gone, _NEWS_SECONDS)
        return is_gone()

    async def news(
        self, num_joined: int, num_ended: int, num_received: int
    ) -> dict[str, Any]:
        """Returns as soon as there is news, else after _NEWS_SECONDS."""
        self._mail = [letter for letter in self._mail if letter[0] > num_received]
        await self._tell()
        await self._wait(
            lambda: (
                len(self._facts) > num_joined
                or len(self._ends) > num_ended
                or bool(self._mail)
            ),
            _NEWS_SECONDS,
        )
        mail: list[tuple[int, str, str, bytes]] = []
        now, size = time.monotonic(), 0
        for letter in self._mail:
            if mail and size + len(letter[3]) > _PIECE_BYTES:
                break
            mail.append(letter)
            size += len(letter[3])
        return {
            "mail": mail,
            "facts": dict(self._facts),
            "ends": dict(self._ends),
            "silent": {rank: now - seen for rank, seen in self._seen.items()},
        }

    async def _tell(self, rank: int | None = None) -> None:
        if rank is not None:
            self._seen[rank] = time.monotonic()
        async with self._changed:
            self._changed.notify_all()

    async def _wait(self, is_due: Callable[[], bool], seconds: float) -> None:
        async with self._changed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait_for(is_due), seconds)


class _SharesGpus(Backend):  # type: ignore[misc]  # untyped
    share_cuda_visible_devices = True  # each rank takes the GPU of its local rank


@dataclass
class Processes(BackendConfig):  # type: ignore[misc]  # untyped
    """Ranks that meet by themselves: torch is not loaded beside the trainer."""

    @property
    def backend_cls(self) -> type[Backend]:
        return _SharesGpus


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The driver's order to each worker."""

    relay: Any
    root: str  # the folder that has the driver's `trainer`
    arguments: list[str]  # of `python -m trainer`
    out: str
    token: str  # of this start: its probe has it
    paths: list[str] = field(default_factory=list)  # which every node must have
    environment: Mapping[str, str] = field(default_factory=dict)
    storage: str = ""  # of the run, where nodes do not share its folder
    resume: str = ""  # the checkpoint there to resume from
    hang_seconds: float = 1_800.0  # that an upload may go without progress

    @property
    def scratch(self) -> Path:
        """The same on each node: rank 0 tells the others its paths."""
        return scratch_of(self.token)


def scratch_of(token: str) -> Path:
    return _TMP / f"cohort-node-{token}"


def work(plan: Plan) -> None:
    """Run one rank: `python -m trainer run` as a child process, until its end."""
    context = get_context()
    rank = context.get_world_rank()
    # A loop asks, in place of one long wait: it is the sign of life of this rank.
    scratch = _Scratch(plan) if plan.storage else None
    try:
        facts = look_around(plan, rank)
        if scratch is not None and context.get_local_rank() == 0:
            facts["fault"] = scratch.fill()
        ray.get(plan.relay.join.remote(rank, facts))
        _train(plan, rank)
    finally:
        if scratch is not None:
            scratch.leave()


def _train(plan: Plan, rank: int) -> None:
    context = get_context()
    start = None
    while start is None:
        start = ray.get(plan.relay.wait_for_start.remote(rank))
    if not start:
        return
    environment = {
        **plan.environment,
        **start,
        "RANK": str(rank),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_RANK": str(context.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
    }
    with _Child(plan, rank, environment) as child:
        mirror = _Mirror(plan, rank) if plan.storage else None
        code = _follow(child, plan.relay, rank, mirror)
    ray.get(plan.relay.end.remote(rank, code))


def _follow(child: _Child, relay: Any, rank: int, mirror: _Mirror | None) -> int:
    """Follow it until it has ended and all that it has written is with the driver."""
    num_obeyed = 0
    asked = relay.orders.remote(rank, num_obeyed)
    while True:
        code = child.poll()
        if mirror is not None:
            mirror.check()
        if code is not None and (mirror is None or mirror.is_done()):
            return code
        if mirror is not None:
            mirror.send_pulse(has_ended=code is not None)
        answered, _ = ray.wait([asked], timeout=_POLL_SECONDS)
        if answered:
            # Where the relay is gone so is the driver: this raises and ends the child.
            for order, text in ray.get(asked):
                num_obeyed += 1
                child.obey(order, text)
            if mirror is None:
                cap_log(child.log)
            asked = relay.orders.remote(rank, num_obeyed)


class Storage:
    """A run's folder in a file system that fsspec knows, the same for all nodes."""

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs  # noqa: PLC0415 - comes with Ray

        self._files, path = url_to_fs(url)
        self._path = path.rstrip("/")
        named = self._files.protocol
        protocols = {named} if isinstance(named, str) else {*named}
        self._has_folders = not protocols & _OBJECT_STORES
        self._is_mounted = "file" in protocols

    def put(
        self, file: Path, name: str, on_progress: Callable[[], None] = lambda: None
    ) -> None:
        target = f"{self._path}/{name}"
        if self._has_folders:
            self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
        if self._is_mounted:
            _copy(file, Path(target), on_progress)
        else:
            self._files.put_file(str(file), target, callback=_callback(on_progress))
        on_progress()

    def put_folder(
        self, folder: Path, name: str, on_progress: Callable[[], None] = lambda: None
    ) -> None:
        """Put the manifest last: with it a checkpoint is complete."""
        files = [path for path in folder.rglob("*") if path.is_file()]
        for file in sorted(files, key=lambda path: path.name == _MANIFEST):
            self.put(file, f"{name}/{file.relative_to(folder)}", on_progress)

    def get_folder(
        self,
        name: str,
        folder: Path,
        *,
        on_progress: Callable[[], None] = lambda: None,
        on_file: Callable[[], None] = lambda: None,
    ) -> None:
        source = f"{self._path}/{name}"
        self._files.invalidate_cache()
        paths = self._files.find(source)
        if not paths:
            raise FileNotFoundError(f"{source} is not there")
        for path in paths:
            file = folder / path.removeprefix(source).lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            if self._is_mounted:
                _copy(Path(path), file, on_progress)
            else:
                self._files.get_file(path, str(file), callback=_callback(on_progress))
            on_progress()
            on_file()

    def has_checkpoint(self, name: str) -> bool:
        manifest = f"{self._path}/{CHECKPOINTS}/{name}/{_MANIFEST}"
        return bool(self._files.exists(manifest))

    def names_in(self, name: str = "") -> list[str]:
        """Return names in a folder; none where it does not exist."""
        folder = f"{self._path}/{name}".rstrip("/")
        self._files.invalidate_cache()
        if not self._files.exists(folder):
            return []
        return [
            path.rpartition("/")[2] for path in self._files.ls(folder, detail=False)
        ]

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._files.rm(f"{self._path}/{name}", recursive=True)

    def remove_whole(self, name: str) -> None:
        """OSError: the storage is not there, or something of that name is still."""
        root = self._path if self._has_folders else self._path.partition("/")[0]
        self._files.invalidate_cache()
        if not self._files.exists(root):
            raise FileNotFoundError(f"{root} is not there")
        self.remove(name)
        if name in self.names_in():
            raise OSError(f"{name} is not yet empty")


def _copy(source: Path, target: Path, on_progress: Callable[[], None]) -> None:
    """fsspec copies such a file at once, without a word on its progress."""
    with source.open("rb") as read, target.open("wb") as written:
        while piece := read.read(_PIECE_BYTES):
            written.write(piece)
            on_progress()


def _callback(on_progress: Callable[[], None]) -> Any:
    """Adapt it for file systems that report a file's pieces in a thread of theirs."""
    from fsspec.callbacks import Callback  # noqa: PLC0415 - comes with Ray

    return Callback(hooks={"progress": lambda *_, **__: on_progress()})


class _Scratch:
    """The run's files on a node that does not share its folder."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._sweep()
        plan.scratch.mkdir(mode=0o700, exist_ok=True)
        if plan.scratch.lstat().st_uid != os.getuid():
            raise PermissionError(f"{plan.scratch} belongs to another user")
        Path(plan.out).mkdir(parents=True, exist_ok=True)
        self._lock = (plan.scratch / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_SH)  # by each rank of the node

    def fill(self) -> str:
        """Return rows, configuration and checkpoint; else what the storage has against
        it.
        """
        plan, folder = self._plan, self._plan.scratch
        try:
            storage = Storage(plan.storage)
            storage.get_folder(f"inputs-{plan.token}", folder)
            if (changes := folder / CHANGES_FILE).exists():
                shutil.copy(changes, plan.out)
            probe = f"probe-{plan.token}-{socket.gethostname()}"
            storage.put(folder / "lock", probe)
            storage.remove(probe)
            if plan.resume:
                name = f"{CHECKPOINTS}/{plan.resume}"
                storage.get_folder(name, folder / name)
        except Exception as error:  # noqa: BLE001 - each file system has its own
            return f"{type(error).__name__}: {error}"
        return ""

    def leave(self) -> None:
        """Leave it; the last one removes it."""
        with suppress(BlockingIOError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self._plan.scratch, ignore_errors=True)
        self._lock.close()

    def _sweep(self) -> None:
        """Remove what workers that were killed have left."""
        for lock in _TMP.glob("cohort-node-*/lock"):
            with suppress(OSError):
                if lock.parent.lstat().st_uid != os.getuid():
                    continue  # where another user could name a file of ours
                age = time.time() - lock.stat().st_mtime
                if lock.parent == self._plan.scratch or age < _NEW_LOCK_SECONDS:
                    continue  # made by a rank that is yet to lock it
                with lock.open("a") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(lock.parent, ignore_errors=True)


class _Mirror:
    """Sends what a rank writes on its node to the driver, in a thread.

    A checkpoint is in the storage before the log names it, and all of the log before it
    is with the driver before it is in the storage: a run that resumes from it has no
    gap.
    """

    def __init__(self, plan: Plan, rank: int) -> None:
        self._fault: Exception | None = None
        self._plan = plan
        self._rank = rank
        self._uploading = ""  # the checkpoint
        self._uploaded_at = 0.0  # the last piece of it
        self._out = Path(plan.out)
        self._log = self._out / f"rank-{rank}.log"
        self._read: dict[Path, int] = {}
        self._pulse = 0
        self._sent_pulse: Any = None
        self._last = 0  # number of what was sent last
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="mirror")
        self._thread.start()

    def check(self) -> None:
        """Raises what its thread met. TimeoutError: an upload is stuck."""
        if self._fault is not None:
            raise self._fault
        idle = time.monotonic() - self._uploaded_at
        if self._uploading and idle > self._plan.hang_seconds:
            raise TimeoutError(
                f"The upload of {self._uploading} to COHORT_RAY_STORAGE made no "
                f"progress for {self._plan.hang_seconds:g} s."
            )

    def is_done(self) -> bool:
        """Once the trainer has ended: whether all of it has been sent."""
        self._is_over.set()
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._send(APPEND, self._log.name)  # there, even if nothing is said
            while True:
                is_over = self._is_over.is_set()
                data = self._new_bytes(self._log, whole_lines=False)
                if data:
                    self._send(APPEND, self._log.name, data)
                elif self._read.get(self._log, 0) > _LOG_CAP_BYTES:
                    os.truncate(self._log, 0)
                    self._read[self._log] = 0
                has_sent = bool(data)
                if self._rank == 0:
                    has_sent = self._send_events() or has_sent
                if is_over and not has_sent:
                    break
                if not has_sent:
                    self._is_over.wait(_POLL_SECONDS)
            if self._rank == 0:
                # such as the batch of a step that failed
                names = {EVENTS, PULSE_FILE, CHANGES_FILE}
                for path in sorted(self._out.rglob("*")):
                    is_known = path.name in names or path.suffix == ".log"
                    if (
                        path.is_file()
                        and not is_known
                        and path.stat().st_size <= _FILE_BYTES
                    ):
                        self._send(
                            WRITE, str(path.relative_to(self._out)), path.read_bytes()
                        )
            self._settle()
        except Exception as error:  # noqa: BLE001 - raised where the child is followed
            self._fault = error

    def _send(self, kind: str, name: str, data: bytes = b"") -> None:
        self._last = ray.get(self._plan.relay.send.remote(kind, name, data))

    def _settle(self) -> None:
        while self._last and not ray.get(
            self._plan.relay.is_received.remote(self._last)
        ):
            pass

    def _new_bytes(self, path: Path, *, whole_lines: bool) -> bytes:
        at = self._read.get(path, 0)
        with suppress(FileNotFoundError), path.open("rb") as file:
            file.seek(at)
            data = file.read(_PIECE_BYTES)
            while whole_lines and data and b"\n" not in data:
                more = file.read(_PIECE_BYTES)
                if not more:
                    return b""
                data += more
            if whole_lines:
                data = data[: data.rfind(b"\n") + 1]
            self._read[path] = at + len(data)
            return data
        return b""

    def _send_events(self) -> bool:
        data = self._new_bytes(self._out / EVENTS, whole_lines=True)
        waiting = b""
        for line in data.splitlines(keepends=True):
            if b'"type":"checkpoint_saved"' in line:
                if waiting:
                    self._send(APPEND, EVENTS, waiting)
                waiting = b""
                self._save(json.loads(line)["name"])
            waiting += line
        if waiting:
            self._send(APPEND, EVENTS, waiting)
        return bool(data)

    def _save(self, name: str) -> None:
        self._settle()
        self._note_upload()
        self._uploading = name
        storage, path = Storage(self._plan.storage), f"{CHECKPOINTS}/{name}"
        try:
            storage.put_folder(self._plan.scratch / path, path, self._note_upload)
        except FileNotFoundError:  # it has been replaced by a later one already
            if (self._plan.scratch / path).exists():
                raise
            storage.remove(path)
            return
        finally:
            self._uploading = ""
        self._send(SAVED, name)

    def _note_upload(self) -> None:
        self._uploaded_at = time.monotonic()

    def send_pulse(self, *, has_ended: bool) -> None:
        """Send it from the thread that follows the child: an upload may take hours.

        One that outlasts the child is a sign of life itself; `check` ends a stuck one.
        Never blocks.
        """
        sent = self._sent_pulse
        if self._rank or (sent and not ray.wait([sent], timeout=0)[0]):
            return
        with suppress(OSError):
            if has_ended:
                pulse = int(time.monotonic())
            else:
                pulse = (self._out / PULSE_FILE).stat().st_mtime_ns
            if pulse != self._pulse:
                self._pulse = pulse
                self._sent_pulse = self._plan.relay.send.remote(PULSE, PULSE_FILE, b"")


class _Child:
    """The trainer's process in a session of its own; it ends with this process."""

    def __init__(self, plan: Plan, rank: int, environment: Mapping[str, str]) -> None:
        read_end, self._write_end = os.pipe()
        self._out = Path(plan.out)
        self.log = self._out / f"rank-{rank}.log"
        local_size = int(environment["LOCAL_WORLD_SIZE"])
        try:
            with self.log.open("ab") as output:
                self._child = subprocess.Popen(
                    [sys.executable, "-m", "trainer", *plan.arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=find_root(plan.root),
                    env={
                        # Ray's own, with its token, are of no use to a trainer.
                        **{n: v for n, v in os.environ.items() if n[:4] != "RAY_"},
                        **_network(),
                        # Ray's own number is that of the CPUs asked for, which is 1.
                        "OMP_NUM_THREADS": str(
                            max(1, len(os.sched_getaffinity(0)) // local_size)
                        ),
                        **environment,
                        "COHORT_PARENT_PIPE": str(read_end),
                        "PYTHONUNBUFFERED": "1",
                    },
                    pass_fds=(read_end,),
                    start_new_session=True,
                )
        except BaseException:
            os.close(self._write_end)
            raise
        finally:
            os.close(read_end)

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *raised: object) -> None:
        self._kill()
        self._child.wait()
        os.close(self._write_end)

    def poll(self) -> int | None:
        """Return its exit code, once nothing that it started is left."""
        if self._child.returncode is not None:
            return self._child.returncode
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if os.waitid(os.P_PID, self._child.pid, options) is None:
            return None
        self._kill()  # unreaped, its process group is still its own
        return self._child.wait()

    def obey(self, order: str, text: str) -> None:
        if order == KILL:
            self._kill()
        elif order == CHANGES:
            draft = self._out / f".{CHANGES_FILE}-{os.getpid()}"
            draft.write_text(text, "utf-8")
            draft.replace(self._out / CHANGES_FILE)
        elif self._child.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._child.pid, _SIGNALS[order])
                if order == STACKS:
                    os.killpg(self._child.pid, signal.SIGCONT)

    def _kill(self) -> None:
        if self._child.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)


def cap_log(log: Path) -> None:
    """Keep its last part; who writes it appends, so that each write lands whole."""
    with suppress(OSError):
        if log.stat().st_size <= _LOG_CAP_BYTES:
            return
        with log.open("r+b") as file:
            cut = file.seek(-_LOG_KEPT_BYTES, os.SEEK_END)
            kept = file.read()
            file.truncate(0)
        with log.open("ab") as file:
            file.write(b"[%d bytes left out]\n" % cut + kept)


def look_around(plan: Plan, rank: int) -> dict[str, Any]:
    """Return what the driver compares before a rank starts, and where rank 0 can be
    met.
    """
    root = find_root(plan.root)
    address = ray.util.get_node_ip_address()
    with socket.socket() as taken:
        taken.bind((address, 0))
        port = taken.getsockname()[1]
    return {
        "node": address,
        "host": socket.gethostname(),
        "port": port,
        "versions": versions_of(root),
        "sees_folder": bool(plan.storage)
        or _sees_folder(Path(plan.out), plan.token, rank),
        "fault": "",
        "lacks": [path for path in plan.paths if not os.path.exists(path)],
    }


def find_root(root: str) -> str:
    """Return the node's own Cohort: the first of PYTHONPATH, else where the driver has
    it.
    """
    folders = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), root]
    roots = (
        folder for folder in folders if Path(folder, "trainer/__main__.py").is_file()
    )
    return next(roots, "")


def versions_of(root: str) -> dict[str, str]:
    """Read the versions; a digest of Cohort's engine stands for its number."""
    return {
        "Cohort": _digest(Path(root, "trainer")) if root else "none",
        "torch": _version("torch"),
        "Ray": ray.__version__,
        "Python": platform.python_version(),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package).partition("+")[0]  # CPU's or CUDA's build
    except metadata.PackageNotFoundError:
        return "none"


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".toml", ".json"):
            digest.update(f"{path.relative_to(folder)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def probe_of(out: Path, token: str) -> Path:
    return out / f".probe-{token}"


def _sees_folder(out: Path, token: str, rank: int) -> bool:
    """Return whether the run's folder is here the driver's, and can be written."""
    mine = out / f".probe-{token}-{rank}"
    try:
        if probe_of(out, token).read_text("ascii") != token:
            return False
        mine.touch(exist_ok=False)
        mine.unlink()
    except OSError:
        return False
    return True


def _network() -> dict[str, str]:
    """Name the node's interface for gloo and NCCL, unless the node names one.

    gloo takes the address of the host's name, which may lead nowhere, and NCCL the
    first interface that it finds.
    """
    name = _interface_of(ray.util.get_node_ip_address())
    libraries = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return {
        variable: name for variable in libraries if name and variable not in os.environ
    }


def _interface_of(address: str) -> str:
    if address.startswith("127."):
        return "lo"
    try:
        import psutil  # noqa: PLC0415 - no node needs it
    except ImportError:
        return ""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address_.address == address for address_ in addresses):
            return str(name)
    return ""
