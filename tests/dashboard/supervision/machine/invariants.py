"""What holds of a run at every moment, read without the code that should hold it."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence

from dashboard.runs.models import ENDED, HELD, Run, RunState
from dashboard.runs.queries import run_directory
from dashboard.runs.state import TRANSITIONS
from tests.dashboard.supervision.machine import ledger
from tests.dashboard.supervision.machine.actors import Actor
from tests.dashboard.supervision.machine.ledger import Entry
from tests.dashboard.supervision.machine.trainers import FINISHED, ScriptedTrainer

# Beside "run.<state>": what a person's request is called in the audit log.
REQUESTED = {
    "stopped": {"run.stop_requested", "run.cancelled"},
    "stopping": {"run.stop_requested"},
    "pausing": {"run.pause_requested"},
    "queued": {"run.resume_requested", "run.extended"},
}
# Why a run may fail here; any other reason is a bug.
REASONS = (
    "It broke.",
    "The trainer crashed twice in the same way",
    "times in a row without a new checkpoint",
    "of a deleted run",
)


class Watch:
    """Reads the ledger, and judges what is new in it.

    What a transaction writes is seen once it commits, so a smaller number may come
    behind a larger one. Of one run none does: they are given out under its lock.
    """

    def __init__(self) -> None:
        self._first = ledger.last_number()
        self._seen: set[int] = set()
        self._seqs: dict[int, int] = {}

    def look(self) -> list[Entry]:
        entries = ledger.read(after=self._first)
        new = [entry for entry in entries if entry.number not in self._seen]
        self._seen |= {entry.number for entry in new}
        by_place: dict[tuple[int, int], list[Entry]] = defaultdict(list)
        for entry in new:
            by_place[entry.run_id, entry.tx].append(entry)
        for entries in by_place.values():
            check_moves(entries)
            check_numbers(entries)
        self._check_stream(new)
        return new

    def _check_stream(self, entries: Iterable[Entry]) -> None:
        """No number of it is given out twice, or left out."""
        for entry in entries:
            if entry.kind == "run":
                first, last = entry.body["seq_from"], entry.body["seq_to"]
                assert first == self._seqs.get(entry.run_id, first), entry
                assert last >= first, f"the stream went back: {entry}"
                self._seqs[entry.run_id] = last


def check_moves(entries: Sequence[Entry]) -> None:
    """Of one transaction: each change of state is allowed, fenced and audited."""
    for place, entry in enumerate(entries):
        if entry.kind != "run":
            continue
        body = entry.body
        source, target = body["from"], body["to"]
        # A lost run keeps the end of its lease: its last contact.
        if target != "lost":
            assert body["is_leased"] == (target in HELD), f"lease of {target}: {body}"
        is_claim = (source, target) == ("queued", "starting")
        rise = body["epoch_to"] - body["epoch_from"]
        assert rise == (1 if is_claim else 0), f"the attempt rose by {rise}: {body}"
        if source == target:
            continue
        assert RunState(target) in TRANSITIONS[RunState(source)], (source, target)
        values = [e.body["verb"] for e in entries[place:] if e.kind == "audit"]
        assert values, f"{source} → {target} is not in the audit log"
        known = {f"run.{target}"} | REQUESTED.get(target, set())
        assert values[0] in known, f"{source} → {target} is audited as {values[0]}"


def check_numbers(entries: Sequence[Entry]) -> None:
    """Of one transaction: its events have the very numbers that it took for them."""
    taken = [
        range(entry.body["seq_from"] + 1, entry.body["seq_to"] + 1)
        for entry in entries
        if entry.kind == "run"
    ]
    stored = [entry.body["seq"] for entry in entries if entry.kind == "event"]
    own = range(stored[0], stored[-1] + 1) if stored else range(0)
    assert stored == list(own), f"a gap in {stored}"
    assert not stored or own in taken, f"{stored} is not of {taken}"
    others = [one for one in taken if len(one) > 1 and one != own]
    assert not others, f"numbers without events: {others}"


def check_writer(actor: Actor, entry: Entry) -> None:
    """Only who holds the run stores its log, and no supervisor moves another's run."""
    claim = actor.claims[-1] if actor.claims else None
    body = entry.body
    if entry.kind == "event":
        assert claim, f"{actor.name} stored an event without a claim"
        assert entry.run_id == claim.run_id, f"{claim}: {entry}"
    elif entry.kind == "run" and actor.name == "reap" and body["to"] == "lost":
        assert body["has_expired"], f"reaped with a lease: {body}"
    elif entry.kind == "run" and claim and entry.run_id == claim.run_id:
        assert body["epoch_to"] == claim.attempt, f"a zombie of {claim}: {body}"
        is_held = body["from"] in (*HELD, "lost", "queued")
        assert is_held, f"{claim} wrote without holding it: {body}"


def check_run(run: Run) -> None:
    """What is stored of one run, as it is now."""
    assert (run.lease_until is not None) == (run.state in HELD), run.state
    assert (run.finished_at is not None) == (run.state in ENDED), run.state
    _check_attempts(run)
    _check_lines(run)
    _check_history(run)


def _check_attempts(run: Run) -> None:
    attempts = run.attempts.filter(ended_at=None).values_list("number", flat=True)
    expected = [run.attempt] if run.state in HELD else []
    assert list(attempts) == expected, (
        f"{run.state} with open attempts {list(attempts)}"
    )


def _check_lines(run: Run) -> None:
    lines: dict[int, list[int]] = defaultdict(list)
    events = run.events.order_by("attempt", "line")
    for attempt, line, seq in events.values_list("attempt", "line", "seq"):
        lines[attempt].append(line)
        assert seq <= run.seq, f"event {seq} of a stream of {run.seq}"
    for attempt, stored in lines.items():
        whole = list(range(1, len(stored) + 1))
        assert stored == whole, f"lines {stored} of attempt {attempt}"


def current_history(run: Run) -> list[tuple[int, int]]:
    steps = run.steps.filter(superseded_by=None).order_by("step")
    return list(steps.values_list("step", "attempt"))


def _check_history(run: Run) -> None:
    """It is what one trainer did, or the beginning of that."""
    history = current_history(run)
    last = history[-1][0] if history else run.fork_step or 0
    assert run.last_step == last, f"last step {run.last_step} of {history}"
    own = [one.history() for one in ScriptedTrainer.all if one.run_id == run.pk]
    is_known = any(course[: len(history)] == history for course in own)
    assert is_known or not history, f"{history} is the course of no trainer"
    groups = run.groups.filter(superseded_by=None).order_by("step")
    seen = list(groups.values_list("step", "attempt"))
    assert seen == history, f"groups {seen}, steps {history}"


def check_end(run: Run) -> None:
    """Once it has ended, and everybody who knew of it as well."""
    _check_values(run)
    if run.state == RunState.FAILED:
        assert any(one in run.fail_reason for one in REASONS), run.fail_reason
    if run.state == RunState.FINISHED:
        finished = [
            trainer.history()
            for trainer in ScriptedTrainer.all
            if trainer.run_id == run.pk and trainer.status == FINISHED
        ]
        assert current_history(run) in finished, "not what its last trainer trained"
        assert run.last_step == run.num_steps, "it finished early"


def _check_values(run: Run) -> None:
    """Every step that was ever stored has the values of its line in its log."""
    logs = {attempt: _logged(run, attempt) for attempt in range(1, run.attempt + 1)}
    for step in run.steps.all():
        reported = logs[step.attempt][step.step]
        stored = dict(zip(run.metric_names, step.values, strict=False))
        kept = {name: stored.get(name) for name in reported}
        assert kept == reported, f"step {step.step} of attempt {step.attempt}: {stored}"


def _logged(run: Run, attempt: int) -> dict[int, dict[str, float | None]]:
    path = run_directory(run.pk).attempt(attempt).events
    whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    events = [json.loads(line) for line in whole]
    return {e["step"]: e["metrics"] for e in events if e["type"] == "step_finished"}
