"""Report a run that is trained outside Cohort: from any training loop, in a few lines.

    from cohort.reporter import Completion, Reporter

    with Reporter("my-run", num_steps=1000, settings=vars(args)) as cohort:
        for step in range(1, 1001):
            ...
            cohort.group(step, prompt, [Completion(text=…, reward=…), …])
            cohort.step(step, {"loss": loss, "lr": lr})

No call waits for the disk or the network, and none raises: what does not fit into the
queue is dropped and counted. One thread writes to a folder, another sends from there,
so unsent events are kept for later.
"""

from __future__ import annotations

import atexit
import json
import logging
import math
import os
import queue
import socket
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from cohort.delivery import Sender
from cohort.http import Server, find_server
from cohort.lines import Completion, Turn, number, plain
from cohort.spool import Spool, Writer

__all__ = ["Completion", "Reporter", "Turn"]
logger = logging.getLogger("cohort")
MAX_SETTINGS_BYTES = 60_000
MAX_STEP = 2**31 - 1
MAX_QUEUED = 10_000  # reports that are not on disk yet
CLOSE_SECONDS = 10.0


@contextmanager
def keep_training() -> Iterator[None]:
    """Log an error of reporting, in place of raising it into the training."""
    try:
        yield
    except Exception:
        logger.exception("Reporting to Cohort failed. The training continues.")


class Reporter:
    """Reports one run. After a restart, the same folder continues it.

    name         of the run, up to 80 characters
    num_steps    planned steps; None: unknown
    settings     of the training, shown and compared
    rules        weight of each part of the reward (default 1)
    right_from   lowest reward of a correct completion; None: unknown
    folder       for unsent events; None: a new folder in ./cohort-runs
    from_step    last step before a restart, for a folder used before
    server       None: from COHORT_URL and COHORT_TOKEN, or `cohort login`
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
        self._reports: queue.Queue[Any] = queue.Queue(MAX_QUEUED)
        self._num_dropped = 0
        self._has_ended = self._is_closed = False
        self._writer: threading.Thread | None = None
        self._sender: Sender | None = None
        try:
            # Truncated to the server's limits, rather than refused.
            weights = {
                str(rule)[:40]: number(value) for rule, value in (rules or {}).items()
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
            # The training must continue without Cohort.
            logger.exception("Failed to start reporting this run to Cohort.")
            self._is_closed = True

    def _begin(
        self, opening: dict[str, Any], from_step: int, server: Server | None
    ) -> None:
        spool = Spool(self.folder)
        if not spool.exists:
            spool.create(opening)
        file = spool.begin_attempt(from_step)
        writer = Writer(spool, file, right_from=opening["right_from"])
        if server := server or _server_of_login(self.folder):
            self._sender = Sender(spool, server)
            self._sender.start()
        self._writer = threading.Thread(
            target=self._write, args=(writer,), name="cohort-writer", daemon=True
        )
        self._writer.start()
        atexit.register(self._at_exit)

    @property
    def address(self) -> str:
        """URL of the run's page; empty until the server is reached."""
        return self._sender.address if self._sender else ""

    @property
    def num_dropped(self) -> int:
        """Reports lost because the disk was too slow."""
        return self._num_dropped

    def group(
        self,
        step: int,
        prompt: str,
        completions: Sequence[Completion],
        *,
        answer: str | Sequence[str] | None = None,
    ) -> None:
        """Report all completions of a prompt at a step; call it before `step`."""
        self._report(Writer.group, lambda: (step, prompt, tuple(completions), answer))

    def step(self, step: int, metrics: Mapping[str, Any] | None = None) -> None:
        """Report a finished step; its groups' metrics are computed from the groups."""
        self._report(Writer.step, lambda: (step, dict(metrics or {})))

    def log_mismatch(
        self,
        step: int,
        old_logprobs: Any,
        sampling_logprobs: Any,
        mask: Any,
        *,
        advantages: Any = None,
        age: int | None = None,
        incomparable: str | None = None,
        dtype: Any = None,
    ) -> None:
        """Report how far sampler and trainer are apart; needs numpy.

        Log-probs [B, T] of a step's tokens, arrays or tensors: by the trainer before
        the step's first update, and by the sampler; 1 in the mask on the policy's
        tokens in the loss. Call it once or in parts, before `step`.

        advantages    of the completions [B]; None: unknown
        age           updates between the weights that sampled and the first update
        incomparable  "restricted" (top_p and its like) or "temperature" (they differ)
        dtype         "bfloat16", "float16" or "float32", or torch's: the coarser number
                      format of sampler and trainer; None: unknown
        """

        def measured() -> tuple[Any, ...]:
            from cohort.mismatch import (  # noqa: PLC0415 - needs numpy
                measure_gaps,
                round_numbers,
            )

            known = [math.nan] * len(mask) if advantages is None else advantages
            rows = _on_host(known)
            gaps = measure_gaps(
                _on_host(old_logprobs),
                _on_host(sampling_logprobs),
                _on_host(mask),
                rows,
            )
            fields = {
                "age": age,
                "incomparable": incomparable,
                "dtype": dtype and str(dtype).removeprefix("torch."),
            }
            return step, gaps, round_numbers(rows), fields

        self._report(Writer.mismatch, measured)

    def evaluated(
        self,
        step: int,
        name: str,
        metrics: Mapping[str, Any],
        *,
        num_prompts: int = 0,
        samples_per_prompt: int = 1,
    ) -> None:
        """Held-out scores; names in `metrics` lack the prefix "eval/<name>/"."""
        counts = (num_prompts, samples_per_prompt)
        self._report(Writer.evaluated, lambda: (step, name, dict(metrics), *counts))

    def warn(self, step: int, code: str, message: str) -> None:
        self._report(Writer.warned, lambda: (step, code, message))

    def wait_for_disk(self, max_queued: int = 1_000) -> None:
        """Wait until fewer reports are queued; not for the process that trains."""
        while self._reports.qsize() > max_queued and not self._is_closed:
            time.sleep(0.01)

    def finish(self) -> None:
        """Report that the run finished."""
        self._end("run_finished")

    def stop(self) -> None:
        """Report that the run was stopped before its last step."""
        self._end("run_stopped", checkpoint=None)

    def fail(self, error: str, details: str = "") -> None:
        self._end("run_failed", error=error, details=details)

    def _end(self, kind: str, **fields: Any) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._report(Writer.ended, lambda: (kind, fields))

    def _report(
        self, method: Callable[..., None], arguments: Callable[[], tuple[Any, ...]]
    ) -> None:
        """`arguments` copies what the trainer may change before it is written."""
        if (
            self._is_closed or os.getpid() != self._pid
        ):  # a forked child reports nothing
            return
        try:
            self._reports.put_nowait((time.time(), method, *arguments()))
        except queue.Full:
            self._num_dropped += 1
        except (TypeError, ValueError, ImportError) as error:
            logger.warning("Dropped an invalid %s: %s", method.__name__, error)

    def close(self, *, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """Write all, and send for up to `timeout_seconds`; the rest stays on disk."""
        if self._is_closed or os.getpid() != self._pid:
            return
        self._is_closed = True
        atexit.unregister(self._at_exit)
        assert self._writer
        end = time.monotonic() + timeout_seconds
        try:
            self._reports.put(None, timeout=timeout_seconds)
        except queue.Full:
            logger.warning("The disk is too slow. Not all events were written.")
        self._writer.join(max(0.0, end - time.monotonic()))
        if self._sender:
            self._sender.close(max(0.0, end - time.monotonic()))

    def _write(self, writer: Writer) -> None:
        try:
            while (report := self._reports.get()) is not None:
                writer.write(report)
                # One flush for all reports that are queued.
                while not self._reports.empty():
                    if (report := self._reports.get()) is None:
                        break
                    writer.write(report)
                writer.flush(num_dropped=self._num_dropped)
                if self._sender:
                    self._sender.wake()
                if report is None:
                    break
            writer.close()
        except Exception:
            logger.exception("Failed to record this run. Cohort gets no more of it.")
            self._is_closed = True

    def _at_exit(self) -> None:
        """Finish at process exit; sys.last_value is set after an uncaught error."""
        error = getattr(sys, "last_value", None)
        if isinstance(error, Exception):
            self._fail_with(error)
        elif not self._has_ended:
            self.stop()
        self.close()

    def _fail_with(self, error: BaseException) -> None:
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
            self._fail_with(error)
        else:  # KeyboardInterrupt or SystemExit
            self.stop()
        self.close()


def _server_of_login(folder: Path) -> Server | None:
    try:
        return find_server()
    except ValueError as error:
        logger.warning(
            "%s Events are kept in %s. Send them later with `cohort sync %s`.",
            error,
            folder,
            folder,
        )
        return None


def _on_host(values: Any) -> Any:
    """Numbers for numpy, also those of torch on a GPU, or in bfloat16."""
    return values.detach().float().cpu() if hasattr(values, "detach") else values


def _fitting(settings: dict[str, Any]) -> dict[str, Any]:
    """Leave out the longest settings, until the rest fits."""
    sizes = {name: len(json.dumps([name, value])) for name, value in settings.items()}
    total = sum(sizes.values())
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        if total <= MAX_SETTINGS_BYTES:
            break
        total -= sizes[name]
        settings = {n: value for n, value in settings.items() if n != name}
    return settings
