"""A spool's lines to the server: in order, once, as far as it can be reached."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainer.client.http import Refused, Server
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
            self.over = "Another life of the run began elsewhere."
        else:
            self._move(position, to_line=there["line"])
        return position

    def _open(self, state: State) -> None:
        if state.run is None:
            opened = self.server.post("/outside-runs", self.spool.opening())
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
            life.epoch = self.server.post(f"/outside-runs/{state.run}/lives", asked)[
                "epoch"
            ]
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
