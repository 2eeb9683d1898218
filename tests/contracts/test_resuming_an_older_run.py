"""A run of an older version, cut off in mid-run, goes on by the code of today."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pytest_django.fixtures import Settings

from tests.contracts.test_neighbouring_versions import FOLDERS
from tests.faults.lives import live

if TYPE_CHECKING:
    from dashboard.accounts.models import Team, User
    from dashboard.runs.directory import RunDirectory

ROOT = Path(__file__).parents[2]


@pytest.fixture
def data(settings: Settings, tmp_path: Path) -> Path:
    settings.COHORT_DATA = tmp_path / "data"
    return tmp_path / "data"


def steps_told(log: Path) -> dict[int, dict[str, float | None]]:
    lines = [json.loads(line) for line in log.read_bytes().split(b"\n")[:-1]]
    return {e["step"]: e["metrics"] for e in lines if e["type"] == "step_finished"}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_its_history_is_taken_over(
    folder: Path, data: Path, team: Team, alice: User
) -> None:
    from dashboard.runs.directory import run_directory
    from dashboard.runs.models import Run
    from dashboard.training.journal import Journal
    from dashboard.training.lease import claim_run
    from dashboard.training.takeover import take_over
    from tests.dashboard.training.factories import Launcher

    run = Launcher(team, alice)()
    config = json.loads((folder / "run" / "run.json").read_text())
    Run.objects.filter(id=run.id).update(config=config)
    assert claim_run(run.id, "worker of then")
    directory = run_directory(run.id)
    shutil.copytree(folder / "run", directory.path)
    Run.objects.filter(id=run.id).update(state="queued", lease_until=None)
    claim = claim_run(run.id, "worker")
    assert claim
    journal = Journal(directory.epoch(2).supervisor_log, about="test")

    found = take_over(claim, directory, journal=journal, keep_alive=lambda: None)

    assert found
    assert found.path.name == "step-000002-epoch-1"
    run.refresh_from_db()
    told = steps_told(folder / "run" / "epochs" / "1" / "events.jsonl")
    assert (run.last_step, sorted(told)) == (2, [1, 2, 3])
    for step in run.steps.order_by("step"):
        stored = dict(zip(run.metric_names, step.values, strict=False))
        assert {name: stored.get(name) for name in told[step.step]} == told[step.step]
    assert run.steps.count() == 2
    assert not run.events.filter(type="warned", body__code="unreadable_line").exists()


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_its_trainer_goes_on_from_its_checkpoint(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(folder / "run", run)
    config = json.loads((run / "run.json").read_text())
    config["model"]["path"] = str(run / "model")
    (run / "run.json").write_text(json.dumps(config))
    out = run / "epochs" / "2"
    out.mkdir()
    shutil.copy(run / "epochs" / "1" / "changes.json", out)

    command = [
        *(sys.executable, "-m", "trainer", "run", str(run / "run.json")),
        *("--out", str(out), "--epoch", "2"),
        *("--checkpoints", str(run / "checkpoints")),
        *("--resume-from", str(run / "checkpoints" / "step-000002-epoch-1")),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert sorted(steps_told(out / "events.jsonl")) == [3, 4]


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_it_is_followed_while_it_trains_and_goes_on_by_the_trainer_of_today(
    folder: Path, data: Path, team: Team, alice: User
) -> None:
    from dashboard.runs.directory import run_directory
    from dashboard.runs.models import Run
    from tests.dashboard.training.factories import Launcher

    run = Launcher(team, alice)()
    config = json.loads((folder / "run" / "run.json").read_text())
    config["model"]["path"] = str(folder / "run" / "model")
    Run.objects.filter(id=run.id).update(config=config)
    directory = run_directory(run.id)
    directory.checkpoints.mkdir(parents=True)
    for name in ("rows.jsonl", "run.json"):
        shutil.copy(folder / "run" / name, directory.path)
    seen: set[int] = set()

    def look() -> None:
        seen.add(Run.objects.values_list("last_step", flat=True).get(id=run.id))

    def of_then(directory: RunDirectory, *, epoch: int, **_: Any) -> list[str]:
        out = directory.epoch(epoch).path
        script = str(Path(__file__).with_name("older_trainer.py"))
        checkpoints = str(directory.checkpoints)
        return [sys.executable, script, str(folder), str(out), checkpoints]

    lost = live(run, command=of_then, act=look)
    ended = live(run)

    assert (lost.state, lost.last_step, lost.epoch) == ("queued", 3, 1)
    assert {1, 2} <= seen
    assert (ended.state, ended.last_step, ended.epoch) == ("finished", 4, 2)
    assert ended.epochs.get(number=2).from_step == 2
    current = ended.steps.filter(superseded_by=None).order_by("step")
    assert list(current.values_list("step", "epoch")) == [
        (1, 1), (2, 1), (3, 2), (4, 2),
    ]  # fmt: skip
    codes = ended.events.filter(type="warned").values_list("body__code", flat=True)
    assert not {"unreadable_line", "unknown_event"} & set(codes)
    seqs = list(ended.events.order_by("seq").values_list("seq", flat=True))
    assert len(seqs) == len(set(seqs))
