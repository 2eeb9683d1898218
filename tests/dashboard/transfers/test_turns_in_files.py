"""Turns of episodes, as programs get them and files carry them."""

import io
import json

import pyarrow.parquet as pq
import pytest
from django.urls import reverse

from cohort.api.records import GroupDetail, read
from dashboard.datasets.parsing.records import Record, Refusal
from dashboard.supervision.external_runs import open_run
from dashboard.transfers.import_formats import read_sample
from tests.dashboard.api.asking import Program, make_token
from tests.dashboard.completions.episodes import (
    FAILED,
    HIT,
    OUT_OF_TURNS,
    add_episodes,
)
from tests.dashboard.completions.stored import completions_of
from tests.dashboard.supervision.logs import LogBuilder
from tests.dashboard.supervision.sending import send
from tests.dashboard.supervision.test_opening_a_run import OPENING
from tests.dashboard.transfers.test_importing_a_run import make
from tests.dashboard.transfers.test_importing_a_run import send as send_files

pytestmark = pytest.mark.django_db
EPISODES = [HIT, FAILED, OUT_OF_TURNS]
SINGLE = HIT.model_copy(update={"turns": [], "end_reason": "stop"})


@pytest.fixture(scope="module")
def run(shared_team, shared_alice):
    run = open_run(OPENING, team=shared_team, user=shared_alice)[0]
    log = add_episodes(LogBuilder(), 1, *EPISODES)
    add_episodes(log, 1, SINGLE, SINGLE, index=1)
    send(run, log.stepped(1, num_groups=0).finished(1))
    return run


def export(client, run, file):
    address = reverse("run_export_file", args=["alpha", run.pk, file])
    return client.get(address).getvalue()


def test_programs_get_turns(run, alice):
    program = Program(make_token(alice, "read"))

    tree = program.get(f"/runs/{run.pk}/groups/1/0").json()
    single = program.get(f"/runs/{run.pk}/groups/1/1").json()
    found = program.get(f"/runs/{run.pk}/completions?end=turns").json()["items"]

    group = read(GroupDetail, tree)
    (call,) = group.completions[2].turns[3].calls
    turn = group.completions[0].turns[1]
    assert [c.end_reason for c in group.completions] == ["done", "failed", "turns"]
    assert (turn.author, turn.seconds, turn.token_end) == ("environment", 0.25, 4)
    assert group.completions[0].text[turn.start : turn.end] == "+"
    assert (call.name, call.error) == ("add", "No b.")
    assert single["completions"][0]["turns"] == []
    assert [len(each["turns"]) for each in found] == [5]


def test_a_client_reads_a_server_without_turns(run, alice):
    tree = Program(make_token(alice, "read")).get(f"/runs/{run.pk}/groups/1/0").json()
    for completion in tree["completions"]:
        del completion["turns"]

    assert read(GroupDetail, tree).completions[0].turns == ()


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_exported_turns_are_imported_again(run, alice_client, suffix):
    file = f"completions.{suffix}"

    again = make(
        alice_client, send_files(alice_client, {file: export(alice_client, run, file)})
    )

    def stored(of):
        return [
            (c.text, c.end_reason, c.num_tokens, c.turns) for c in completions_of(of)
        ]

    assert stored(again) == stored(run)


def test_files_have_turns_as_lists_of_records(run, alice_client):
    lines = export(alice_client, run, "completions.jsonl").splitlines()
    table = pq.read_table(io.BytesIO(export(alice_client, run, "completions.parquet")))

    (first, *_, last) = map(json.loads, lines)
    assert first["turns"] == [turn.model_dump() for turn in HIT.turns]
    assert last["turns"] is None
    assert table["turns"].to_pylist()[2][1]["calls"][0]["result"] == "12"


def test_turns_that_are_none_are_refused(run, alice_client):
    lines = export(alice_client, run, "completions.jsonl").splitlines()
    row = json.loads(lines[0])

    for turns in ("policy", [{"author": "nobody", "start": 0, "end": 1}]):
        refused = read_sample("Cohort", Record(1, row | {"turns": turns}))

        assert isinstance(refused, Refusal)
        assert refused.column == "turns"
