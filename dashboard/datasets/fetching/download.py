"""Downloads a file; after a broken connection it resumes where it stopped."""

from __future__ import annotations

import fcntl
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dashboard.accounts.templatetags.numbers import num_bytes
from dashboard.datasets.fetching.http import (
    Answer,
    NotFetched,
    RetryableError,
    Token,
    fetch,
)
from dashboard.datasets.limits import MAX_UPLOAD_BYTES, check_disk_space
from dashboard.project.database import read_whole
from trainer.internet import HostAllowlist, Target

CHUNK_BYTES = 256 * 2**10
DISK_CHECK_BYTES = 64 * 2**20  # between checks of the disk
# Less than this in this time is a stalled connection.
STALL_SECONDS, STALL_BYTES = 60.0, 64 * 2**10
SLOW_SECONDS, SLOW_BYTES = 300.0, 3 * 2**20  # less in this time: the download fails
MAX_LOST = 4  # connections in a row without progress
MAX_SECONDS = 6 * 3_600.0  # of one attempt
FIRST_PAUSE_SECONDS = 1.0
_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)")

# Bytes received, total (0: unknown), and a message.
Report = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class DownloadOptions:
    """Options of a download. `report` stops it by raising."""

    allowlist: HostAllowlist
    token: Token | None
    report: Report
    limit: int = MAX_UPLOAD_BYTES  # of all that is written
    until: float = field(default_factory=lambda: time.monotonic() + MAX_SECONDS)


@dataclass(kw_only=True)
class RemoteFile:
    """Properties of a file on the server; a download resumes only if they match."""

    validator: str = ""  # for If-Range
    num_bytes: int = 0  # 0: unknown
    is_fixed: bool = False  # the content of the URL never changes


class Download:
    """A download of a file. Its size on disk is the number of bytes received."""

    def __init__(
        self,
        target: Target,
        path: Path,
        options: DownloadOptions,
        *,
        known: RemoteFile,
        num_before: int = 0,
        num_all: int = 0,
        remember: Callable[[RemoteFile], None] = lambda _: None,
    ) -> None:
        """`num_before` and `num_all`: bytes of several files that belong together."""
        self.target = target
        self.path = path
        self.options = options
        self.known = known
        self.num_before = num_before
        self.num_all = num_all
        self.remember = remember
        self._num_received = 0
        self._note = ""
        self._mark = (math.inf, 0)  # time of the next speed check, and its first byte

    def run(self) -> None:
        """NotFetched if the download fails; OSError if the disk fails."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._open() as file:
            self._mark = (time.monotonic() + SLOW_SECONDS, os.fstat(file).st_size)
            num_lost = best = 0
            while True:
                try:
                    self._receive(file)
                    return
                except RetryableError as error:
                    here = os.fstat(file).st_size
                    num_lost = 1 if here > best + STALL_BYTES else num_lost + 1
                    best = max(best, here)
                    if num_lost >= MAX_LOST:
                        raise NotFetched(self._failure_message(error, here)) from None
                    self._pause(error, num_lost)

    @contextmanager
    def _open(self) -> Iterator[int]:
        """Locked: a worker that lost the job may still write."""
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    self._tick("Waiting for another worker to release the file.")
                    time.sleep(0.2)
            yield file
        except NotFetched:
            if os.fstat(file).st_size == 0:
                self.path.unlink(missing_ok=True)
            raise
        finally:
            os.close(file)

    def _receive(self, file: int) -> None:
        have = os.fstat(file).st_size
        if not (self.known.is_fixed or self.known.validator):
            have = 0
        self._num_received = have
        if have and have == self.known.num_bytes:
            return
        headers = {"Range": f"bytes={have}-"} if have else {}
        if have and self.known.validator:
            headers["If-Range"] = self.known.validator
        response = fetch(
            self.target,
            self.options.allowlist,
            headers=headers,
            token=self.options.token,
            on_wait=self._tick,
        )
        try:
            start = self._begin(response, have)
            os.ftruncate(file, start)
            os.lseek(file, start, os.SEEK_SET)
            self._copy(response, file, start)
        finally:
            response.close()

    def _begin(self, response: Answer, have: int) -> int:
        """Return the offset of the body in the file."""
        refuse_page(response)
        if response.status == 416:
            self._restart()
            raise RetryableError(f"The file at {response.target.host} has changed")
        if response.status == 206:
            match = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if match is None:
                raise NotFetched(
                    f"{response.target.host} sent part of the file without a valid "
                    "Content-Range. Upload the file instead."
                )
            start, total = int(match[1]), 0 if match[2] == "*" else int(match[2])
            num_known = self.known.num_bytes
            if start != have or (num_known and total and num_known != total):
                self._restart()
                raise RetryableError(f"The file at {response.target.host} has changed")
            return have
        total = _length_of(response)
        if self.known.is_fixed and total and self.known.num_bytes not in (0, total):
            raise NotFetched(
                f"The file at {response.target.host} has {total:,} bytes, but the Hub "
                f"lists {self.known.num_bytes:,}. Try again."
            )
        if not self.known.is_fixed:
            self.known = RemoteFile(validator=_validator_of(response), num_bytes=total)
        self._check_size(total)
        self.remember(self.known)
        return 0

    def _restart(self) -> None:
        if not self.known.is_fixed:
            self.known = RemoteFile()
            return
        # A fixed file cannot change, so the local part is wrong.
        os.truncate(self.path, 0)

    def _copy(self, response: Answer, file: int, here: int) -> None:
        total = self.known.num_bytes
        check_disk_space(
            max(total - here, 0) or DISK_CHECK_BYTES, purpose="the rest of the file"
        )
        window, num_window, checked = time.monotonic(), here, here
        self._note = ""
        while data := response.read(CHUNK_BYTES):
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
            here += len(data)
            self._num_received = here
            self._check_size(here)
            if here - checked >= DISK_CHECK_BYTES:
                checked = here
                check_disk_space(DISK_CHECK_BYTES, purpose="the next part")
            now = time.monotonic()
            if now - window >= STALL_SECONDS:
                if here - num_window < STALL_BYTES:
                    raise RetryableError(
                        f"{response.target.host} sent {here - num_window:,} bytes in "
                        f"{STALL_SECONDS:g} s"
                    )
                window, num_window = now, here
            self._tick()
        if self.known.is_fixed and total and here != total:
            raise RetryableError(f"Lost the connection to {response.target.host}")
        self.known.num_bytes = here

    def _check_size(self, num_bytes: int) -> None:
        if self.num_before + num_bytes > self.options.limit:
            os.truncate(self.path, 0)  # cannot be resumed
            raise NotFetched(
                f"The file has at least {self.num_before + num_bytes:,} bytes; the "
                f"limit is {self.options.limit:,}. Choose a smaller file, or discard "
                "unfinished uploads."
            )

    def _tick(self, remark: str = "") -> None:
        if time.monotonic() > self.options.until:
            raise NotFetched(
                f"The download took longer than {MAX_SECONDS / 3_600:g} hours. Try "
                "again to resume it."
            )
        # Speed across connections, as each one may be slow.
        (until, start), here = self._mark, self._num_received
        if time.monotonic() >= until:
            num_sent = here - start if start <= here else here  # restarted
            if num_sent < SLOW_BYTES:
                raise NotFetched(
                    f"{self.target.host} sent {num_bytes(num_sent)} in the last "
                    f"{SLOW_SECONDS / 60:.2g} minutes; the minimum is "
                    f"{num_bytes(SLOW_BYTES)}. Try again later to resume the download, "
                    "or upload the file."
                )
            self._mark = time.monotonic() + SLOW_SECONDS, here
        total = self.num_all or self.known.num_bytes
        self.options.report(self.num_before + here, total, remark or self._note)

    def _pause(self, error: RetryableError, num_lost: int) -> None:
        pause = max(FIRST_PAUSE_SECONDS * 2 ** (num_lost - 1), error.wait_seconds)
        self._note = f"{error}. Retrying in {pause:g} s."
        until = time.monotonic() + pause
        while (remaining := until - time.monotonic()) > 0:
            self._tick()
            time.sleep(min(remaining, 0.2))

    def _failure_message(self, error: RetryableError, here: int) -> str:
        total = self.known.num_bytes
        of_all = f" of {total:,}" if total else ""
        stored = (
            f" {here:,}{of_all} bytes are stored. Try again to resume."
            if here and (self.known.is_fixed or self.known.validator)
            else ""
        )
        return f"{error}. {MAX_LOST} tries in a row made no progress.{stored}"


def refuse_page(response: Answer) -> None:
    """Refuse a sign-in or error page sent in place of the file."""
    kind = response.headers.get_content_type()
    if "Content-Type" in response.headers and kind in (
        "text/html",
        "application/xhtml+xml",
    ):
        raise NotFetched(
            f"{response.target.host} sent a web page instead of a file. Enter the "
            "direct URL of the file."
        )


def _length_of(response: Answer) -> int:
    value = response.headers.get("Content-Length", "")
    if "chunked" in response.headers.get("Transfer-Encoding", "").lower():
        return 0
    return read_whole(value) or 0


def _validator_of(response: Answer) -> str:
    etag = response.headers.get("ETag", "").strip()
    if etag.startswith('"') and etag.isascii() and etag.isprintable():
        return etag[:500] if len(etag) <= 500 else ""
    date = response.headers.get("Last-Modified", "").strip()
    return date if date.isascii() and date.isprintable() and len(date) < 60 else ""
