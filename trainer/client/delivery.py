"""A spool's lines to the server: in order, once, in a thread of its own."""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainer.client.http import Refused, Server, Unreachable
from trainer.client.lines import place
from trainer.client.spool import Life, Spool, State

logger = logging.getLogger("cohort")
BATCH_BYTES = 2**20
BATCH_LINES = 2_000
ENDED = ("finished", "stopped", "failed")
PAYLOAD_TOO_LARGE, CONFLICT = 413, 409


@dataclass(slots=True)
class Position:
    """Where in a life's file the next line to send begins."""

    life: int  # 1, 2, 3 …
    line: int = 0  # the last one that the server has
    offset: int = 0


class Delivery:
    """Raises what Server raises; then the same call may be made again later."""

    def __init__(self, spool: Spool, server: Server) -> None:
        self.spool = spool
        self.server = server
        self.over = ""  # why nothing more is taken
        self.address = ""  # of the run's page
        self._at: Position | None = None
        self._batch_bytes = BATCH_BYTES

    def deliver(self, *, is_enough: Callable[[], bool] = lambda: False) -> bool:
        """Send what there is; True when all of it is stored, or nothing is taken."""
        while not self.over and not is_enough():
            state = self.spool.state()
            if not state.lives:
                return True
            if self._at is None:
                self._at = self._find(state)
                continue
            if not self._send_some(state) and not self._next_life(state):
                return True
        return bool(self.over)

    def beat(self) -> None:
        """Say that the trainer lives, where there is nothing else to say."""
        state = self.spool.state()
        at = self._at
        if at is not None and not self.over and at.life == len(state.lives):
            self._post(state, at, b"", 0)

    def _find(self, state: State) -> Position:
        """Go on where the server stands: the newest life that it knows."""
        self._open(state)
        known = max(n for n, life in enumerate(state.lives, start=1) if life.epoch)
        there = self.server.get(f"/outside-runs/{state.run}/events")
        position = Position(known)
        if there["epoch"] != state.lives[known - 1].epoch:
            self.over = "Another attempt of the run began elsewhere."
        else:
            self._move(position, to_line=there["line"])
        return position

    def _open(self, state: State) -> None:
        if state.run is None:
            opened = self.server.send_json(
                "POST", "/outside-runs", self.spool.opening()
            )
            state.run, state.address = opened["id"], opened["address"]
            state.lives[0].epoch = opened["epoch"]
            self.spool.keep(self._with_new_lives(state))
            logger.warning("Cohort shows this run at %s", state.address)
        self.address = state.address

    def _with_new_lives(self, state: State) -> State:
        """The trainer's thread may have begun another life meanwhile."""
        kept = self.spool.state().lives
        state.lives += kept[len(state.lives) :]
        return state

    def _next_life(self, state: State) -> bool:
        assert self._at
        if self._at.life == len(state.lives):
            return False
        life = state.lives[self._at.life]
        if life.epoch is None:
            # Of steps that never came there is nothing to go on from.
            step = self.server.get(f"/outside-runs/{state.run}/events")["step"]
            asked = {"from_step": min(life.from_step, step)}
            path = f"/outside-runs/{state.run}/lives"
            life.epoch = self.server.send_json("POST", path, asked)["epoch"]
            self.spool.keep(self._with_new_lives(state))
        self._at = Position(self._at.life + 1)
        return True

    def _send_some(self, state: State) -> bool:
        """False where the life has no further line."""
        at = self._at
        assert at
        lines = _read_lines(self.spool.life(at.life), at.offset, self._batch_bytes)
        if not lines:
            return False
        epoch = state.lives[at.life - 1].epoch
        assert epoch
        placed = [
            place(line, number=at.line + 1 + i, epoch=epoch)
            for i, line in enumerate(lines)
        ]
        size = sum(map(len, lines))
        try:
            self._post(state, at, b"".join(placed), len(lines))
        except Refused as error:
            if error.status == PAYLOAD_TOO_LARGE:
                self._send_less(state, at, lines)
            elif error.status == CONFLICT:
                self._settle(state, at, error)
            else:
                raise
        else:
            at.line += len(lines)
            at.offset += size
        return True

    def _post(self, state: State, at: Position, body: bytes, num: int) -> None:
        life: Life = state.lives[at.life - 1]
        path = (
            f"/outside-runs/{state.run}/events?epoch={life.epoch}&first={at.line + 1}"
        )
        answer = self.server.post_lines(path, body)
        if num == 0 and answer["state"] in ENDED:
            self.over = f"The run is {answer['state']}."

    def _settle(self, state: State, at: Position, error: Refused) -> None:
        """The server has less than was thought, or takes nothing any more."""
        there = self.server.get(f"/outside-runs/{state.run}/events")
        is_ours = there["epoch"] == state.lives[at.life - 1].epoch
        if is_ours and there["line"] != at.line and there["state"] not in ENDED:
            self._move(at, to_line=there["line"])
        else:
            self.over = str(error)

    def _send_less(self, state: State, at: Position, lines: list[bytes]) -> None:
        """A proxy may take less than Cohort does; of one line only that it was."""
        if len(lines) > 1:
            self._batch_bytes = max(len(lines[0]), sum(map(len, lines)) // 2)
            return
        epoch = state.lives[at.life - 1].epoch
        assert epoch
        told = json.loads(lines[0])
        stand_in = {
            "type": "warned",
            "time": told["time"],
            "step": told["step"],
            "code": "line_too_long",
            "message": f"The server, or what stands before it, refused a line of "
            f"{len(lines[0]):,} bytes ({told['type']}): it was left out.",
        }
        line = json.dumps(stand_in).encode() + b"\n"
        self._post(state, at, place(line, number=at.line + 1, epoch=epoch), 1)
        at.line += 1
        at.offset += len(lines[0])
        self._batch_bytes = BATCH_BYTES

    def _move(self, at: Position, *, to_line: int) -> None:
        at.line, at.offset = 0, 0
        with self.spool.life(at.life).open("rb") as file:
            for line in file:
                if at.line == to_line or not line.endswith(b"\n"):
                    break
                at.line += 1
                at.offset += len(line)
        if at.line < to_line:
            self.over = (
                f"The server has {to_line:,} lines of this run, this folder "
                f"{at.line:,}: it is another machine's."
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
    """Without a server it sends nothing."""

    def __init__(self, spool: Spool, server: Server | None) -> None:
        self._spool = spool
        self._delivery = Delivery(spool, server) if server else None
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
        return self._delivery.address if self._delivery else ""

    def start(self) -> None:
        if self._delivery:
            self._thread.start()

    def wake(self) -> None:
        self._something.set()

    def close(self, timeout_seconds: float) -> None:
        """Try for so long; the rest stays on the disk."""
        self._end = time.monotonic() + timeout_seconds
        self._closing.set()
        self._something.set()
        if self._delivery is None:
            return
        self._thread.join(timeout_seconds)
        if self._thread.is_alive() or self._said or not self._has_all:
            logger.warning(
                "Some of the run is not sent yet; it is kept in %s. `cohort sync %s` "
                "sends the rest.",
                self._spool.folder,
                self._spool.folder,
            )

    def _send(self) -> None:
        assert self._delivery
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
                self._rest(wait, is_last=is_last)
        logger.warning(
            "The server accepts no more of this run: %s", self._delivery.over
        )

    def _rest(self, seconds: float, *, is_last: bool) -> None:
        if is_last:
            time.sleep(seconds)
        else:
            self._closing.wait(seconds)

    def _try(self, *, is_new: bool) -> float:
        """Seconds to wait before the same is tried again; 0: it is done."""
        assert self._delivery
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
