"""A resumed run equals one that was never interrupted, bit for bit."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    start_trainer,
    write_config,
)

# What a clock measures differs; all else must not.
CLOCK = ("time/", "tokens_per_second")


def untimed(event: dict[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in event.items() if k not in ("line", "attempt", "time")}
    if "metrics" in kept:
        kept["metrics"] = {
            k: v for k, v in kept["metrics"].items() if not k.startswith(CLOCK)
        }
    return kept


def story(*logs: Path, after: int = 0) -> list[dict[str, Any]]:
    kinds = (
        "group_scored",
        "tokens_measured",
        "mismatch_measured",
        "step_finished",
        "evaluated",
    )
    events = [event for log in logs for event in read_events(log)]
    return [
        untimed(event)
        for event in events
        if event["type"] in kinds and event["step"] > after
    ]


@pytest.fixture(scope="module")
def config(tmp_path_factory, model_folder, rows_path) -> Path:
    tree = config_tree(
        model_folder,
        rows_path,
        loss={"kl_coef": 0.05},
        optim={"num_steps": 6, "schedule": "cosine", "warmup_steps": 1},
    )
    return write_config(tmp_path_factory.mktemp("resume"), tree)


@pytest.fixture(scope="module")
def undisturbed(config) -> Path:
    out = config.parent / "undisturbed"
    done = run_trainer("run", config, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def wait_for(path: Path, text: str) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if path.exists() and text in path.read_text():
            return
        time.sleep(0.02)
    raise AssertionError(f"{path} never said {text}")


def assert_same_end(out: Path, undisturbed: Path, *, attempt: int) -> None:
    mine = out / "checkpoints" / f"step-000006-attempt-{attempt}"
    theirs = undisturbed / "checkpoints" / "step-000006-attempt-1"
    for name in ("model/model.safetensors", "optimizer.safetensors"):
        assert (mine / name).read_bytes() == (theirs / name).read_bytes()


def test_the_same_run_twice_is_the_same(config, undisturbed):
    out = config.parent / "again"

    run_trainer("run", config, "--out", out)

    assert_same_end(out, undisturbed, attempt=1)
    assert story(out / "events.jsonl") == story(undisturbed / "events.jsonl")


def test_killed_and_resumed_it_ends_as_if_nothing_had_happened(config, undisturbed):
    out = config.parent / "killed"
    child = start_trainer("run", config, "--out", out)
    wait_for(out / "events.jsonl", '"checkpoint_saved"')
    wait_for(out / "events.jsonl", '"step":3,"type":"step_finished"')
    child.kill()
    child.communicate()

    done = run_trainer("run", config, "--out", out, "--resume")

    assert done.returncode == 0, done.stderr
    events = read_events(out / "events.jsonl")
    assert events[0]["type"] == "run_resumed"
    resumed = events[0]["step"]
    assert resumed >= 2
    assert {event["attempt"] for event in events} == {2}
    assert_same_end(out, undisturbed, attempt=2)
    assert story(out / "events.jsonl") == story(
        undisturbed / "events.jsonl", after=resumed
    )


def test_events_up_to_the_checkpoint_are_kept_after_a_kill(config, undisturbed):
    out = config.parent / "killed"
    resumed = read_events(out / "events.jsonl")[0]["step"]

    old = [e for e in story(out / "events-1.jsonl") if e["step"] <= resumed]

    whole = story(undisturbed / "events.jsonl")
    assert old == [event for event in whole if event["step"] <= resumed]


def test_a_stopped_run_saves_and_continues_where_it_was(config, undisturbed):
    out = config.parent / "stopped"

    def stop() -> None:
        wait_for(out / "events.jsonl", '"step":1,"type":"step_finished"')
        os.kill(os.getpid(), signal.SIGTERM)

    waiting = threading.Thread(target=stop)
    waiting.start()
    stopped = run_trainer("run", config, "--out", out)
    waiting.join()

    events = read_events(out / "events.jsonl")
    assert stopped.returncode == 3
    assert events[-1]["type"] == "run_stopped"
    last_step = max(event["step"] for event in only(events, "step_finished"))
    assert last_step < 6
    assert events[-1]["checkpoint"] == f"step-{last_step:06d}-attempt-1"

    resume_from = out / "checkpoints" / events[-1]["checkpoint"]
    done = run_trainer(
        "run",
        config,
        "--out",
        config.parent / "resumed",
        "--checkpoints",
        out / "checkpoints",
        "--resume-from",
        resume_from,
        "--attempt",
        7,
    )
    assert done.returncode == 0, done.stderr
    assert_same_end(out, undisturbed, attempt=7)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over(config, undisturbed):
    out = config.parent / "damaged"
    out.mkdir()
    checkpoints = undisturbed / "checkpoints"
    copied = out / "checkpoints"
    for name in ("step-000004-attempt-1", "step-000006-attempt-1"):
        _copy(checkpoints / name, copied / name)
    weights = copied / "step-000006-attempt-1" / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")

    done = run_trainer("run", config, "--out", out, "--resume")

    assert done.returncode == 0, done.stderr
    assert read_events(out / "events.jsonl")[0]["step"] == 4
    assert_same_end(out, undisturbed, attempt=1)


def test_a_named_checkpoint_that_is_damaged_is_refused(config, tmp_path):
    done = run_trainer(
        "run", config, "--out", tmp_path, "--resume-from", tmp_path / "step-1"
    )

    assert done.returncode == 2
    assert "not a checkpoint" in done.stderr


@pytest.mark.slow
def test_it_ends_when_its_supervisor_is_gone(config):
    read_end, write_end = os.pipe()
    out = config.parent / "orphan"
    child = start_trainer(
        "run",
        config,
        "--out",
        out,
        env={"COHORT_PARENT_PIPE": str(read_end)},
        pass_fds=(read_end,),
    )
    os.close(read_end)
    wait_for(out / "events.jsonl", '"run_started"')

    os.close(write_end)
    child.communicate(timeout=30)

    assert child.returncode == 75


def _copy(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        if path.is_file():
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
