"""All of Cohort on this machine, as `manage.py up` starts it, and its viewers."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fixtures_app import free_port
from tests.load.stage import Scene
from tests.load.steady_trainer import GO, Pace

ROOT = Path(__file__).resolve().parents[2]
TICKS = os.sysconf("SC_CLK_TCK")
# Part of the command line of each process of `up`.
PARTS = {
    "web": "uvicorn dashboard.asgi",
    "Redis": "valkey-server",
    "PostgreSQL": "postgres",
    "workers": "celery",
}


class Crowd:
    """The viewers' process, and commands to it."""

    def __init__(
        self, address: str, scene: Scene, *, env: Mapping[str, str], log: Path
    ) -> None:
        command = [sys.executable, "-m", "tests.load.viewers", address]
        command += [str(scene.run_id), *scene.cookies]
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._log = log

    def ask(self, do: str, **options: Any) -> dict[str, Any]:
        """Returns when it is done."""
        self.begin(do, **options)
        return self.answer()

    def begin(self, do: str, **options: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **options}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the viewers ended:\n{self._log.read_text()[-2_000:]}"
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class Show:
    """A run from claim to end under the real supervisor.

    With a pace, a paced fake trainer; without, a real one.
    """

    def __init__(
        self, scene: Scene, pace: Pace | None, *, env: Mapping[str, str], log: Path
    ) -> None:
        self.scene, self._log = scene, log
        command = [sys.executable, "-m", "tests.load.stage", "supervise"]
        command += [str(scene.run_id), *([pace.as_json()] if pace else [])]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=dict(env), stdout=output, stderr=output
            )

    @property
    def events(self) -> Path:
        return Path(self.scene.folder) / "events.jsonl"

    def wait_for_events(self) -> None:
        wait_for(self.events.exists, self.process, self._log)

    def go(self) -> None:
        (Path(self.scene.folder) / GO).touch()

    def wait_for_end(self, timeout_seconds: float = 900) -> None:
        status = self.process.wait(timeout_seconds)
        assert status == 0, self._log.read_text()[-2_000:]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()  # its trainer ends with it
            self.process.wait()


def wait_for(
    condition: Any, process: subprocess.Popen[Any], log: Path, seconds: float = 600
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"it ended:\n{log.read_text()[-2_000:]}"
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.05)


class Stack:
    """A running `up` with its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        withheld = ("DATABASE_URL", "REDIS_URL", "COHORT_SECRET_KEY")
        self.env = {
            **{k: v for k, v in os.environ.items() if k not in withheld},
            "COHORT_DATA": str(folder / "data"),
            "COHORT_PORT": str(port),
            "DJANGO_SETTINGS_MODULE": "dashboard.settings",
        }
        self._log = folder / "up.log"
        with self._log.open("wb") as output:
            self._up = subprocess.Popen(
                [sys.executable, "manage.py", "up", "--no-starter"],
                cwd=ROOT,
                env=self.env,
                stdout=output,
                stderr=output,
            )
        self._closing: list[Show | Crowd] = []

    def wait_until_it_is_up(self) -> None:
        wait_for(self._is_up, self._up, self._log)

    def _is_up(self) -> bool:
        return re.search(r"http://\S+/sign-in/", self._log.read_text()) is not None

    def stage(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "tests.load.stage", *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=self.env, check=True, stdout=subprocess.PIPE
        )
        return done.stdout.decode()

    def prepare(self, pace: Pace) -> Scene:
        return Scene(**json.loads(self.stage("prepare", pace.as_json())))

    def prepare_training(
        self, starter: Path, *, num_steps: int, num_prompts: int
    ) -> Scene:
        sizes = (str(num_steps), str(num_prompts))
        reported = self.stage("prepare-training", str(starter), *sizes)
        return Scene(**json.loads(reported))

    def show(self, scene: Scene, pace: Pace | None) -> Show:
        log = self.folder / "supervisor.log"
        show = Show(scene, pace, env=self.env, log=log)
        self._closing.append(show)
        show.wait_for_events()
        return show

    def crowd(self, scene: Scene) -> Crowd:
        log = self.folder / "viewers.log"
        crowd = Crowd(self.address, scene, env=self.env, log=log)
        self._closing.append(crowd)
        return crowd

    def truth(self, scene: Scene) -> str:
        """The file that holds it."""
        path = self.folder / f"truth-{scene.run_id}.json"
        self.stage("truth", str(scene.run_id), str(path))
        return str(path)

    @property
    def pid(self) -> int:
        return self._up.pid

    @property
    def web_pid(self) -> int:
        [pid] = self.pids()["web"]
        return pid

    def pids(self) -> dict[str, list[int]]:
        """By part; PostgreSQL's with those of its connections."""
        parents = parents_of_all()
        own = descendants(self._up.pid, parents)
        found: dict[str, list[int]] = {part: [] for part in PARTS}
        for pid in own:
            command = command_of(pid)
            for part, sign in PARTS.items():
                if sign in command:
                    found[part].append(pid)
                    break
        return found

    def connections(self) -> list[int]:
        """PostgreSQL's connection processes."""
        return list(filter(is_connection, self.pids()["PostgreSQL"]))

    def footprint(self) -> Footprint:
        """Of all that `up` started; a run's supervisor is not among it.

        PostgreSQL's files are not counted: each of its processes keeps those of the
        tables that it has read, up to max_files_per_process.
        """
        pids = self.pids()
        ours = [pid for part in pids if part != "PostgreSQL" for pid in pids[part]]
        connections = list(filter(is_connection, pids["PostgreSQL"]))
        return Footprint(
            num_processes=sum(map(len, pids.values())),
            num_connections=len(connections),
            num_files=sum(map(num_open_files, ours)),
            megabytes={part: sum(map(own_mb, of)) for part, of in pids.items()},
            connection_mb=max(map(own_mb, connections)),
        )

    def stop(self) -> None:
        for one in self._closing:
            one.close()
        if self._up.poll() is None:
            self._up.send_signal(signal.SIGTERM)
        try:
            self._up.wait(60)
        except subprocess.TimeoutExpired:
            self._up.kill()
            self._up.wait()


@contextmanager
def running_stack() -> Iterator[Stack]:
    folder = Path(tempfile.mkdtemp(prefix="cohort-load-", dir="/tmp"))
    (folder / "data").mkdir()
    try:
        stack = Stack(folder)
        try:
            stack.wait_until_it_is_up()
            yield stack
        finally:
            stack.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- what processes use


def parents_of_all() -> dict[int, int]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            found[int(entry.name)] = int(stat.rsplit(")", 1)[1].split()[1])
    return found


def descendants(pid: int, parents: Mapping[int, int]) -> list[int]:
    children = [child for child, parent in parents.items() if parent == pid]
    return [pid] + [one for child in children for one in descendants(child, parents)]


def command_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace")


def is_connection(pid: int) -> bool:
    return "[local]" in command_of(pid)


def resident_mb(pid: int) -> float:
    """Memory of the process itself that is in RAM."""
    return _reported_mb(pid, "VmRSS")


def peak_mb(pid: int) -> float:
    """The most memory that the process has had in RAM."""
    return _reported_mb(pid, "VmHWM")


def own_mb(pid: int) -> float:
    """Memory that is neither a file's nor shared with others; 0 where it is ending."""
    try:
        return _reported_mb(pid, "RssAnon")
    except (OSError, LookupError):
        return 0.0


def _reported_mb(pid: int, what: str) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(rf"{what}:\s+(\d+) kB", status)
    if match is None:  # it has freed its memory and is ending
        raise LookupError(status)
    return int(match[1]) * 1024 / 1e6


@dataclass(frozen=True, kw_only=True)
class Footprint:
    num_processes: int
    num_connections: int  # of PostgreSQL
    num_files: int  # open, sockets among them
    megabytes: dict[str, float]  # by part, without what processes share
    connection_mb: float  # of PostgreSQL's largest

    @property
    def num_others(self) -> int:
        """Processes other than connections."""
        return self.num_processes - self.num_connections


def num_open_files(pid: int) -> int:
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:  # it has ended meanwhile
        return 0


def processor_seconds(pids: list[int]) -> float:
    """User and system time of running processes."""
    total = 0
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        user, system = stat.rsplit(")", 1)[1].split()[11:13]
        total += int(user) + int(system)
    return total / TICKS


@dataclass
class Meter:
    """Processor time of each part since this object was created."""

    parts: dict[str, list[int]]

    def __post_init__(self) -> None:
        self._begin = time.monotonic()
        self._before = self._read()

    def _read(self) -> dict[str, float]:
        return {part: processor_seconds(pids) for part, pids in self.parts.items()}

    def seconds(self) -> dict[str, float]:
        """Call it while all processes run."""
        return {part: now - self._before[part] for part, now in self._read().items()}

    def shares(self) -> dict[str, float]:
        """Share of one core. Call it while all processes run."""
        seconds = time.monotonic() - self._begin
        return {part: used / seconds for part, used in self.seconds().items()}
