"""Reading an import's files, or making its run, and writing down what came of it."""

from __future__ import annotations

import errno
from collections.abc import Callable

from django.conf import settings
from django.db import OperationalError
from django.db.models import F
from django.db.models.functions import Now

from dashboard.datasets.room import check_room
from dashboard.exchange.imports.claims import Claim
from dashboard.exchange.imports.files import remove_files, unpack
from dashboard.exchange.imports.findings import Findings
from dashboard.exchange.imports.making import make_run
from dashboard.exchange.imports.pulse import Halted, Pulse
from dashboard.exchange.imports.reading import read_files
from dashboard.exchange.models import RunImport
from dashboard.runs.models import Run

State, Phase = RunImport.State, RunImport.Phase
MAX_ATTEMPTS = 3


def work_with_pulse(claim: Claim, *, is_shutting_down: Callable[[], bool]) -> None:
    with Pulse(claim, is_shutting_down=is_shutting_down) as pulse:
        work(claim, on_read=pulse.note_read, on_stored=pulse.note_stored)


def work(
    claim: Claim,
    *,
    on_read: Callable[[int], None] = lambda _: None,
    on_stored: Callable[[int, int], None] = lambda *_: None,
) -> None:
    """Read it or make its run, and write down what came of it."""
    try:
        run_import = claim.held().select_related("team", "created_by").first()
        if run_import is None:
            raise Halted
        if run_import.phase == Phase.READ:
            _look(claim, run_import, on_read)
        else:
            _make(claim, run_import, on_read, on_stored)
    except Halted:
        _halt(claim)
    except FileNotFoundError:
        claim.end(State.FAILED, problem=_gone())
    except ValueError as error:
        claim.end(State.FAILED, problem=str(error))
    except OperationalError as error:
        _try_again(claim, error)
    except OSError as error:
        claim.end(State.FAILED, problem=_disk_fault(error))
    except Exception:
        claim.end(
            State.FAILED,
            problem="It ended by a fault of Cohort's own, which the log of the default "
            "worker tells of. Nothing was stored.",
        )
        raise


def _look(claim: Claim, run_import: RunImport, on_read: Callable[[int], None]) -> None:
    unpack(run_import)
    num_bytes = sum(run_import.files.values_list("num_bytes", flat=True))
    claim.held().update(num_to_read=num_bytes)
    findings = Findings()
    for found in read_files(run_import.files.order_by("pk"), on_read=on_read):
        findings.add(found)
    claim.end(State.DONE, findings=findings.as_json(), num_read=num_bytes)


def _make(
    claim: Claim,
    run_import: RunImport,
    on_read: Callable[[int], None],
    on_stored: Callable[[int, int], None],
) -> None:
    def seal(run: Run) -> None:
        """The run and the news of it are there at once, or neither."""
        mine = claim.held().filter(stop_requested=False)
        if not mine.update(state=State.DONE, ended_at=Now(), run=run):
            raise Halted

    # Items wait on disk until all are read; our own database may lie there, too.
    num_bytes = sum(run_import.files.values_list("num_bytes", flat=True))
    check_room(3 * num_bytes, purpose="the import")
    make_run(run_import, on_read=on_read, on_stored=on_stored, on_made=seal)
    remove_files(run_import)


def _halt(claim: Claim) -> None:
    # Ours still, and nobody asked for its end: this worker is shutting down.
    held = claim.held().filter(stop_requested=False)
    if not held.update(state=State.QUEUED, queued_at=Now(), attempt=F("attempt") - 1):
        claim.end(State.CANCELLED)


def _gone() -> str:
    return (
        f"A file of it is not under {settings.COHORT_DATA} where the worker runs. Send "
        "the files again; where workers run on other machines, let them share that "
        "folder."
    )


def _try_again(claim: Claim, error: OperationalError) -> None:
    """After an outage, or a lock that was waited for too long."""
    held = claim.held().filter(stop_requested=False)
    if claim.attempt < MAX_ATTEMPTS and held.update(
        state=State.QUEUED, queued_at=Now()
    ):
        return
    said = str(error).strip().split("\n")[0]
    claim.end(
        State.FAILED,
        problem=f"The database could not take it: {said}. Nothing was stored.",
    )


def _disk_fault(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return (
            f"The disk that holds {settings.COHORT_DATA} is full. Free some space "
            "there, then try again."
        )
    return (
        f"{error.strerror or error} under {settings.COHORT_DATA}. Nothing was stored."
    )
