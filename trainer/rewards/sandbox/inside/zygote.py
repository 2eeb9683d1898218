"""A process that has loaded Python, and forks a child for each call.

It is the only one that talks to the asker. A call's child hears its questions one by
one, each after its reply to the one before, and what it writes is passed on as bytes:
nothing that it says is interpreted here.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import json
import math
import os
import random
import select
import signal
import stat
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from trainer.rewards.sandbox.inside import kernel, landlock, seccomp
from trainer.rewards.sandbox.inside.child import READY, hold_places, run_child
from trainer.rewards.sandbox.inside.confinement import (
    Walls,
    confine_zygote,
    count_others,
)
from trainer.rewards.sandbox.inside.frames import HEAD, HungUp, frame, length_of
from trainer.rewards.sandbox.inside.frames import receive as receive_message
from trainer.rewards.sandbox.inside.frames import send as send_message
from trainer.rewards.sandbox.inside.warmth import warm_up

# Loaded once, so that a call need not. Each costs every call a little, since what is
# loaded is copied for it: OpenSSL alone, which hashlib brings, a tenth of its time.
AHEAD = """
    array ast bisect calendar cmath collections copy csv dataclasses datetime decimal
    difflib enum fractions functools heapq inspect io itertools json linecache math
    numbers operator pprint random re statistics string struct textwrap threading time
    traceback types typing unicodedata warnings weakref
"""
# Where another user cannot read the library, these and those above are what there is.
REST = """
    asyncio base64 bz2 codecs concurrent.futures.thread encodings.idna graphlib hashlib
    html ipaddress keyword locale queue secrets timeit tokenize unittest urllib.parse
    uuid xml.etree.ElementTree zlib zoneinfo
"""
_PART = 65_536
_RECOUNT_SECONDS = 1.0


@dataclass(kw_only=True)
class _Kept:
    """The first bytes of an output, and how many there were."""

    most: int
    data: bytearray = field(default_factory=bytearray)
    total: int = 0

    def add(self, part: bytes) -> None:
        self.data += part[: self.most - len(self.data)]
        self.total += len(part)


def main() -> None:
    """Answer calls from standard input until it is hung up."""
    options = json.loads(receive_message(0))
    hold_places()
    walls = _prepare(options)
    send_message(
        1,
        json.dumps({"landlock": walls.files is not None, "uid": os.getuid()}).encode(),
    )
    others = _Others(os.getuid()) if options["shares_uid"] else None
    try:
        while True:
            _serve(walls, others)
    except (HungUp, BrokenPipeError):
        os._exit(0)


def _prepare(options: dict[str, Any]) -> Walls:
    """What no child needs to do again; OSError where this level cannot be had."""
    is_open = options["uid"] is None or _may_be_read_by_all(os.__file__)
    for name in (AHEAD if is_open else AHEAD + REST).split():
        try:
            importlib.import_module(name)
        except ImportError:  # a build without it
            continue
    _forget_the_machine()
    # What `site` would give programs, which was left out with the packages.
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    version = kernel.landlock_version()
    if not version and options["needs_landlock"]:
        raise OSError("this kernel has no Landlock")
    rules = (
        landlock.make_rules(options["readable"], version=version) if version else None
    )
    if options["uid"] is not None:
        os.setgroups([])
        os.setresgid(options["uid"], options["uid"], options["uid"])
        os.setresuid(options["uid"], options["uid"], options["uid"])
    kernel.gain_nothing()
    kernel.hide_memory()
    os.environ.clear()
    sys.orig_argv[:] = sys.argv[:] = [""]
    os.chdir("/")
    template = seccomp.make_template()
    warm_up(template)
    random.seed(0)  # so that a resumed run scores as it did
    confine_zygote()
    # A child's garbage collector would otherwise copy every page that it looks through.
    gc.collect()
    gc.freeze()
    return Walls(files=rules, calls=template)


def _may_be_read_by_all(path: str) -> bool:
    if not os.stat(path).st_mode & stat.S_IROTH:
        return False
    while path != "/":
        path = os.path.dirname(path)
        if not os.stat(path).st_mode & stat.S_IXOTH:
            return False
    return True


def _forget_the_machine() -> None:
    """`platform` answers without a system call, and without this machine's name."""
    import platform  # noqa: PLC0415 - beside its private cache

    known = platform.uname()
    platform._uname_cache = platform.uname_result(  # type: ignore[attr-defined]
        known.system, "sandbox", "", "", known.machine
    )


class _Others:
    """How many threads a user has beside ours. To look takes as long as a call."""

    def __init__(self, uid: int) -> None:
        self._uid = uid
        self._counted_at = -math.inf
        self._count = 0

    def count(self) -> int:
        now = time.monotonic()
        if now - self._counted_at > _RECOUNT_SECONDS:
            self._count, self._counted_at = count_others(self._uid), now
        return self._count


def _serve(walls: Walls, others: _Others | None) -> None:
    """One call. The child is forked before its questions are read: it has none."""
    call = json.loads(receive_message(0))
    child = _Child(call, walls, num_others=others.count() if others else 0)
    questions = [receive_message(0) for _ in range(call["num_questions"])]
    outcome = child.converse(questions)
    outcome["call"] = call["call"]
    send_message(1, json.dumps(outcome).encode())
    for part in (child.stdout.data, child.stderr.data, *child.replies):
        send_message(1, bytes(part))


class _Child:
    """The process of one call, seen from outside."""

    def __init__(self, call: dict[str, Any], walls: Walls, *, num_others: int) -> None:
        self.stdout = _Kept(most=call["max_output_bytes"])
        self.stderr = _Kept(most=call["max_output_bytes"])
        self.replies: list[bytes] = []
        self._max_reply_bytes: int = call["max_reply_bytes"]
        self._is_ready = False
        self._num_asked = 0
        self._received = bytearray()
        self._begin = time.monotonic()
        self._deadline = self._begin + call["wall_seconds"]
        stdin, self._questions = os.pipe()
        self._replies, replies = os.pipe()
        self._out, out = os.pipe()
        self._err, err = os.pipe()
        parent = os.getpid()
        self.pid = kernel.fork()
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
        self._poll.register(0, 0)  # the asker's hanging up is told of unasked
        self._open = {self._replies, self._out, self._err}
        for descriptor in self._open:
            self._poll.register(descriptor, select.POLLIN)

    def converse(self, questions: list[bytes]) -> dict[str, Any]:
        """Until it has ended, or is ended; how it ended."""
        end = ""
        waiting = [frame(question) for question in reversed(questions)]
        sending = memoryview(b"")
        while not end:
            if not sending and waiting and self._may_ask():
                sending = memoryview(waiting.pop())
                self._num_asked += 1
            if sending:
                sending = self._write(sending)
            if not sending and not waiting:
                self._ask_no_more()
            ready = self._wait(to_write=bool(sending))
            if 0 in ready:
                end = "hung up"
            elif time.monotonic() >= self._deadline and self._pidfd not in ready:
                end = "time"
            elif not self._read():
                end = "flood"
            elif self._pidfd in ready:
                end = "ended"
        return self._reap(end)

    def _ask_no_more(self) -> None:
        """A child that waits for another question learns that there is none."""
        if self._questions >= 0:
            os.close(self._questions)
            self._questions = -1

    def _wait(self, *, to_write: bool) -> set[int]:
        """The descriptors that something happened at; none when time is up."""
        if to_write:
            self._poll.register(self._questions, select.POLLOUT)
        left = max(0.0, self._deadline - time.monotonic())
        ready = {descriptor for descriptor, _ in self._poll.poll(left * 1_000)}
        if to_write:
            self._poll.unregister(self._questions)
        return ready

    def _may_ask(self) -> bool:
        return self._is_ready and len(self.replies) == self._num_asked

    def _write(self, data: memoryview) -> memoryview:
        try:
            return data[os.write(self._questions, data) :]
        except BlockingIOError:
            return data
        except BrokenPipeError:
            return memoryview(b"")  # it closed its end; there is no reply to come

    def _read(self) -> bool:
        """What there is; False when it is more than was asked for, or is allowed."""
        for descriptor, kept in ((self._out, self.stdout), (self._err, self.stderr)):
            kept.add(self._read_some(descriptor))
        self._received += self._read_some(self._replies)
        while len(self._received) >= HEAD:
            length = length_of(bytes(self._received[:HEAD]))
            if length > self._max_reply_bytes:
                return False
            if len(self._received) < HEAD + length:
                break
            self._take(bytes(self._received[HEAD : HEAD + length]))
            del self._received[: HEAD + length]
        return len(self.replies) <= self._num_asked

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

    def _take(self, message: bytes) -> None:
        if self._is_ready:
            self._max_reply_bytes -= len(message)
            self.replies.append(message)
        else:
            # Nothing of the call's has run before this.
            self._is_ready = message == READY

    def _reap(self, end: str) -> dict[str, Any]:
        if end != "ended":
            os.kill(self.pid, signal.SIGKILL)
        _, status, usage = os.wait4(self.pid, 0)
        # It has no children, so that nobody else can hold these open.
        while end == "ended" and self._drain():
            continue
        self._ask_no_more()
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

    def _drain(self) -> bool:
        before = self.stdout.total + self.stderr.total + len(self._received)
        num_replies = len(self.replies)
        is_fine = self._read()
        after = self.stdout.total + self.stderr.total + len(self._received)
        return is_fine and (after, len(self.replies)) != (before, num_replies)
