"""Every page of an external run shows the reported data and what is missing."""

from uuid import uuid4

import pytest
from django.urls import reverse

from dashboard.analysis.compare.differences import compare_settings
from dashboard.runs.models import Run
from dashboard.supervision.external_runs import Opening, open_run
from tests.dashboard.completions.factories import make_run
from tests.dashboard.supervision.logs import LogBuilder
from tests.dashboard.supervision.sending import send
from tests.dashboard.supervision.test_opening_a_run import OPENING
from tests.page_client import PageClient
from trainer.events import StepFinished

PAGES = (
    "run",
    "run_metrics",
    "groups",
    "completions",
    "run_prompts",
    "run_reward_log",
    "run_health",
    "run_logs",
    "run_export",
    "run_lineage",
)


def opening_with(**changes: object) -> Opening:
    return OPENING.model_copy(update=changes)


@pytest.fixture
def external(team, alice) -> Run:
    run = open_run(OPENING, team=team, user=alice)[0]
    send(run, LogBuilder().stepped(1).stepped(2))
    return run


def page(client: PageClient, name: str, *args: object) -> str:
    return client.read(reverse(name, args=["alpha", *args]))


def test_each_page_exists_and_names_the_trainer(external, alice_client):
    shown = {name: page(alice_client, name, external.pk) for name in PAGES}
    assert "data-run-pause>" not in shown["run"]
    for text in ("TRL 1.16.0 on node-3", "Close run"):
        assert text in shown["run"]
    assert "2 of 2 prompts" not in shown["run_prompts"]
    assert "fsdp.offload" in page(alice_client, "run_config", external.pk)
    page(alice_client, "run_checkpoints", external.pk)

    send(external, LogBuilder().stepped(1).stepped(2).finished(2))

    ended = page(alice_client, "run", external.pk)
    assert not any("was imported" in text for text in (ended, *shown.values()))
    counted = page(alice_client, "run_prompts", external.pk)
    assert "2 of 2 prompts" in counted


def test_a_run_that_was_sent_later_took_as_long_as_its_events(external):
    log = LogBuilder().stepped(1).stepped(2).finished(2)

    send(external, log)

    times = [event.time for event in log.events if event.type == "step_finished"]
    run = Run.objects.get(pk=external.pk)
    assert run.started_at.timestamp() == times[0]
    assert run.took.total_seconds() == log.events[-1].time - times[0] > 0


def test_the_band_of_rewards_is_what_was_measured(external, team, alice, alice_client):
    run = open_run(opening_with(key=uuid4()), team=team, user=alice)[0]
    ends = {"reward/p10": 0.25, "reward/p90": 0.75, "reward/mean": 0.5}
    send(run, LogBuilder().add(StepFinished, step=1, metrics=ends))

    def chart_of(pk: int) -> tuple[str, list[object]]:
        answer = alice_client.get(reverse("run", args=["alpha", pk]))
        chart = next(c for c in answer.context["charts"] if c.name == "reward/mean")
        return chart.about, [t["meta"].get("limits") for t in chart.figure["data"][:2]]

    # Completions have rewards of 0 and 1, and no step a percentile.
    about, limits = chart_of(external.pk)
    assert ("percentile" in about, "deviation" in about) == (False, True)
    assert limits == [(0.0, 1.0)] * 2
    about, _ = chart_of(run.pk)
    assert ("percentile" in about, "deviation" in about) == (True, False)


@pytest.mark.parametrize(
    ("reported", "mark"),
    [
        ({"logging_steps": 5}, "last 5 steps"),
        ({"logging_steps": 5, "logging_strategy": "epoch"}, "last logged steps"),
        ({"logging_steps": "5"}, "last logged steps"),
        ({"logging_steps": 1}, ""),
        ({}, ""),
    ],
)
def test_a_loss_that_trl_averages_is_marked(team, alice, alice_client, reported, mark):
    run = open_run(opening_with(settings=reported), team=team, user=alice)[0]
    send(run, LogBuilder().stepped(1))

    answer = alice_client.get(reverse("run_metrics", args=["alpha", run.pk]))

    item = next(v for v in answer.context["values"] if v.name == "loss")
    title = next(t for name, t, *_ in answer.context["titles"] if name == "loss")
    assert item.title == title
    assert mark in title
    assert ("mean" in title) is bool(mark)


@pytest.mark.parametrize(
    ("num_steps", "more"), [(None, ()), ("10", ()), (10, ("rest",))]
)
def test_settings_that_look_like_phases_are_values(
    num_steps, more, team, alice, alice_client
):
    first = {"name": "warm", "num_steps": num_steps}
    value = [first, *more]
    given = {"curriculum": value, "phases": value}
    run = open_run(opening_with(settings=given), team=team, user=alice)[0]
    other = [{**first, "lr": 1}, *more]
    changed = opening_with(key=uuid4(), settings={**given, "curriculum": other})
    another = open_run(changed, team=team, user=alice)[0]

    page(alice_client, "run_config", run.pk)
    listed = alice_client.get(
        reverse("runs", args=["alpha"]),
        {"cols": "config.settings.curriculum,config.settings.phases"},
    )
    assert listed.status_code == 200
    differing = [one.key for one in compare_settings([run, another]) if one.differs]
    assert "settings.curriculum" in differing


def test_its_settings_are_compared(external, team, alice, alice_client):
    changed = opening_with(key=uuid4(), settings={"learning_rate": 2e-6})
    other = open_run(changed, team=team, user=alice)[0]

    compared = alice_client.get(
        reverse("compare", args=["alpha"]), {"runs": f"{external.pk},{other.pk}"}
    ).content.decode()

    assert "settings.learning_rate" in compared
    own = make_run(team, "own")
    keys = [one.key for one in compare_settings([external, own]) if one.differs]
    assert not [key for key in keys if key.startswith("settings.")]
