"""The reward log: output and errors of rules, newest first."""

import re
from typing import Any

import pytest
from django.urls import reverse

from dashboard.completions import groups as module
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import (
    make_config,
    make_group,
    make_note,
    make_run,
)
from tests.page_client import PageClient

TEXT = re.compile(r"<bdi>(\w+)</bdi></pre>")
PHASE = {
    "name": "late",
    "num_steps": 4,
    "changes": {
        "reward": {
            "recipe": {"rules": [{"name": "judged", "kind": "length", "weight": 1.0}]}
        }
    },
}


@pytest.fixture(scope="module")
def run(shared_team) -> Run:
    run = make_run(shared_team)
    early = make_group(run, step=1, prompt_index=4)
    late = make_group(run, step=2, prompt_index=5, num_notes=9)
    make_note(early, "early_print", position=2)
    make_note(early, "early_error", rule="format", is_error=True)
    make_note(late, "late_error", is_error=True)
    make_note(late, "late_print", rule="format")
    past = make_group(run, step=3, prompt_index=1, superseded_by=2)
    make_note(past, "superseded")
    other = make_group(make_run(shared_team, "other"), step=1)
    make_note(other, "another_run")
    return run


def get(client: PageClient, run: Run, query: str = "") -> str:
    return client.read(reverse("run_reward_log", args=["alpha", run.pk]) + query)


def test_filters_narrow_it(alice_client, run):
    for query, expected in {
        "": ["late_error", "late_print", "early_print", "early_error"],
        "?kind=error": ["late_error", "early_error"],
        "?kind=print": ["late_print", "early_print"],
        "?rule=format": ["late_print", "early_error"],
        "?last_step=1": ["early_print", "early_error"],
        "?first_step=2": ["late_error", "late_print"],
        "?prompt=4&kind=error": ["early_error"],
        "?text=_PRI": ["late_print", "early_print"],
        "?text=%25": [],
        "?rule=unknown": [],
    }.items():
        assert TEXT.findall(get(alice_client, run, query)) == expected, query


def test_it_is_a_page_of_the_runs(alice_client, run):
    html = get(alice_client, run)

    assert re.findall(r'aria-current="page">([\w ]+)</a>', html) == [
        "Runs",
        "Samples",
        "Reward log",
    ]


def test_an_entry_links_to_its_completion(alice_client, run):
    html = get(alice_client, run, "?text=early_print")

    address = reverse("group", args=["alpha", run.pk, 1, 4])
    assert f'href="{address}#completion-2"' in html
    assert "rule <strong><bdi>answer</bdi></strong>" in html
    assert "What is 4 + 1?" in html


def test_the_number_of_stored_entries_is_shown(alice_client, run):
    html = get(alice_client, run)

    assert html.count("2 of 9 entries") == 2


def test_pages_show_the_number_of_entries(alice_client, run, monkeypatch):
    monkeypatch.setattr(module, "PAGE_SIZE", 2)
    monkeypatch.setattr(module, "MAX_FOUND", 3)

    html = get(alice_client, run, "?page=2")

    assert TEXT.findall(html) == ["early_print"]
    assert "3–3 of more than 3" in html


def test_rule_output_is_escaped(alice_client, run):
    hostile = "</bdi></pre><script>alert(1)</script>\u202eevil"
    make_note(run.groups.get(step=2), hostile, rule="<b>x</b>", is_error=True)

    html = get(alice_client, run, "?rule=%3Cb%3Ex%3C/b%3E")

    assert "<script>alert" not in html
    assert "<b>x" not in html
    assert "<bdi>&lt;/bdi&gt;&lt;/pre&gt;&lt;script&gt;alert(1)" in html


def test_rules_of_every_phase_are_offered(alice_client, team):
    phases: Any = [PHASE]
    run = make_run(
        team, config=make_config(phases=phases, optim={"num_steps": 4}), name="phased"
    )

    html = get(alice_client, run)

    for name in ("answer", "format", "judged"):
        assert f'<option value="{name}">{name}</option>' in html


def test_an_empty_log_links_to_help(alice_client, team):
    html = get(alice_client, make_run(team))

    assert TEXT.findall(html) == []
    assert 'href="/help/inspect-samples/#reward-log"' in html


def test_steps_in_the_wrong_order_are_answered(alice_client, run):
    html = get(alice_client, run, "?first_step=5&last_step=2")

    assert 'id="id_last_step_error"' in html


def test_the_number_of_queries_is_constant(
    alice_client, run, django_assert_num_queries
):
    empty = make_run(run.team, "empty")
    get(alice_client, run)
    for index in range(30):
        make_note(make_group(run, step=9, prompt_index=index), f"text {index}")

    with django_assert_num_queries(11):
        get(alice_client, run)
    with django_assert_num_queries(8):
        get(alice_client, empty, "?page=3")
