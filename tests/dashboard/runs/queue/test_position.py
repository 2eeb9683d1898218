"""Messages about a queued run's position and start."""

import re
from typing import Any

import pytest

from dashboard.accounts.models import Team
from dashboard.runs.models import Priority, Run
from dashboard.runs.queue.changes import team_queue
from dashboard.runs.queue.messages import (
    describe_position,
    describe_short,
    describe_start,
    ordinal,
    rough_duration,
    title_start,
)
from dashboard.runs.queue.order import Queue, QueuePosition, Start, read_queue
from dashboard.supervision.models import Worker
from dashboard.supervision.workers import register
from tests.dashboard.runs.stories import Story, queue_run

WORKER = "training@here"


def position_of(run: Run) -> tuple[QueuePosition, Queue]:
    queue = read_queue()
    return queue.positions[run.id], queue


def describe(run: Run) -> str:
    return describe_position(*position_of(run))


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def train(team: Team, *, step_seconds: float | None = None, **fields: Any) -> Story:
    story = Story(queue_run(team, **fields), worker=WORKER)
    story.start()
    if step_seconds:
        story.take_steps(1, **{"time/step": step_seconds})
    return story


@pytest.fixture(autouse=True)
def worker(db) -> None:
    register(WORKER, num_slots=1)


def test_a_free_worker_takes_it_at_once(team):
    run = queue_run(team)

    position, _ = position_of(run)
    assert (position.number, position.start.seconds) == (1, 0)
    assert describe_start(position.start) in describe(run)


def test_it_starts_when_the_run_ahead_has_finished(team):
    train(team, step_seconds=60.0, num_steps=11)

    run = queue_run(team, num_steps=5)

    position, _ = position_of(run)
    assert (position.number, position.start.seconds) == (1, 600)
    assert numbers(describe(run)) == [10]  # minutes


def test_past_runs_of_the_same_shape_give_the_duration(team):
    train(team, step_seconds=60.0, num_steps=11)
    queue_run(team, num_steps=20)

    position, _ = position_of(queue_run(team))

    assert position.start.seconds == (10 + 20) * 60
    assert position.number == 2


def test_a_start_without_an_estimate_is_unknown(team):
    train(team)
    run = queue_run(team)

    position, _ = position_of(run)
    assert position.start.seconds is None
    assert describe_start(position.start) in describe(run)
    assert numbers(describe(run)) == []


def test_other_teams_runs_are_counted(team):
    train(team, step_seconds=60.0)
    other = Team.objects.create(slug="beta", name="Beta")
    for _ in range(2):
        queue_run(other)

    run = queue_run(team)
    position, _ = position_of(run)
    assert position.num_foreign_before == 2
    assert "2 runs " in describe(run)
    assert "other teams" in describe(run)


def test_a_run_without_a_suitable_worker_has_no_position(team):
    hardware = {"gpus": [], "takes": "any"}
    Worker.objects.update(hardware=hardware)
    big = queue_run(team)
    big.config["model"] |= {"device": "cuda"}
    big.save()
    small = queue_run(team)

    position, queue = position_of(big)
    assert (position.number, "GPU" in position.lack) == (None, True)
    assert describe(big) == position.lack
    assert not numbers(describe_short(position, queue))
    assert position_of(small)[0].number == 1


def test_a_run_on_hold_has_no_number(team):
    held = queue_run(team, on_hold=True)

    assert describe(held).startswith("On hold")
    assert describe_short(*position_of(held)) == "on hold"


def test_the_run_list_shows_position_and_start(team):
    train(team, step_seconds=60.0, num_steps=11)

    assert numbers(describe_short(*position_of(queue_run(team)))) == [1, 10]


def test_durations_are_rounded_to_minutes():
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 21, 111)] == [
        *("1st", "2nd", "3rd", "4th", "11th", "12th", "21st", "111th")
    ]
    assert [rough_duration(s) for s in (9, 61, 3_700, 90_000)] == [
        *("a minute", "1 min", "1 h 02 min", "1 d 1 h")
    ]


def test_the_queue_takes_four_queries_at_any_length(team, django_assert_num_queries):
    train(team, step_seconds=60.0)
    for _ in range(10):
        queue_run(team)

    with django_assert_num_queries(4):
        read_queue()


def test_runs_of_other_teams_are_counted_between_own_runs(team):
    other = Team.objects.create(slug="beta", name="Beta")
    for _ in range(3):
        queue_run(team)
    for _ in range(4):
        queue_run(other)

    own = team_queue(team, read_queue())

    assert [entry.num_foreign for entry in own.entries] == [0, 1, 1]
    assert own.num_foreign_after == 2


def test_runs_move_only_within_their_priority(team):
    runs = [queue_run(team) for _ in range(3)]
    Run.objects.filter(id=runs[2].id).update(priority=Priority.LOW)

    entries = team_queue(team, read_queue()).entries

    assert [entry.run for entry in entries] == runs
    starts = [title_start(Start(seconds=after)) for after in (0, None, None)]
    assert [entry.start for entry in entries] == starts
