"""Which charts a run's page has, and what it says of phases and intervals."""

import re
from typing import Any

import pytest

from dashboard.analysis.compare.series import list_metrics
from dashboard.live.messages import Position
from dashboard.runs import stream
from dashboard.runs.charts.chart import Chart, ChartFeatures, features_of
from dashboard.runs.charts.figures import (
    NO_EVALUATION,
    NO_KL,
    combined_charts,
    metrics_of,
    notes_of,
    overview_charts,
    shown_metrics,
)
from dashboard.runs.models import Run
from tests.dashboard.runs.launching import NUMERIC, make_config
from tests.dashboard.runs.stories import Story, queue_run
from trainer.config import RunConfig
from trainer.events import PhaseStarted

PENALISED = {"recipe": NUMERIC, "overlong_buffer_tokens": 16}
PHASES = [
    {"name": "sft", "num_steps": 40},
    {"name": "rl", "num_steps": 60, "changes": {"loss": {"kl_coef": 0.01}}},
]


def _features(**parts: Any) -> ChartFeatures:
    return features_of(RunConfig.model_validate(make_config(**parts)))


def _charts(**parts: Any) -> dict[str, Chart]:
    """Of several metrics, on the page of all metrics."""
    return {chart.name: chart for chart in combined_charts(_features(**parts))}


def _overview(**parts: Any) -> dict[str, Chart]:
    return {chart.name: chart for chart in overview_charts(_features(**parts))}


def _names(chart: Chart) -> list[str]:
    return [trace["name"] for trace in chart.figure["data"]]


def test_the_overview_has_four_charts():
    assert list(_overview()) == [
        "reward/mean",
        "eval/heldout/mean",
        "group/frac_…",
        "kl/mean",
    ]
    unmeasured = _overview(reference={"kind": "none"})
    assert list(unmeasured)[3] == "entropy"
    unevaluated = _overview(data={"rows": "r", "num_eval_rows": 0})
    assert list(unevaluated)[1] == "completion/mean_length"


def test_the_overview_of_a_run_with_a_teacher_begins_with_the_distance_to_it():
    taught = _overview(reference={"model": "org/teacher"})

    assert list(taught) == [
        "distill/kl",
        "eval/heldout/mean",
        "reward/mean",
        "entropy",
    ]
    assert "distill/kl" in shown_metrics(_features(reference={"model": "org/teacher"}))


def test_several_held_out_sets_are_lines_of_one_chart():
    one = _overview()["eval/heldout/mean"].figure
    chart = _overview(evaluation={"sets": {"hard": "a.jsonl"}})["eval/…/mean"]

    assert one["layout"]["showlegend"] is False
    assert chart.figure["layout"]["showlegend"] is True
    family = chart.figure["data"][0]["meta"]["each"]
    names = (
        "eval/heldout/mean",
        "eval/hard/mean",
        "eval/hard/mean/low",
        "eval/hard/pass@1",
    )
    assert [name for name in names if re.search(family, name)] == list(names[:2])
    alone = one["data"][0]["meta"]["each"]
    assert [name for name in names if re.search(alone, name)] == [names[0]]


def test_the_band_of_the_reward_is_percentiles_or_within_possible_rewards():
    low, high, mean = _overview()["reward/mean"].figure["data"]

    assert low["meta"]["terms"] == [["reward/p10", 1]]
    assert high["meta"]["terms"] == [["reward/p90", 1]]
    assert high["meta"]["otherwise"] == [["reward/mean", 1], ["reward/std", 1]]
    assert low["meta"]["limits"] == high["meta"]["limits"] == (0, 1)
    assert mean["meta"]["terms"] == [["reward/mean", 1]]
    for parts, limits in (
        ({"reward": PENALISED}, (-1, 1)),
        ({"loss": {"kl_coef": 0.1, "kl_in": "reward"}}, None),
    ):
        edge = _overview(**parts)["reward/mean"].figure["data"][0]
        assert edge["meta"]["limits"] == limits, parts


def test_dual_clip_is_drawn_where_it_is_set():
    assert "clip/frac_dual" not in metrics_of(_charts()["clip/frac_…"])
    with_dual = _charts(loss={"dual_clip": 3})["clip/frac_…"]
    assert "clip/frac_dual" in metrics_of(with_dual)


def test_the_weights_that_move_are_drawn_in_the_colours_of_their_rules():
    later = {"points": [{"step": 9, "weight": 0.1}]}
    rules = [
        {"name": "first", "kind": "numeric_answer"},
        {"name": "second", "kind": "exact_answer", "schedule": later},
        {"name": "third", "kind": "exact_answer", "schedule": later},
    ]

    charts = _charts(reward={"recipe": {"rules": rules}})

    assert not [title for title in _charts() if title.endswith("/weight")]
    weights = charts["reward/<rule>/weight"]
    assert _names(weights) == ["second", "third"]
    line = weights.figure["data"][0]
    assert line["meta"]["terms"] == [["reward/second/weight", 1]]
    assert line["meta"]["smooth"] is False
    by_rule = charts["reward/<rule>/mean"].figure
    assert line["line"]["color"] == by_rule["data"][1]["line"]["color"]


def test_a_weight_that_moves_in_one_phase_only_is_drawn():
    later = {"points": [{"step": 9, "weight": 0.1}]}
    rule = {"name": "then", "kind": "exact_answer", "schedule": later}
    changes = {"reward": {"recipe": {"rules": [rule]}}}
    phases = [PHASES[0], {**PHASES[1], "changes": changes}]

    weights = _charts(phases=phases)["reward/then/weight"]

    assert _names(weights) == ["then"]


def test_each_held_out_set_has_a_chart():
    several = _charts(evaluation={"sets": {"hard": "a.jsonl", "a_b": "b.jsonl"}})

    assert [t for t in _charts() if t.startswith("eval/")] == ["eval/heldout/…"]
    assert [t for t in several if t.startswith("eval/")] == [
        "eval/heldout/…",
        "eval/hard/…",
        "eval/a_b/…",
    ]
    figure = several["eval/a_b/…"].figure
    family = figure["data"][0]["meta"]["each"]
    drawn = ("mean", "pass@1", "pass@16", "maj@4", "mean/low", "mean_length")
    found = [metric for metric in drawn if re.search(family, f"eval/a_b/{metric}")]
    assert found == ["mean", "pass@1", "pass@16", "maj@4"]
    assert not re.search(family, "eval/a_b/frac_truncated")
    assert not re.search(family, "eval/ab/pass@4")
    assert figure["data"][0]["meta"]["band"] is True


def test_a_further_set_alone_is_drawn_without_held_out_rows():
    charts = _charts(data={"rows": "r", "num_eval_rows": 0}, evaluation={"sets": {}})
    only = _charts(
        data={"rows": "r", "num_eval_rows": 0}, evaluation={"sets": {"hard": "a"}}
    )

    assert not [title for title in charts if title.startswith("eval/")]
    assert "eval/hard/…" in only


def test_metrics_of_a_later_phase_have_charts():
    changes = {"loss": {"kl_coef": 0.01}, "reference": {"kind": "auto"}}
    phases = [PHASES[0], PHASES[1] | {"changes": changes}]

    assert "kl/mean" in _overview(phases=phases, reference={"kind": "none"})
    assert "kl/mean" not in _overview(reference={"kind": "none"})


def test_a_reference_is_measured_without_a_weight():
    base = {"reference": {"kind": "base"}, "model": {"path": "m", "lora_rank": 8}}
    url = {"url": "http://127.0.0.1:8600", "token_file": "t"}
    server = {"reference": {"kind": "server", **url}}
    preferences = {
        "advantage": {"credit": "preference"},
        "loss": {"surrogate": "reinforce"},
    }

    for parts in (base, server, preferences):
        assert "kl/mean" in _overview(**parts), parts


def test_a_chart_that_cannot_be_is_named_in_a_line():
    without = _features(
        data={"rows": "r", "num_eval_rows": 0}, reference={"kind": "none"}
    )

    assert notes_of(without) == {
        "Held-out prompts": [NO_EVALUATION],
        "Policy": [NO_KL],
    }
    assert not any(notes_of(_features()).values())


def test_the_snapshot_holds_the_metrics_of_the_overview():
    shown = shown_metrics(_features())

    assert {"reward/mean", "reward/std", "reward/p90", "total/tokens"} <= shown
    assert "grad_norm" not in shown


def test_a_penalty_for_length_is_drawn_beside_the_rules():
    names = _names(_charts(reward=PENALISED)["reward/<rule>/mean"])

    assert names == ["answer", "overlong"]


@pytest.fixture
def run(team) -> Run:
    return queue_run(team, num_steps=100, config=make_config(phases=PHASES))


@pytest.fixture
def story(run) -> Story:
    story = Story(run)
    story.start()
    return story


def _begin(story: Story, first: int, name: str) -> None:
    story._tell(PhaseStarted, name=name, first_step=first, last_step=first + 1)


def test_the_page_names_the_phases(alice_client, team, story, run):
    page = alice_client.get(f"/{team.slug}/runs/{run.pk}/").text

    phases = re.findall(r"run-phase\b[^>]*>(\w+) <[^>]*>steps (\d+) to (\d+)<", page)
    assert phases == [("sft", "1", "40"), ("rl", "41", "100")]


def test_a_phase_is_shown_however_much_happened_since(story, run, monkeypatch):
    monkeypatch.setattr(stream, "MAX_EVENTS", 5)
    _begin(story, 1, "sft")
    for _ in range(8):
        story.warn("slow", "It is slow.")
    _begin(story, 41, "rl")
    run.refresh_from_db()

    events = stream.read_frame(run, Position(0, None))["events"]

    phases = [e["body"]["name"] for e in events if e["type"] == "phase_started"]
    assert phases == ["sft", "rl"]
    assert len(events) == 5 + 1


def test_an_interval_stands_beside_its_value(alice_client, team, story, run):
    story.take_steps(1)
    story.evaluate(
        **{
            "eval/heldout/mean": 0.5,
            "eval/heldout/mean/low": 0.41,
            "eval/heldout/mean/high": 0.62,
        }
    )

    page = alice_client.get(f"/{team.slug}/runs/{run.pk}/metrics/").text

    row = re.search(r'<tr data-value="eval/heldout/mean">(.*?)</tr>', page, re.DOTALL)
    assert row
    text = " ".join(re.sub(r"<[^>]+>", " ", row[1]).split())
    assert text == "Held-out reward 0.5 (0.41 to 0.62)"
    assert 'data-value="eval/heldout/mean/low"' not in page


def test_comparing_offers_no_end_of_an_interval(story, run):
    story.take_steps(1)
    story.evaluate(**{"eval/heldout/mean/low": 0.4, "eval/heldout/mean/high": 0.6})
    run.refresh_from_db()

    offered = [name for _, names in list_metrics([run]) for name in names]

    assert "eval/heldout/mean" in offered
    assert not [name for name in offered if name.endswith(("/low", "/high"))]


def test_a_metric_that_comes_later_is_listed_with_its_group(
    alice_client, team, story, run
):
    story.take_steps(1)
    story.take_steps(1, **{"kl/coef": 0.01})

    page = alice_client.get(f"/{team.slug}/runs/{run.pk}/metrics/").text

    names = re.findall(r'<tr data-value="([^"]+)">', page)
    assert names[names.index("kl/coef") + 1] == "entropy"
