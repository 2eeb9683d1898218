"""A run on the nodes of a Ray cluster, and what such a cluster has.

This process is the one that a supervisor starts and watches. It asks Ray Train for one
worker a rank; each runs the trainer's own entry as a child process
(`trainer.parallel.ray_worker`). Attempts are the supervisor's business: Ray starts
nothing again.
"""

from __future__ import annotations

import argparse
import faulthandler
import fcntl
import json
import logging
import os
import platform
import re
import secrets
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from trainer.config import RunConfig, named_models
from trainer.console import FACTS, print_error, print_line
from trainer.disk import (
    is_disk_full,
    list_checkpoints,
    newest_attempt,
    place_of,
    prune_checkpoints,
)
from trainer.parallel.launch import (
    EXIT_BAD_CONFIG,
    EXIT_FAILED,
    EXIT_PAUSED,
    EXIT_STOPPED,
    GRACE_SECONDS,
    ORDERLY,
    STDERR,
    command_of,
    end_by,
    why_killed,
)

ADDRESS, STORAGE = "COHORT_RAY_ADDRESS", "COHORT_RAY_STORAGE"
HANG_SECONDS = "COHORT_HANG_SECONDS"
ROOT = Path(__file__).resolve().parents[2]
INSTALL = "Install it with: pip install 'ray[train]>=2.50'"
JOIN = "ray start --address {} --num-cpus 0 --num-gpus 0"
LOOK_SECONDS = 15.0  # for a cluster to say what it has
CONNECT_SECONDS = 60.0
SILENT_SECONDS = 60.0  # after which a rank counts as killed; ranks call each second
FIT_SECONDS = 5.0  # for Ray Train to see that all ranks have ended
WAITING_SECONDS = 30.0  # between lines about what is waited for
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


# Callbacks of Ray Train that are left out: a process for datasets, which are not used,
# and one that cleans up behind a killed driver, as Ray does anyway, and never exits
# where the head has no dashboard.
_NEEDLESS = {"DatasetsCallback", "PlacementGroupCleanerCallback"}
_CUT = re.compile(rb"\[(\d+) bytes left out\]\n")  # as `cap_log` notes it
_RUN_FOLDER = re.compile(r"run-.+-[0-9a-f]{8}")


class CannotRun(Exception):
    """The cluster or a node of it does not fit the run; says which and what to do."""


class ClusterAway(CannotRun):
    """The cluster or its storage does not answer now; a later attempt may run."""


def run_on_cluster(args: argparse.Namespace, config: RunConfig) -> int:
    """Run on the cluster to the end; the exit code is that of a run on one machine."""
    requests = Requests()
    try:
        end = _run(args, config, requests)
    except ClusterAway as error:
        _complain(str(error))
        end = EXIT_STOPPED if requests.stop else -signal.SIGKILL
    except CannotRun as error:
        _complain(str(error))
        return EXIT_BAD_CONFIG
    return end if end >= 0 else end_by(signal.Signals(-end))


def _run(args: argparse.Namespace, config: RunConfig, requests: Requests) -> int:
    ray = connect(os.environ.get(ADDRESS, ""), requests)
    requests.listen()  # Ray has taken the signals
    if requests.stop:
        print_line("stopped while connecting to the cluster")
        return EXIT_STOPPED
    try:
        return Driver(ray, args, config, requests).run()
    except ray.exceptions.RayError as error:  # as where the relay has been killed
        raise ClusterAway(f"The Ray cluster failed: {first_line(error)}") from error
    finally:
        ray.shutdown()


class Requests:
    """SIGTERM and SIGINT ask for a stop, SIGUSR1 for the stacks of all ranks."""

    def __init__(self) -> None:
        self.stop = False
        self._stacks = 0
        self.listen()

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGUSR1, self._ask_stacks)

    def take_stacks(self) -> int:
        asked, self._stacks = self._stacks, 0
        return asked

    def _stop(self, number: int, frame: object) -> None:
        self.stop = True
        signal.signal(number, signal.SIG_DFL)  # a second one ends us, and all ranks

    def _ask_stacks(self, number: int, frame: object) -> None:
        faulthandler.dump_traceback(file=STDERR, all_threads=True)
        self._stacks += 1


def load_ray() -> Any:
    os.environ.update(_RAY_TRAIN)
    try:
        import ray  # noqa: PLC0415 - an extra, and a second to load
        import ray.train  # noqa: PLC0415 - as above
    except ImportError:
        raise CannotRun(f"Ray is not installed. {INSTALL}") from None
    return ray


def connect(address: str, requests: Requests) -> Any:
    """This process as a driver of the cluster; unless a stop is requested before."""
    if not address:
        raise CannotRun(
            f'distributed.where is "ray", but {ADDRESS} is not set. Set it to the '
            "address of the cluster's head, such as head:6379."
        )
    ray = load_ray()
    deadline = time.monotonic() + CONNECT_SECONDS
    # The head, or this machine's Ray, may be starting.
    while lack := _connection_lack(address):
        if requests.stop or time.monotonic() > deadline:
            raise ClusterAway(lack)
        time.sleep(1)  # between two tries, of CONNECT_SECONDS in all
    if requests.stop:
        return ray
    try:
        ray.init(
            address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=True,
        )
    except SystemExit:  # of Ray's own handler of SIGTERM
        requests.stop = True
    except Exception as error:
        raise ClusterAway(
            f"Cannot connect to the Ray cluster at {address}: {first_line(error)}"
        ) from error
    return ray


def _connection_lack(address: str) -> str:
    from ray._private import services  # noqa: PLC0415 - Ray itself asks there

    if not is_listening(address):
        return unreachable(address)
    if not services.find_node_ids():
        return (
            f"This machine is no node of the Ray cluster at {address}. Join it without "
            f"CPUs and GPUs: {JOIN.format(address)}"
        )
    return ""


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


def _complain(text: str) -> None:
    """Members of the team read it."""
    print_error(hide_password(text))


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
    rows: list[dict[str, Any]] = []
    look = threading.Thread(
        target=lambda: rows.append(describe(args.address)), daemon=True
    )
    look.start()
    look.join(LOOK_SECONDS)
    facts = rows[0] if rows else _facts(args.address, unreachable(args.address))
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
    if look.is_alive():
        os._exit(0)  # Ray's own client may wait for minutes
    return 0


def describe(address: str) -> dict[str, Any]:
    """Nodes with their GPUs and CPUs, asked of the head: this machine need be none."""
    try:
        load_ray()
        if not is_listening(address):
            return _facts(address, unreachable(address))
        return _ask_head(address)
    except CannotRun as error:
        return _facts(address, str(error))
    except Exception as error:  # noqa: BLE001 - Ray's are of many types
        sentence = f"The Ray cluster at {address} refused: {first_line(error)}"
        return _facts(address, sentence)


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
    return _facts(address, error, version, nodes)


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


def _facts(
    address: str,
    error: str | None,
    version: str | None = None,
    nodes: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    return {
        "address": address,
        "ray_version": version,
        "error": error,
        "nodes": list(nodes),
    }


class Driver:
    """An attempt of a run on a cluster."""

    def __init__(
        self, ray: Any, args: argparse.Namespace, config: RunConfig, requests: Requests
    ) -> None:
        from trainer.parallel import ray_worker  # noqa: PLC0415 - it imports Ray

        self._ray = ray
        self._worker = ray_worker
        self._args = args
        self._config = config
        self._requests = requests
        self._out: Path = args.out.resolve()
        self._token = secrets.token_hex(8)
        self._size = config.distributed.num_ranks
        self._fault: BaseException | None = None
        self._training = threading.Thread(target=self._fit, daemon=True, name="fit")
        self._ends: dict[int, int] = {}
        self._killed: set[int] = set()  # ranks that we ended
        self._lost: set[int] = set()
        self._nodes: dict[int, str] = {}
        self._num_received = 0
        self._files: _Files | None = None  # where the nodes do not share the folder
        self._was_stop_requested = False
        self._lack = 0  # the exit code for files that could not be written here
        ray.cloudpickle.register_pickle_by_value(ray_worker)

    def run(self) -> int:
        self._out.mkdir(parents=True, exist_ok=True)
        probe = self._worker.probe_of(self._out, self._token)
        echo = _Echo(self._out / "rank-0.log")
        try:
            probe.write_text(self._token, "ascii")
            if url := os.environ.get(STORAGE):
                self._files = _Files(self._worker, url, self._args, self._config)
                self._files.put_inputs(self._token)
            here = self._ray.get_runtime_context().get_node_id()
            self._relay = (
                self._ray.remote(self._worker.Relay)
                .options(
                    num_cpus=0,
                    max_concurrency=2 * self._size + 8,
                    label_selector={self._ray._raylet.RAY_NODE_ID_KEY: here},
                )
                .remote()
            )
            self._training.start()
            facts = self._wait_for_ranks()
            if facts is None:
                return EXIT_STOPPED if self._requests.stop else -signal.SIGKILL
            ours = self._worker.versions_of(str(ROOT))
            for rank in sorted(facts):
                if complaint := complaint_of(facts[rank], ours, folder=self._out):
                    self._call(self._relay.start, {})
                    error = ClusterAway if facts[rank]["fault"] else CannotRun
                    raise error(complaint)
            self._call(
                self._relay.start,
                {"MASTER_ADDR": facts[0]["node"], "MASTER_PORT": str(facts[0]["port"])},
            )
            return self._follow(echo)
        finally:
            probe.unlink(missing_ok=True)
            if self._training.is_alive():
                self._training.join(FIT_SECONDS)
            shutil.rmtree(self._own_folder, ignore_errors=True)
            if self._files is not None:
                self._files.remove_inputs(self._token)
            echo.copy()

    # Ray Train, in a thread of its own.

    def _fit(self) -> None:
        from ray.train import FailureConfig, ScalingConfig  # noqa: PLC0415 - an extra
        from ray.train import RunConfig as TrainConfig  # noqa: PLC0415 - an extra
        from ray.train.v2.api.data_parallel_trainer import (  # noqa: PLC0415 - an extra
            DataParallelTrainer,
        )

        class Trainer(DataParallelTrainer):  # type: ignore[misc]  # untyped
            """TorchTrainer has a backend that loads torch in driver and workers, and
            there meets; here the trainer's own processes meet.
            """

            def _create_default_callbacks(self) -> list[Any]:
                callbacks = super()._create_default_callbacks()
                return [
                    callback
                    for callback in callbacks
                    if type(callback).__name__ not in _NEEDLESS
                ]

        try:
            Trainer(
                self._worker.work,
                train_loop_config=self._plan(),
                backend_config=self._worker.Processes(),
                scaling_config=ScalingConfig(
                    num_workers=self._size,
                    use_gpu=self._uses_gpus(),
                    placement_strategy="PACK",
                ),
                run_config=TrainConfig(
                    name=f"cohort-{self._token}",
                    storage_path=str(self._own_folder),
                    failure_config=FailureConfig(max_failures=0),
                ),
            ).fit()
        except BaseException as error:  # noqa: BLE001 - the main thread reports it
            self._fault = error

    @property
    def _own_folder(self) -> Path:
        """Ray Train wants one, and has nothing to keep there."""
        return self._out / ".ray"

    def _uses_gpus(self) -> bool:
        device = self._config.model.device
        has_gpus = self._ray.cluster_resources().get("GPU", 0) > 0
        return device == "cuda" or (device == "auto" and has_gpus)

    def _plan(self) -> Any:
        config = self._config
        paths = [
            *named_models(config.model_dump()),
            config.data.rows,
            *config.evaluation.sets.values(),
            config.reference.token_file,
            config.rollout.token_file,
        ]
        files = self._files
        return self._worker.Plan(
            relay=self._relay,
            root=str(ROOT),
            arguments=self._arguments(),
            out=str(files.out(self._token) if files else self._out),
            token=self._token,
            # Relative ones are beside the configuration.
            paths=[path for path in paths if path and os.path.isabs(path)],
            environment={
                name: os.environ[name]
                for name in (*FACTS.values(), HANG_SECONDS)
                if name in os.environ
            },
            storage=files.url if files else "",
            resume=files.resume if files else "",
            hang_seconds=float(os.environ.get(HANG_SECONDS) or 1_800),
        )

    def _arguments(self) -> list[str]:
        args = argparse.Namespace(**vars(self._args))
        if self._files is not None:
            return command_of(self._files.arguments(args, self._token))[3:]
        for name in ("config", "out", "checkpoints", "attempts", "resume_from"):
            path: Path | None = getattr(args, name)
            setattr(args, name, path and path.resolve())
        return command_of(args)[3:]

    # The main thread: from the first worker to the last exit code.

    def _call(self, method: Any, *arguments: object) -> Any:
        return self._ray.get(method.remote(*arguments))

    def _news(self) -> dict[str, Any]:
        news: dict[str, Any] = self._call(
            self._relay.news, len(self._nodes), len(self._ends), self._num_received
        )
        for number, kind, name, data in news["mail"]:
            self._receive(kind, name, data)
            self._num_received = number
        return news

    def _receive(self, kind: str, name: str, data: bytes) -> None:
        assert self._files is not None
        if self._lack:
            return  # and nothing behind what is missing
        try:
            self._files.receive(kind, name, data, on_file=self._pass_stop_on)
        except Exception as error:  # noqa: BLE001 - each file system has its own
            _complain(f"{first_line(error)}. The run stops.")
            # As where a node fails to save: the run resumes behind what is here.
            self._lack = EXIT_PAUSED if is_disk_full(error) else -signal.SIGKILL
            self._requests.stop = True

    def _wait_for_ranks(self) -> Mapping[int, dict[str, Any]] | None:
        """Return what each has found on its node; None: it did not come to a start."""
        due = time.monotonic() + WAITING_SECONDS / 6
        while True:
            facts: dict[int, dict[str, Any]] = self._news()["facts"]
            self._nodes = {rank: fact["node"] for rank, fact in facts.items()}
            if len(facts) == self._size:
                return facts
            if self._requests.stop:
                print_line("stopped while waiting for the cluster")
                return None
            if not self._training.is_alive():
                fault = self._fault or "its workers ended"
                _complain(f"Ray Train failed to start the run: {fault}")
                return None
            if time.monotonic() > due:
                due = time.monotonic() + WAITING_SECONDS
                kind = "GPU" if self._uses_gpus() else "CPU"
                all_there = self._ray.cluster_resources().get(kind, 0)
                free = self._ray.available_resources().get(kind, 0)
                print_line(
                    f"Waiting for the Ray cluster: {len(facts)} of {self._size} ranks "
                    f"have started; {free:g} of its {all_there:g} {kind}s are free."
                )

    def _follow(self, echo: _Echo) -> int:
        """Get the exit code that all have in common, as of processes of one machine."""
        first_end: float | None = None
        fault = 0
        while len(self._ends) < self._size:
            is_over = not self._training.is_alive()  # before what it may still tell
            news = self._news()
            echo.copy()
            self._ends.update(news["ends"])
            # Ranks whose worker or node is gone end as by SIGKILL.
            silent = news["silent"]
            for rank in range(self._size):
                is_silent = silent.get(rank, 0.0) > SILENT_SECONDS
                if rank not in self._ends and (is_over or is_silent):
                    self._ends[rank] = -signal.SIGKILL
                    self._lost.add(rank)
                    self._killed.discard(rank)
            self._pass_stop_on()
            if self._files is not None and (text := self._files.new_changes()):
                self._call(self._relay.order, self._worker.CHANGES, text)
            for _ in range(self._requests.take_stacks()):
                self._call(self._relay.order, self._worker.STACKS)
            # The first; but where one was killed, it is why the others failed.
            faults = [
                code
                for rank, code in self._ends.items()
                if code not in ORDERLY and rank not in self._killed
            ]
            fault = fault or min(faults, default=0)
            now = time.monotonic()
            if self._ends and first_end is None:
                first_end = now
            if first_end is not None and now > first_end + GRACE_SECONDS:
                first_end = now
                self._killed |= set(range(self._size)) - set(self._ends)
                self._call(self._relay.order, self._worker.KILL)
        while self._news()["mail"]:  # of a rank that was lost
            pass
        if self._lack:
            return self._lack
        return self._end(fault)

    def _pass_stop_on(self) -> None:
        if self._requests.stop and not self._was_stop_requested:
            self._was_stop_requested = True
            self._call(self._relay.order, self._worker.STOP)

    def _end(self, fault: int) -> int:
        ends = [self._ends[rank] for rank in range(self._size)]
        stopped = {EXIT_STOPPED, -signal.SIGTERM, -signal.SIGINT}
        if self._was_stop_requested and {*ends} <= stopped:
            return EXIT_STOPPED
        self._tell()
        if -signal.SIGKILL in (
            code for rank, code in self._ends.items() if rank not in self._killed
        ):
            return -signal.SIGKILL
        if fault:
            return fault
        return ends[0] if len(set(ends)) == 1 else EXIT_FAILED

    def _tell(self) -> None:
        """Name each rank that could not report what ended it."""
        for rank, code in sorted(self._ends.items()):
            if code >= 0:  # one that was to be killed may have been uploading
                continue
            where = f"Rank {rank} of {self._size} on node {self._nodes[rank]}"
            if rank in self._lost:
                why = f" {self._fault}" if self._fault else ""
                _complain(f"{where} is lost: its node or its Ray worker ended.{why}")
            elif rank in self._killed:
                _complain(f"{where} was killed because another rank had ended.")
            else:
                _complain(f"{where} ended: {why_killed(signal.Signals(-code))}.")


def complaint_of(
    facts: Mapping[str, Any], versions: Mapping[str, str], *, folder: Path
) -> str:
    """Return what a node lacks for the run, by what its worker has found; "" if
    nothing.
    """
    node = f"Node {facts['node']} ({facts['host']})"
    for name, wanted in versions.items():
        if (version := facts["versions"][name]) != wanted:
            return (
                f"{node} has {name} {version}, this worker {wanted}. Install the same "
                "versions of Cohort, torch, Ray and Python on every node."
            )
    if facts["fault"]:
        return (
            f"{node} cannot use {STORAGE}: {facts['fault']}. Check its address, and "
            "the credentials in the node's environment."
        )
    if not facts["sees_folder"]:
        return (
            f"{node} cannot read and write {folder}. Mount COHORT_DATA there, or set "
            f"{STORAGE}."
        )
    if facts["lacks"]:
        return (
            f"{node} lacks {facts['lacks'][0]}, which the run reads. Copy it to the "
            "same path on every node."
        )
    return ""


class _Files:
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


class _Echo:
    """Copies the log of the first rank to our output, which the log page shows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = path.stat().st_size if path.exists() else 0

    def copy(self) -> None:
        with suppress(OSError), self._path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            at = self._at if size >= self._at else self._find_place(file)
            if at > size or not size:
                return  # it is being cut
            self._at = at
            file.seek(at)
            while piece := file.read(2**20):
                self._at += len(piece)
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()

    def _find_place(self, file: IO[bytes]) -> int:
        """Find the first byte not copied, once `cap_log` has cut the beginning."""
        file.seek(0)
        note = file.readline(64)
        cut = _CUT.fullmatch(note)
        if cut is None or int(cut[1]) > self._at:
            return 0
        return self._at - int(cut[1]) + len(note)
