"""What an external trainer sends is stored once, in order, or refused with a reason."""

import json
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db.models.functions import Now

from dashboard.accounts.models import Team, User
from dashboard.alerts.models import Alert, Rule
from dashboard.completions.mismatch import read_mismatch
from dashboard.completions.models import Group
from dashboard.project.errors import UserError
from dashboard.runs.models import Run, RunEvent, RunState, Step
from dashboard.runs.progress import describe_progress
from dashboard.supervision import lease
from dashboard.supervision.external_events import (
    MAX_LINES,
    AttemptReplaced,
    MissingLines,
    RunEnded,
)
from dashboard.supervision.external_ingest import read_position, take_lines
from dashboard.supervision.external_runs import Opening, open_attempt, open_run
from dashboard.supervision.storage import TOTALS
from tests.dashboard.completions.mismatches import mismatch
from tests.dashboard.completions.stored import completions_of
from tests.dashboard.supervision.logs import LogBuilder, group
from tests.dashboard.supervision.sending import lines_of, send
from trainer.events import (
    CheckpointSaved,
    Evaluated,
    GroupScored,
    MismatchMeasured,
    StepFinished,
)

AT_ONCE = timedelta(0)


def open_external(team: Team, user: User) -> Run:
    opening = Opening(key=uuid4(), name="theirs", tool="TRL", rules={"answer": 1.0})
    return open_run(opening, team=team, user=user)[0]


@pytest.fixture(scope="module")
def external(shared_team, shared_alice) -> Run:
    return open_external(shared_team, shared_alice)


def warnings_of(run: Run) -> list[str]:
    found = RunEvent.objects.filter(run=run, type="warned").order_by("line")
    return [body["message"] for body in found.values_list("body", flat=True)]


def test_they_are_stored_as_a_trainers_of_ours(external):
    place = send(external, LogBuilder().stepped(1).stepped(2))

    external.refresh_from_db()
    assert (place.line, place.step, place.num_prompts) == (6, 2, 2)
    assert external.last_step == 2
    assert external.num_steps == 2  # the trainer did not report how many there will be
    assert Group.objects.filter(run=external).count() == 4
    assert len(completions_of(external)) == 8
    assert external.summary["last"]["reward/mean"] == 0.2
    # A rule that the opening did not name.
    rules = external.config["reward"]["recipe"]["rules"]
    assert [rule["name"] for rule in rules] == ["answer", "format"]


def test_repeated_lines_are_stored_once(external):
    log = LogBuilder().stepped(1)
    send(external, log)

    log.stepped(2)
    place = send(external, log)
    again = send(external, log, first=4)

    assert (place.line, again.line) == (6, 6)
    assert RunEvent.objects.filter(run=external).count() == 6
    assert Step.objects.filter(run=external).count() == 2


def test_a_run_reports_skipped_lines_and_the_reason(external):
    take_lines(
        external, attempt=1, first=1, texts=[b"{}", b'{"type": "step_finished"}']
    )
    place = take_lines(external, attempt=1, first=3, texts=[b"[]"])

    external.refresh_from_db()
    assert (place.line, place.num_left_out) == (3, 3)
    assert place.left_out in describe_progress(external).notice
    assert place.left_out == warnings_of(external)[-1]


def test_a_gap_is_rejected_with_the_next_line(external):
    log = LogBuilder().stepped(1).stepped(2)
    send(external, LogBuilder().stepped(1))

    with pytest.raises(MissingLines, match="line 4") as raised:
        send(external, log, first=5)

    assert raised.value.stored == read_position(external).line == 3


def test_an_attempt_that_is_over_is_refused(external, alice):
    send(external, LogBuilder().stepped(1))
    open_attempt(external, from_step=1, user=alice)

    with pytest.raises(AttemptReplaced, match="attempt 2"):
        send(external, LogBuilder().stepped(1).stepped(2))

    assert send(external, LogBuilder(attempt=2).stepped(2)).step == 2


SPOILED = [  # fields of a finished step, and a fragment of the warning
    ({"type": "mystery"}, "mystery"),
    ({"line": 9}, "line 9"),
    ({"step": 2**40}, "2,147,483,647"),
    ({"metrics": {"": 1.0}}, "1 to 120"),
    ({"metrics": {"a\0": 1.0}}, "1 to 120"),
    ({"step": 1}, "step 1"),
]


def test_an_invalid_line_becomes_a_warning(team, alice):
    log = LogBuilder().stepped(1).add(StepFinished, step=2, metrics={"loss": 1.0})
    *before, last = lines_of(log)
    trees = [(json.loads(last) | changed, fragment) for changed, fragment in SPOILED]
    trees += [(group_tree(step=1), "prompt 0 of step 1")]
    trees += [(group_tree(step=2, completions=[]), "got 0")]
    rest = LogBuilder().stepped(1).stepped(2).stepped(3)

    for tree, fragment in trees:
        run = open_external(team, alice)
        texts = [*before, json.dumps(tree).encode()]
        place = take_lines(run, attempt=1, first=1, texts=texts)

        assert place.line == 4, fragment
        assert fragment in " ".join(warnings_of(run))
        assert send(run, rest, first=5).step == 3, fragment


def test_a_run_keeps_the_first_2_000_metrics(team, alice):
    run = open_external(team, alice)
    log = LogBuilder()
    for step in (1, 2):
        own = {f"m{step}/{n}": 1.0 for n in range(1_500)}
        log.add(StepFinished, step=step, metrics={"loss": 1.0 * step, **own})
        log.add(
            Evaluated,
            step=step,
            name="a",
            num_prompts=1,
            samples_per_prompt=1,
            metrics={f"e{step}": 1.0},
        )
    send(run, log)

    run.refresh_from_db()
    named = {*run.metric_names, *run.summary["last"]} - {*TOTALS.values()}
    assert len(named) == 2_000
    assert {"loss", "m1/1499", "e1", "m2/0"} <= named
    assert not {"m2/1499", "e2"} & named
    assert run.summary["last"]["loss"] == 2.0
    assert [each.metrics for each in run.evaluations.order_by("step")] == [
        {"e1": 1.0}, {}
    ]  # fmt: skip
    assert run.source.get("num_left_out", 0) == 0
    assert "2,000 metrics" in describe_progress(run).notice


def group_tree(*, step: int, **changes: Any) -> dict[str, Any]:
    event = GroupScored(line=4, attempt=1, time=1.7e9, step=step, **group(0))
    tree: dict[str, Any] = json.loads(event.model_dump_json())
    return tree | changes


def test_the_gap_between_sampler_and_trainer_is_stored(external):
    log = LogBuilder().stepped(1).add(MismatchMeasured, step=2, **mismatch([[0.1]]))
    log.stepped(2).add(MismatchMeasured, step=2**31, **mismatch([[0.1]]))
    broken = json.loads(lines_of(log)[3]) | {"gaps": [1], "line": 9}

    send(external, log)
    take_lines(external, attempt=1, first=9, texts=[json.dumps(broken).encode()])

    assert read_mismatch(external).steps.tolist() == [2]
    assert len(warnings_of(external)) == 2


def test_external_trainers_cannot_report_checkpoints(external):
    log = LogBuilder()
    log.add(CheckpointSaved, step=1, name="a", sha256="0" * 64, num_bytes=1)

    send(external, log)

    assert not external.checkpoints.exists()
    assert "CheckpointSaved" in warnings_of(external)[0]


def test_a_batch_has_a_largest_size(external):
    with pytest.raises(UserError) as raised:
        take_lines(external, attempt=1, first=1, texts=[b"{}"] * (MAX_LINES + 1))
    assert raised.value.code == "events.too_many_lines"


@pytest.mark.parametrize("num_bytes", [1, 2**40])
def test_parts_of_a_large_batch_are_stored_as_one(external, monkeypatch, num_bytes):
    monkeypatch.setattr("dashboard.supervision.external_ingest.BATCH_BYTES", num_bytes)
    log = LogBuilder().stepped(1).stepped(2).stepped(2).finished(2).stepped(3)

    place = send(external, log)

    external.refresh_from_db()
    assert (place.state, place.line, place.step) == (RunState.FINISHED, 13, 2)
    assert place.num_left_out == 3 + 3  # the step again, and what came after the end
    assert (external.last_step, external.num_steps) == (2, 2)
    assert Group.objects.filter(run=external).count() == 4
    rules = external.config["reward"]["recipe"]["rules"]
    assert [rule["name"] for rule in rules] == ["answer", "format"]
    assert external.dataset_version is not None


def test_its_last_word_ends_it_and_keeps_its_prompts(external):
    log = LogBuilder().stepped(1).finished(1)

    place = send(external, log)

    external.refresh_from_db()
    assert (place.state, external.state) == (RunState.FINISHED, RunState.FINISHED)
    assert external.finished_at is not None
    assert external.attempts.get().outcome == "finished at step 1"
    version = external.dataset_version
    assert version is not None
    prompts = Group.objects.filter(run=external).order_by("prompt_index")
    rows = version.rows.order_by("position")
    assert [r.prompt_value for r in rows] == [g.prompt for g in prompts]
    # Sent again, as the answer was lost: nothing new, and no error.
    assert send(external, log).line == 4
    with pytest.raises(RunEnded, match="finished"):
        send(external, log.stepped(2))


def test_a_failure_has_a_reason(external):
    send(external, LogBuilder().failed("Out of memory."))

    external.refresh_from_db()
    assert (external.state, external.fail_reason) == ("failed", "Out of memory.")


def test_prompts_with_missing_numbers_are_no_dataset(external):
    log = LogBuilder().add(GroupScored, step=1, **group(3)).finished(1)

    send(external, log)

    external.refresh_from_db()
    assert (external.state, external.dataset_version) == ("finished", None)


def test_a_silent_run_is_lost_and_continues_with_the_next_request(external):
    log = LogBuilder().stepped(1)
    send(external, log)
    Run.objects.filter(pk=external.pk).update(lease_until=Now() - timedelta(seconds=1))

    assert lease.reap(grace=AT_ONCE) == [external.pk]
    external.refresh_from_db()
    assert external.state == RunState.LOST
    assert "No contact since" in describe_progress(external).notice
    assert lease.reap(grace=AT_ONCE) == []

    place = take_lines(external, attempt=1, first=4, texts=[])  # it lives, no more
    external.refresh_from_db()
    assert (place.state, external.state) == (RunState.RUNNING, RunState.RUNNING)
    assert external.attempts.get().ended_at is None
    assert send(external, log.stepped(2), first=4).step == 2


def test_an_alert_is_raised_but_pauses_nothing(external):
    send(external, LogBuilder().add(StepFinished, step=1, metrics={"kl/mean": 0.1}))
    Rule.objects.filter(team=external.team).update(pauses_run=True)
    log = LogBuilder().add(StepFinished, step=1, metrics={"kl/mean": 0.1})
    for step in range(2, 14):
        log.add(StepFinished, step=step, metrics={"kl/mean": 50.0})

    place = send(external, log)

    assert place.state == RunState.RUNNING
    assert Alert.objects.filter(run=external).exists()


def test_known_events_of_a_newer_reporter_are_stored(external):
    trees = [json.loads(line) for line in lines_of(LogBuilder().stepped(1))]
    newer = [{**tree, "of_a_later_version": 1} for tree in trees]
    place = {"attempt": 1, "time": 5.0, "step": 1}
    newer.append({"type": "weather_changed", "line": len(trees) + 1, **place})

    texts = [json.dumps(tree).encode() for tree in newer]
    stored = take_lines(external, attempt=1, first=1, texts=texts)

    assert (stored.line, stored.step) == (len(newer), 1)
    note = RunEvent.objects.get(run=external, type="warned")
    assert (note.line, note.body["code"]) == (len(newer), "unknown_event")
