"""What a run is evaluated on, as files for its trainer."""

import hashlib
import json

import pytest

from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.row import Row
from dashboard.datasets.row_storage import draw_rows
from dashboard.runs.control import resume_run
from dashboard.runs.launch.eval_sets import ChosenSet
from dashboard.runs.models import Run, RunState
from dashboard.runs.queries import eval_rows
from dashboard.supervision.event_log import LogTailer, read_events
from dashboard.supervision.ingest import ingest
from dashboard.supervision.lease import claim_run
from dashboard.supervision.process import write_snapshot
from tests.dashboard.completions.factories import store_dataset
from tests.dashboard.supervision.factories import Launcher
from tests.trainer.tiny import run_trainer, write_model
from trainer.config import read_config


@pytest.fixture
def held_out(launch) -> DatasetVersion:
    rows = [Row(prompt=f"{n}+{n}=", answer=str(2 * n)) for n in range(12)]
    return store_dataset(launch.team, rows, name="held")


def evaluated_on(
    launch: Launcher, version: DatasetVersion, *, max_rows: int | None, **parts: object
) -> Run:
    chosen = ChosenSet(name="x", version=version, max_rows=max_rows)
    evaluation = {"every_steps": 1, "sets": {"x": eval_rows("x")}}
    return launch(evaluation_sets=[chosen], evaluation=evaluation, **parts)


def test_a_whole_set_is_the_file_of_its_hash(launch, held_out):
    directory = write_snapshot(evaluated_on(launch, held_out, max_rows=None))

    text = (directory.path / "eval-x.jsonl").read_bytes()
    assert hashlib.sha256(text).hexdigest() == held_out.content_sha256
    config = json.loads(directory.config.read_text())
    assert config["evaluation"]["sets"] == {"x": "eval-x.jsonl"}


def test_a_limited_set_has_the_same_rows_in_every_run(launch, held_out):
    texts = [
        (write_snapshot(run).path / "eval-x.jsonl").read_text()
        for run in (
            evaluated_on(launch, held_out, max_rows=5, seed=seed) for seed in (0, 7)
        )
    ]

    assert texts[0] == texts[1]
    prompts = [json.loads(line)["prompt"] for line in texts[0].splitlines()]
    assert prompts == [f"{n}+{n}=" for n in draw_rows(held_out, 5)]
    assert len(set(prompts)) == 5


def test_the_rows_stay_for_every_attempt_of_the_run(launch, held_out):
    run = evaluated_on(launch, held_out, max_rows=None)
    path = write_snapshot(run).path / "eval-x.jsonl"
    before = path.stat().st_mtime_ns

    write_snapshot(run)

    assert path.stat().st_mtime_ns == before


def test_a_resume_that_allows_more_errors_leaves_them_as_they_are(
    launch, held_out, alice
):
    run = evaluated_on(launch, held_out, max_rows=5)
    directory = write_snapshot(run)
    before = (directory.path / "eval-x.jsonl").read_text()
    Run.objects.filter(pk=run.pk).update(state=RunState.PAUSED)
    held_out.rows.all().delete()

    assert resume_run(run=run, user=alice, max_error_share=0.9)

    run.refresh_from_db()
    write_snapshot(run)
    assert (directory.path / "eval-x.jsonl").read_text() == before
    config = read_config(directory.config)
    assert config.evaluation.sets == {"x": "eval-x.jsonl"}
    assert config.reward.max_error_share == 0.9


@pytest.mark.parametrize("max_rows", [None, 11])
def test_deleted_rows_are_not_a_set(launch, held_out, max_rows):
    run = evaluated_on(launch, held_out, max_rows=max_rows)
    held_out.rows.filter(position__lt=3).delete()

    with pytest.raises(ValueError, match="Import it again"):
        write_snapshot(run)


def test_a_run_is_evaluated_on_the_chosen_sets(launch, held_out, tmp_path):
    run = evaluated_on(
        launch,
        held_out,
        max_rows=5,
        model={"path": str(write_model(tmp_path / "model"))},
        rollout={"prompts_per_step": 2, "group_size": 2, "max_new_tokens": 4},
        optim={"num_steps": 1},
        distributed={"num_threads": 1},
    )
    claim = claim_run(run.id, "worker-1")
    assert claim is not None
    directory = write_snapshot(run)

    done = run_trainer("run", directory.config, "--out", directory.attempt(1).path)

    assert done.returncode == 0, done.stderr
    lines = LogTailer(directory.attempt(1).events).read()
    ingest(claim, read_events(lines, attempt=1))
    found = run.evaluations.order_by("step")
    assert [(one.step, one.name) for one in found] == [(0, "x"), (1, "x")]
    assert {"eval/x/mean", "eval/x/pass@1"} <= set(found[0].metrics)
    reported = run.events.filter(type="evaluated").first()
    assert reported is not None
    assert reported.body["num_prompts"] == 5
