"""A spool's lines to the server: in order, once, in a thread of its own."""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.client.http import Refused, Server, Unreachable
from trainer.client.lines import encode, left_out, place
from trainer.client.spool import Spool, State

logger = logging.getLogger("cohort")
BATCH_BYTES = 2**20
BATCH_LINES = 2_000
ENDED = ("finished", "stopped", "failed")
PAYLOAD_TOO_LARGE, CONFLICT = 413, 409


class Delivery:
    """Raises what Server raises; then the same call may be made again later."""

    def __init__(self, spool: Spool, server: Server) -> None:
        self.spool = spool
        self.server = server
        self.over = ""  # why nothing more is taken
        self.address = ""  # of the run's page
        self._life = 0  # the one that is sent, from 1; 0: the server was not asked yet
        self._line = 0  # the last one of it that the server has
        self._offset = 0  # where the next one begins in the life's file
        self._batch_bytes = BATCH_BYTES

    def deliver(self, *, is_enough: Callable[[], bool] = lambda: False) -> bool:
        """Send what there is; True when all of it is stored, or nothing is taken."""
        while not self.over and not is_enough():
            state = self.spool.state()
            if not state.lives:
                return True
            if self._life == 0:
                self._find(state)
            elif not self._send_some(state) and not self._next_life(state):
                return True
        return bool(self.over)

    def beat(self) -> None:
        """Say that the trainer lives, where there is nothing else to say."""
        state = self.spool.state()
        if 0 < self._life == len(state.lives) and not self.over:
            there = self._post(state)
            if there["state"] in ENDED:
                self.over = f"The run is {there['state']}."

    def _find(self, state: State) -> None:
        """Go on where the server stands: the newest life that it knows."""
        self._open(state)
        known = max(n for n, life in enumerate(state.lives, start=1) if life.attempt)
        there = self._place(state)
        self._life = known
        if there["attempt"] != state.lives[known - 1].attempt:
            self.over = "Another attempt of the run began elsewhere."
        else:
            self._move(to_line=there["line"])

    def _open(self, state: State) -> None:
        if state.run is None:
            opening = self.spool.opening()
            opened = self.server.send_json("POST", "/outside-runs", opening)
            state.run, state.address = opened["id"], opened["address"]
            state.lives[0].attempt = opened["attempt"]
            self._keep(state)
            logger.warning("Cohort shows this run at %s", state.address)
        self.address = state.address

    def _keep(self, state: State) -> None:
        """The trainer's thread may have begun another life meanwhile."""
        kept = self.spool.state().lives
        state.lives += kept[len(state.lives) :]
        self.spool.keep(state)

    def _place(self, state: State) -> Any:
        return self.server.get(f"/outside-runs/{state.run}/events")

    def _next_life(self, state: State) -> bool:
        if self._life == len(state.lives):
            return False
        life = state.lives[self._life]
        if life.attempt is None:
            # Of steps that never came there is nothing to go on from.
            asked = {"from_step": min(life.from_step, self._place(state)["step"])}
            path = f"/outside-runs/{state.run}/lives"
            life.attempt = self.server.send_json("POST", path, asked)["attempt"]
            self._keep(state)
        self._life, self._line, self._offset = self._life + 1, 0, 0
        return True

    def _send_some(self, state: State) -> bool:
        """False where the life has no further line."""
        path = self.spool.life(self._life)
        lines = _read_lines(path, self._offset, self._batch_bytes)
        if not lines:
            return False
        try:
            self._post(state, *lines)
        except Refused as error:
            if error.status == PAYLOAD_TOO_LARGE:
                self._send_less(state, lines)
            elif error.status == CONFLICT:
                self._settle(state, error)
            else:
                raise
        else:
            self._line += len(lines)
            self._offset += sum(map(len, lines))
        return True

    def _post(self, state: State, *lines: bytes) -> Any:
        attempt, first = state.lives[self._life - 1].attempt, self._line + 1
        assert attempt
        placed = [
            place(line, number=number, attempt=attempt)
            for number, line in enumerate(lines, start=first)
        ]
        path = f"/outside-runs/{state.run}/events?attempt={attempt}&first={first}"
        return self.server.post_lines(path, b"".join(placed))

    def _settle(self, state: State, error: Refused) -> None:
        """The server has less than was thought, or takes nothing any more."""
        there = self._place(state)
        is_ours = there["attempt"] == state.lives[self._life - 1].attempt
        if is_ours and there["line"] != self._line and there["state"] not in ENDED:
            self._move(to_line=there["line"])
        else:
            self.over = str(error)

    def _send_less(self, state: State, lines: list[bytes]) -> None:
        """A proxy may take less than Cohort does; of one line only that it was."""
        if len(lines) > 1:
            self._batch_bytes = max(len(lines[0]), sum(map(len, lines)) // 2)
            return
        self._post(state, encode(left_out(json.loads(lines[0]), len(lines[0]))))
        self._line += 1
        self._offset += len(lines[0])
        self._batch_bytes = BATCH_BYTES

    def _move(self, *, to_line: int) -> None:
        self._line = self._offset = 0
        with self.spool.life(self._life).open("rb") as file:
            for line in file:
                if self._line == to_line or not line.endswith(b"\n"):
                    break
                self._line += 1
                self._offset += len(line)
        if self._line < to_line:
            self.over = (
                f"The server has {to_line:,} lines of this run, this folder "
                f"{self._line:,}: it is another machine's."
            )


def _read_lines(path: Path, offset: int, max_bytes: int) -> list[bytes]:
    """Whole lines from there on, at least one where there is one."""
    found: list[bytes] = []
    size = 0
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            size += len(line)
            if not line.endswith(b"\n") or (found and size > max_bytes):
                break
            found.append(line)
            if len(found) == BATCH_LINES:
                break
    return found


BEAT_SECONDS = 30.0
FIRST_RETRY, LONGEST_RETRY = 1.0, 60.0
REFUSED_RETRY = 300.0  # a token may be mended, a server brought up to date
GATHER_SECONDS = 0.5  # what is told within it goes in one request


class Sender:
    """Delivers in a thread of its own, until it is closed or nothing more is taken."""

    def __init__(self, spool: Spool, server: Server) -> None:
        self._spool = spool
        self._delivery = Delivery(spool, server)
        self._something = threading.Event()
        self._closing = threading.Event()
        self._end = 0.0
        self._retry = FIRST_RETRY
        self._said = ""
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
        self._something.set()

    def close(self, timeout_seconds: float) -> None:
        """Try for so long; the rest stays on the disk."""
        self._end = time.monotonic() + timeout_seconds
        self._closing.set()
        self._something.set()
        self._thread.join(timeout_seconds)
        if self._thread.is_alive() or self._said or not self._has_all:
            logger.warning(
                "Some of the run is not sent yet; it is kept in %s. `cohort sync %s` "
                "sends the rest.",
                self._spool.folder,
                self._spool.folder,
            )

    def _send(self) -> None:
        while not self._delivery.over:
            is_new = self._something.wait(BEAT_SECONDS)
            if is_new and not self._closing.is_set():
                self._closing.wait(GATHER_SECONDS)
            self._something.clear()
            is_last = self._closing.is_set()
            wait = self._try(is_new=is_new)
            if is_last and (wait == 0 or time.monotonic() + wait > self._end):
                return
            if wait:
                self._something.set()
                time.sleep(wait) if is_last else self._closing.wait(wait)
        logger.warning(
            "The server accepts no more of this run: %s", self._delivery.over
        )

    def _try(self, *, is_new: bool) -> float:
        """Seconds to wait before the same is tried again; 0: it is done."""
        try:
            self._has_all = self._delivery.deliver(is_enough=self._is_late)
            if not is_new:
                self._delivery.beat()
        except Unreachable as error:
            wait = error.after_seconds or self._retry * random.uniform(0.5, 1.0)
            self._retry = min(self._retry * 2, LONGEST_RETRY)
            return self._put_off(error, wait)
        except Refused as error:
            return self._put_off(error, REFUSED_RETRY)
        except Exception as error:
            logger.exception("Cohort could not send this run.")
            return self._put_off(error, REFUSED_RETRY)
        self._retry, self._said = FIRST_RETRY, ""
        return 0.0

    def _put_off(self, error: Exception, wait: float) -> float:
        if str(error) != self._said:  # once, not every minute
            self._said = str(error)
            logger.warning("Sending later: %s", error)
        return wait

    def _is_late(self) -> bool:
        return self._closing.is_set() and time.monotonic() > self._end
