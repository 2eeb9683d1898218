"""A run pauses for a failing judge, then on request, and ends normally."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dashboard.runs.control import request_pause, resume_run
from dashboard.runs.models import Run, RunState
from dashboard.runs.queries import run_directory
from dashboard.supervision.lease import claim_run
from dashboard.supervision.supervisor import Timing, supervise
from tests.dashboard.supervision.factories import ROWS
from tests.dashboard.supervision.test_supervising_a_run import after_steps
from tests.faults.tiny import ROOT, config_tree, read_log, save_model, series, untimed
from tests.trainer.rewards.judge_server import Judging, judge_server

pytestmark = [pytest.mark.django_db, pytest.mark.slow]
NUM_REQUESTED = 20  # by the second or third step
NUM_STEPS = 40


@pytest.fixture
def judge(monkeypatch) -> Any:
    with judge_server() as server:
        monkeypatch.setenv("COHORT_JUDGE_HOSTS", server.url.split("/")[2])
        server.reply = by_length
        yield server


def by_length(requested: dict[str, Any]) -> str:
    return str(len(requested["messages"][1]["content"]) % 10)


def tree_of(model: Path, judge: Judging) -> dict[str, Any]:
    params = {"base_url": judge.url, "model": "m", "max_tries": 1}
    rule = {"name": "judge", "kind": "llm_judge", "weight": 1.0, "params": params}
    return {
        **config_tree(model, num_steps=NUM_STEPS),
        "reward": {"recipe": {"rules": [rule]}, "max_error_share": 0},
        "evaluation": {"every_steps": 0},
        "checkpoint": {"every_steps": 15},
    }


def undisturbed(folder: Path, tree: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "rows.jsonl").write_text("".join(row.canonical() + "\n" for row in ROWS))
    (folder / "run.json").write_text(json.dumps(tree))
    command = [sys.executable, "-m", "trainer", "run", str(folder / "run.json")]
    subprocess.run([*command, "--out", str(folder / "out")], cwd=ROOT, check=True)
    return folder / "out"


def live(run: Run, act: Callable[[], bool] = lambda: False) -> Run:
    claim = claim_run(run.id, "worker-1")
    assert claim is not None
    supervise(claim, is_shutting_down=act, timing=Timing(check_seconds=0.05))
    return Run.objects.get(id=run.id)


def test_the_run_ends_as_if_it_had_never_paused(launch, alice, judge, tmp_path):
    save_model(tmp_path / "model")
    tree = tree_of(tmp_path / "model", judge)
    expected = undisturbed(tmp_path / "undisturbed", tree)
    judge.asked.clear()

    def away(requested: dict[str, Any]) -> str:
        if len(judge.asked) > NUM_REQUESTED:
            return "I am not what you take me for."
        return by_length(requested)

    judge.reply = away
    run = launch(**tree)

    paused = live(run)

    assert paused.state == RunState.PAUSED, paused.fail_reason
    assert 0 < paused.last_step < 15
    assert 'rule "judge"' in paused.pause_reason
    assert run.checkpoints.get().step == paused.last_step

    judge.reply = by_length
    assert resume_run(run=paused, user=alice)
    act = after_steps(
        paused.last_step + 2, run, lambda: request_pause(run=run, user=alice)
    )
    requested = live(run, act)

    assert requested.state == RunState.PAUSED, requested.fail_reason
    assert paused.last_step < requested.last_step < NUM_STEPS
    assert run.checkpoints.filter(step=requested.last_step, attempt=2).exists()

    assert resume_run(run=requested, user=alice)
    ended = live(run)

    assert ended.state == RunState.FINISHED, ended.fail_reason
    rows = run.steps.filter(superseded_by=None).order_by("step")
    stored = {
        row.step: untimed(dict(zip(ended.metric_names, row.values, strict=False)))
        for row in rows
    }
    assert stored == series(read_log(expected / "events.jsonl"))
    saved = run_directory(run.id).checkpoints / f"step-{NUM_STEPS:06d}-attempt-3"
    same = expected / "checkpoints" / f"step-{NUM_STEPS:06d}-attempt-1"
    for name in ("model/model.safetensors", "optimizer.safetensors"):
        assert (saved / name).read_bytes() == (same / name).read_bytes()
