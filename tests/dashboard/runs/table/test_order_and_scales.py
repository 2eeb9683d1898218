"""The run list: its order without a sort, curves of one scale, swept settings."""

from typing import Any

from dashboard.runs.models import Run, Sweep
from dashboard.runs.table.columns import pin_runs_at_work
from tests.dashboard.completions.factories import make_config, make_run
from tests.dashboard.runs.stories import Story, queue_run

WAITING: dict[str, Any] = {"state": "queued", "started_at": None, "finished_at": None}


def test_runs_at_work_come_first_then_the_queue_in_its_order(team):
    make_run(team, "ended")
    make_run(team, "first", **WAITING)
    make_run(team, "second", **WAITING)
    make_run(team, "held", **WAITING, on_hold=True)
    make_run(team, "urgent", **WAITING, priority=1)
    make_run(team, "newest")
    make_run(team, "paused", state="paused", finished_at=None)

    names = [run.name for run in pin_runs_at_work(Run.objects.all())]

    assert names == ["paused", "urgent", "first", "second", "held", "newest", "ended"]


def test_curves_of_one_reward_have_one_scale(alice_client, team):
    runs = [queue_run(team) for _ in range(2)]
    other = queue_run(team)
    Run.objects.filter(pk=runs[1].pk).update(recipe_version=runs[0].recipe_version)
    for run, rewards in ((runs[0], (0.0, 1.0)), (runs[1], (0.0, 0.1)), (other, (0, 9))):
        story = Story(run)
        story.start()
        for reward in rewards:
            story.take_steps(1, **{"reward/mean": reward})

    rows = alice_client.get("/alpha/runs/").context["rows"]

    sparks = {row.run.pk: row.spark for row in rows}
    assert sparks[runs[0].pk] == sparks[other.pk] == "0,23 100,1"
    assert sparks[runs[1].pk] == "0,23 100,20.8"


def test_a_sweeps_list_shows_what_it_swept(alice_client, team):
    sweep = Sweep.objects.create(team=team, name="rates")
    first = make_run(team, "lr-1", sweep=sweep)
    for rate in (1e-5, 1e-4):
        config = make_config(optim={"learning_rate": rate})
        make_run(
            team,
            f"lr-{rate}",
            sweep=sweep,
            config=config,
            dataset_version=first.dataset_version,
            recipe_version=first.recipe_version,
        )

    swept = alice_client.get(f"/alpha/runs/?sweep={sweep.pk}").context
    plain = alice_client.get("/alpha/runs/").context

    shown = [column.setting for column in swept["query"].columns if column.setting]
    assert shown == ["optim.learning_rate"]
    assert "model" not in {column.key for column in swept["query"].columns}
    assert not any(column.setting for column in plain["query"].columns)
