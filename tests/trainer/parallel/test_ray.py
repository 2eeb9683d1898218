"""A run on a Ray cluster is the run of as many processes of one machine."""

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import fsspec.core
import pytest
from safetensors.torch import load_file

from tests.environment import ROOT
from tests.trainer.parallel.test_distributed import assert_same_story, together, tree_of
from tests.trainer.ray_clusters import HEAD, SECOND, TwoNodes, two_nodes
from tests.trainer.tiny import read_events, run_trainer, start_trainer, write_config
from tests.trainer.waiting import wait_until
from trainer.config import DistributedConfig, RunConfig, read_config
from trainer.output.checkpoint import verify_checkpoint
from trainer.parallel import ray_cluster, ray_driver
from trainer.parallel.launch import EXIT_FAILED, EXIT_PAUSED, EXIT_STOPPED
from trainer.parallel.ray_cluster import ADDRESS, STORAGE, ClusterAway
from trainer.parallel.ray_driver import complaint_of
from trainer.parallel.world import _patience

# Beside two other workers both ranks are there after 65 to 95 seconds.
TRAINED_SECONDS = 300
RAY = {"where": "ray", "num_nodes": 2, "num_threads": 1}
LAST = Path("checkpoints/step-000006-attempt-1/model/model.safetensors")


@pytest.fixture(scope="module")
def nodes() -> Iterator[TwoNodes]:
    # Short: the path of a unix socket has at most 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="cohort-ray-", dir="/tmp"))
    with two_nodes(folder) as found:
        yield found
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def two(model_folder, rows_path, tmp_path_factory) -> Path:
    """Where two processes of one machine have trained."""
    tree = tree_of(model_folder, rows_path, distributed=RAY)
    return together(write_config(tmp_path_factory.mktemp("two"), tree), "out")


@pytest.mark.slow
def test_two_nodes_train_as_two_processes_of_one_machine_do(
    nodes, two, model_folder, rows_path, tmp_path
):
    config = write_config(tmp_path, tree_of(model_folder, rows_path, distributed=RAY))
    out = tmp_path / "ray"

    run = nodes.start(config, out)
    output, _ = run.communicate(timeout=TRAINED_SECONDS)

    assert run.returncode == 0, output
    assert_same_story(out, two)
    ours, theirs = load_file(out / LAST), load_file(two / LAST)
    assert all(ours[name].equal(theirs[name]) for name in theirs)
    assert {path.name for path in out.glob("rank-*.log")} == {
        "rank-0.log",
        "rank-1.log",
    }
    assert "step 6/6" in output  # the first rank's


@pytest.mark.slow
def test_a_clusters_resources_are_reported_by_node(nodes):
    found = ask("cluster", "--address", nodes.address, env=nodes.environment)

    assert found["error"] is None
    assert found["address"] == nodes.address
    assert {node["address"] for node in found["nodes"]} == {HEAD, SECOND}
    for node in found["nodes"]:
        assert node["is_alive"]
        assert (node["cpus"], node["cpus_free"]) == (1, 1)
        assert (node["gpus"], node["gpus_free"], node["gpu_kind"]) == (0, 0, None)
        assert node["memory_bytes"] > 0


@pytest.mark.slow
def test_a_cluster_without_our_token_says_so(nodes):
    wrong = nodes.environment | {"RAY_AUTH_TOKEN": "0" * 64}

    found = ask("cluster", "--address", nodes.address, env=wrong)

    assert nodes.address in found["error"]
    assert found["nodes"] == []


@pytest.mark.slow
@pytest.mark.parametrize("address", ["127.0.0.1:9", "head", "ray://head:10001"])
def test_an_address_without_a_cluster_is_named(address):
    found = ask("cluster", "--address", address)

    assert address in found["error"]
    assert found["nodes"] == []


def ask(*arguments: object, **options: Any) -> dict[str, Any]:
    child = start_trainer(*arguments, **options)
    output, _ = child.communicate(timeout=20)
    assert child.returncode == 0, output
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_as_a_kill_does(nodes, long, tmp_path):
    run = begun(nodes, long, tmp_path / "out")
    members = nodes.ranks()
    [struck] = [each for each in members if each.environ()["RANK"] == "1"]

    struck.kill()
    output, _ = run.communicate(timeout=60)

    assert run.returncode == -signal.SIGKILL, output
    assert "Rank 1 of 2" in output
    assert "SIGKILL" in output
    wait_until(lambda: not any(member.is_running() for member in members))


@pytest.fixture
def long(model_folder, rows_path, tmp_path) -> Path:
    tree = tree_of(
        model_folder,
        rows_path,
        optim={"num_steps": 400},
        evaluation={"every_steps": 0},
        distributed=RAY,
    )
    return write_config(tmp_path, tree)


def begun(nodes: TwoNodes, config: Path, out: Path) -> subprocess.Popen[str]:
    """A run in its second step."""
    run = nodes.start(config, out)
    log = out / "events.jsonl"

    def is_in_second_step() -> bool:
        assert run.poll() is None, run.communicate()[0]
        return log.exists() and '"step":2,"type":"step_finished"' in log.read_text()

    wait_until(is_in_second_step)
    return run


def scratch_folders(rows: Path) -> list[Path]:
    """Of runs with these rows: other tests may have runs of their own meanwhile."""
    found = []
    for copied in Path("/tmp").glob("cohort-node-*/rows.jsonl"):
        with suppress(FileNotFoundError):
            if copied.read_bytes() == rows.read_bytes():
                found.append(copied.parent)
    return found


@pytest.mark.slow
def test_nodes_without_the_runs_folder_use_the_storage(
    nodes, two, model_folder, rows_path, tmp_path, monkeypatch
):
    """The log and the checkpoints come back as if they had been written here."""
    storage = tmp_path / "storage"
    monkeypatch.setitem(nodes.variables, "COHORT_RAY_STORAGE", f"file://{storage}")
    tree = tree_of(model_folder, rows_path, distributed=RAY)
    tree["data"]["rows"] = "rows.jsonl"
    shutil.copy(rows_path, tmp_path)
    saved, name = tmp_path / "saved", "step-000004-attempt-1"
    forked = shutil.copytree(two / "checkpoints" / name, saved / name)
    tree["checkpoint"]["keep_last"] = 1
    config = write_config(tmp_path, tree)

    out = tmp_path / "ray"
    more = ("--checkpoints", saved, "--attempt", 2, "--resume-from", forked)
    run = nodes.start(config, out, *more)
    wait_until(lambda: scratch_folders(rows_path))
    output, _ = run.communicate(timeout=TRAINED_SECONDS)

    assert run.returncode == 0, output
    assert "step 6/6" in output
    assert {path.name for path in out.iterdir()} == {
        *("events.jsonl", "pulse", "rank-0.log", "rank-1.log")
    }
    events = read_events(out / "events.jsonl")
    assert [event["line"] for event in events] == list(range(1, len(events) + 1))
    assert_same_story(out, two, after=4)
    assert [path.name for path in saved.iterdir()] == ["step-000006-attempt-2"]
    verify_checkpoint(saved / "step-000006-attempt-2")
    [folder] = storage.iterdir()
    kept = {str(path.relative_to(folder)) for path in folder.glob("*/*")}
    assert kept == {"checkpoints/step-000006-attempt-2"}
    assert not scratch_folders(rows_path)


@pytest.mark.parametrize(
    ("stop", "code"), [(False, -signal.SIGKILL), (True, EXIT_STOPPED)]
)
def test_a_cluster_that_is_away_loses_an_attempt_and_no_stop(
    stop, code, tmp_path, monkeypatch
):
    monkeypatch.setenv(ADDRESS, "127.0.0.1:9")
    monkeypatch.setattr(ray_driver, "CONNECT_SECONDS", 0.0)
    monkeypatch.setattr(ray_driver, "Requests", lambda: Namespace(stop=stop))
    monkeypatch.setattr(ray_driver, "end_by", lambda number: -number)
    args, config = attempt_of(tmp_path)

    assert ray_driver.run_on_cluster(args, config) == code


def test_a_relay_that_is_killed_loses_the_attempt(tmp_path, monkeypatch):
    import ray

    lost = Mock(run=Mock(side_effect=ray.exceptions.RayActorError()))
    monkeypatch.setattr(ray_driver, "Driver", Mock(return_value=lost))
    monkeypatch.setattr(ray_driver, "connect", lambda *_: ray)
    monkeypatch.setattr(
        ray_driver, "Requests", lambda: Namespace(stop=False, listen=lambda: None)
    )
    monkeypatch.setattr(ray_driver, "end_by", lambda number: -number)

    code = ray_driver.run_on_cluster(*attempt_of(tmp_path))

    assert code == -signal.SIGKILL


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("503: try again"), -signal.SIGKILL),
        (OSError(errno.EIO, "I/O error"), -signal.SIGKILL),
        (OSError(errno.ENOSPC, "No space left on device"), EXIT_PAUSED),
    ],
)
def test_a_checkpoint_that_is_not_copied_loses_the_attempt(
    error, code, tmp_path, monkeypatch
):
    def fail(*_: object, **__: object) -> None:
        raise error

    args, config = attempt_of(tmp_path)
    requests = Mock(stop=False)
    driver = ray_driver.Driver(Mock(), args, config, requests)
    driver._files = files_of(tmp_path)
    monkeypatch.setattr(driver._files._storage, "get_folder", fail)

    driver._receive("saved", SECOND_SAVE, b"")

    assert (driver._lack, requests.stop) == (code, True)


def test_a_stop_is_passed_on_while_a_checkpoint_is_copied(tmp_path):
    args, config = attempt_of(tmp_path)
    requests = Mock(stop=True)
    driver = ray_driver.Driver(Mock(), args, config, requests)
    driver._relay = Mock()
    driver._files = files_of(tmp_path)
    saved = Path(driver._files.url.removeprefix("file://")) / "checkpoints"
    (saved / SECOND_SAVE).mkdir(parents=True)
    for name in ("state.json", "manifest.json"):
        (saved / SECOND_SAVE / name).touch()

    driver._receive("saved", SECOND_SAVE, b"")

    assert driver._relay.order.remote.call_args_list == [call("stop")]
    assert (args.checkpoints / SECOND_SAVE / "manifest.json").exists()


def test_a_rank_that_was_still_uploading_counts_as_ended_by_itself(tmp_path, capsys):
    driver = ray_driver.Driver(Mock(), *attempt_of(tmp_path), Mock())
    driver._ends, driver._nodes = {0: 0, 1: 0}, {0: HEAD, 1: SECOND}
    driver._killed = {0}

    assert driver._end(0) == 0
    assert capsys.readouterr().err == ""


def test_a_rank_gives_signs_of_life_while_it_uploads(tmp_path, monkeypatch):
    from trainer.parallel import ray_worker

    monkeypatch.setattr(ray_worker._Mirror, "_run", lambda _: None)
    monkeypatch.setattr(ray_worker, "ray", Mock(wait=Mock(return_value=([1], []))))
    relay = Mock()
    plan = ray_worker.Plan(
        relay=relay, root="", arguments=[], out=str(tmp_path), token="own"
    )
    mirror = ray_worker._Mirror(plan, 0)
    (tmp_path / "pulse").touch()

    counts = []
    for has_ended in (False, False, True):
        mirror.send_pulse(has_ended=has_ended)
        counts.append(relay.send.remote.call_count)

    assert counts == [1, 1, 2]


def test_each_piece_of_a_file_is_progress(tmp_path, monkeypatch):
    from trainer.parallel import ray_worker

    monkeypatch.setattr(ray_worker, "_PIECE_BYTES", 1_000)
    storage = ray_worker.Storage(f"file://{tmp_path}/storage")
    source = tmp_path / "optimizer.safetensors"
    source.write_bytes(os.urandom(4_500))
    put, got = Mock(), Mock()

    storage.put(source, "in/optimizer.safetensors", put)
    storage.get_folder("in", tmp_path / "back", on_progress=got)

    assert put.call_count > 5
    assert got.call_count > 5
    assert (tmp_path / "back" / source.name).read_bytes() == source.read_bytes()


def test_a_note_stays_while_its_folder_may(tmp_path, monkeypatch, capsys):
    storage, note = tmp_path / "storage", tmp_path / "notes" / "run-1-0123abcd"
    note.parent.mkdir()
    note.touch()
    monkeypatch.setenv("COHORT_RAY_STORAGE", f"file://{storage}")

    assert ray_cluster.delete_stored(note.parent) == EXIT_FAILED  # it is not mounted
    assert note.exists()
    assert note.name in capsys.readouterr().out

    (storage / note.name / "checkpoints").mkdir(parents=True)
    with (note.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert ray_cluster.delete_stored(note.parent) == 0  # another worker does it
    assert note.exists()

    assert ray_cluster.delete_stored(note.parent) == 0
    assert not note.exists()
    assert not (storage / note.name).exists()
    assert storage.exists()


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({}, 1_800),
        ({"COHORT_HANG_SECONDS": "600"}, 1_800),
        ({"COHORT_HANG_SECONDS": "1800"}, 3_600),
    ],
)
def test_processes_wait_longer_than_the_watchdog(variables, seconds):
    """Also those of a run that has the former default."""
    config = DistributedConfig(timeout_seconds=1_800)

    assert _patience(config, variables).total_seconds() == seconds


def test_gloo_and_nccl_take_the_interface_of_the_nodes_address(monkeypatch):
    from trainer.parallel.ray_worker import _network

    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)

    assert _network() == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    assert _network() == {"GLOO_SOCKET_IFNAME": "lo"}


def test_a_bucket_that_is_not_there_is_not_made(tmp_path, monkeypatch):
    from trainer.parallel import ray_worker

    files = Mock(protocol=("s3", "s3a"))
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda _: (files, "bucket/cohort/"))

    ray_worker.Storage("s3://bucket/cohort/").put(tmp_path / "rows.jsonl", "in/rows")

    assert files.put_file.call_args.args[1] == "bucket/cohort/in/rows"
    files.makedirs.assert_not_called()


def test_an_upload_without_progress_ends_the_attempt(tmp_path, monkeypatch):
    from trainer.parallel import ray_worker

    plan = ray_worker.Plan(
        relay=Mock(),
        root="",
        arguments=[],
        out=str(tmp_path),
        token="own",
        storage=f"file://{tmp_path}/storage",
        hang_seconds=100.0,
    )
    now = 0.0

    def copy(_: Path, __: Path, on_progress: Callable[[], None]) -> None:
        nonlocal now
        now += 90
        on_progress()  # a piece of the file
        now += 90
        mirror.check()
        now += 20
        with pytest.raises(TimeoutError, match=SECOND_SAVE):
            mirror.check()

    monkeypatch.setattr(ray_worker, "_TMP", tmp_path)
    monkeypatch.setattr(ray_worker, "ray", Mock())
    monkeypatch.setattr(ray_worker, "time", Mock(monotonic=lambda: now))
    monkeypatch.setattr(ray_worker._Mirror, "_run", lambda _: None)
    monkeypatch.setattr(ray_worker, "_copy", copy)
    (plan.scratch / "checkpoints" / SECOND_SAVE).mkdir(parents=True)
    (plan.scratch / "checkpoints" / SECOND_SAVE / "manifest.json").touch()
    mirror = ray_worker._Mirror(plan, 0)

    mirror._save(SECOND_SAVE)

    assert now == 200
    now += 1_000
    mirror.check()  # nothing is being uploaded


@pytest.mark.parametrize(("newest", "left"), [(2, set()), (3, {"inputs-a"})])
def test_leftovers_of_a_killed_driver_are_removed(newest, left, tmp_path):
    files = files_of(tmp_path)
    (tmp_path / "rows.jsonl").touch()
    (tmp_path / f"attempts/{newest}").mkdir(exist_ok=True)
    storage = Path(files.url.removeprefix("file://"))
    (storage / "inputs-a").mkdir(parents=True)

    files.put_inputs("b")

    assert {path.name for path in storage.iterdir()} == {"inputs-b", *left}


def test_the_storages_password_is_not_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(STORAGE, "ftp://user:p%40ss@host/cohort")
    files = files_of(tmp_path)
    error = OSError("no answer of user:p@ss@host, nor user:p%40ss@host")
    monkeypatch.setattr(files, "_storage", Mock(names_in=Mock(side_effect=error)))

    with pytest.raises(ClusterAway) as caught:
        files.put_inputs("b")
    ray_driver._complain(str(caught.value))

    printed = capsys.readouterr().err
    assert "no answer" in printed
    assert "ss@" not in printed


def test_a_log_that_was_cut_is_echoed_once(tmp_path, monkeypatch, capfdbinary):
    from trainer.parallel import ray_worker

    monkeypatch.setattr(ray_worker, "_LOG_CAP_BYTES", 100)
    monkeypatch.setattr(ray_worker, "_LOG_KEPT_BYTES", 50)
    log = tmp_path / "rank-0.log"
    echo = ray_driver._Echo(log)
    written = b""
    for number in range(60):
        with log.open("ab") as file:
            file.write(line := b"line %d\n" % number)
        written += line
        echo.copy()
        ray_worker.cap_log(log)

    assert capfdbinary.readouterr().out == written
    log.write_bytes(b"")
    echo.copy()
    assert echo._at > 0


FIRST_SAVES = ("step-000005-attempt-1", "step-000010-attempt-1")
SECOND_SAVE = "step-000020-attempt-2"


@pytest.mark.parametrize(
    ("newest", "left"),
    [(2, {SECOND_SAVE}), (3, {SECOND_SAVE, *FIRST_SAVES})],
)
def test_only_the_newest_attempt_deletes_earlier_checkpoints(newest, left, tmp_path):
    from trainer.parallel import ray_worker

    files = files_of(tmp_path)
    mirror = tmp_path / "checkpoints"
    saved = Path(files.url.removeprefix("file://")) / "checkpoints"
    for name in FIRST_SAVES:
        for place in (mirror, saved):
            (place / name).mkdir(parents=True)
            (place / name / "manifest.json").touch()
    (saved / SECOND_SAVE).mkdir()
    (saved / SECOND_SAVE / "manifest.json").touch()
    (tmp_path / f"attempts/{newest}").mkdir(exist_ok=True)

    files.receive(ray_worker.SAVED, SECOND_SAVE, b"")

    for place in (mirror, saved):
        assert {path.name for path in place.iterdir()} == left


def test_a_rank_clears_old_folders_of_its_node_and_uses_none_of_another_user(
    tmp_path, monkeypatch
):
    from trainer.parallel import ray_worker

    monkeypatch.setattr(ray_worker, "_TMP", tmp_path)
    own, new, old = (tmp_path / f"cohort-node-{name}" for name in ("own", "new", "old"))
    for folder, age in ((own, 100), (new, 10), (old, 100)):
        folder.mkdir()
        (folder / "lock").touch()
        (folder / "rows.jsonl").touch()
        os.utime(folder / "lock", (time.time() - age,) * 2)
    plan = ray_worker.Plan(
        relay=None, root="", arguments=[], out=str(own / "out"), token="own"
    )

    scratch = ray_worker._Scratch(plan)
    left = {path.parent for path in tmp_path.glob("*/rows.jsonl")}
    scratch.leave()

    assert left == {own, new}
    assert {*tmp_path.iterdir()} == {new}
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    with pytest.raises(PermissionError):
        ray_worker._Scratch(plan)


def attempt_of(folder: Path) -> tuple[Namespace, RunConfig]:
    """The second attempt of a run with `checkpoint.keep_last` = 1."""
    tree = tree_of(folder, folder / "rows.jsonl", distributed=RAY)
    tree["data"]["rows"] = "rows.jsonl"
    tree["checkpoint"]["keep_last"] = 1
    config = write_config(folder, tree)
    out = folder / "attempts/2"
    out.mkdir(parents=True, exist_ok=True)
    args = Namespace(
        config=config,
        out=out,
        checkpoints=folder / "checkpoints",
        attempts=folder / "attempts",
        attempt=2,
        resume=False,
        resume_from=None,
        passed_over=[],
    )
    return args, read_config(config)


def files_of(folder: Path) -> ray_cluster.Files:
    from trainer.parallel import ray_worker  # Ray takes a second to load

    storage = f"file://{folder}/storage"
    return ray_cluster.Files(ray_worker, storage, *attempt_of(folder))


@pytest.mark.slow
def test_a_node_with_another_version_is_named(nodes, model_folder, rows_path, tmp_path):
    ours = tmp_path / "ours/trainer"
    cached = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "trainer", ours, ignore=cached)
    with (ours / "grpo.py").open("a") as file:
        file.write("# changed\n")
    config = write_config(tmp_path, tree_of(model_folder, rows_path, distributed=RAY))

    run = nodes.start(config, tmp_path / "out", cwd=ours.parent)
    output, _ = run.communicate(timeout=TRAINED_SECONDS)

    assert run.returncode == 2, output
    assert any(f"Node {each}" in output for each in (HEAD, SECOND))
    assert "Cohort" in output
    assert not (tmp_path / "out/events.jsonl").exists()


FOUND = {
    "node": "10.0.0.7",
    "host": "gpu-7",
    "versions": {"torch": "2.13.0"},
    "fault": "",
    "sees_folder": True,
    "lacks": [],
}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({}, []),
        ({"versions": {"torch": "2.12.0"}}, ["torch", "2.12.0", "2.13.0"]),
        ({"fault": "PermissionError: no bucket"}, ["no bucket", STORAGE]),
        ({"sees_folder": False}, ["/data/runs/7", STORAGE]),
        ({"lacks": ["/models/m"]}, ["/models/m"]),
    ],
)
def test_a_nodes_lack_is_reported_with_its_name(change, named):
    found = complaint_of(
        FOUND | change, {"torch": "2.13.0"}, folder=Path("/data/runs/7")
    )

    assert bool(found) == bool(named)
    assert all(each in found for each in (*named, *(["10.0.0.7"] if named else [])))


def test_without_an_address_a_run_on_a_cluster_is_refused(
    model_folder, rows_path, tmp_path, monkeypatch
):
    monkeypatch.delenv("COHORT_RAY_ADDRESS", raising=False)
    config = write_config(tmp_path, tree_of(model_folder, rows_path, distributed=RAY))

    done = run_trainer("run", config, "--out", tmp_path / "out")

    assert done.returncode == 2
    assert "COHORT_RAY_ADDRESS" in done.stderr


def test_without_ray_the_facts_say_how_to_install_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)

    done = run_trainer("cluster", "--address", "head:6379")

    assert done.returncode == 0
    found = json.loads(capsys.readouterr().out)
    assert "ray[train]" in found["error"]
    assert (found["ray_version"], found["nodes"]) == (None, [])
