import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from django.db import IntegrityError, connection, transaction

from dashboard.completions.models import Group, RuleNote
from dashboard.runs.models import Checkpoint, Run, RunEvent, RunState, Step
from dashboard.supervision.ingest import ingest
from dashboard.supervision.lease import LeaseLost
from tests.dashboard.supervision.logs import START, LogBuilder, group, metrics_of
from trainer.events import (
    Evaluated,
    GroupScored,
    PhaseStarted,
    StepFinished,
    Warned,
    parse_event,
)

pytestmark = pytest.mark.django_db


def test_a_step_becomes_rows(claim):
    log = LogBuilder().started().stepped(1).saved(1)

    num_new = ingest(claim, log.events)

    assert num_new == 5
    step = Step.objects.get(run=claim.run_id)
    run = Run.objects.get(id=claim.run_id)
    assert dict(zip(run.metric_names, step.values, strict=True)) == metrics_of(1)
    assert step.time == datetime.fromtimestamp(START + 1_004, UTC)
    assert run.last_step == 1
    assert run.summary["last"]["loss"] == -0.1
    assert run.summary["best"] == {"reward/mean": 0.1, "step": 1}
    assert Checkpoint.objects.get(run=run).name == "step-000001-attempt-1"
    groups = Group.objects.filter(run=run).order_by("prompt_index")
    assert [g.rule_names for g in groups] == [["answer", "format"]] * 2
    completion = groups[1].completions[1]
    assert (completion.text, completion.reward, completion.rule_scores) == (
        "no",
        1.0,
        (1.0, None),
    )


def test_the_run_records_its_ingest_lag(claim, monkeypatch):
    log = LogBuilder().started().stepped(1)
    oldest = min(event.time for event in log.events)
    monkeypatch.setattr("dashboard.supervision.ingest.time.time", lambda: oldest + 7)

    ingest(claim, log.events)

    assert Run.objects.get(id=claim.run_id).ingest_lag == 7


def test_a_checkpoint_ends_the_count_of_lost_attempts(claim):
    Run.objects.filter(id=claim.run_id).update(num_losses=2)
    log = LogBuilder().started().stepped(1)

    ingest(claim, log.events)
    assert Run.objects.get(id=claim.run_id).num_losses == 2

    ingest(claim, log.saved(1).events)
    assert Run.objects.get(id=claim.run_id).num_losses == 0


def test_rule_output_and_errors_are_stored_with_the_group(claim):
    fields = group(0)
    first, second = fields["completions"]
    data = {"logs": {"answer": "a\tb\\n\n\0 é"}, "errors": {"x" * 50: "It is\0away."}}
    reported = first.model_copy(update=data)
    log = LogBuilder().started()
    log.add(
        GroupScored, step=3, **fields | {"completions": [second, reported]}, num_notes=7
    )

    ingest(claim, log.events)

    found = RuleNote.objects.filter(run=claim.run_id).order_by("id")
    names = ("step", "position", "rule", "is_error", "text")
    assert list(found.values_list(*names)) == [
        (3, 1, "x" * 40, True, "It is␀away."),
        (3, 1, "answer", False, "a\tb\\n\n␀ é"),
    ]
    kept = Group.objects.get(step=3)
    assert (kept.num_notes, kept.notes.count()) == (7, 2)
    kept.delete()
    assert not RuleNote.objects.exists()


def test_the_first_word_of_the_trainer_makes_the_run_running(claim):
    ingest(claim, LogBuilder().started().events)

    run = Run.objects.get(id=claim.run_id)
    assert run.state == RunState.RUNNING
    assert run.started_at is not None


def test_storing_the_same_lines_again_changes_nothing(claim):
    log = LogBuilder().started().stepped(1).stepped(2)
    ingest(claim, log.events[:5])

    num_new = ingest(claim, log.events)
    again = ingest(claim, log.events)

    assert (num_new, again) == (2, 0)
    assert RunEvent.objects.filter(run=claim.run_id).count() == 7
    assert Step.objects.filter(run=claim.run_id).count() == 2
    assert sum(len(group.completions) for group in Group.objects.all()) == 8


@pytest.mark.django_db(transaction=True)
def test_a_batch_whose_commit_was_not_waited_for_is_not_stored_again(claim):
    log = LogBuilder().started().stepped(1)

    def send_again() -> int:
        try:
            return ingest(claim, log.events)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            ingest(claim, log.events)
            second = pool.submit(send_again)
            wait_for_a_waiter()
        num_new = second.result()

    assert num_new == 0
    assert RunEvent.objects.filter(run=claim.run_id).count() == len(log.events)


def wait_for_a_waiter() -> None:
    """Until another session waits for what ours has locked."""
    with connection.cursor() as cursor:
        for _ in range(1_000):
            cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            if cursor.fetchone()[0]:
                return
            time.sleep(0.01)
    pytest.fail("no one waits")


def test_numbers_of_the_stream_have_no_gap_within_an_attempt(claim):
    log = LogBuilder().started()
    ingest(claim, log.events)  # the change to running takes a number as well
    for step in range(1, 6):
        log.stepped(step)
        ingest(claim, log.events)

    seqs = list(
        RunEvent.objects.filter(run=claim.run_id, step__gt=0)
        .order_by("line")
        .values_list("seq", flat=True)
    )
    assert seqs == list(range(seqs[0], seqs[0] + 15))
    assert Run.objects.get(id=claim.run_id).seq == seqs[-1]


def test_a_zombie_writes_nothing(claim):
    ingest(claim, LogBuilder().started().events)
    Run.objects.filter(id=claim.run_id).update(attempt=2, state="running")

    with pytest.raises(LeaseLost):
        ingest(claim, LogBuilder().started().stepped(1).events)

    assert RunEvent.objects.filter(run=claim.run_id).count() == 1
    assert not Step.objects.filter(run=claim.run_id).exists()


def test_a_run_that_was_requeued_takes_nothing_from_its_last_holder(claim):
    Run.objects.filter(id=claim.run_id).update(state="queued", lease_until=None)

    with pytest.raises(LeaseLost):
        ingest(claim, LogBuilder().started().events)


def test_metrics_that_appear_later_get_the_next_places(claim):
    log = LogBuilder().add(StepFinished, step=1, metrics={"loss": 1.0})
    log.add(StepFinished, step=2, metrics={"grad_norm": 2.0, "loss": 0.5})

    ingest(claim, log.events)

    assert Run.objects.get(id=claim.run_id).metric_names == ["loss", "grad_norm"]
    rows = Step.objects.filter(run=claim.run_id).order_by("step")
    assert [row.values for row in rows] == [[1.0], [0.5, 2.0]]


def test_numbers_that_are_not_finite_are_stored_as_none(claim):
    metrics = {"loss": float("nan"), "grad_norm": float("inf"), "reward/mean": 1.0}
    log = LogBuilder().add(StepFinished, step=1, metrics=metrics)
    log.add(
        Evaluated,
        step=1,
        name="heldout",
        num_prompts=1,
        samples_per_prompt=1,
        metrics={"eval/heldout/mean": float("nan")},
    )

    ingest(claim, log.events)

    run = Run.objects.get(id=claim.run_id)
    assert run.steps.get().values == [None, None, 1.0]
    assert run.evaluations.get().metrics == {"eval/heldout/mean": None}
    assert run.summary["last"]["loss"] is None


def test_any_text_of_a_model_is_kept(claim):
    texts = [
        "a\0b",
        "tab\tline\nend\\N \\. back\\slash",
        "emoji 🧮 and \u2028 and \x85",
        "",
        '{"a","b"} NULL',
    ]
    log = LogBuilder().add(GroupScored, step=1, **group(0, texts=texts))
    for text in texts:
        log.add(Warned, step=1, code="odd", message=text)

    ingest(claim, log.events)

    stored = ["a␀b", *texts[1:]]
    assert [each.text for each in Group.objects.get().completions] == stored
    warned = RunEvent.objects.filter(type="warned").order_by("line")
    assert [event.body["message"] for event in warned] == stored


@pytest.mark.django_db(transaction=True)
def test_a_failed_batch_stores_nothing(claim):
    log = LogBuilder().started().stepped(1)
    log.stepped(1)  # step 1 twice: no trainer of ours says that
    before = Run.objects.filter(id=claim.run_id).values().get()

    with pytest.raises(IntegrityError):
        ingest(claim, log.events)

    assert not RunEvent.objects.filter(run=claim.run_id).exists()
    assert Run.objects.filter(id=claim.run_id).values().get() == before
    assert connection.is_usable()


def test_the_beginning_of_a_phase_is_kept(claim):
    log = LogBuilder().started()
    log.add(PhaseStarted, step=1, name="sft", first_step=1, last_step=4)
    log.stepped(1)

    ingest(claim, log.events)

    event = RunEvent.objects.get(run=claim.run_id, type="phase_started")
    assert event.step == 1
    assert event.body == {"name": "sft", "first_step": 1, "last_step": 4}
    assert Run.objects.get(id=claim.run_id).last_step == 1


def test_groups_of_logs_from_before_dynamic_sampling_were_trained_on():
    old = GroupScored(line=1, attempt=1, time=START, step=1, **group(0))
    text = old.model_dump_json(exclude={"is_trained"})

    event = parse_event(text)

    assert isinstance(event, GroupScored)
    assert event.is_trained


def test_a_group_left_out_of_the_batch_is_known_as_such(claim):
    log = LogBuilder().started()
    log.add(GroupScored, step=1, **group(0))
    log.add(GroupScored, step=1, is_trained=False, **group(1))

    ingest(claim, log.events)

    kept = Group.objects.filter(run=claim.run_id).order_by("prompt_index")
    assert [g.is_trained for g in kept] == [True, False]
