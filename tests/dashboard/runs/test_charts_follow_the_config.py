"""Which charts a run's page has, and what it says of phases and intervals."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.analysis.compare.series import list_metrics
from dashboard.live.messages import Position
from dashboard.runs import stream
from dashboard.runs.charts.chart import Chart
from dashboard.runs.charts.figures import (
    NO_EVALUATION,
    NO_KL,
    metrics_of,
    overview_sections,
    shown_metrics,
)
from dashboard.runs.models import Run
from tests.dashboard.runs.launching import NUMERIC, make_config
from tests.dashboard.runs.stories import Story, queue_run
from trainer.config import RunConfig
from trainer.events import PhaseStarted

PENALISED = {"recipe": NUMERIC, "overlong_buffer_tokens": 16}
ONE_STEP_OFF = {
    "rollout": {"one_step_off": True},
    "loss": {"importance_correction": "token_truncate"},
}
PHASES = [
    {"name": "sft", "num_steps": 40},
    {"name": "rl", "num_steps": 60, "changes": {"loss": {"kl_coef": 0.01}}},
]


def _charts(**parts: Any) -> dict[str, Chart]:
    config = RunConfig.model_validate(make_config(**parts))
    return {c.name: c for s in overview_sections(config) for c in s.charts}


def _names(chart: Chart) -> list[str]:
    return [trace["name"] for trace in chart.figure["data"]]


def test_speed_shows_throughput_beside_the_seconds_of_a_step() -> None:
    speed = next(
        section
        for section in overview_sections(RunConfig.model_validate(make_config()))
        if section.title == "Speed"
    )

    assert [c.name for c in speed.charts] == ["tokens_per_second", "time/step"]


def test_dual_clip_is_drawn_where_it_is_set() -> None:
    assert "clip/frac_dual" not in metrics_of(_charts()["clip/frac_…"])
    with_dual = _charts(loss={"dual_clip": 3})["clip/frac_…"]
    assert "clip/frac_dual" in metrics_of(with_dual)


def test_the_weights_that_move_are_drawn_in_the_colours_of_their_rules() -> None:
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


def test_a_weight_that_moves_in_one_phase_only_is_drawn() -> None:
    later = {"points": [{"step": 9, "weight": 0.1}]}
    rule = {"name": "then", "kind": "exact_answer", "schedule": later}
    changes = {"reward": {"recipe": {"rules": [rule]}}}
    phases = [PHASES[0], {**PHASES[1], "changes": changes}]

    weights = _charts(phases=phases)["reward/then/weight"]

    assert _names(weights) == ["then"]


def test_one_held_out_set_has_one_chart_and_several_have_one_each() -> None:
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


def test_a_further_set_alone_is_drawn_without_held_out_rows() -> None:
    charts = _charts(data={"rows": "r", "num_eval_rows": 0}, evaluation={"sets": {}})
    only = _charts(
        data={"rows": "r", "num_eval_rows": 0}, evaluation={"sets": {"hard": "a"}}
    )

    assert not [title for title in charts if title.startswith("eval/")]
    assert "eval/hard/…" in only


def test_what_a_later_phase_measures_has_its_charts() -> None:
    changes = {"loss": {"kl_coef": 0.01}, "reference": {"kind": "auto"}}
    phases = [PHASES[0], PHASES[1] | {"changes": changes}]

    charts = _charts(phases=phases, reference={"kind": "none"})

    assert "kl/mean" in charts
    assert "kl/mean" not in _charts(reference={"kind": "none"})


def test_a_kl_without_weight_is_drawn_and_called_a_sample() -> None:
    sampled, weighed = _charts(), _charts(loss={"kl_coef": 0.1})

    assert "sample" in sampled["kl/mean"].about
    assert "kl/coef" not in sampled
    assert "sample" not in weighed["kl/mean"].about


def test_a_reference_is_measured_without_a_weight() -> None:
    base = {"reference": {"kind": "base"}, "model": {"path": "m", "lora_rank": 8}}
    url = {"url": "http://127.0.0.1:8600", "token_file": "t"}
    server = {"reference": {"kind": "server", **url}}
    preferences = {
        "advantage": {"credit": "preference"},
        "loss": {"surrogate": "reinforce"},
    }

    for parts in (base, server, preferences):
        assert "kl/mean" in _charts(**parts), parts


def test_a_chart_that_cannot_be_is_named_in_a_line() -> None:
    config = make_config(
        data={"rows": "r", "num_eval_rows": 0}, reference={"kind": "none"}
    )

    sections = overview_sections(RunConfig.model_validate(config))

    notes = {s.title: s.notes for s in sections if s.notes}
    assert notes == {"Reward": [NO_EVALUATION], "Policy": [NO_KL]}


def test_charts_that_few_runs_fill_stay_away_until_then() -> None:
    optional = {title for title, chart in _charts().items() if chart.is_optional}

    assert optional == {"mismatch/…"}
    assert "reward/mean" not in optional


def test_what_cannot_move_has_no_chart() -> None:
    for title, parts in (
        ("sampling/frac_dropped", {"rollout": {"dynamic_sampling": "refill"}}),
        ("sampling/frac_dropped", {"rollout": {"dynamic_sampling": "drop"}}),
        ("staleness/mean", {"optim": {"minibatches": 4}}),
        ("staleness/mean", {"rollout": {"source": "start"}}),
        ("staleness/mean", ONE_STEP_OFF),
    ):
        assert title not in _charts()
        assert title in _charts(**parts), parts


def test_the_overview_has_about_twelve_charts() -> None:
    charts = [c for c in _charts().values() if not c.is_optional]

    assert 11 <= len(charts) <= 13


def test_what_the_overview_draws_travels_with_the_snapshot() -> None:
    shown = shown_metrics(RunConfig.model_validate(make_config()))

    assert {"reward/mean", "reward/std", "grad_norm", "total/tokens"} <= shown
    assert "ratio/max" not in shown


def test_a_penalty_for_length_is_drawn_beside_the_rules() -> None:
    names = _names(_charts(reward=PENALISED)["reward/<rule>/mean"])

    assert names == ["answer", "overlong"]


@pytest.fixture
def run(team: Team) -> Run:
    return queue_run(team, num_steps=100, config=make_config(phases=PHASES))


@pytest.fixture
def story(run: Run) -> Story:
    story = Story(run)
    story.start()
    return story


def _begin(story: Story, first: int, name: str) -> None:
    story._tell(PhaseStarted, name=name, first_step=first, last_step=first + 1)


def test_the_page_names_the_phases(
    alice_client: Client, team: Team, story: Story, run: Run
) -> None:
    page = alice_client.get(f"/{team.slug}/runs/{run.pk}/").text

    phases = re.findall(r'run-phase">(\w+) <[^>]*>steps (\d+) to (\d+)<', page)
    assert phases == [("sft", "1", "40"), ("rl", "41", "100")]


def test_a_phase_is_shown_however_much_happened_since(
    story: Story, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_an_interval_stands_beside_its_value(
    alice_client: Client, team: Team, story: Story, run: Run
) -> None:
    story.take_steps(1)
    story.evaluate(
        **{
            "eval/heldout/mean": 0.5,
            "eval/heldout/mean/low": 0.41,
            "eval/heldout/mean/high": 0.62,
        }
    )

    page = alice_client.get(f"/{team.slug}/runs/{run.pk}/").text

    row = re.search(r'<tr data-metric="eval/heldout/mean">(.*?)</tr>', page, re.DOTALL)
    assert row
    text = " ".join(re.sub(r"<[^>]+>", " ", row[1]).split())
    assert text == "Held-out reward 0.5 (0.41 to 0.62)"
    assert 'data-metric="eval/heldout/mean/low"' not in page


def test_comparing_offers_no_end_of_an_interval(story: Story, run: Run) -> None:
    story.take_steps(1)
    story.evaluate(**{"eval/heldout/mean/low": 0.4, "eval/heldout/mean/high": 0.6})
    run.refresh_from_db()

    offered = [name for _, names in list_metrics([run]) for name in names]

    assert "eval/heldout/mean" in offered
    assert not [name for name in offered if name.endswith(("/low", "/high"))]


def test_a_metric_that_comes_later_is_listed_with_its_group(
    alice_client: Client, team: Team, story: Story, run: Run
) -> None:
    story.take_steps(1)
    story.take_steps(1, **{"kl/coef": 0.01})

    page = alice_client.get(f"/{team.slug}/runs/{run.pk}/").text

    names = re.findall(r'<tr data-metric="([^"]+)">', page)
    assert names[names.index("kl/coef") + 1] == "entropy"
