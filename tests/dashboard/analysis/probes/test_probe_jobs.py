"""A probe job: claimed once, run to its end, stopped on request."""

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from dashboard.analysis.probes.jobs import probe as run_probe
from dashboard.analysis.probes.jobs import probe_command, write_snapshot
from dashboard.analysis.probes.models import Probe
from dashboard.analysis.probes.services import (
    config_of_model,
    draw_positions,
)
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.row import Row
from dashboard.jobs.kinds import Context
from dashboard.jobs.models import Job
from dashboard.jobs.queue import reap, request_stop
from dashboard.project.errors import UserError
from dashboard.runs.launch.base_models import StarterModel
from tests.dashboard.analysis.probes.factories import RECIPE, make_probe, make_version
from tests.dashboard.completions.factories import store_dataset
from tests.dashboard.jobs.working import change_kind, do, report_progress, take
from trainer.rewards.spec import Recipe

SCRIPT = Path(__file__).with_name("scripted_probe.py")


@pytest.fixture
def version(team) -> DatasetVersion:
    return make_version(team)


@pytest.fixture
def queued(team, version) -> Probe:
    return make_probe(team, version)


def scripted(behaviour: str) -> Callable[[Probe, Path], list[str]]:
    return lambda _, folder: [
        sys.executable,
        str(SCRIPT),
        behaviour,
        str(folder / "probe.jsonl"),
    ]


@pytest.fixture
def script(monkeypatch) -> Callable[[str], None]:
    """Probe by a scripted trainer that behaves so."""

    def change(behaviour: str) -> None:
        run = partial(run_probe, command=scripted(behaviour))
        change_kind(monkeypatch, "probe", run=run)

    return change


@pytest.fixture
def see_through(script) -> Callable[..., Probe]:
    def see(behaviour: str, **given: Any) -> Probe:
        script(behaviour)
        return Probe.objects.get(pk=do(take("probe"), **given).target_id)

    return see


def test_groups_and_metrics_are_stored(queued, see_through):
    probe = see_through("finish")

    assert (probe.state, probe.num_done, probe.error) == ("done", 2, "")
    assert probe.metrics == {"num_prompts": 2}
    groups = list(probe.groups.order_by("position"))
    assert [group.position for group in groups] == [1, 3]  # rows of the dataset
    # What jsonb would refuse is replaced, and the rest kept.
    assert [each["text"] for each in groups[0].completions] == ["4", "no␀ �"]
    (use,) = probe.team.judge_uses.all()
    assert (use.source, use.target_id, use.model) == ("probe", probe.pk, "judge")
    assert (use.calls, use.input_tokens) == (4, 60)


def test_a_trainer_error_is_stored(queued, see_through):
    probe = see_through("refuse")

    assert probe.state == "failed"
    assert probe.error == "900 tokens"


def test_a_crash_is_stored_with_its_signal(queued, see_through):
    probe = see_through("crash")

    assert probe.state == "failed"
    assert "signal 9" in probe.error
    assert "Segmentation fault" in probe.error


def test_a_stopped_probe_keeps_its_results(queued, see_through):
    def stop_once_sampled(context: Context) -> None:
        if queued.groups.exists():
            request_stop(queued, None, "probe.stop_requested")
        report_progress(context)

    probe = see_through("wait", on_progress=stop_once_sampled)

    assert probe.state == "cancelled"
    assert probe.metrics == {"num_prompts": 1}


def test_a_shutdown_releases_the_probe(queued, see_through):
    probe = see_through("wait", is_shutting_down=lambda: True)

    assert probe.state == "queued"
    assert not probe.groups.exists()


def test_a_worker_that_lost_the_probe_writes_nothing(queued, script):
    script("finish")
    first = take("probe")
    Job.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    reap()
    take("probe", worker="worker-2")

    job = do(first)

    assert (job.state, job.worker) == ("running", "worker-2")
    assert not queued.groups.exists()


def test_a_probe_of_a_lost_worker_restarts(queued, see_through):
    take("probe")
    queued.groups.create(position=1, completions=[])
    Job.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    reap()

    probe = see_through("finish")

    assert probe.state == "done"
    assert [len(group.completions) for group in probe.groups.all()] == [2, 2]


def test_the_trainer_gets_the_chosen_rows(queued, tmp_path):
    folder = tmp_path / "files"

    write_snapshot(queued, folder)

    lines = (folder / "rows.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["prompt"] for row in rows] == ["1+1?", "3+3?"]
    config = json.loads((folder / "probe.json").read_text())
    assert config["data"]["rows"] == "rows.jsonl"
    command = probe_command(queued, folder)
    assert command[1:4] == ["-m", "trainer", "probe"]
    assert "--sample-only" not in command


def test_a_sample_times_no_update(team, version):
    sample = make_probe(team, version, is_sample=True)

    assert "--sample-only" in probe_command(sample, Path("/x"))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"num_samples": 65}, "probes.size"),
        ({"positions": []}, "probes.size"),
        (
            {"positions": list(range(200)), "num_samples": 32},
            "probes.too_many_completions",
        ),
    ],
)
def test_a_probe_that_is_too_large_is_refused(team, version, changes, code):
    with pytest.raises(UserError) as refused:
        make_probe(team, version, **changes)

    assert refused.value.code == code


def test_a_team_has_at_most_eight_open_probes(team, version):
    for _ in range(8):
        make_probe(team, version)

    with pytest.raises(UserError) as refused:
        make_probe(team, version)

    assert refused.value.code == "probes.too_many_open"


def test_rows_are_drawn_by_the_seed(version):
    drawn = draw_positions(version, 4, seed=1)

    assert drawn == draw_positions(version, 4, seed=1) == sorted(set(drawn))
    assert draw_positions(version, 99) == list(range(6))


def test_a_starters_settings_have_room_for_other_prompts(team, tmp_path):
    (tmp_path / "run.toml").write_text(
        '[data]\nmax_prompt_tokens = 32\nchat_template = "none"\n'
    )
    starter = StarterModel(key="small", title="Small", folder=tmp_path)
    rows = [Row(prompt="1+" * 30 + "1", answer="31")] * 53
    version = store_dataset(team, rows)

    config = config_of_model(
        starter.path,
        Recipe.model_validate(RECIPE),
        version=version,
        starters=[starter],
        rollout={"max_new_tokens": 24},
    )

    assert config.data.max_prompt_tokens == 61
    assert config.data.num_eval_rows == 10
    assert config.rollout.max_new_tokens == 24
