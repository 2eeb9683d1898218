"""Events on their way from an external trainer."""

from dashboard.runs.models import Run
from dashboard.supervision.external_ingest import RunPosition, take_lines
from tests.dashboard.supervision.logs import LogBuilder


def lines_of(log: LogBuilder) -> list[bytes]:
    return [event.model_dump_json().encode() for event in log.events]


def send(run: Run, log: LogBuilder, *, first: int = 1) -> RunPosition:
    """All of the log from line `first` on."""
    lines = lines_of(log)[first - 1 :]
    return take_lines(run, attempt=log.attempt, first=first, texts=lines)
