"""One sandbox: a process that answers calls one at a time, each in a child process.

A reply names its call. Any failure between the request and its last byte ends the
sandbox, so that no bytes are left in its pipe for the next call. Replies are untrusted.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.rewards.sandbox.inside.messages import HEAD, MAX_BYTES, frame, length_of
from trainer.rewards.sandbox.levels import (
    LEVELS,
    NAMES,
    Level,
    command,
    environment,
    obstacle,
    options,
    sources,
)
from trainer.rewards.sandbox.limits import (
    Group,
    Limits,
    NoGroup,
    make_group,
    reserve_uid,
)

START_SECONDS = 30.0
# Over a call's own limit, which the sandbox itself watches; then this is for a machine
# too busy to do it.
_GRACE_SECONDS = 5.0
_REAP_SECONDS = 5.0
_MAX_HEADER_BYTES = 65_536


class SlotLost(Exception):
    """The sandbox is gone and gave no answer; the text is a predicate."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The outcome of a call. Replies are JSON that no one has looked at yet.

    end: "ended" by itself; "time": ended at its limit; "flood": it replied too much.
    """

    end: str
    code: int  # exit code; -n: ended by signal n
    cpu_seconds: float
    wall_seconds: float
    replies: tuple[bytes, ...]
    stdout: bytes
    stderr: bytes
    stdout_bytes: int  # in all, of which `stdout` are the first
    stderr_bytes: int


class Slot:
    """For one thread at a time."""

    def __init__(
        self,
        level: Level,
        *,
        packages: Sequence[str] = (),
        timeout_seconds: float = START_SECONDS,
    ) -> None:
        """Args: packages: those that its functions import, of `levels.packages_here`.

        Raises:
            SlotLost: it could not be started, or not within the time.
        """
        self.level = level
        self.packages = packages
        self.num_calls = 0
        self._uid = reserve_uid() if os.geteuid() == 0 else None
        self.group: Group | None = None
        with contextlib.suppress(NoGroup):
            self.group = make_group()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - for as long as it runs
        try:
            self._process = subprocess.Popen(
                command(
                    self.level,
                    cgroup_path=self.group.cgroup_path if self.group else "",
                    packages=self.packages,
                ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                cwd="/",
                env=environment(),
                start_new_session=True,
                bufsize=0,
            )
        except BaseException:
            self._release()
            raise
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        os.set_blocking(self._to.fileno(), False)
        deadline = time.monotonic() + timeout_seconds
        try:
            uid = self._uid.number if self._uid else None
            zygote_options = options(level, uid=uid, packages=packages)
            self._send([_json(sources()), _json(zygote_options)], deadline)
            self._greeting = json.loads(self._receive(deadline, _MAX_HEADER_BYTES))
        except BaseException:
            self.end()
            raise
        if self.group is not None and not self.group.is_lived_in():
            self.group.remove()  # it was not let in
            self.group = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, kind: str, questions: Sequence[Any], limits: Limits) -> Answer:
        """Have a new child hear the questions, JSON values, one after the other.

        Raises:
            SlotLost: no answer can be had; the sandbox has been ended.
        """
        try:
            return self._ask(kind, questions, limits)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End it and all in it."""
        # The sandbox ends when its pipe is hung up, in whatever it is doing.
        for pipe in (self._to, self._from):
            pipe.close()
        self._process.kill()
        self._process.wait()
        self._release()

    def _release(self) -> None:
        self._errors.close()
        if self.group is not None:
            self.group.remove()
        if self._uid is not None:
            self._uid.release()

    def _ask(self, kind: str, questions: Sequence[Any], limits: Limits) -> Answer:
        call = secrets.token_hex(16)
        header = {
            "call": call,
            "kind": kind,
            "num_questions": len(questions),
            **limits.as_header(),
        }
        deadline = time.monotonic() + limits.wall_seconds + _GRACE_SECONDS
        self.num_calls += 1
        self._send([_json(header), *map(_json, questions)], deadline)
        outcome = json.loads(self._receive(deadline, _MAX_HEADER_BYTES))
        if outcome.pop("call") != call:
            raise SlotLost("it answered another call")
        if not outcome.pop("is_ready") and outcome["end"] == "ended":
            errors = (
                self._receive(deadline, MAX_BYTES),
                self._receive(deadline, MAX_BYTES),
            )
            raise SlotLost(f"it could not isolate itself: {_last_line(errors[1])}")
        num_replies = outcome.pop("num_replies")
        stdout, stderr = (self._receive(deadline, MAX_BYTES) for _ in range(2))
        replies = [self._receive(deadline, MAX_BYTES) for _ in range(num_replies)]
        answer = Answer(replies=tuple(replies), stdout=stdout, stderr=stderr, **outcome)
        # No call can send itself SIGKILL, and it was not ended for its time.
        if (
            answer.end == "ended"
            and answer.code == -signal.SIGKILL
            and answer.cpu_seconds < limits.wall_seconds
        ):
            raise SlotLost("the kernel killed the call, probably out of memory")
        return answer

    def _send(self, messages: Sequence[bytes], deadline: float) -> None:
        data = memoryview(b"".join(map(frame, messages)))
        poll = select.poll()
        poll.register(self._to.fileno(), select.POLLOUT)
        while data:
            if not poll.poll(_milliseconds(deadline)):
                raise SlotLost("it does not read its input")
            try:
                data = data[os.write(self._to.fileno(), data) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise SlotLost(self._how_it_ended()) from None

    def _receive(self, deadline: float, most: int) -> bytes:
        length = length_of(self._exactly(HEAD, deadline))
        if length > most:
            raise SlotLost(f"it sent {length:,} bytes at once")
        return self._exactly(length, deadline)

    def _exactly(self, length: int, deadline: float) -> bytes:
        data = bytearray()
        poll = select.poll()
        poll.register(self._from.fileno(), select.POLLIN)
        while len(data) < length:
            if not poll.poll(_milliseconds(deadline)):
                raise SlotLost("it timed out")
            part = os.read(self._from.fileno(), min(length - len(data), 1 << 20))
            if not part:
                raise SlotLost(self._how_it_ended())
            data += part
        return bytes(data)

    def _how_it_ended(self) -> str:
        """Return the exit code, which follows the closed pipe a moment later."""
        try:
            code = self._process.wait(_REAP_SECONDS)
        except subprocess.TimeoutExpired:
            return "it closed its pipe"
        if code < 0:
            return f"it was killed by {signal.Signals(-code).name}"
        self._errors.seek(0)
        return f"it exited with code {code}: {_last_line(self._errors.read())}"


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _milliseconds(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic()) * 1_000


def _last_line(text: bytes) -> str:
    lines = text.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:200] if lines else "no output"


class Unreadable:
    """In place of a reply that is no JSON; equal to nothing that is expected."""


UNREADABLE = Unreadable()


def parsed(reply: bytes) -> Any:
    """Return the JSON, or UNREADABLE; a process that may write anything wrote it."""
    try:
        return json.loads(reply)
    except (ValueError, RecursionError):
        return UNREADABLE


def how_it_ended(answer: Answer, limits: Limits) -> str | None:
    """Return a predicate for a call that was ended, or ended itself with an error."""
    if answer.end == "time":
        return f"timed out after {limits.wall_seconds:g} s"
    if answer.end == "flood":
        return "wrote too much output"
    if answer.code in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"used more than {limits.wall_seconds:g} s of CPU time"
    if answer.code < 0:
        return (
            f"was killed by {_name(-answer.code)}, probably by too much memory or "
            "recursion"
        )
    return f"exited with code {answer.code}" if answer.code else None


class CallFailed(Exception):
    """A call gave no result, by the fault of its code; the text is a predicate."""

    def __init__(self, text: str, *, is_timeout: bool = False) -> None:
        # The code may have written it: as UTF-8 has it, and a database.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        super().__init__(text.replace("\x00", "\ufffd"))
        self.is_timeout = is_timeout


def result_of(answer: Answer, limits: Limits) -> dict[str, Any]:
    """Return the JSON object that a call replied.

    Raises:
        CallFailed: it was ended, raised, or ended itself without a result.
    """
    fault = how_it_ended(answer, limits)
    if fault is not None:
        is_timeout = answer.end == "time" or answer.code == -signal.SIGXCPU
        raise CallFailed(fault, is_timeout=is_timeout)
    reply: Any = parsed(answer.replies[0]) if len(answer.replies) == 1 else None
    if not isinstance(reply, dict):
        raise CallFailed("ended its process without a result")
    if reply.keys() == {"error"}:
        raise CallFailed(f"failed: {reply['error']!s:.500}")
    return reply


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# Files that are on most machines, and of ours; none may be readable.
_PATHS = ("/etc/passwd", "/etc/hostname", "/proc/1/environ", str(Path(__file__)))
_FORGET_SECONDS = 60.0  # after which a machine without a sandbox is tried once more


@dataclass(frozen=True, kw_only=True)
class SandboxStatus:
    """The strongest level, and why the others cannot be had, as predicates.

    has_group: whether a control group holds its memory and processes together.
    """

    level: Level | None
    reasons: dict[Level, str]
    has_group: bool = False

    @property
    def sentence(self) -> str:
        if self.level is not None:
            name = NAMES[self.level]
            return f"Reward code runs in a sandbox of level {self.level} ({name})."
        reasons = "; ".join(f"{level}: {why}" for level, why in self.reasons.items())
        return (
            f"No sandbox can run reward code on this machine ({reasons}). Install "
            "bubblewrap or use Linux 5.13 or newer, then run `manage.py "
            "check_sandbox`; or use rules without code."
        )


def try_levels(*, timeout_seconds: float = 4 * START_SECONDS) -> SandboxStatus:
    """Try each level, the strongest first, until one holds."""
    deadline = time.monotonic() + timeout_seconds
    reasons: dict[Level, str] = {}
    for level in LEVELS:
        reason = obstacle(level)
        if reason is None:
            trial = try_level(level, deadline - time.monotonic())
            if trial.fault is None:
                return SandboxStatus(
                    level=level, reasons=reasons, has_group=trial.has_group
                )
            reason = trial.fault
        reasons[level] = reason
    return SandboxStatus(level=None, reasons=reasons)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Why a level cannot be had; None: it starts, and nothing gets through."""

    fault: str | None
    has_group: bool = False


def try_level(level: Level, timeout_seconds: float = START_SECONDS) -> Trial:
    try:
        slot = Slot(level, timeout_seconds=min(START_SECONDS, timeout_seconds))
    except (SlotLost, OSError) as error:
        return Trial(fault=f"it does not start: {error}")
    has_group = slot.group is not None
    try:
        answer = slot.ask("attempts", [{"paths": _PATHS}], Limits())
    except SlotLost as error:
        return Trial(fault=str(error))
    slot.end()
    if answer.end != "ended" or answer.code != 0 or len(answer.replies) != 1:
        stderr = answer.stderr[-200:]
        return Trial(fault=f"its check exited with {answer.code} ({stderr!r})")
    happened = json.loads(answer.replies[0])
    if happened:
        return Trial(
            fault=(f"it does not stop code that tries to: {', '.join(happened)}")
        )
    return Trial(fault=None, has_group=has_group)


_lock = threading.Lock()
_found: SandboxStatus | None = None
_found_at = 0.0


def find_sandbox(*, timeout_seconds: float = 4 * START_SECONDS) -> SandboxStatus:
    """Try as `try_levels`; a level once found is remembered by this process."""
    global _found, _found_at
    with _lock:
        is_known = _found is not None and (
            _found.level is not None or time.monotonic() - _found_at < _FORGET_SECONDS
        )
        if not is_known:
            sandbox = try_levels(timeout_seconds=timeout_seconds)
            if sandbox.level is None and timeout_seconds < START_SECONDS:
                return sandbox  # it may have been the time alone
            _found, _found_at = sandbox, time.monotonic()
        assert _found is not None
        return _found
