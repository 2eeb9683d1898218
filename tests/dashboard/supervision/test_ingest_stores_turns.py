"""The turns of an episode are stored with its group, as the trainer sent them."""

import pytest
from django.db import connection
from pydantic import ValidationError

from dashboard.completions.groups import get_group
from dashboard.completions.models import Group
from dashboard.completions.signals.records import from_event, read_groups
from dashboard.runs.models import Run
from dashboard.supervision.ingest import ingest
from tests.dashboard.completions.episodes import (
    FAILED,
    HIT,
    OUT_OF_TURNS,
    add_episodes,
    episode,
    said,
)
from tests.dashboard.supervision.logs import LogBuilder
from trainer.events import CallRecord, TurnRecord, parse_event

SINGLE = HIT.model_copy(update={"turns": [], "end_reason": "stop"})


def completions_of(claim, index=0):
    return get_group(Run.objects.get(id=claim.run_id), 1, index).completions


def test_turns_and_ends_are_read_as_they_were_sent(claim):
    log = add_episodes(LogBuilder().started(), 1, HIT, FAILED, OUT_OF_TURNS)
    ingest(claim, [parse_event(line) for line in log.lines])

    stored = completions_of(claim)

    assert [c.turns for c in stored] == [
        tuple(sent.turns) for sent in (HIT, FAILED, OUT_OF_TURNS)
    ]
    assert [c.end_reason for c in stored] == ["done", "failed", "turns"]
    assert [c.num_turns for c in stored] == [2, 1, 3]
    assert stored[0].policy_text == "20\n24"
    assert stored[0].num_tokens == 4  # of eight
    (note,) = Group.objects.get().notes.all()
    assert (note.rule, note.position, note.is_error) == ("environment", 1, True)


def test_single_turns_leave_the_column_empty(claim):
    ingest(claim, LogBuilder().started().stepped(1, num_groups=1).events)

    (first, _) = completions_of(claim)

    assert first.turns == ()
    assert first.policy_text == first.text
    assert Group.objects.get().packed_completions.turns is None


def test_one_turn_beside_episodes_has_none(claim):
    ingest(claim, add_episodes(LogBuilder().started(), 1, SINGLE, HIT).events)

    assert [len(c.turns) for c in completions_of(claim)] == [0, 4]


def test_votes_are_the_policys_words_behind_what_the_row_begins(claim):
    """As rules read them: the environment does not vote."""
    said_so = episode(said("a</answer>"), said("b", author="environment"), said("c"))
    log = add_episodes(LogBuilder().started(), 1, said_so, SINGLE)
    log.events[-1] = event = log.events[-1].model_copy(update={"begun": "<answer>"})
    expected = ["<answer>a</answer>\nc", f"<answer>{SINGLE.text}"]

    ingest(claim, log.events)

    (stored,) = read_groups(claim.run_id, step=1, attempt=1)
    assert from_event(event).texts == stored.texts == expected


def test_what_jsonb_refuses_is_replaced(claim):
    call = CallRecord(name="add\0", arguments="{}", error="\0")
    broken = episode(
        said("a"),
        said("b", author="tool", calls=[call]),
    )
    ingest(claim, add_episodes(LogBuilder().started(), 1, broken).events)

    (stored,) = completions_of(claim)

    (call,) = stored.turns[1].calls
    assert (call.name, call.arguments, call.error) == ("add␀", "{}", "␀")


@pytest.mark.parametrize(
    "fields",
    [
        *({"seconds": value} for value in (float("nan"), 1e39, 1e300, -1.0)),
        *({"reward": value} for value in (float("inf"), -1e300)),
        *({"token_end": value} for value in (10**30, -1)),
        {"end": 2**31},
    ],
)
def test_numbers_that_no_index_or_export_holds_are_refused(fields):
    with pytest.raises(ValidationError):
        TurnRecord(**{"author": "tool", "start": 0, "end": 1} | fields)


def test_groups_of_the_previous_release_have_no_turns(claim):
    """It inserts completions without the column that it does not know."""
    ingest(claim, LogBuilder().started().stepped(1, num_groups=1).events)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE samples_groupcompletions SET turns = DEFAULT")

    assert completions_of(claim)[0].turns == ()
