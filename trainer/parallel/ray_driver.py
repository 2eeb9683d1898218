"""A run on the nodes of a Ray cluster.

This process is the one that a supervisor starts and watches. It asks Ray Train for one
worker a rank; each runs the trainer's own entry as a child process
(`trainer.parallel.ray_worker`). Attempts are the supervisor's business: Ray starts
nothing again.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import re
import secrets
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from trainer.config import RunConfig, named_models
from trainer.console import FACTS, print_error, print_line
from trainer.disk import is_disk_full
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
from trainer.parallel.ray_cluster import (
    ADDRESS,
    STORAGE,
    CannotRun,
    ClusterAway,
    Files,
    first_line,
    hide_password,
    is_listening,
    load_ray,
    unreachable,
)

HANG_SECONDS = "COHORT_HANG_SECONDS"
ROOT = Path(__file__).resolve().parents[2]
JOIN = "ray start --address {} --num-cpus 0 --num-gpus 0"
CONNECT_SECONDS = 60.0
SILENT_SECONDS = 60.0  # after which a rank counts as killed; ranks call each second
FIT_SECONDS = 5.0  # for Ray Train to see that all ranks have ended
WAITING_SECONDS = 30.0  # between lines about what is waited for
# Callbacks of Ray Train that are left out: a process for datasets, which are not used,
# and one that cleans up behind a killed driver, as Ray does anyway, and never exits
# where the head has no dashboard.
_NEEDLESS = {"DatasetsCallback", "PlacementGroupCleanerCallback"}
_CUT = re.compile(rb"\[(\d+) bytes left out\]\n")  # as `cap_log` notes it


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


def _complain(text: str) -> None:
    """Members of the team read it."""
    print_error(hide_password(text))


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
        self._files: Files | None = None  # where the nodes do not share the folder
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
                self._files = Files(self._worker, url, self._args, self._config)
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
