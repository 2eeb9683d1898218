"""What a resume went back before stays, apart from the history that counts."""

from typing import Any

import pytest

from dashboard.live.messages import Position
from dashboard.runs.charts import series as tails
from dashboard.runs.charts.series import MAX_TAILS, read_tails
from dashboard.runs.models import Run
from dashboard.runs.stream import read_frame
from dashboard.supervision.lease import claim_run
from dashboard.supervision.takeover import cut_history
from tests.dashboard.runs.stories import Story, queue_run


def resume(story: Story, step: int) -> None:
    Run.objects.filter(id=story.run.id).update(state="queued", lease_until=None)
    claim = claim_run(story.run.id, "worker-2")
    assert claim is not None
    cut_history(claim, after=step, checkpoint=None)
    story.claim, story.line, story.step = claim, 0, step


@pytest.fixture
def story(team) -> Story:
    story = Story(queue_run(team, num_steps=1_000))
    story.start()
    return story


def snapshot(story: Story) -> dict[str, Any]:
    frame = read_frame(Run.objects.get(id=story.run.id), Position())
    curves: dict[str, Any] = frame["curves"]
    return curves


def test_a_run_without_a_resume_has_no_superseded_tail(story):
    story.take_steps(3)

    assert snapshot(story)["tails"] == []


def test_a_tail_starts_at_the_resumed_step(story):
    story.take_steps(5, **{"reward/mean": 0.25})
    story.evaluate(**{"eval/heldout/mean": 0.75})
    resume(story, 3)
    story.take_steps(1, **{"reward/mean": 0.5})

    curves = snapshot(story)

    [tail] = curves["tails"]
    assert (tail["attempt"], tail["after"]) == (2, 3)
    assert tail["clock"]["steps"] == [4, 5]
    assert tail["names"]["reward/mean"] == {"values": [0.25, 0.25]}
    assert tail["names"]["eval/heldout/mean"] == {"steps": [5], "values": [0.75]}
    assert curves["names"]["reward/mean"]["values"] == [0.25, 0.25, 0.25, 0.5]


def test_the_newest_tails_are_shown_when_there_are_many(story):
    for _ in range(MAX_TAILS + 2):
        story.take_steps(2)
        resume(story, story.step - 1)

    run = Run.objects.get(id=story.run.id)
    tails = read_tails(run, ["reward/mean"])

    newest = story.claim.attempt
    assert [tail.attempt for tail in tails] == [newest, newest - 1, newest - 2]


def test_a_long_tail_is_downsampled(story, monkeypatch):
    monkeypatch.setattr(tails, "MAX_SUPERSEDED_POINTS", 40)
    story.take_steps(80)
    resume(story, 5)

    [tail] = read_tails(Run.objects.get(id=story.run.id), ["reward/mean"])

    assert len(tail.curves["reward/mean"].steps) <= 40
    assert tail.clock.steps[-1] == 80


def test_a_single_metric_has_its_tail(alice_client, story):
    story.take_steps(5)
    resume(story, 3)
    place = f"/alpha/runs/{story.run.id}/curves.json?metrics=ratio/max"

    whole = alice_client.get(place).json()
    part = alice_client.get(f"{place}&first_step=1&last_step=3").json()

    assert len(whole["tails"][0]["names"]["ratio/max"]["values"]) == 2
    assert part["tails"] == []
