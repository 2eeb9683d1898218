"""Sends a spool's lines to the server: in order, once, in its own thread."""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from cohort.http import Refused, Server, Unreachable
from cohort.lines import encode, left_out, number_line
from cohort.spool import Spool, State

logger = logging.getLogger("cohort")
BATCH_BYTES = 2**20
BATCH_LINES = 2_000
ENDED = ("finished", "stopped", "failed")
PAYLOAD_TOO_LARGE, CONFLICT = 413, 409


class Delivery:
    """Raises what Server raises; repeat the call later then."""

    def __init__(self, spool: Spool, server: Server) -> None:
        self.spool = spool
        self.server = server
        self.over = ""  # why the server accepts no more
        self.address = ""  # of the run's page
        self._index = 0  # attempt being sent, from 1; 0: position not requested yet
        self._line = 0  # last line of it that the server has
        self._offset = 0  # of the next line in the attempt's file
        self._batch_bytes = BATCH_BYTES

    def deliver(self, *, is_enough: Callable[[], bool] = lambda: False) -> bool:
        """Send all lines; True when all are stored, or the server accepts no more."""
        while not self.over and not is_enough():
            state = self.spool.state()
            if not state.attempts:
                return True
            if self._index == 0:
                self._resume(state)
            elif not self._send_batch(state) and not self._next_attempt(state):
                return True
        return bool(self.over)

    def heartbeat(self) -> None:
        """Send an empty request: the trainer is alive and has no new lines."""
        state = self.spool.state()
        if 0 < self._index == len(state.attempts) and not self.over:
            stored = self._post(state)
            if stored["state"] in ENDED:
                self.over = f"The run is {stored['state']}."

    def _resume(self, state: State) -> None:
        """Continue after the server's last line, in its newest attempt."""
        if state.run is None:
            opening = self.spool.opening()
            opened = self.server.send_json("POST", "/external-runs", opening)
            state.run, state.address = opened["id"], opened["address"]
            state.attempts[0].number = opened["attempt"]
            self._save(state)
            logger.warning("View this run at %s", state.address)
        self.address = state.address
        self._index = max(
            n for n, attempt in enumerate(state.attempts, start=1) if attempt.number
        )
        stored = self._stored(state)
        if stored["attempt"] != state.attempts[self._index - 1].number:
            self.over = "Another process has started a newer attempt of this run."
        else:
            self._seek(to_line=stored["line"])

    def _save(self, state: State) -> None:
        """Save with the attempts that the trainer's thread may have begun meanwhile."""
        state.attempts += self.spool.state().attempts[len(state.attempts) :]
        self.spool.save(state)

    def _stored(self, state: State) -> Any:
        """Return the run's state on the server, and its last line."""
        return self.server.get(f"/external-runs/{state.run}/events")

    def _next_attempt(self, state: State) -> bool:
        if self._index == len(state.attempts):
            return False
        attempt = state.attempts[self._index]
        if attempt.number is None:
            # The server cannot continue after a step that it never received.
            body = {"from_step": min(attempt.from_step, self._stored(state)["step"])}
            path = f"/external-runs/{state.run}/attempts"
            attempt.number = self.server.send_json("POST", path, body)["attempt"]
            self._save(state)
        self._index, self._line, self._offset = self._index + 1, 0, 0
        return True

    def _send_batch(self, state: State) -> bool:
        """False if the attempt has no more lines."""
        path = self.spool.events_path(self._index)
        lines: list[bytes] = []
        size = 0
        with path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                size += len(line)
                if not line.endswith(b"\n") or (lines and size > self._batch_bytes):
                    break
                lines.append(line)
                if len(lines) == BATCH_LINES:
                    break
        if not lines:
            return False
        try:
            self._post(state, *lines)
        except Refused as error:
            if error.status == PAYLOAD_TOO_LARGE:
                self._shrink_batch(state, lines)
            elif error.status == CONFLICT:
                # The server lacks earlier lines, or accepts no more.
                stored = self._stored(state)
                is_ours = stored["attempt"] == state.attempts[self._index - 1].number
                if (
                    is_ours
                    and stored["line"] != self._line
                    and stored["state"] not in ENDED
                ):
                    self._seek(to_line=stored["line"])
                else:
                    self.over = str(error)
            else:
                raise
        else:
            self._line += len(lines)
            self._offset += sum(map(len, lines))
        return True

    def _post(self, state: State, *lines: bytes) -> Any:
        attempt, first = state.attempts[self._index - 1].number, self._line + 1
        assert attempt
        numbered = [
            number_line(line, number=number, attempt=attempt)
            for number, line in enumerate(lines, start=first)
        ]
        path = f"/external-runs/{state.run}/events?attempt={attempt}&first={first}"
        return self.server.post_lines(path, b"".join(numbered))

    def _shrink_batch(self, state: State, lines: list[bytes]) -> None:
        """Send less, as a proxy may demand; a warning replaces a line too large."""
        if len(lines) > 1:
            self._batch_bytes = max(len(lines[0]), sum(map(len, lines)) // 2)
            return
        self._post(state, encode(left_out(json.loads(lines[0]), len(lines[0]))))
        self._line += 1
        self._offset += len(lines[0])
        self._batch_bytes = BATCH_BYTES

    def _seek(self, *, to_line: int) -> None:
        self._line = self._offset = 0
        with self.spool.events_path(self._index).open("rb") as file:
            for line in file:
                if self._line == to_line or not line.endswith(b"\n"):
                    break
                self._line += 1
                self._offset += len(line)
        if self._line < to_line:
            self.over = (
                f"The server has {to_line:,} lines of this run, but this folder only "
                f"{self._line:,}. Send it from the machine that trained the run."
            )


HEARTBEAT_SECONDS = 30.0
FIRST_RETRY, LONGEST_RETRY = 1.0, 60.0
REFUSED_RETRY = 300.0  # the token or the server may be fixed meanwhile
GATHER_SECONDS = 0.5  # reports within this time go in one request


class Sender:
    """Delivers in its own thread, until closed or the server accepts no more."""

    def __init__(self, spool: Spool, server: Server) -> None:
        self._spool = spool
        self._delivery = Delivery(spool, server)
        self._has_work = threading.Event()
        self._closing = threading.Event()
        self._end = 0.0
        self._retry = FIRST_RETRY
        self._last_error = ""
        self._has_all = False
        self._thread = threading.Thread(
            target=self._send, name="cohort-sender", daemon=True
        )

    @property
    def address(self) -> str:
        return self._delivery.address

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._has_work.set()

    def close(self, timeout_seconds: float) -> None:
        """Send for up to `timeout_seconds`; the rest stays on the disk."""
        self._end = time.monotonic() + timeout_seconds
        self._closing.set()
        self._has_work.set()
        self._thread.join(timeout_seconds)
        if self._thread.is_alive() or self._last_error or not self._has_all:
            logger.warning(
                "Not all events of this run were sent. They are in %s. Send them with "
                "`cohort sync %s`.",
                self._spool.folder,
                self._spool.folder,
            )

    def _send(self) -> None:
        while not self._delivery.over:
            is_new = self._has_work.wait(HEARTBEAT_SECONDS)
            if is_new and not self._closing.is_set():
                self._closing.wait(GATHER_SECONDS)
            self._has_work.clear()
            is_last = self._closing.is_set()
            wait = self._try(is_new=is_new)
            if is_last and (wait == 0 or time.monotonic() + wait > self._end):
                return
            if wait:
                self._has_work.set()
                time.sleep(wait) if is_last else self._closing.wait(wait)
        logger.warning(
            "The server accepts no more events of this run: %s", self._delivery.over
        )

    def _try(self, *, is_new: bool) -> float:
        """Seconds to wait before the next try; 0 on success."""
        try:
            self._has_all = self._delivery.deliver(is_enough=self._is_late)
            if not is_new:
                self._delivery.heartbeat()
        except Unreachable as error:
            wait = error.after_seconds or self._retry * random.uniform(0.5, 1.0)
            self._retry = min(self._retry * 2, LONGEST_RETRY)
            return self._postpone(error, wait)
        except Refused as error:
            return self._postpone(error, REFUSED_RETRY)
        except Exception as error:
            logger.exception("Failed to send events to Cohort.")
            return self._postpone(error, REFUSED_RETRY)
        self._retry, self._last_error = FIRST_RETRY, ""
        return 0.0

    def _postpone(self, error: Exception, wait: float) -> float:
        if str(error) != self._last_error:  # once, not every minute
            self._last_error = str(error)
            logger.warning("Cannot send events now; will retry. %s", error)
        return wait

    def _is_late(self) -> bool:
        return self._closing.is_set() and time.monotonic() > self._end
