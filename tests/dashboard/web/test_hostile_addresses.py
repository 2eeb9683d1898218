"""Numbers that are none, or beyond all bounds, are answered at every address."""

import itertools

import pytest
from django.test import Client
from django.utils.http import urlencode

from dashboard.runs.models import Run
from tests.dashboard.completions.factories import make_group, make_run

VALUES = (
    "1e99",
    "nan",
    "inf",
    "-1",
    "0x10",
    "\u0661",
    "a\x00b",
    "a\r\nb",
    "9" * 20,
    "9" * 5_000,
)
# Beneath the team: an address, and its parameters that are read as numbers or words.
READS = {
    "runs/": "page owner dataset q state model sort cols",
    "runs/live.json": "ids owner",
    "runs/new": "clone dataset recipe preset",
    "runs/{run}/groups/": "step page signal sort",
    "runs/{run}/groups/1/0/": "sort",
    "runs/{run}/completions/": "page text first_step min_reward prompt end sort",
    "runs/{run}/prompts/": "which at_most low high visits first_step last_step sort "
    "page",
    "runs/{run}/prompts/0/": "visits first_step last_step page",
    "runs/{run}/reward-log/": "page text rule kind first_step last_step prompt",
    "runs/{run}/stream.json": "after attempt protocol",
    "runs/{run}/curves.json": "metrics max_points first_step last_step",
    "runs/{run}/logs/": "attempt lines source",
    "runs/{run}/logs/download": "attempt source",
    "runs/{run}/health/": "state rule page at width",
    "alerts/": "state rule run page",
    "settings/alert-rules/": "metric run",
    "compare": "runs metric x smooth y settings q prompt step by stat better window",
    "compare/figure.json": "runs metric smooth by stat better window paired each",
    "compare/prompt": "runs a b prompt step sort align text page",
    "sweep": "runs metric of x without keep keep_axis keep_from keep_to",
    "datasets/{dataset}/": "page version q",
    "datasets/{dataset}/save": "version q counted matching min_chars column sort",
    "datasets/{dataset}/download": "version format",
    "datasets/upload": "dataset",
    "rewards/{recipe}/": "version",
    "rewards/{recipe}/edit": "version",
}


@pytest.fixture
def run(team) -> Run:
    run = make_run(team)
    make_group(run, step=1, prompt_index=0)
    return run


def _fill(address: str, run: Run) -> str:
    return address.format(
        run=run.pk,
        dataset=run.dataset_version.dataset_id,
        recipe=run.recipe_version.recipe_id,
    )


def wrong_answers(
    client: Client, run: Run, read: list[tuple[str, str, str]]
) -> list[tuple[str, int]]:
    """Of each address, with a parameter that has this value."""
    wrong = []
    for address, name, value in read:
        url = f"/alpha/{_fill(address, run)}?{urlencode({name: value})}"
        own_run = f"&runs={run.pk}" if name != "runs" else ""
        status = client.get(url + own_run).status_code
        if status not in (200, 400, 404):
            wrong.append((url[:80], status))
    return wrong


PARAMETERS = [(at, name) for at, names in READS.items() for name in names.split()]


def test_an_odd_parameter_is_answered(alice_client, run):
    """Every third; tests/inputs/test_every_parameter_of_every_page.py has all."""
    some = zip(PARAMETERS[::3], itertools.cycle(VALUES), strict=False)

    read = [(*parameter, value) for parameter, value in some]

    assert wrong_answers(alice_client, run, read) == []


def test_a_thing_of_an_odd_number_is_not_found(alice_client, team):
    for number in ["9" * 20, "9" * 5_000, "-1", "1e3"]:
        for address in ("runs/{}/", "runs/{}/groups/", "datasets/{}/", "rewards/{}/"):
            url = f"/alpha/{address.format(number)}"

            assert alice_client.get(url).status_code == 404, url[:80]


def test_range_bounds_that_overflow_are_rejected(alice_client, run):
    url = f"/alpha/runs/{run.pk}/completions/?first_step={'9' * 400}&last_step=1"

    form = alice_client.get(url).context["form"]

    assert form.has_error("last_step") or form.has_error("first_step")


def test_a_foreign_return_address_leads_to_the_run(alice_client, run):
    for way in ["1", "run", "//evil.example", "javascript:alert(1)"]:
        deed = {"action": "star", "next": way}

        answer = alice_client.post(f"/alpha/runs/{run.pk}/act", deed)

        assert answer["Location"] == f"/alpha/runs/{run.pk}/", way
