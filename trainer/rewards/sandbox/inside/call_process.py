"""The process of one call, from fork to exit."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from trainer.rewards.sandbox.inside.calls import (
    ask_environment,
    call_tool,
    describe_source,
    perform_attempts,
    perform_function,
    perform_program,
    perform_steps,
    respond,
)
from trainer.rewards.sandbox.inside.confinement import (
    QUESTIONS,
    REPLIES,
    Walls,
    confine,
    fork,
)
from trainer.rewards.sandbox.inside.messages import HEAD, HungUp, frame, length_of, send
from trainer.rewards.sandbox.inside.plans import perform_plan

CALLS: dict[str, Callable[[], None]] = {
    "attempts": perform_attempts,
    "contents": partial(respond, describe_source),
    "environment": partial(respond, ask_environment),
    "function": perform_function,
    "plan": perform_plan,
    "program": perform_program,
    "steps": perform_steps,
    "tool": partial(respond, call_tool),
}

READY = b"ready"
NOTHING = 5  # a descriptor that the zygote holds open, for standard input
_RULES = 6  # that of Landlock's rules, until they hold


def run_child(
    call: dict[str, Any],
    pipes: tuple[int, int, int, int],
    *,
    parent: int,
    walls: Walls,
    num_others: int,
) -> None:
    """Perform the call in the child; never returns."""
    code = 1
    try:
        # Its pipes as 1 to 4, the rules as 6, nothing as 0, and none of the others.
        for target, source in enumerate((NOTHING, *pipes)):
            os.dup2(source, target)
        if walls.files is not None:
            os.dup2(walls.files, _RULES)
            walls = walls._replace(files=_RULES)
        os.close(NOTHING)
        os.closerange(_RULES + (walls.files is not None), 256)
        assert (QUESTIONS, REPLIES) == (3, 4)
        confine(call["limits"], walls, parent=parent, num_others=num_others)
        perform = CALLS[call["kind"]]
        call.clear()
        send(REPLIES, READY)
        perform()
        code = 0
    except SystemExit as exit_:
        code = _exit_code(exit_.code)
    except BaseException:  # noqa: BLE001 - any error goes to stderr
        sys.excepthook(*sys.exc_info())
    finally:
        # at once, after what was printed is out; without another's exit handlers
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException:  # noqa: BLE001, S112 - replaced by what ran, perhaps
                continue
        os._exit(code)


def _exit_code(wanted: object) -> int:
    if wanted is None:
        return 0
    return wanted if isinstance(wanted, int) and 0 <= wanted < 256 else 1


def hold_places() -> None:
    """Keep, in the zygote, any pipe of a call from getting a number that a child needs
    for its own.
    """
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number in (QUESTIONS, REPLIES, NOTHING, _RULES):
        os.dup2(nothing, number)
    if nothing not in (QUESTIONS, REPLIES, NOTHING, _RULES):
        os.close(nothing)


_PART = 65_536


@dataclass(kw_only=True)
class _Kept:
    """The first bytes of an output, and how many there were."""

    most: int
    data: bytearray = field(default_factory=bytearray)
    total: int = 0

    def add(self, part: bytes) -> None:
        self.data += part[: self.most - len(self.data)]
        self.total += len(part)


class CallProcess:
    """In the zygote: a child, and the pipes to it."""

    def __init__(self, call: dict[str, Any], walls: Walls, *, num_others: int) -> None:
        self.stdout = _Kept(most=call["max_output_bytes"])
        self.stderr = _Kept(most=call["max_output_bytes"])
        self.replies: list[bytes] = []
        self._max_reply_bytes: int = call["max_reply_bytes"]
        self._is_ready = False
        self._num_sent = 0
        self._received = bytearray()
        self._begin = time.monotonic()
        self._deadline = self._begin + call["wall_seconds"]
        stdin, self._questions = os.pipe()
        self._replies, replies = os.pipe()
        self._out, out = os.pipe()
        self._err, err = os.pipe()
        parent = os.getpid()
        self.pid = fork()
        if self.pid == 0:
            run_child(
                call,
                (out, err, stdin, replies),
                parent=parent,
                walls=walls,
                num_others=num_others,
            )
        for descriptor in (stdin, replies, out, err):
            os.close(descriptor)
        for descriptor in (self._questions, self._replies, self._out, self._err):
            os.set_blocking(descriptor, False)
        self._pidfd = os.pidfd_open(self.pid)
        self._poll = select.poll()
        self._poll.register(self._pidfd, select.POLLIN)
        self._poll.register(0, 0)  # reports a hang-up of the other side by itself
        self._open = {self._replies, self._out, self._err}
        for descriptor in self._open:
            self._poll.register(descriptor, select.POLLIN)

    def converse(self, questions: list[bytes]) -> dict[str, Any]:
        """Converse until it has ended, or is ended; tell how it ended."""
        end = ""
        waiting = [frame(question) for question in reversed(questions)]
        sending = memoryview(b"")
        while not end:
            may_send = self._is_ready and len(self.replies) == self._num_sent
            if not sending and waiting and may_send:
                sending = memoryview(waiting.pop())
                self._num_sent += 1
            if sending:
                sending = self._write(sending)
            if not sending and not waiting:
                self._close_input()
            ready = self._wait(to_write=bool(sending))
            if 0 in ready:
                end = "hung up"
            elif time.monotonic() >= self._deadline and self._pidfd not in ready:
                end = "time"
            elif not self._read():
                end = "flood"
            elif self._pidfd in ready:
                end = "ended"
        if end != "ended":
            os.kill(self.pid, signal.SIGKILL)
        _, status, usage = os.wait4(self.pid, 0)
        # It has no children, so that no one else can hold these open.
        while end == "ended" and self._drain():
            continue
        self._close_input()
        for descriptor in (self._replies, self._out, self._err, self._pidfd):
            os.close(descriptor)
        if end == "hung up":
            raise HungUp
        return {
            "end": end,
            "is_ready": self._is_ready,
            "code": os.waitstatus_to_exitcode(status),
            "cpu_seconds": usage.ru_utime + usage.ru_stime,
            "wall_seconds": time.monotonic() - self._begin,
            "stdout_bytes": self.stdout.total,
            "stderr_bytes": self.stderr.total,
            "num_replies": len(self.replies),
        }

    def _close_input(self) -> None:
        """Tell a child that waits for another question that there is none."""
        if self._questions >= 0:
            os.close(self._questions)
            self._questions = -1

    def _wait(self, *, to_write: bool) -> set[int]:
        """Return the descriptors that something happened at; none when time is up."""
        if to_write:
            self._poll.register(self._questions, select.POLLOUT)
        seconds_left = max(0.0, self._deadline - time.monotonic())
        ready = {descriptor for descriptor, _ in self._poll.poll(seconds_left * 1_000)}
        if to_write:
            self._poll.unregister(self._questions)
        return ready

    def _write(self, data: memoryview) -> memoryview:
        try:
            return data[os.write(self._questions, data) :]
        except BlockingIOError:
            return data
        except BrokenPipeError:
            return memoryview(b"")  # it closed its end; there is no reply to come

    def _read(self) -> bool:
        """Return what there is; False when it is more than was asked for, or is
        allowed.
        """
        for descriptor, output in ((self._out, self.stdout), (self._err, self.stderr)):
            output.add(self._read_some(descriptor))
        self._received += self._read_some(self._replies)
        while len(self._received) >= HEAD:
            length = length_of(bytes(self._received[:HEAD]))
            if length > self._max_reply_bytes:
                return False
            if len(self._received) < HEAD + length:
                break
            message = bytes(self._received[HEAD : HEAD + length])
            if self._is_ready:
                self._max_reply_bytes -= length
                self.replies.append(message)
            else:
                # Nothing of the call's has run before this.
                self._is_ready = message == READY
            del self._received[: HEAD + length]
        return len(self.replies) <= self._num_sent

    def _read_some(self, descriptor: int) -> bytes:
        if descriptor not in self._open:
            return b""
        try:
            part = os.read(descriptor, _PART)
        except BlockingIOError:
            return b""
        if not part:
            # Asked about again, a closed pipe would answer at once, for ever.
            self._open.remove(descriptor)
            self._poll.unregister(descriptor)
        return part

    def _drain(self) -> bool:
        before = self.stdout.total + self.stderr.total + len(self._received)
        num_replies = len(self.replies)
        is_fine = self._read()
        after = self.stdout.total + self.stderr.total + len(self._received)
        return is_fine and (after, len(self.replies)) != (before, num_replies)
