"""Which log of a run is meant, its search for a text or a pattern, its download."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import re2

from dashboard.accounts.templatetags.numbers import num_bytes as size
from dashboard.project.errors import UserError
from dashboard.runs.models import Run, RunAttempt
from dashboard.runs.queries import AttemptDirectory, run_directory
from dashboard.supervision.log_reading import (
    Line,
    cut_text,
    read_times,
    show_line,
    stamp_of,
)
from dashboard.supervision.models import Worker
from trainer.rewards.rule import compile_pattern, refuse_bad_pattern

MAX_SECONDS = 2.0
MAX_BYTES = 64 * 1024 * 1024
MAX_MATCHES = 1_000
MAX_LISTED = 100
MAX_SPANS = 50
MAX_QUERY_CHARS = 500
CONTEXT_LINES = 2
CONTEXT_BYTES = 16 * 1024
BLOCK_BYTES = 1024 * 1024
# RE2's time is the pattern's instructions times the text's bytes, 13 ns each where it
# fares worst, and nothing interrupts it: so much at a time, or a second at most.
MAX_WORK = 40_000_000
MAX_INSTRUCTIONS = 5_000  # `.{1,500}` needs 4,500
_PLAIN = re.compile(rb"[\t\n\x20-\x7e]*")
SOURCES = {"trainer": "Trainer", "supervisor": "Worker"}
PIECE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    number: int  # of the line, counted from 1
    line: Line
    spans: list[tuple[int, int]]  # of what matched, in the line's text
    before: list[str]
    after: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    matches: list[Match]  # from number `first` on, at most 100
    first: int
    total: int  # lines that match, as far as was searched
    stopped: str  # why not all of it was searched; "" when it was


def make_pattern(query: str, *, is_pattern: bool, ignore_case: bool) -> Any:
    """Compile a pattern of single lines; ValueError if it is not one."""
    if not query:
        raise UserError("logs.empty_query", "Enter a search term.")
    if len(query) > MAX_QUERY_CHARS:
        raise UserError(
            "logs.query_too_long",
            f"A search term may have at most {MAX_QUERY_CHARS} characters; got "
            f"{len(query)}.",
        )
    pattern = query if is_pattern else re2.escape(query)
    refuse_bad_pattern(pattern)
    if compile_pattern(pattern).search(""):
        raise UserError(
            "logs.matches_empty",
            f"The pattern {query!r} matches the empty string, so it would find "
            "every line. Require at least one character.",
        )
    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = not ignore_case
    options.never_nl = True
    # No group around it: a \Q without its \E would quote the bracket.
    compiled = re2.compile(f"(?m){pattern}", options)
    if compiled.programsize > MAX_INSTRUCTIONS:
        raise UserError(
            "logs.pattern_too_large",
            f"The pattern compiles to {compiled.programsize:,} instructions; the "
            f"maximum is {MAX_INSTRUCTIONS:,}. Use smaller repeats.",
        )
    return compiled


def search(path: Path, pattern: Any, *, first: int = 0) -> Found:
    """Matching lines as they are shown, within 2 s and 64 MiB.

    Of a line longer than a block only the beginning is searched.
    """
    listed: list[Match] = []
    total, stopped = 0, ""
    deadline = time.monotonic() + MAX_SECONDS
    block = min(BLOCK_BYTES, MAX_WORK // pattern.programsize // 2)
    with path.open("rb") as file:
        for number, at, raw in _blocks(file, block):
            for match in _matches_in(raw, pattern, number=number, at=at):
                if first <= total < first + MAX_LISTED:
                    # As many as time allows: each search starts at the previous match.
                    spans: list[tuple[int, int]] = []
                    for occurrence in islice(
                        pattern.finditer(match.line.text), MAX_SPANS
                    ):
                        spans.append(occurrence.span())
                        if time.monotonic() > deadline:
                            break
                    listed.append(replace(match, spans=spans))
                total += 1
                if total > MAX_MATCHES or time.monotonic() > deadline:
                    break
            stopped = _why_stop(total, at + len(raw), deadline)
            if stopped:
                break
        matches = [_with_context(file, match) for match in listed]
    return Found(matches=matches, first=first, total=total, stopped=stopped)


def _why_stop(total: int, num_bytes: int, deadline: float) -> str:
    searched = f"the first {size(num_bytes)}"
    if total > MAX_MATCHES:
        return f"More than {MAX_MATCHES:,} lines match. Searched only {searched}."
    if time.monotonic() > deadline:
        return (
            f"The search timed out after {MAX_SECONDS:.0f} s. Searched only {searched}."
        )
    return f"Searched only {searched}." if num_bytes >= MAX_BYTES else ""


def _blocks(file: BinaryIO, size: int) -> Iterator[tuple[int, int, bytes]]:
    """Whole lines, or the beginning of one: the first one's number and byte, and the
    bytes, twice the size at most."""
    number, at = 1, 0
    while raw := file.read(size):
        raw += file.readline(size)
        yield number, at, raw
        number += raw.count(b"\n")
        at += len(raw)
        if not raw.endswith(b"\n"):
            _skip_line(file)
            at = file.tell()
            number += 1


def _skip_line(file: BinaryIO) -> None:
    while (more := file.readline(BLOCK_BYTES)) and not more.endswith(b"\n"):
        pass


def _matches_in(raw: bytes, pattern: Any, *, number: int, at: int) -> Iterator[Match]:
    text_bytes = raw
    if not _PLAIN.fullmatch(raw):
        # The same lines as a page shows them.
        text_bytes = b"\n".join([show_line(line).encode() for line in raw.split(b"\n")])
    place, raw_start = 0, 0
    while match := pattern.search(text_bytes, place):
        start = text_bytes.rfind(b"\n", 0, match.start()) + 1
        end = text_bytes.find(b"\n", match.end())
        end = len(text_bytes) if end < 0 else end
        skipped = text_bytes.count(b"\n", place, start)
        number += skipped
        for _ in range(skipped):
            raw_start = raw.find(b"\n", raw_start) + 1
        line = cut_text(
            at + raw_start, text_bytes[start:end].decode("utf-8", "replace")
        )
        yield Match(number=number, line=line, spans=[], before=[], after=[])
        if end >= len(text_bytes):
            return
        number += 1
        raw_start = raw.find(b"\n", raw_start) + 1
        place = end + 1


def _with_context(file: BinaryIO, match: Match) -> Match:
    at = match.line.at
    begin = max(0, at - CONTEXT_BYTES)
    file.seek(begin)
    before = file.read(at - begin).split(b"\n")[:-1][-CONTEXT_LINES:]
    _skip_line(file)
    after = [file.readline(CONTEXT_BYTES) for _ in range(CONTEXT_LINES)]
    return replace(match, before=_texts(before), after=_texts(filter(None, after)))


def _texts(lines: Any) -> list[str]:
    return [cut_text(0, show_line(raw.removesuffix(b"\n"))).text for raw in lines]


# A run's logs.


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The output of an attempt's trainer or supervisor; of a run on a cluster, of one
    of its processes.
    """

    name: str
    attempt: RunAttempt
    path: Path
    files: AttemptDirectory

    @property
    def rank(self) -> int | None:
        """Whose log it is: rank-3."""
        return int(self.name[5:]) if self.name.startswith("rank-") else None

    @property
    def has_times(self) -> bool:
        """The trainer's lines; those of an older Cohort have none."""
        return self.files.trainer_times.is_file() or not self.path.is_file()

    def times_of(self, lines: Sequence[Line]) -> list[float | None]:
        if self.name == "supervisor":
            return [stamp_of(line.text) for line in lines]
        if self.rank is not None:
            return [None] * len(lines)
        return read_times(
            self.files.trainer_times, [line.at for line in lines], log=self.path
        )

    @property
    def missing(self) -> str:
        """A sentence when the file is not here; one query then."""
        if self.path.is_file():
            return ""
        worker = Worker.objects.filter(name=self.attempt.worker).first()
        if worker is not None and worker.host != socket.gethostname():
            return (
                f"This log is on another machine: {worker.name} runs on "
                f"{worker.host}, and this server cannot read {self.path}. Share "
                "one COHORT_DATA folder to read it here."
            )
        return "The log is empty."


def find_source(run: Run, query: Mapping[str, str]) -> Source | None:
    """?source=&attempt=, or the trainer's last attempt; None before the first.

    `source`: of SOURCES, or of one process of a run on a cluster: rank-3. An attempt
    that ended before its trainer printed anything has its worker's log instead.
    """
    attempts = {
        str(attempt.number): attempt for attempt in run.attempts.order_by("number")
    }
    if not attempts:
        return None
    last = list(attempts.values())[-1]
    attempt = attempts.get(query.get("attempt", ""), last)
    files = run_directory(run.id).attempt(attempt.number)
    paths = {
        "trainer": files.trainer_log,
        "supervisor": files.supervisor_log,
        **{f"rank-{rank}": path for rank, path in files.rank_logs.items()},
    }
    log = files.trainer_log
    is_silent = attempt.ended_at and not (log.is_file() and log.stat().st_size)
    name = query.get("source") or ("supervisor" if is_silent else "trainer")
    name = name if name in paths else "trainer"
    return Source(name=name, attempt=attempt, path=paths[name], files=files)


def pieces_of(source: Source) -> Iterator[bytes]:
    """Read each piece when it is needed: under ASGI, FileResponse reads all at once."""
    with source.path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece
