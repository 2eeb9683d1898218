import json
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from dashboard.completions.groups import get_group
from dashboard.completions.models import Group, GroupTokens
from dashboard.completions.tokens import read_tokens
from dashboard.runs.models import Run, RunEvent
from dashboard.runs.queries import run_directory
from dashboard.runs.stream import read_batch
from dashboard.supervision.event_log import Lines, SupervisorLog, read_events
from dashboard.supervision.ingest import ingest
from dashboard.supervision.lease import LeaseLost, claim_run
from dashboard.supervision.takeover import take_over
from tests.dashboard.supervision.checkpoints import save
from tests.dashboard.supervision.logs import LogBuilder, group, measured
from trainer.events import GroupScored, StepFinished, TokensMeasured, Warned

YES = [measured("yes", "<eos>"), measured("n", "o", "<eos>")]


def with_token_values(
    log: LogBuilder, step: int, *, index: int = 0, **values: Any
) -> LogBuilder:
    """A step of two groups, one of them with token values."""
    log.add(GroupScored, step=step, **group(0)).add(GroupScored, step=step, **group(1))
    completions = [measured("a", "<eos>", **values), measured("b", "c")]
    log.add(TokensMeasured, step=step, prompt_index=index, completions=completions)
    return log.add(StepFinished, step=step, metrics={"loss": 1.0})


def tokens_of(run_id: int, step: int, index: int = 0) -> Any:
    return read_tokens(get_group(Run.objects.get(id=run_id), step, index))


def test_they_are_kept_with_their_group(claim):
    ingest(claim, with_token_values(LogBuilder().started(), 1, index=1).events)

    first, second = tokens_of(claim.run_id, 1, 1)
    assert first["pieces"] == ["a", "<eos>"]
    assert first["special"] == [0, 1]
    assert second["logprob"] == [-0.12345, -1.1235]
    assert tokens_of(claim.run_id, 1, 0) is None
    assert RunEvent.objects.get(type="tokens_measured").body == {}


def test_the_group_may_have_come_with_an_earlier_batch(claim):
    *before, tokens, end = with_token_values(LogBuilder().started(), 1).events
    ingest(claim, before)

    ingest(claim, [tokens, end])

    assert len(tokens_of(claim.run_id, 1)) == 2


def test_lines_that_are_sent_again_are_stored_once(claim):
    events = with_token_values(LogBuilder().started(), 1).events
    ingest(claim, events[:-1])

    assert ingest(claim, events) == 1

    assert GroupTokens.objects.count() == 1


def test_the_first_of_repeated_token_values_are_stored(claim):
    log = LogBuilder().started().add(GroupScored, step=1, **group(0))
    for text in ("first", "second"):
        log.add(
            TokensMeasured, step=1, prompt_index=0, completions=[measured(text)] * 2
        )
    log.add(TokensMeasured, step=1, prompt_index=0, completions=[measured("third")] * 2)
    ingest(claim, log.events[:-1])

    ingest(claim, log.events)

    assert tokens_of(claim.run_id, 1)[0]["pieces"] == ["first"]


def test_values_without_their_group_are_left_out(claim):
    log = LogBuilder().started()
    log.add(TokensMeasured, step=1, prompt_index=3, completions=YES)
    log.stepped(1)

    assert ingest(claim, log.events) == 5

    assert not GroupTokens.objects.exists()


def test_a_worker_that_lost_the_run_writes_none(run, claim):
    events = with_token_values(LogBuilder().started(), 1).events
    Run.objects.filter(id=run.id).update(attempt=claim.attempt + 1)

    with pytest.raises(LeaseLost):
        ingest(claim, events)

    assert not GroupTokens.objects.exists()


def test_a_repeated_step_has_its_own_token_values(run, claim):
    directory = run_directory(run.id)
    log = with_token_values(
        LogBuilder().started().stepped(1).saved(1), 2, kl=[0.1, 0.1]
    )
    log.write(directory.attempt(1).events)
    ingest(claim, log.events)
    save(directory, 1)
    Run.objects.filter(id=run.id).update(state="queued", lease_until=None)
    again = claim_run(run.id, "worker-2")
    assert again is not None
    supervisor_log = SupervisorLog(directory.attempt(2).supervisor_log, about="test")
    take_over(again, directory, supervisor_log=supervisor_log, keep_alive=lambda: None)

    assert tokens_of(run.id, 2)[0]["kl"] == [0.1, 0.1]  # until the run gets there

    ingest(again, with_token_values(LogBuilder(attempt=2), 2, kl=[0.2, 0.2]).events)
    assert tokens_of(run.id, 2)[0]["kl"] == [0.2, 0.2]
    old = Group.objects.get(run=run, step=2, prompt_index=0, superseded_by=2)
    kept = read_tokens(old)
    assert kept is not None
    assert kept[0]["kl"] == [0.1, 0.1]


def test_they_go_with_their_group(claim):
    ingest(
        claim, with_token_values(with_token_values(LogBuilder().started(), 1), 2).events
    )

    Group.objects.get(step=1, prompt_index=0).delete()
    assert GroupTokens.objects.count() == 1

    Run.objects.get(id=claim.run_id).delete()
    assert GroupTokens.objects.count() == 0


def test_a_page_that_watches_is_not_sent_them(run, claim):
    ingest(claim, with_token_values(LogBuilder().started(), 1).events)

    run.refresh_from_db()
    kinds = [event["type"] for event in read_batch(run, 0)["events"]]
    assert kinds == ["run_started"]


def test_no_page_is_notified_before_their_step_is_there(claim, monkeypatch):
    notified: list[int] = []
    monkeypatch.setattr(
        "dashboard.supervision.ingest.notify_on_commit",
        lambda _, seq: notified.append(seq),
    )
    started, *groups_and_tokens, step = with_token_values(
        LogBuilder().started(), 1
    ).events
    ingest(claim, [started])
    notified.clear()

    ingest(claim, groups_and_tokens)
    assert notified == []

    ingest(claim, [step])
    assert len(notified) == 1


def test_they_cost_a_step_without_any_no_query(claim):
    log = LogBuilder().started().stepped(1).stepped(2)
    ingest(claim, log.events[:4])

    with CaptureQueriesContext(
        connection,
    ) as queries:
        ingest(claim, log.events)

    assert not any("grouptokens" in query["sql"] for query in queries)


def test_a_group_with_the_maximum_of_tokens_is_stored(claim):
    long = measured(*[f"word{place % 999}\0\n\\." for place in range(32_768)])
    log = LogBuilder().started().add(GroupScored, step=1, **group(0))
    log.add(TokensMeasured, step=1, prompt_index=0, completions=[long, long])

    ingest(claim, log.events)

    found = tokens_of(claim.run_id, 1)
    assert found[1]["pieces"] == long.pieces
    assert found[1]["logprob"][-1] == -32_767.0
    assert len(bytes(GroupTokens.objects.get().packed)) < 2 * 2**20


def test_a_line_whose_lists_do_not_fit_becomes_a_warning(claim):
    log = LogBuilder().add(TokensMeasured, step=1, prompt_index=0, completions=[YES[0]])
    texts: list[bytes] = []
    for wrong in (
        {"pieces": ["one"]},
        {"logprob": [-0.5]},
        {"ids": [-1, 5]},
        {"ids": [2**32, 5]},
        {"clipped": [0, 3]},
    ):
        tree = json.loads(log.lines[0]) | {"line": len(texts) + 1}
        tree["completions"][0] |= wrong
        texts.append(json.dumps(tree).encode())

    events = read_events(Lines(first=1, texts=tuple(texts), end=0), attempt=1)

    assert [isinstance(event, Warned) for event in events] == [True] * len(texts)
    assert ingest(claim, events) == len(texts)
