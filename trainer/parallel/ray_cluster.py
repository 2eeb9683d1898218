"""A Ray cluster: its address, its nodes, and the storage of runs on it."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import re
import secrets
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from trainer.config import RunConfig
from trainer.disk import list_checkpoints, newest_attempt, place_of, prune_checkpoints
from trainer.parallel.launch import EXIT_FAILED

ADDRESS, STORAGE = "COHORT_RAY_ADDRESS", "COHORT_RAY_STORAGE"
INSTALL = "Install it with: pip install 'ray[train]>=2.50'"
LOOK_SECONDS = 15.0  # for a cluster to say what it has
# Ray Train's own: found within a second, restarted by no one, and nothing of ours is
# in the folder that it would work in.
_RAY_TRAIN = {
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
_RUN_FOLDER = re.compile(r"run-.+-[0-9a-f]{8}")


class CannotRun(Exception):
    """The cluster or a node of it does not fit the run; says which and what to do."""


class ClusterAway(CannotRun):
    """The cluster or its storage does not answer now; a later attempt may run."""


def load_ray() -> Any:
    os.environ.update(_RAY_TRAIN)
    try:
        import ray  # noqa: PLC0415 - an extra, and a second to load
        import ray.train  # noqa: PLC0415 - as above
    except ImportError:
        raise CannotRun(f"Ray is not installed. {INSTALL}") from None
    return ray


def is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "://" in host:  # Ray Client has no Train
        raise CannotRun(
            f"The address of a Ray cluster is HOST:PORT, such as head:6379; got "
            f"{address!r}."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def unreachable(address: str) -> str:
    return (
        f"No Ray cluster answers at {address}. Check that its head runs and that this "
        "machine reaches the port."
    )


def hide_password(text: str) -> str:
    """Hide that of the storage's URL."""
    password = urlsplit(os.environ.get(STORAGE, "")).password
    for form in {password, unquote(password)} if password else ():
        text = text.replace(form, "…")
    return text


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# What a cluster has, and what deleted runs left: `python -m trainer cluster`.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--address", help="show what the cluster with this head has: HOST:PORT"
    )
    what.add_argument(
        "--delete-stored",
        type=Path,
        metavar="FOLDER",
        help=f"delete folders in {STORAGE}: those named like the files in FOLDER, "
        "which are deleted as well",
    )


def main(args: argparse.Namespace) -> int:
    if args.delete_stored is not None:
        return delete_stored(args.delete_stored)
    return show(args)


def delete_stored(notes: Path) -> int:
    """Delete what the files name, and each file once the storage has nothing of it."""
    with (notes / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0  # another worker of this machine does it
        code = 0
        for note in sorted(notes.iterdir()):
            if not _RUN_FOLDER.fullmatch(note.name):
                continue
            try:
                load_ray()
                worker = import_module("trainer.parallel.ray_worker")
                worker.Storage(os.environ[STORAGE]).remove_whole(note.name)
                note.unlink(missing_ok=True)
            except Exception as error:  # noqa: BLE001 - each file system has its own
                sys.stdout.write(
                    hide_password(f"{note.name}: {first_line(error)}") + "\n"
                )
                code = EXIT_FAILED
        return code


def show(args: argparse.Namespace) -> int:
    """Print one JSON object; where the cluster does not answer, its `error` says so."""
    facts: dict[str, Any] = {
        "address": args.address,
        "ray_version": None,
        "error": unreachable(args.address),
        "nodes": [],
    }
    look = threading.Thread(
        target=lambda: facts.update(describe(args.address)), daemon=True
    )
    look.start()
    look.join(LOOK_SECONDS)
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
    if look.is_alive():
        os._exit(0)  # Ray's own client may wait for minutes
    return 0


def describe(address: str) -> dict[str, Any]:
    """Ask the head for nodes with their GPUs and CPUs: this machine need be none."""
    try:
        load_ray()
        return _ask_head(address) if is_listening(address) else {}
    except CannotRun as error:
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - Ray's are of many types
        return {"error": f"The Ray cluster at {address} refused: {first_line(error)}"}


def _ask_head(address: str) -> dict[str, Any]:
    import ray  # noqa: PLC0415 - an extra
    from ray._common.usage.usage_lib import get_cluster_metadata  # noqa: PLC0415 - an extra
    from ray._private.state import GlobalState  # noqa: PLC0415 - an extra

    raylet = import_module("ray._raylet")  # compiled, without types
    metadata = get_cluster_metadata(raylet.GcsClient(address=address))
    version, python = metadata["ray_version"], metadata["python_version"]
    state = GlobalState()
    state._initialize_global_state(
        raylet.GcsClientOptions.create(
            address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False
        )
    )
    free = state.available_resources_per_node()
    nodes = [_describe_node(node, free) for node in state.node_table()]
    ours = (ray.__version__, platform.python_version())
    error = None
    if (version, python) != ours:
        error = (
            f"The cluster has Ray {version} on Python {python}; this worker has Ray "
            f"{ours[0]} on Python {ours[1]}. Install the same versions."
        )
    return {"ray_version": version, "error": error, "nodes": nodes}


def _describe_node(
    node: Mapping[str, Any], free: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    has, unused = node["Resources"], free.get(node["NodeID"], {})
    kinds = [name for name in has if name.startswith("accelerator_type:")]
    return {
        "name": node["NodeManagerHostname"] or node["NodeManagerAddress"],
        "address": node["NodeManagerAddress"],
        "is_alive": node["Alive"],
        "gpu_kind": kinds[0].partition(":")[2] if kinds else None,
        "gpus": int(has.get("GPU", 0)),
        "gpus_free": unused.get("GPU", 0.0),
        "cpus": has.get("CPU", 0.0),
        "cpus_free": unused.get("CPU", 0.0),
        "memory_bytes": int(has.get("memory", 0)),
    }


class Files:
    """Copies a run's files through COHORT_RAY_STORAGE when nodes do not share its
    folder.
    """

    def __init__(
        self, worker: Any, url: str, args: argparse.Namespace, config: RunConfig
    ) -> None:
        self._worker = worker
        self._args = args
        self._config = config
        self._out: Path = args.out
        self._folder: Path = args.config.resolve().parent
        self._mirror: Path = args.checkpoints or args.out / worker.CHECKPOINTS
        self._changes = 0.0
        resume: Path | None = args.resume_from
        if args.resume:
            resume = next(reversed(list_checkpoints(self._mirror)), None)
        self.resume = resume.name if resume else ""
        self._resume_from = resume
        self.url = f"{url.rstrip('/')}/{self._name()}"
        try:
            self._storage = worker.Storage(self.url)
        except (ImportError, ValueError) as error:
            raise CannotRun(f"{STORAGE} cannot be used: {error}") from error
        except Exception as error:
            raise ClusterAway(f"{STORAGE} cannot be used: {error}") from error

    def _name(self) -> str:
        """Name the run in the storage: the same for all its attempts, on any host."""
        path = self._folder / "ray-storage"
        if not path.exists():
            path.write_text(f"run-{self._folder.name}-{secrets.token_hex(4)}", "utf-8")
        return str(path.read_text("utf-8"))

    def out(self, token: str) -> Path:
        scratch: Path = self._worker.scratch_of(token)
        return scratch / "attempts" / (self._out.name or "out")

    def arguments(self, args: argparse.Namespace, token: str) -> argparse.Namespace:
        scratch: Path = self._worker.scratch_of(token)
        checkpoints = scratch / self._worker.CHECKPOINTS
        args.config = scratch / self._args.config.name
        args.out, args.attempts = self.out(token), None
        args.checkpoints, args.resume = checkpoints, False
        args.resume_from = checkpoints / self.resume if self.resume else None
        return args

    def put_inputs(self, token: str) -> None:
        """Configuration, rows, changed settings, and the checkpoint to resume from."""
        names = [self._config.data.rows, *self._config.evaluation.sets.values()]
        files = [self._folder / name for name in names if not os.path.isabs(name)]
        changes = self._out / self._worker.CHANGES_FILE
        try:
            if self._is_newest():  # remove the rest of attempts whose driver was killed
                for name in self._storage.names_in():
                    if name.startswith(("inputs-", "probe-")):
                        self._storage.remove(name)
            self._prune_checkpoints(keep={self.resume})
            for file in [self._args.config, *files]:
                name = file.resolve().relative_to(self._folder)
                self._storage.put(file, f"inputs-{token}/{name}")
            if changes.exists():
                self._storage.put(changes, f"inputs-{token}/{changes.name}")
                self._changes = changes.stat().st_mtime
            # The storage does not have that of a fork, say.
            resume = self._resume_from
            if resume is not None and not self._storage.has_checkpoint(self.resume):
                folder = f"{self._worker.CHECKPOINTS}/{self.resume}"
                self._storage.put_folder(resume, folder)
        except Exception as error:
            raise ClusterAway(
                f"This worker cannot write to {STORAGE}: {first_line(error)}. Check "
                "its address, and the credentials in the worker's environment."
            ) from error

    def remove_inputs(self, token: str) -> None:
        with suppress(Exception):  # else they stay there
            self._storage.remove(f"inputs-{token}")

    def new_changes(self) -> str:
        path = self._out / self._worker.CHANGES_FILE
        with suppress(OSError):
            if (changed := path.stat().st_mtime) != self._changes:
                self._changes = changed
                return str(path.read_text("utf-8"))
        return ""

    def receive(
        self,
        kind: str,
        name: str,
        data: bytes,
        *,
        on_file: Callable[[], None] = lambda: None,
    ) -> None:
        """Write what it was sent; it is on disk when this returns.

        Args:
            on_file: called behind each file of a checkpoint, as many take long.
        """
        worker, path = self._worker, self._out / name
        if kind == worker.APPEND:
            with path.open("ab") as file:
                file.write(data)
                if name == worker.EVENTS:
                    file.flush()
                    os.fsync(file.fileno())
            if path.suffix == ".log":
                worker.cap_log(path)
        elif kind == worker.WRITE:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        elif kind == worker.PULSE:
            path.touch()
        elif kind == worker.SAVED:
            # into the run's folder, as if it had been saved there
            unfinished = self._mirror / f".{name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            self._storage.get_folder(
                f"{self._worker.CHECKPOINTS}/{name}",
                unfinished,
                on_progress=(self._out / self._worker.PULSE_FILE).touch,
                on_file=on_file,
            )
            shutil.rmtree(self._mirror / name, ignore_errors=True)
            unfinished.rename(self._mirror / name)
            # As the trainer does on its node, which knows of no other attempts.
            step, attempt = place_of(Path(name))
            attempts: Path | None = self._args.attempts
            prune_checkpoints(
                self._mirror,
                keep_last=self._config.checkpoint.keep_last,
                step=step,
                attempt=attempt,
                attempts=attempts,
            )
            # The node uploads nothing else before it knows that this has been received.
            self._prune_checkpoints()

    def _is_newest(self) -> bool:
        attempts, attempt = self._args.attempts, self._args.attempt
        return not attempts or not attempt or newest_attempt(attempts) <= attempt

    def _prune_checkpoints(self, *, keep: Set[str] = frozenset()) -> None:
        """Delete those in the storage that the run's own folder does not have."""
        if not self._is_newest():
            return
        there = {path.name for path in list_checkpoints(self._mirror)}
        for name in (
            set(self._storage.names_in(self._worker.CHECKPOINTS)) - there - keep
        ):
            self._storage.remove(f"{self._worker.CHECKPOINTS}/{name}")
