"""A run's duration, from past runs of the same shape."""

from datetime import UTC, datetime
from typing import Any

import pytest

from dashboard.accounts.models import Team
from dashboard.datasets.models import DatasetVersion
from dashboard.runs.launch.page import Amount
from dashboard.runs.models import Run, RunEvent, Step
from dashboard.runs.queue.estimates import Pace, past_paces
from tests.dashboard.costs.factories import set_price
from tests.dashboard.runs.launching import (
    make_config,
    make_dataset,
    make_recipe,
    make_run,
)
from tests.dashboard.runs.test_clone import _fields
from tests.dashboard.supervision.machines import make_worker
from trainer.config import RunConfig

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _run(team: Team, *seconds: float | None, device: str = "cpu", **parts: Any) -> Run:
    there = DatasetVersion.objects.filter(dataset__team=team).first()
    run = make_run(
        team,
        "past",
        dataset=there or make_dataset(team),
        recipe=make_recipe(team, f"r{Run.objects.count()}"),
        config=make_config(**parts),
        metric_names=["loss", "time/step"],
        last_step=len(seconds),
    )
    common = {"run": run, "attempt": 1, "time": NOW}
    RunEvent.objects.create(
        **common, seq=1, line=1, type="run_started", step=0, body={"device": device}
    )
    Step.objects.bulk_create(
        Step(**common, step=n, seq=n + 1, values=[9.0, second])
        for n, second in enumerate(seconds, 1)
    )
    return run


def _paces(team: Team, **parts: Any) -> list[Pace]:
    return past_paces(team, RunConfig.model_validate(make_config(**parts)))


def test_the_medians_of_like_runs_are_taken(team):
    _run(team, 50.0, 2.0, 2.0)  # the first step warms up
    _run(team, 4.0, None)
    _run(team, 6.0)

    assert _paces(team) == [Pace(device="cpu", step_seconds=4.0, num_runs=3)]


def test_devices_are_separate(team):
    _run(team, 8.0)
    _run(team, 1.0, device="cuda")

    assert [(one.device, one.step_seconds) for one in _paces(team)] == [
        ("cuda", 1.0),
        ("cpu", 8.0),
    ]


def test_runs_of_other_shapes_or_teams_do_not_count(team):
    others = Team.objects.create(slug="beta", name="Beta")
    _run(others, 1.0)
    _run(team, 1.0, model={"path": "org/other"})
    _run(team, 1.0, model={"path": "org/model", "lora_rank": 8})
    _run(team, 1.0, optim={"updates_per_batch": 2})
    _run(team)

    assert _paces(team) == []


def test_a_run_of_another_batch_is_scaled_by_tokens(team):
    _run(team, 6.0, rollout={"prompts_per_step": 96})
    _run(team, 3.0, rollout={"prompts_per_step": 32})

    (pace,) = _paces(team, rollout={"prompts_per_step": 8})

    assert pace.step_seconds == 3.0 / 4
    assert pace.scaled_from == "32 prompts a step"


def test_an_equal_run_is_not_scaled(team):
    _run(team, 3.0, rollout={"group_size": 4})
    _run(team, 5.0)

    assert _paces(team) == [Pace(device="cpu", step_seconds=5.0, num_runs=1)]


@pytest.mark.parametrize(
    ("num_workers", "facts"),
    [
        (0, ["4 runs", "8 min", "one after the other"]),
        (2, ["4 runs", "4 min", "2 at a time"]),
    ],
)
def test_a_sweep_shows_how_long_its_runs_take_together(
    alice_client, team, num_workers, facts, settings, tmp_path
):
    settings.COHORT_DATA = tmp_path  # without a starter, whose settings it would show
    _run(team, 12.0)
    for number in range(num_workers):
        make_worker(f"training@gpu-{number}")
    fields = _fields(alice_client.get(f"/{team.slug}/runs/new").text)
    fields |= {"model": "", "model_other": "org/model", "optim.num_steps": "10"}
    seeds = {"sweep-1-path": "seed", "sweep-1-values": "0..3"}
    passes = {"optim.updates_per_batch": "2"}
    url = f"/{team.slug}/runs/new/plan"

    response = alice_client.post(url, fields | seeds)
    unknown = alice_client.post(url, fields | seeds | passes)

    times = response.context["times"]  # 4 × 10 × 12 s
    assert [fact for fact in facts if fact not in times] == [], times
    assert f">{times}</span>" in response.text
    assert unknown.context["times"].startswith("4 runs")
    assert "min" not in unknown.context["times"]


def test_the_summary_shows_the_pace_and_its_source(alice_client, team):
    _run(team, 12.0)
    fields = _fields(alice_client.get(f"/{team.slug}/runs/new").text)
    fields |= {"model": "", "model_other": "org/model", "optim.num_steps": "100"}
    url = f"/{team.slug}/runs/new/summary"

    response = alice_client.post(url, fields)
    unknown = alice_client.post(url, fields | {"optim.updates_per_batch": "2"})

    time = _time(response)
    assert (time.title, time.value) == ("Time per step on CPU", "12 s")
    assert "20 min 00 s" in time.how
    assert "1 similar run" in time.how
    assert time.how in response.text
    assert _time(unknown).value == "unknown"


def test_the_summary_prices_hours_of_the_machine_that_the_pace_is_of(
    alice_client, team
):
    set_price(team, 3.0, name="cpu")
    _run(team, 12.0, device="cpu (2 threads)")
    fields = _fields(alice_client.get(f"/{team.slug}/runs/new").text)
    fields |= {"model": "", "model_other": "org/model", "optim.num_steps": "100"}

    answer = alice_client.post(f"/{team.slug}/runs/new/summary", fields)

    # 100 × 12 s are a third of an hour
    assert _amount(answer, "Cost").value == "1.00 EUR"


def _time(answer: Any) -> Amount:
    return _amount(answer, "Time")


def _amount(answer: Any, title: str) -> Amount:
    amounts: list[Amount] = answer.context["summary"].amounts
    return next(one for one in amounts if one.title.startswith(title))
