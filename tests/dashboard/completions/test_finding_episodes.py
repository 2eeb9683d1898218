"""Episodes are found by their end, turns, tool calls and the time that they took."""

import re

import numpy as np
import pytest
from django.urls import reverse

from dashboard.completions.flags import ENDS
from dashboard.completions.search.columns import NUMBER
from dashboard.supervision.external_runs import open_run
from dashboard.supervision.storage import NumberedEvent, copy_groups
from tests.dashboard.completions.blocks import make_blocks
from tests.dashboard.completions.episodes import (
    FAILED,
    HIT,
    OUT_OF_TURNS,
    add_episodes,
    episode,
    said,
)
from tests.dashboard.completions.factories import make_group, make_run
from tests.dashboard.supervision.logs import LogBuilder
from tests.dashboard.supervision.sending import send
from tests.dashboard.supervision.test_opening_a_run import OPENING

PLACE = re.compile(r'data-found="(\d+)/(\d+)/(\d+)"')
LATE = episode(
    said("7"), said("", author="environment", seconds=120.0), end_reason="timeout"
)
CUT, SINGLE, IMPORTED = (
    HIT.model_copy(update={"turns": [], "end_reason": end})
    for end in ("length", "stop", "unknown")
)


@pytest.fixture(scope="module", params=["from the table", "from blocks"])
def run(shared_team, shared_alice, request):
    run = open_run(OPENING, team=shared_team, user=shared_alice)[0]
    log = add_episodes(LogBuilder(), 1, HIT, FAILED, OUT_OF_TURNS, LATE)
    add_episodes(log, 1, CUT, SINGLE, index=1)  # a group without an episode
    add_episodes(log, 1, IMPORTED, HIT, index=2)
    send(run, log.stepped(1, num_groups=0).finished(1))
    if request.param == "from blocks":
        make_blocks(run)
    return run


QUERIES = [
    ("end=stop", ["1/1/1"]),
    ("end=length", ["1/1/0"]),
    ("end=unknown", ["1/2/0"]),
    ("end=turns", ["1/0/2"]),
    ("end=done", ["1/0/0", "1/2/1"]),
    ("end=failed", ["1/0/1"]),
    ("end=timeout", ["1/0/3"]),
    ("min_turns=2", ["1/0/0", "1/0/2", "1/2/1"]),
    ("min_turns=3", ["1/0/2"]),
    ("tools=failed", ["1/0/2"]),
    ("min_waited=0.75", ["1/0/0", "1/0/2", "1/0/3", "1/2/1"]),
    ("min_waited=100", ["1/0/3"]),
    ("text=no+b", ["1/0/2"]),  # that a tool said
]


@pytest.mark.parametrize(("query", "places"), QUERIES)
def test_filters_find_episodes(alice_client, run, query, places):
    address = reverse("completions", args=["alpha", run.pk])

    html = alice_client.read(f"{address}?sort=step&{query}")

    assert ["/".join(place) for place in PLACE.findall(html)] == places


def test_ends_are_counted_where_they_occur(alice_client, run):
    address = reverse("completions", args=["alpha", run.pk])

    facets = {f.title: f.values for f in alice_client.get(address).context["facets"]}

    assert {value.label: value.count for value in facets["Finish"]} == {
        ENDS[name].label: count
        for name, count in {
            "stop": 1,
            "length": 1,
            "turns": 1,
            "done": 2,
            "failed": 1,
            "timeout": 1,
            "unknown": 1,
        }.items()
    }


def test_blocks_without_episodes_have_no_column_of_them(team):
    run = make_run(team)
    make_group(run)
    make_blocks(run)

    block = run.completion_blocks.get()

    assert (bytes(block.turns), bytes(block.waits)) == (b"", b"")


def test_near_duplicates_are_those_of_the_policys_words(alice_client, team):
    run = make_run(team)
    page = "one two three four five six seven eight nine ten eleven twelve"
    completions = [
        episode(said(own), said(reply, author="environment"))
        for own, reply in (("7", page), ("8", page), ("7", "No."))
    ]
    (event,) = add_episodes(LogBuilder(), 1, *completions).events
    copy_groups(run.pk, [NumberedEvent(1, event)])
    make_blocks(run)
    address = reverse("completions", args=["alpha", run.pk])

    html = alice_client.read(f"{address}?sort=step&surprise=near")

    assert [place for *_, place in PLACE.findall(html)] == ["0", "2"]


@pytest.mark.parametrize(("seconds", "wait"), [(1e300, 1e9), (1e-300, 0), (-1e300, 0)])
def test_seconds_that_no_column_holds_do_not_stop_the_index(team, seconds, wait):
    run = make_run(team)
    stored = make_group(run).packed_completions
    turn = {"author": "policy", "start": 0, "end": 1, "seconds": seconds}
    stored.turns = [[turn, turn]] * len(stored.texts)
    stored.save()

    make_blocks(run)

    waits = np.frombuffer(run.completion_blocks.get().waits, NUMBER)
    assert waits.tolist() == [wait] * len(stored.texts)
