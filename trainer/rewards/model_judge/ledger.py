"""Record of a run's judge calls: questions, replies and tokens used.

Each process of a run writes a file of JSON lines in the run's folder. So a resumed run
repeats only questions without a usable reply, and its budget covers all attempts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from threading import Lock
from typing import Any

from trainer.disk import is_disk_full
from trainer.rewards.model_judge.client import Reply

_FOLDER = "judges"
_MAX_IN_MEMORY = 10_000  # replies of a process that has no folder


@dataclass
class Spent:
    calls: int = 0
    tokens: int = 0


class Ledger:
    """Any thread may look up and add. Without a folder it is kept in memory alone."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        attempts: Path | None = None,
        rank: int = 0,
        num_processes: int = 1,
    ) -> None:
        """Args: folder: of the run, whose processes all read one another's files here.
        attempts: folder of such folders, which are read as well, never written: an
        attempt that was given up may still be writing. rank: this process's number.
        num_processes: among which what is left of a budget is shared out.
        """
        self._num_processes = num_processes
        self._lock = Lock()
        self._kept: dict[bytes, tuple[Path, int] | Reply] = {}
        self._earlier: dict[bytes, tuple[Path, int]] = {}  # before this process began
        self._before: dict[str, Spent] = {}
        self._since: dict[str, Spent] = {}
        self._path = self._file = None
        self._unwritten = b""  # that a full disk did not take
        if folder is not None:
            self._path = folder / _FOLDER / f"answers-{rank}.jsonl"
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Of all processes and attempts, the newest attempt last.
            pattern = f"{_FOLDER}/answers-*.jsonl"
            others = [] if attempts is None else attempts.glob(f"*/{pattern}")
            files = {path.resolve() for path in [*folder.glob(pattern), *others]}
            for path in sorted(files, key=_place):
                for place, line in _lines(path):
                    spent = self._before.setdefault(line["account"], Spent())
                    spent.calls += 1
                    if "question" in line:
                        spent.tokens += line["tokens"]
                        self._earlier[bytes.fromhex(line["question"])] = path, place
            # Python's own buffer would fail once more as the file is closed.
            self._file = self._path.open("ab+", buffering=0)
            if not _ends_whole(self._file):
                self._unwritten = b"\n"

    def find(
        self, question: bytes, *, is_readable: Callable[[Reply], bool]
    ) -> Reply | None:
        """Return what was replied to a question, by its digest.

        Replies that this process received stay; an earlier reply is of no use unless
        it is readable, and a run that paused for such replies can be resumed.
        """
        with self._lock:
            stored_reply = self._kept.get(question)
            earlier = self._earlier.get(question)
        if isinstance(stored_reply, Reply):
            return stored_reply
        if stored_reply is not None:
            return _reply_at(*stored_reply)
        if earlier is None:
            return None
        reply = _reply_at(*earlier)
        return reply if is_readable(reply) else None

    def take_call(self, account: str, *, max_calls: int, max_tokens: int) -> bool:
        """Note that a call is made; False when the budget has nothing left for it.

        Tokens are known only afterwards, so calls that are made at the same time may
        go beyond their number.
        """
        with self._lock:
            before = self._before.get(account, Spent())
            since = self._since.setdefault(account, Spent())
            calls = before.calls + (since.calls + 1) * self._num_processes
            tokens = before.tokens + since.tokens * self._num_processes
            if calls > max_calls or tokens >= max_tokens:
                return False
            since.calls += 1
            return True

    def add(self, account: str, question: bytes, reply: Reply | None) -> None:
        """Keep what came of a call that was taken; None: nothing."""
        line: dict[str, Any] = {"account": account}
        if reply is not None:
            line |= {
                "question": question.hex(),
                "tokens": reply.num_tokens,
                "is_cut": reply.is_cut,
                "text": reply.text,
            }
            if reply.num_tokens_in is not None:
                line |= {"in": reply.num_tokens_in, "out": reply.num_tokens_out}
            if reply.num_tokens_cached is not None:
                line |= {"cached": reply.num_tokens_cached}
        data = json.dumps(line).encode() + b"\n"
        with self._lock:
            if reply is not None:
                self._since[account].tokens += reply.num_tokens
                if self._path is None and len(self._kept) == _MAX_IN_MEMORY:
                    self._kept.clear()
                self._kept[question] = reply
            if self._file is None or self._path is None:
                return
            place = self._file.tell() + len(self._unwritten)
            self._unwritten += data
            self._write(self._file)
            if reply is not None and not self._unwritten:
                self._kept[question] = self._path, place

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._write(self._file)
                self._file.close()
                self._file = None

    def _write(self, file: FileIO) -> None:
        """Write; what a full disk does not take is tried again with what comes next.

        The run's log, on the same disk, ends the step that all processes are in.
        """
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[file.write(self._unwritten) :]
        except OSError as error:
            if not is_disk_full(error):
                raise


def _place(path: Path) -> tuple[int, int, str]:
    """Sort key: number of the attempt, then of the process."""
    attempt, rank = path.parent.parent.name, path.stem.removeprefix("answers-")
    numbers = [int(name) if name.isdecimal() else 0 for name in (attempt, rank)]
    return numbers[0], numbers[1], str(path)


def _reply_at(path: Path, place: int) -> Reply:
    with path.open("rb") as file:
        file.seek(place)
        line = json.loads(file.readline())
    return Reply(
        *(line[name] for name in ("text", "tokens", "is_cut")),
        *(line.get(name) for name in ("in", "out", "cached")),
    )


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each line with its place, but not one that the end of a process cut."""
    with path.open("rb") as file:
        while True:
            place = file.tell()
            text = file.readline()
            if not text:
                return
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict) and "account" in line:
                yield place, line


def _ends_whole(file: FileIO) -> bool:
    """Return whether the next line begins at its end, where it is left."""
    if file.seek(0, os.SEEK_END) == 0:
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"
