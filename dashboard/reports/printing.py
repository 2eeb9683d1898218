"""A report as a PDF, drawn by a process of its own."""

from __future__ import annotations

from threading import BoundedSemaphore

from django.conf import settings
from django.utils import timezone

from dashboard.apart import BrokeOff, ask
from dashboard.reports import style
from dashboard.reports.document import show_report
from dashboard.reports.models import Report
from dashboard.reports.paper import write_paper
from dashboard.reports.pdf.items import Paper
from dashboard.reports.words import written

AT_ONCE = 2  # of a web process; each takes a core for a second or two
WAIT_SECONDS = 20
_turns = BoundedSemaphore(AT_ONCE)


class TooBusy(Exception):
    """Others are being drawn."""


def print_report(report: Report) -> bytes:
    """A ValueError says why there is none; TooBusy after a while without a turn."""
    cache = settings.COHORT_DATA / "cache" / "matplotlib"
    paper = Paper(
        title=report.title,
        facts=f"{written(timezone.now())} · version {report.number}",
        parts=write_paper(show_report(report)),
        colours=style.light_colours(),
        cache=str(cache),
    )
    if not _turns.acquire(timeout=WAIT_SECONDS):
        raise TooBusy
    try:
        drawn: bytes = next(ask("dashboard.reports.pdf.process", paper))
    except (BrokeOff, StopIteration) as error:
        raise ValueError(
            f"The PDF could not be drawn: {str(error) or 'its process ended'}. Make "
            "the report shorter, or export it as HTML."
        ) from error
    finally:
        _turns.release()
    return drawn
