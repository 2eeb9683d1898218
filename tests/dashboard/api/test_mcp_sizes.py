"""Answers stay below their limit, whatever they are about."""

import json

import pytest
from django.db import connection

from dashboard.runs.models import Step
from tests.dashboard.api.asking import make_token
from tests.dashboard.api.test_mcp import Assistant
from tests.dashboard.completions.factories import make_group, make_run

pytestmark = pytest.mark.django_db


@pytest.fixture
def assistant(alice):
    return Assistant(make_token(alice, "write"))


@pytest.fixture(scope="module")
def long_run(shared_team):
    """A run of 100,000 steps with completions of 200,000 characters."""
    run = make_run(shared_team, "long", num_steps=100_000, tags=["t" * 40] * 20)
    names = [f"reward/{'x' * 30}-{number}/mean" for number in range(200)]
    names[:2] = "reward/mean", "kl/mean"
    run.metric_names, run.last_step = names, 100_000
    run.save(update_fields=["metric_names", "last_step"])
    table = Step._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} (run_id, step, epoch, seq, time, values)"  # noqa: S608  # a name of ours
            " SELECT %s, n, 1, n, now(), ARRAY[sin(n), -1.2345e-10 * n, n]"
            " FROM generate_series(1, 100000) n",
            [run.pk],
        )
    texts = [f"{number} " + "long text " * 20_000 for number in range(6)]
    for step in (1, 50_000, 100_000):
        make_group(run, step=step, rewards=(1.2, 0.2, 0.0) * 2, texts=texts)
    return run


@pytest.mark.parametrize("max_chars", [1_000, 12_000, 40_000])
def test_no_answer_exceeds_its_limit(assistant, long_run, max_chars):
    run, names = long_run.pk, long_run.metric_names
    rows = [
        ("find_runs", {"limit": 50}),
        ("get_run", {"run": run}),
        ("get_metrics", {"run": run}),
        ("get_metrics", {"run": run, "names": names[:3], "points": 100}),
        ("search_completions", {"run": run, "limit": 50, "chars": 20_000}),
        ("compare_runs", {"runs": [run, run]}),
        ("list_inputs", {"kind": "setting", "limit": 50}),
        ("list_inputs", {"kind": "rule_kind", "limit": 50}),
        ("get_analysis", {"kind": "audit", "id": run}),
        ("launch_run", {"from_run": run, "model": "org/model"}),
        ("rescore_run", {"run": run}),
    ]

    for tool, given in rows:
        arguments = {**given, "max_chars": max_chars}
        result = assistant.ask("tools/call", name=tool, arguments=arguments)["result"]
        text = result["content"][0]["text"]
        assert len(text) <= max_chars, tool
        assert (
            isinstance(json.loads(text), dict)
            if not result["isError"]
            else (max_chars == 1_000 or tool == "launch_run")
        ), (tool, text)


def test_long_texts_are_cut_in_place(assistant, long_run):
    answer = assistant.call("search_completions", run=long_run.pk, chars=20_000)

    item = answer["items"][0]
    assert "characters left out" in item["text"]
    assert item["text"].endswith("long text ")
    assert len(answer["items"]) == 5


def test_a_long_run_keeps_its_extremes(assistant, long_run):
    name = long_run.metric_names[2]
    answer = assistant.call("get_metrics", run=long_run.pk, names=[name])

    series = answer["series"][name]
    assert (min(series["low"]), max(series["high"])) == (1, 100_000)
    assert 20 <= len(series["steps"]) <= 40
