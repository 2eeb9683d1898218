"""Tell Cohort of a training that runs elsewhere: from any loop, in a few lines.

    from trainer.client.reporter import Completion, Reporter

    with Reporter("my-run", num_steps=1000, settings=vars(args)) as cohort:
        for step in range(1, 1001):
            ...
            cohort.group(step, prompt, [Completion(text=…, reward=…), …])
            cohort.step(step, {"loss": loss, "lr": lr})

No call waits for the disk or the network, and none raises: what cannot be taken is left
out and counted. Two threads do the work: one writes to a folder, the other sends from
there, so what a server could not be told yet is kept for later.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import queue
import socket
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from trainer.client.delivery import Sender
from trainer.client.http import Server, find_server
from trainer.client.lines import Completion, number, plain
from trainer.client.spool import Spool, Writer

__all__ = ["Completion", "Reporter"]
logger = logging.getLogger("cohort")
MAX_SETTINGS_BYTES = 60_000
MAX_STEP = 2**31 - 1
MAX_WAITING = 10_000  # things told that are not on disk yet
CLOSE_SECONDS = 10.0


class Reporter:
    """Reports one run. After a restart the same folder goes on with it.

    name         of the run, up to 80 characters
    num_steps    how many there will be; None: not known
    settings     what it is trained with, shown and compared as it is
    rules        each part of the reward with its weight; others weigh 1
    right_from   the reward from which a completion is right; None: unknown
    folder       what is not sent is kept there; None: one of its own in ./cohort-runs
    from_step    the step that training goes on behind, in a folder used before
    server       None: the one of `cohort login`, or of COHORT_URL and COHORT_TOKEN
    """

    def __init__(
        self,
        name: str,
        *,
        num_steps: int | None = None,
        model: str = "",
        settings: Mapping[str, Any] | None = None,
        rules: Mapping[str, float] | None = None,
        right_from: float | None = None,
        tags: Sequence[str] = (),
        notes: str = "",
        tool: str = "own loop",
        version: str = "",
        folder: str | Path | None = None,
        from_step: int = 0,
        server: Server | None = None,
    ) -> None:
        self._pid = os.getpid()
        self._told: queue.Queue[Any] = queue.Queue(MAX_WAITING)
        self._num_dropped = 0
        self._has_ended = self._is_closed = False
        self._writer: threading.Thread | None = None
        self._sender: Sender | None = None
        try:
            # What is longer than a server takes is cut, rather than the run not shown.
            weights = {
                str(rule)[:40]: number(one) for rule, one in (rules or {}).items()
            }
            opening: dict[str, Any] = {
                "key": str(uuid.uuid4()),
                "name": (name.strip() or "run")[:80],
                "tool": (tool.strip() or "own loop")[:40],
                "version": version[:40],
                "model": model[:200],
                "host": socket.gethostname()[:120],
                "num_steps": min(max(int(num_steps or 1), 1), MAX_STEP),
                "settings": _fitting(plain(settings or {})),
                "rules": {
                    rule: 1.0 if weight is None else weight
                    for rule, weight in list(weights.items())[:64]
                },
                "right_from": number(right_from),
                "tags": [str(tag)[:40] for tag in tags][:20],
                "notes": notes[:20_000],
            }
            short = f"{opening['name'][:40]}-{opening['key'][:8]}".replace("/", "-")
            self.folder = Path(folder) if folder else Path("cohort-runs") / short
            self._begin(opening, from_step, server)
        except Exception:
            # A trainer goes on without being watched.
            logger.exception("Cohort does not report this run.")
            self._is_closed = True

    def _begin(
        self, opening: dict[str, Any], from_step: int, server: Server | None
    ) -> None:
        spool = Spool(self.folder)
        if not spool.is_there:
            spool.create(opening)
        file = spool.begin_life(from_step)
        writer = Writer(spool, file, right_from=opening["right_from"])
        if found := server or _server_of_login(self.folder):
            self._sender = Sender(spool, found)
            self._sender.start()
        self._writer = threading.Thread(
            target=self._write, args=(writer,), name="cohort-writer", daemon=True
        )
        self._writer.start()
        atexit.register(self._at_exit)

    @property
    def address(self) -> str:
        """Of the run's page; empty before the server was reached."""
        return self._sender.address if self._sender else ""

    @property
    def num_dropped(self) -> int:
        """What was told faster than the disk could take it, and is lost."""
        return self._num_dropped

    def group(
        self,
        step: int,
        prompt: str,
        completions: Sequence[Completion],
        *,
        answer: str | None = None,
    ) -> None:
        """All completions of a prompt at a step; told before `step` of that step."""
        self._tell(Writer.group, lambda: (step, prompt, tuple(completions), answer))

    def step(self, step: int, metrics: Mapping[str, Any] | None = None) -> None:
        """The step is done; what its groups say is worked out and need not be told."""
        self._tell(Writer.step, lambda: (step, dict(metrics or {})))

    def evaluated(
        self,
        step: int,
        name: str,
        metrics: Mapping[str, Any],
        *,
        num_prompts: int = 0,
        samples_per_prompt: int = 1,
    ) -> None:
        """Held-out scores; `metrics` are named without "eval/<name>/"."""
        counts = (num_prompts, samples_per_prompt)
        self._tell(Writer.evaluated, lambda: (step, name, dict(metrics), *counts))

    def warn(self, step: int, code: str, message: str) -> None:
        self._tell(Writer.warned, lambda: (step, code, message))

    def finish(self) -> None:
        """It came to its end."""
        self._end("run_finished")

    def stop(self) -> None:
        """It ended before, by somebody's will."""
        self._end("run_stopped", checkpoint=None)

    def fail(self, error: str, details: str = "") -> None:
        self._end("run_failed", error=error, details=details)

    def _end(self, kind: str, **fields: Any) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._tell(Writer.ended, lambda: (kind, fields))

    def _tell(
        self, method: Callable[..., None], told: Callable[[], tuple[Any, ...]]
    ) -> None:
        """`told` copies what the trainer may change before it is written."""
        if self._is_closed or os.getpid() != self._pid:  # a forked child is silent
            return
        try:
            self._told.put_nowait((time.time(), method, *told()))
        except queue.Full:
            self._num_dropped += 1
        except (TypeError, ValueError) as error:
            logger.warning("Cohort dropped a %s: %s", method.__name__, error)

    def close(self, *, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """Write all, and send what can be sent in that time; the rest stays on disk."""
        if self._is_closed or os.getpid() != self._pid:
            return
        self._is_closed = True
        atexit.unregister(self._at_exit)
        assert self._writer
        end = time.monotonic() + timeout_seconds
        try:
            self._told.put(None, timeout=timeout_seconds)
        except queue.Full:
            logger.warning("The disk is too slow: some of the run was not written.")
        self._writer.join(max(0.0, end - time.monotonic()))
        if self._sender:
            self._sender.close(max(0.0, end - time.monotonic()))

    def _write(self, writer: Writer) -> None:
        try:
            while (told := self._told.get()) is not None:
                writer.write(told)
                # What came meanwhile goes to the disk with it.
                while not self._told.empty() and (told := self._told.get()) is not None:
                    writer.write(told)
                writer.flush(num_dropped=self._num_dropped)
                if self._sender:
                    self._sender.wake()
                if told is None:
                    break
            writer.close()
        except Exception:
            logger.exception("Cohort stopped recording this run.")
            self._is_closed = True

    def _at_exit(self) -> None:
        """The process ends; whether by an error, Python knows."""
        error = getattr(sys, "last_value", None)
        if isinstance(error, Exception):
            self._fail_by(error)
        elif not self._has_ended:
            self.stop()
        self.close()

    def _fail_by(self, error: BaseException) -> None:
        lines = traceback.format_exception(error)
        self.fail(f"{type(error).__name__}: {error}"[:2_000], "".join(lines)[-20_000:])

    def __enter__(self) -> Reporter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish()
        elif isinstance(error, Exception):
            self._fail_by(error)
        else:  # Ctrl-C, or an exit that was asked for
            self.stop()
        self.close()


def _server_of_login(folder: Path) -> Server | None:
    try:
        return find_server()
    except ValueError as error:
        logger.warning(
            "%s Until then the run is kept in %s; `cohort sync %s` sends it.",
            error,
            folder,
            folder,
        )
        return None


def _fitting(settings: dict[str, Any]) -> dict[str, Any]:
    """Without the longest ones, until the others fit."""
    sizes = {name: len(json.dumps([name, one])) for name, one in settings.items()}
    total = sum(sizes.values())
    for name in sorted(sizes, key=lambda one: -sizes[one]):
        if total <= MAX_SETTINGS_BYTES:
            break
        total -= sizes[name]
        settings = {n: one for n, one in settings.items() if n != name}
    return settings
