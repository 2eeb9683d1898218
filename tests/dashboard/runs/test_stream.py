"""The stream over HTTP: the same frames, the same answer however often one asks."""

from itertools import pairwise
from typing import Any

import pytest
from django.test import Client

from dashboard.runs.models import Run, RunState
from dashboard.runs.queue.hosts import Needs, describe_lack
from dashboard.runs.queue.messages import describe_position
from dashboard.runs.queue.order import read_queue
from dashboard.supervision.workers import register
from tests.dashboard.runs.stories import Story, queue_run


@pytest.fixture
def story(team) -> Story:
    story = Story(queue_run(team))
    story.start()
    story.score_group()
    story.take_steps(3)
    story.evaluate()
    return story


def ask(client: Client, run: Run, **query: Any) -> dict[str, Any]:
    response = client.get(f"/alpha/runs/{run.id}/stream.json", query)
    assert response.status_code == 200, response.content
    frame: dict[str, Any] = response.json()
    return frame


def test_repeated_requests_return_the_same(alice_client, story):
    first = ask(alice_client, story.run, after=3, attempt=1)

    assert ask(alice_client, story.run, after=3, attempt=1) == first


def test_consecutive_batches_equal_the_whole(alice_client, story):
    head = ask(alice_client, story.run)["seq"]

    steps = []
    for after in range(1, head):
        frame = ask(alice_client, story.run, after=after, attempt=1)
        steps.append([step["step"] for step in frame["steps"]])

    assert steps[0] == [1, 2, 3]
    assert steps[-1] == []
    assert all(later in (earlier, earlier[1:]) for earlier, later in pairwise(steps))


def test_groups_and_their_completions_are_not_pushed(alice_client, story):
    frame = ask(alice_client, story.run)

    assert [event["type"] for event in frame["events"]] == ["run_started"]
    assert "completion 0" not in str(frame)


def test_a_snapshot_has_curves_evaluations_and_state(alice_client, story):
    frame = ask(alice_client, story.run)

    assert frame["type"] == "snapshot"
    assert frame["run"]["last_step"] == 3
    assert frame["curves"]["clock"]["steps"] == [1, 2, 3]
    assert len(frame["curves"]["names"]["reward/mean"]["values"]) == 3
    assert frame["evaluations"][0]["step"] == 3


def test_a_page_that_names_no_attempt_is_judged_by_what_it_had(alice_client, story):
    assert ask(alice_client, story.run, after=4)["type"] == "batch"

    Run.objects.filter(id=story.run.id).update(attempt=2)

    assert ask(alice_client, story.run, after=4)["type"] == "snapshot"


def test_nothing_new_is_an_empty_batch(alice_client, story):
    head = ask(alice_client, story.run)["seq"]

    frame = ask(alice_client, story.run, after=head, attempt=1)

    assert (frame["type"], frame["steps"], frame["seq"]) == ("batch", [], head)


def test_a_position_that_is_not_a_number_is_refused(alice_client, story):
    for name, text in (("after", "x"), ("after", "-1"), ("attempt", "1e3")):
        address = f"/alpha/runs/{story.run.id}/stream.json"
        response = alice_client.get(address, {name: text})

        assert response.status_code == 400
        assert repr(text) in response.json()["error"]


def test_a_batch_takes_few_queries_at_any_size(
    alice_client, story, django_assert_num_queries
):
    story.take_steps(20)

    # Session, user, membership, run; then steps, evaluations, events.
    with django_assert_num_queries(7):
        ask(alice_client, story.run, after=2, attempt=1)


def test_a_queued_run_shows_its_position(alice_client, team):
    run = queue_run(team)
    without = ask(alice_client, run)["run"]["notice"]
    register("training@here", num_slots=1)
    line = read_queue()

    waiting = ask(alice_client, run)["run"]["notice"]
    again = ask(alice_client, queue_run(team, num_losses=1))["run"]["notice"]

    assert describe_lack(Needs(), []) in without
    assert waiting == describe_position(line.positions[run.id], line)
    assert "trainer was lost" in again


def test_time_left_is_shown_till_the_end_and_one_slow_step_hardly_moves_it(
    alice_client, story
):
    story.take_steps(19, **{"time/step": 1.0})
    story.take_steps(1, **{"time/step": 21.0})

    left = ask(alice_client, story.run)["run"]["seconds_left"]
    story.end(RunState.FAILED)

    assert left == 2.0 * (story.run.num_steps - 23)
    assert ask(alice_client, story.run)["run"]["seconds_left"] is None
