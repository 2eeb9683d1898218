"""Every metric of a run has a chart, and its history when someone looks."""

import re
from typing import Any

from django.test import Client

from dashboard.accounts.models import Team
from dashboard.live.messages import Position
from dashboard.runs.charts.figures import MAX_NAME, MAX_PINNED, pinned_metrics
from dashboard.runs.models import Run
from dashboard.runs.stream import read_frame
from tests.dashboard.completions.factories import make_run
from tests.dashboard.runs.stories import Story, make_history, queue_run
from trainer.metric_names import METRICS


def ask(client: Client, run: Run, **query: Any) -> dict[str, Any]:
    response = client.get(f"/alpha/runs/{run.id}/curves.json", query)
    assert response.status_code == 200, response.content
    body: dict[str, Any] = response.json()
    return body


def test_each_metric_has_a_card_in_its_group(alice_client, team):
    story = Story(queue_run(team))
    story.start()
    story.take_steps(1)
    story.evaluate(**{"eval/heldout/mean/low": 0.1, "eval/heldout/mean/high": 0.2})

    page = alice_client.get(f"/alpha/runs/{story.run.id}/metrics/").text

    names = re.findall(r'data-listed="([^"]+)"', page)
    run = Run.objects.get(id=story.run.id)
    # The reward's chart has a band of other metrics.
    band = {"reward/p10", "reward/p90"}
    assert set(run.metric_names) - set(names) - band == {"reward/mean"}
    assert not band & set(names)
    assert 'id="chart-reward-mean"' in page
    assert len(names) == len(set(names))
    assert "eval/heldout/mean" in names
    assert "eval/heldout/mean/low" not in names
    groups = re.findall(r'data-group="([^"]+)"', page)
    assert groups.pop(0) == "Pinned"
    assert groups == [*(name for name in METRICS if name in groups), "Machine"]


def test_pinned_metrics_are_the_teams(alice_client, charlie_client, team):
    run = make_run(team)

    def pin(name: str, **extra: str) -> list[str]:
        answer = alice_client.post("/alpha/runs/pin-metric", {"name": name, **extra})
        assert answer.status_code == 200, answer.content
        names: list[str] = answer.json()["names"]
        return names

    assert pin("kl/mean") == ["kl/mean"]
    assert pin("entropy") == pin("kl/mean") == ["kl/mean", "entropy"]
    page = alice_client.get(f"/alpha/runs/{run.id}/metrics/")
    assert page.context["pinned"] == ["kl/mean", "entropy"]
    assert pin("kl/mean", off="1") == ["entropy"]
    assert pinned_metrics(Team.objects.get(slug="other")) == []
    for number in range(MAX_PINNED - 1):
        pin(f"metric/{number}")
    for name in ("one/more", "", "x" * (MAX_NAME + 1)):
        answer = alice_client.post("/alpha/runs/pin-metric", {"name": name})
        assert answer.status_code == 400, name
    assert len(pinned_metrics(team)) == MAX_PINNED
    assert charlie_client.post("/alpha/runs/pin-metric").status_code == 404


def test_three_hundred_metrics_make_a_page(alice_client, team):
    run = make_run(team)
    make_history(run, num_steps=10, num_metrics=300)

    page = alice_client.get(f"/alpha/runs/{run.id}/metrics/").text

    assert page.count('data-listed="metric/') == 300


def test_a_snapshot_has_ranges_of_other_metrics(team):
    story = Story(queue_run(team))
    story.start()
    story.take_steps(1, **{"ratio/max": 3.0})
    story.take_steps(1, **{"ratio/max": 1.5})
    story.take_steps(2, **{"ratio/max": 2.0})

    frame = read_frame(Run.objects.get(id=story.run.id), Position())

    assert "reward/mean" in frame["curves"]["names"]
    assert "ratio/max" not in frame["curves"]["names"]
    assert frame["curves"]["others"]["ratio/max"] == [1.5, 3.0, 2.0]
    assert frame["curves"]["width"] == 1


def test_a_history_includes_related_metrics(alice_client, team):
    story = Story(queue_run(team))
    story.start()
    story.take_steps(4)

    answer = ask(alice_client, story.run, metrics="ratio/max,loss")

    assert answer["curves"]["ratio/max"]["steps"] == [1, 2, 3, 4]
    assert (answer["attempt"], answer["through"], answer["width"]) == (1, 4, 1)


def test_a_zoom_returns_every_step_of_a_downsampled_history(alice_client, team):
    run = make_run(team)
    make_history(run, num_steps=2_000, num_metrics=2)

    whole = ask(alice_client, run, metrics="metric/0")
    near = ask(alice_client, run, metrics="metric/0", first_step=900, last_step=1_000)

    assert whole["width"] > 1
    assert len(whole["curves"]["metric/0"]["steps"]) <= 1_000
    assert near["width"] == 1
    assert near["curves"]["metric/0"]["steps"] == list(range(900, 1_001))


def test_a_run_of_more_metrics_than_a_query_has_columns_is_drawn(alice_client, team):
    run = make_run(team)
    make_history(run, num_steps=20, num_metrics=430)

    page = alice_client.get(f"/alpha/runs/{run.id}/stream.json")

    curves = page.json()["curves"]
    assert len(curves["names"]) + len(curves["others"]) == 430


def test_long_responses_are_compressed(alice_client, team):
    run = make_run(team)
    make_history(run, num_steps=2_000, num_metrics=2)
    page = f"/alpha/runs/{run.id}/"

    for address in ("curves.json?metrics=metric/0", "stream.json"):
        answer = alice_client.get(page + address, headers={"accept-encoding": "gzip"})
        assert answer["Content-Encoding"] == "gzip"


def test_evaluations_up_to_a_fork_have_their_steps(alice_client, team):
    story = Story(queue_run(team))
    story.start()
    for score in (0.25, 0.5):
        story.take_steps(2)
        story.evaluate(**{"eval/heldout/mean": score})

    found = ask(alice_client, story.run, metrics="eval/heldout/mean", last_step=3)

    assert found["curves"]["eval/heldout/mean"] == {"steps": [2], "values": [0.25]}
