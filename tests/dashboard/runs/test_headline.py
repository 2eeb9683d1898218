"""The verdict, the numbers and the result at the head of a run's Overview."""

import math
import re
from collections import defaultdict
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from dashboard.runs.charts.series import Curve, read_evaluated
from dashboard.runs.headline import (
    HeldOut,
    draw_spark,
    held_out_of,
    make_tiles,
    read_headline,
    write_verdict,
)
from dashboard.runs.models import Run, RunAttempt, RunState
from tests.dashboard.completions.factories import make_run
from tests.dashboard.noted_sql import noting_sql
from tests.dashboard.runs.stories import Story, make_history, queue_run

JITTER = [0.02 * (-1) ** i for i in range(200)]


def curve(*values: float, first: int = 1) -> Curve:
    return Curve(steps=list(range(first, first + len(values))), values=list(values))


def held_out(*scores: float, margin: float | None = 0.05) -> HeldOut:
    steps = [20 * i for i in range(len(scores))]
    return HeldOut(
        metric="eval/heldout/mean",
        scores=Curve(steps=steps, values=list(scores)),
        margins=[margin] * len(scores),
    )


RISING = curve(*(0.3 + 0.005 * i + JITTER[i] for i in range(100)))
FALLING = curve(*(0.8 - 0.005 * i + JITTER[i] for i in range(100)))
FLAT = curve(*(0.5 + JITTER[i] for i in range(100)))
LATE = curve(*(0.3 + 0.005 * min(i, 90) + JITTER[i] for i in range(200)))


def verdict_of(reward: Curve, score: HeldOut | None = None, **given: Any) -> str:
    last = reward.steps[-1] if reward.steps else score.scores.steps[-1] if score else 0
    options = {"last_step": last, "num_steps": last, "is_live": True, **given}
    return write_verdict(reward, score, **options).text


@pytest.mark.parametrize(
    ("reward", "score", "words", "is_stalled"),
    [
        (RISING, None, ["rose from 0.32 to 0.772"], False),
        (FALLING, None, ["fell from 0.82 to 0.328"], True),
        (FLAT, None, ["no clear change: 0.52 at the start, 0.5 now"], True),
        (LATE, None, ["rose from 0.32 to 0.75"], True),
        (Curve(), None, ["No reward"], False),
        (RISING, held_out(0.3, 0.71), ["rose from 0.3 to 0.71 ± 0.05"], False),
        (RISING, held_out(0.3, 0.34), ["reward: 0.3 at", "0.34 ± 0.05 now"], False),
        (RISING, held_out(0.71, 0.3, margin=None), ["fell from 0.71 to 0.3."], False),
        (
            RISING,
            held_out(0.3, 0.5, 0.7, 0.72, 0.71),
            ["to 0.71 ± 0.05, no clear change since step 40"],
            False,
        ),
    ],
)  # fmt: skip
def test_a_verdict_compares_the_start_with_now(reward, score, words, is_stalled):
    last = reward.steps[-1] if reward.steps else 0

    found = write_verdict(reward, score, last_step=last, num_steps=200, is_live=True)

    for part in words:
        assert part in found.text
    assert found.is_stalled is is_stalled
    assert ("last 100 steps" in found.text) is is_stalled


def test_a_verdict_of_an_ended_run_says_how_it_ended():
    assert "0.5 at the end." in verdict_of(FLAT, is_live=False)


def test_scores_that_still_rise_are_not_unchanged():
    rising = held_out(0.2, 0.4, 0.690, 0.711, 0.743, margin=0.056)

    assert "since step" not in verdict_of(RISING, rising)


@pytest.mark.parametrize(
    ("num", "num_steps", "first", "is_early"),
    [
        (6, 200, 1, True),
        (19, 25, 1, True),
        (20, 200, 1, False),
        (99, 1_000, 1, True),
        (100, 1_000, 1, False),
        (19, 220, 117, True),  # a fork at step 116
        (20, 220, 117, False),
    ],
)
def test_a_verdict_waits_for_20_steps_and_a_tenth_of_the_run(
    num, num_steps, first, is_early
):
    reward = curve(*RISING.values[:num], *[0.8] * (num - 100), first=first)

    live = verdict_of(reward, num_steps=num_steps)
    ended = verdict_of(reward, num_steps=num_steps, is_live=False)

    step = f"{first + num - 1:,} of {num_steps:,}"
    assert (step in live) is is_early
    assert step not in ended


def test_an_early_run_of_unknown_length_is_given_its_step_alone():
    live = verdict_of(curve(*RISING.values[:6]), num_steps=6)

    assert live == "Too early to tell: step 6."


def test_a_forks_mean_begins_with_its_own_first_step():
    own = curve(0.5, 0.75, first=117)
    curves = defaultdict(Curve, {"reward/mean": own})

    reward = make_tiles(curves, None, 118)[0]

    assert reward.hint.startswith("Mean of steps 117 to 118.")


def test_the_distance_to_a_teacher_leads_the_numbers():
    one = Curve(steps=[1], values=[0.2])
    curves = defaultdict(Curve, {"reward/mean": one, "kl/mean": one, "distill/kl": one})

    metrics = [tile.metric for tile in make_tiles(curves, None, 1)]

    assert metrics[:3] == ["distill/kl", "eval/heldout/mean", "reward/mean"]
    assert "kl/mean" not in metrics


def test_a_few_values_are_stated_without_a_trend():
    for reward in (curve(0.25), curve(0.25, 0.5), curve(0.25, 0.5, 0.75)):
        text = verdict_of(reward, is_live=False)

        assert "0.25" in text
        assert not re.search("rose|fell|change", text)


def test_an_ended_run_is_not_stalled():
    found = write_verdict(FLAT, None, last_step=100, num_steps=100, is_live=False)

    assert not found.is_stalled
    assert "last 100 steps" not in found.text


@pytest.mark.django_db
def test_scores_that_are_no_numbers_are_left_out(team):
    story = Story(queue_run(team))
    story.start()
    story.evaluate(**{"eval/heldout/mean": math.nan})
    story.take_steps(1)
    story.evaluate(**{"eval/heldout/mean": 0.5, "eval/heldout/mean/low": 0.4})

    found = held_out_of(read_evaluated([story.run])[story.run.pk])

    assert found is not None
    assert (found.scores.steps, found.margins) == ([1], [None])
    assert held_out_of({}) is None


def test_a_sparkline_has_at_most_sixty_points():
    points = draw_spark([float(i) for i in range(1_000)]).split()

    assert 50 <= len(points) <= 60
    assert points[-1] == "100,1"
    assert draw_spark([1.0]) == ""
    assert draw_spark([2.0, 2.0]) == "0,12 100,12"


def tiles_of(run: Run) -> dict[str, tuple[str, str, str]]:
    tiles = read_headline(Run.objects.get(pk=run.pk)).tiles
    return {tile.metric: (tile.value, tile.note, tile.change) for tile in tiles}


def test_the_numbers_are_means_of_the_last_tenth(team):
    story = Story(queue_run(team, num_steps=30))
    story.start()
    story.take_steps(27, **{"reward/mean": 0.25, "kl/mean": 0.0})
    story.take_steps(2, **{"reward/mean": 0.5, "kl/mean": 0.125})
    story.take_steps(1, **{"reward/mean": 0.875, "kl/mean": 0.5})

    headline = read_headline(Run.objects.get(pk=story.run.pk))

    tiles = {tile.metric: tile for tile in headline.tiles}
    assert tiles["reward/mean"].value == "0.625"
    assert tiles["kl/mean"].value == "0.25"
    assert "0.625" in headline.verdict.text
    hint = tiles["reward/mean"].hint
    assert re.findall(r"[0-9.]+[0-9]", hint) == ["28", "30", "30", "0.875"]


def test_the_numbers_of_a_short_run_are_those_of_its_last_step(team):
    story = Story(queue_run(team))
    story.start()
    story.evaluate(**{"eval/heldout/mean": 0.25})
    before = {
        "reward/mean": 0.25,
        "group/frac_zero_std": 0.5,
        "group/num_effective": 16,
    }
    after = {
        "reward/mean": 0.75,
        "group/frac_zero_std": 0.25,
        "group/num_effective": 24,
    }
    cut = {"completion/mean_length": 42.4, "completion/frac_truncated": 0.04}
    story.take_steps(1, **before, **{"kl/mean": 0.5})
    story.take_steps(1, **after, **cut, **{"kl/mean": 0.5})
    ends = {"eval/heldout/mean/low": 0.44, "eval/heldout/mean/high": 0.56}
    story.evaluate(**{"eval/heldout/mean": 0.5}, **ends)

    tiles = tiles_of(story.run)

    assert tiles["reward/mean"] == ("0.75", "", "+0.5 since step 1")
    assert tiles["eval/heldout/mean"] == ("0.50", "± 0.06", "+0.25 since step 0")
    assert tiles["group/num_effective"] == ("24", "of 32", "+8 since step 1")
    assert tiles["kl/mean"] == ("0.5", "", "no change since step 1")
    assert tiles["completion/mean_length"][:2] == ("42", "4.0% truncated")
    assert len(tiles) == 5


def test_entropy_stands_for_a_kl_that_is_not_measured(team):
    story = Story(queue_run(team))
    story.start()
    story.take_steps(2, **{"kl/mean": math.nan, "reward/mean": math.nan})

    tiles = tiles_of(story.run)

    assert "kl/mean" not in tiles
    assert tiles["entropy"][0] != "–"
    assert tiles["reward/mean"] == ("–", "", "")
    assert tiles["eval/heldout/mean"] == ("–", "", "")


def test_a_long_run_is_read_in_part(team):
    run = make_run(team, num_steps=20_000)
    make_history(run, num_steps=20_000, num_metrics=3, names=["reward/mean"])

    headline = read_headline(run)

    assert headline.tiles[0].change.endswith("since step 1")
    assert len(headline.reward.steps) < 500


def test_the_overview_takes_no_more_queries_than_its_parts(alice_client, team):
    # Session, user, membership, run, evaluations, chart settings, memberships, star,
    # newest checkpoint, comments; the history of an ended run is read once, steps
    # beside Django.
    counts = {RunState.RUNNING: [10, 10], RunState.FINISHED: [10, 9]}
    for state, expected in counts.items():
        story = Story(queue_run(team))
        story.start()
        story.take_steps(3)
        story.save_checkpoint()
        if state == RunState.FINISHED:
            story.end(state)
        found = []
        for _ in expected:
            with noting_sql() as queries:
                alice_client.get(f"/alpha/runs/{story.run.pk}/")
            found.append(len(queries))

        assert found == expected, state


def test_an_ended_run_has_its_result_and_what_to_do_next(
    alice_client, bob_client, team
):
    story = Story(queue_run(team))
    story.start()
    for score in (0.7, 0.4):
        story.take_steps(2)
        story.evaluate(**{"eval/heldout/mean": score})
        story.save_checkpoint()
    begin = timezone.now() - timedelta(minutes=4)
    Run.objects.filter(pk=story.run.pk).update(created_at=begin, started_at=begin)
    story.end(RunState.FINISHED, finished_at=begin + timedelta(minutes=4))
    at_work = {"claimed_at": begin, "ended_at": begin + timedelta(minutes=3)}
    story.run.attempts.update(**at_work)
    resumed = begin + timedelta(minutes=3, seconds=30)
    again = {"claimed_at": resumed, "ended_at": resumed + timedelta(seconds=5)}
    RunAttempt.objects.create(run=story.run, number=2, worker="worker-1", **again)
    address = f"/alpha/runs/{story.run.pk}/"

    html = alice_client.get(address).text

    assert "data-result-took>3 min 05 s<" in html
    assert "data-result-score>0.7<" in html
    assert f"{address}try/?checkpoint=step-000002-attempt-1" in html
    assert f"clone={story.run.pk}" in html
    assert f"<title>✓ {story.run.name} · Cohort</title>" in html
    assert re.search(r"<progress [^>]*hidden", html)
    assert "clone=" not in bob_client.get(f"{address}headline/").text


def test_a_running_run_has_no_result(alice_client, team):
    story = Story(queue_run(team))
    story.start()
    story.take_steps(1)

    html = alice_client.get(f"/alpha/runs/{story.run.pk}/headline/").text

    assert "data-result" not in html
    assert "data-verdict" in html
