"""Report a run by following the files that its trainer writes.

    cohort follow /data/run --name my-run

The follower is a separate process, so it cannot slow or stop the training; it can be
started late or restarted. `FORMATS` has the trainers; a folder's files tell which one
writes there.
"""

from __future__ import annotations

import json
import logging
import signal
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from cohort.formats.files import Format, Part, Rollout, read_lines, tree_of
from cohort.formats.prime_rl import PrimeRl
from cohort.formats.samples import MsSwift, NemoRl, Verl
from cohort.formats.tinker import Tinker
from cohort.lines import number
from cohort.output import short
from cohort.reporter import Reporter
from cohort.spool import BAD_VALUE, Spool

logger = logging.getLogger("cohort")
ABOUT = "follow the files of another trainer; Ctrl-C ends the run as finished"
FORMATS: dict[str, type[Format]] = {
    form.name: form for form in (Verl, PrimeRl, NemoRl, MsSwift, Tinker)
}
# Loading a pickle runs the code in it. By their names, with the hook to use instead.
PICKLES = {
    "global_step_*_training_input.pkl": "cohort.skyrl",
    "*.pt": "cohort.slime",
    "*.pkl": "cohort.reporter",
}
POLL_SECONDS = 1.0
SETTLE_SECONDS = 10.0
MAX_NAMES = 8  # of files, in an error
MAX_CHARS = 200  # of a name or value


class Follower:
    """Reports each step when its lines are complete.

    They are, if the next step has begun and they stayed the same between two polls. A
    file can be late where several threads write, so a step behind a gap, or the last
    one, has to stay the same for `settle_seconds`. A step waits for its metrics until
    two later ones have begun.
    """

    def __init__(
        self,
        source: Format,
        reporter: Reporter,
        *,
        metrics: MetricLines,
        last_step: int = 0,
        settle_seconds: float = SETTLE_SECONDS,
        reported: Mapping[int, Part] | None = None,
    ) -> None:
        """`reported`: by the attempt before, whose later steps are not reported again
        without a change.
        """
        self._source = source
        self._reporter = reporter
        self._metrics = metrics
        self._last_step = last_step
        self._settle_seconds = settle_seconds
        # As they were when they were reported.
        self.reported = {
            step: part
            for step, part in source.parts(last_step).items()
            if step <= last_step
        } | {step: p for step, p in (reported or {}).items() if step > last_step}
        self._unchanged: dict[int, tuple[Part, float]] = {}  # since when
        self.num_bad = 0  # lines
        # The trainer has written earlier steps again: the last one before them.
        self.back_to: int | None = None

    def poll(self, *, is_over: bool = False) -> int:
        """Report new steps; returns their number. `is_over`: the trainer has ended."""
        self._metrics.read()
        parts = self._source.parts(self._last_step)
        changed = [s for s in sorted(parts) if self.reported.get(s) != parts[s]]
        if changed and changed[0] <= self._last_step:
            self.back_to = changed[0] - 1
            return 0
        now, known = monotonic(), self._unchanged
        firsts = {step: known.get(step, (None, now)) for step in changed}
        self._unchanged = {
            step: (parts[step], since if part == parts[step] else now)
            for step, (part, since) in firsts.items()
        }
        num = 0
        for step in changed:
            is_seen = self._unchanged[step] == known.get(step)
            if not (is_over or (is_seen and self._is_complete(step, changed[-1], now))):
                break
            self._report(step, parts[step])
            num += 1
        return num

    def _is_complete(self, step: int, newest: int, now: float) -> bool:
        part, since = self._unchanged[step]
        if newest < step + 2 and not self._metrics.has(step):
            return False
        is_next, is_whole = step == self._last_step + 1, _ends_whole(part)
        if now - since >= self._settle_seconds:
            return is_whole or newest > step
        return is_whole and is_next and newest > step

    def _report(self, step: int, part: Part) -> None:
        earlier = self.reported.get(step)
        self.reported[step] = part
        if self._source.is_appended and earlier and earlier.end < part.end:
            part = replace(part, start=earlier.end)
        groups: dict[tuple[object, ...], list[Rollout]] = {}
        for place, line in enumerate(read_lines(part), start=1):
            try:
                rollouts = self._source.rollouts(json.loads(line), part)
            except (*BAD_VALUE, RecursionError) as error:
                self._warn_of(error, step, f"line {place} of {part.path.name}")
                continue
            for rollout in rollouts:
                groups.setdefault(rollout.key, []).append(rollout)
        for first, *others in groups.values():
            completions = [rollout.completion for rollout in (first, *others)]
            self._reporter.group(step, first.prompt, completions, answer=first.answer)
        self._reporter.step(step, self._metrics.of(step))
        self._reporter.wait_for_disk()
        self._last_step = step

    def _warn_of(self, error: Exception, step: int, place: str) -> None:
        self.num_bad += 1
        if self.num_bad == 1:
            message = (
                f"Skipped {place} (step {step}): {type(error).__name__}: "
                f"{short(str(error), MAX_CHARS)}. Further ones are counted only."
            )
            logger.warning("%s", message)
            self._reporter.warn(step, "bad_line", message)


def _ends_whole(part: Part) -> bool:
    last = replace(part, start=max(part.start, part.end - 1))
    return b"".join(read_lines(last)) in (b"\n", b"")


class MetricLines:
    """The metrics by step, read as they are written."""

    def __init__(self, source: Format, path: Path | None = None) -> None:
        name = source.metrics_path
        self._path = path or (source.folder / name if name else None)
        self._source = source
        self._offset = 0
        self._by_step: dict[int, dict[str, Any]] = {}

    def read(self) -> None:
        if self._path is None or not self._path.exists():
            return
        end = self._path.stat().st_size
        if end < self._offset:  # verl's logger begins the file again
            self._offset = 0
        for line in read_lines(Part(path=self._path, start=self._offset, end=end)):
            if not line.endswith(b"\n"):
                break
            self._offset += len(line)
            tree = tree_of(line)
            if step := self._source.metrics_step(tree):
                metrics = self._by_step.setdefault(step, {})
                metrics |= self._source.metrics_of(tree)

    def has(self, step: int) -> bool:
        """Return whether the step's last ones are written, or there is no file."""
        names = self._by_step.get(step, ())
        last = self._source.last_metric
        return self._path is None or any(name.startswith(last) for name in names)

    def of(self, step: int) -> dict[str, Any]:
        """Drops them, and those of earlier steps."""
        metrics = self._by_step.get(step, {})
        self._by_step = {s: data for s, data in self._by_step.items() if s > step}
        return metrics


def find_format(folder: Path) -> Format | None:
    """Return the format of the folder's files; None: there are none yet.

    ValueError: it has pickles, and nothing else.
    """
    for form in FORMATS.values():
        if (source := form(folder)).is_found():
            return source
    for pattern, hook in PICKLES.items():
        if path := next(folder.glob(pattern), None):
            raise ValueError(
                f"{path.name} is a pickle, which runs code when it is loaded, so "
                f"Cohort does not read it. Report from the trainer with {hook}."
            )
    return None


def describe(folder: Path) -> str:
    """Say what the folder has, and which formats are known."""
    paths = folder.iterdir() if folder.is_dir() else ()
    names = sorted(short(path.name, MAX_CHARS) for path in paths)
    some = ", ".join(names[:MAX_NAMES]) + (", …" if len(names) > MAX_NAMES else "")
    return (
        f"{folder} has no rollouts of a known format ({', '.join(FORMATS)}); it has "
        f"{some or 'no files'}."
    )


def follow(
    folder: Path,
    *,
    form: str = "",
    name: str = "",
    metrics: Path | None = None,
    right_from: float | None = None,
    settle_seconds: float = SETTLE_SECONDS,
    end: threading.Event,
) -> None:
    """Report new steps until `end` is set, then the rest, and finish the run.

    A folder followed before continues its run, under the same name. ValueError: until
    the end, nothing of a known format was written.
    """
    source = FORMATS[form](folder) if form else find_format(folder)
    if source is None:
        logger.warning("%s Waiting for some.", describe(folder))
    while source is None:
        is_over = end.wait(POLL_SECONDS)
        source = find_format(folder)
        if is_over and source is None:
            raise ValueError(describe(folder))
    assert source is not None
    state = folder / "cohort"
    spool = Spool(state)
    last_step = _last_step(spool)
    if spool.exists:
        _log_continued(spool, name, last_step)
    settings = source.settings()
    models = (settings.get(key) for key in ("model.name", "model", "model_name"))
    lines = MetricLines(source, metrics)
    reported: Mapping[int, Part] | None = None
    num_bad, is_over = 0, False
    while not is_over:
        with Reporter(
            name or folder.resolve().name,
            tool=source.tool,
            folder=state,
            from_step=last_step,
            num_steps=int(number(settings.get("max_steps")) or 0),
            model=str(next((model for model in models if model), "")),
            settings=settings,
            rules=source.rules,
            right_from=right_from,
            notes=source.notes,
        ) as reporter:
            follower = Follower(
                source,
                reporter,
                metrics=lines,
                last_step=last_step,
                settle_seconds=settle_seconds,
                reported=reported,
            )
            while follower.back_to is None and not is_over:
                is_over = end.wait(POLL_SECONDS)
                follower.poll(is_over=is_over)
            num_bad += follower.num_bad
            if follower.back_to is not None:
                last_step, reported = follower.back_to, follower.reported
                is_over = False
                logger.warning("The trainer has written step %d again.", last_step + 1)
                reporter.close()  # the run goes on, with another attempt
    if num_bad:
        logger.warning("Skipped %d lines that could not be read.", num_bad)


def _last_step(spool: Spool) -> int:
    """Return the last step that is written to the folder's events."""
    last_step = 0
    attempts = spool.state().attempts
    for index, attempt in enumerate(attempts, start=1):
        last_step = attempt.from_step
        with spool.events_path(index).open("rb") as file:
            for line in file:
                if line.startswith(b'{"type":"step_finished"') and line.endswith(b"\n"):
                    last_step = max(last_step, int(json.loads(line)["step"]))
    return last_step


def _log_continued(spool: Spool, name: str, last_step: int) -> None:
    """ValueError: the folder's run has another name than the requested one."""
    earlier, state = str(spool.opening()["name"]), spool.state()
    run = "a run that is not sent yet" if state.run is None else f"run {state.run}"
    if name.strip()[:80] not in ("", earlier):
        raise ValueError(
            f"{spool.folder} belongs to {run} named {earlier!r}; got --name {name!r}. "
            f"Omit --name to continue that run, or move {spool.folder} to start a new "
            "one."
        )
    logger.warning(
        "Continuing %s (%s) after step %d. %s", run, earlier, last_step, state.address
    )


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="folder that the trainer writes to")
    parser.add_argument(
        "--name", default="", help="run name (default: the folder name)"
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="",
        help="the trainer's files (default: told by their names and keys)",
    )
    parser.add_argument(
        "--metrics",
        type=Path,
        metavar="FILE",
        help="JSONL file of metrics, such as that of verl's file logger",
    )
    parser.add_argument(
        "--right-from",
        type=float,
        metavar="REWARD",
        help="lowest reward of a correct completion",
    )
    parser.add_argument(
        "--settle",
        type=float,
        default=SETTLE_SECONDS,
        metavar="SECONDS",
        help="report the last file when it has not changed for so long (default: "
        "%(default)g)",
    )


def run(args: Namespace) -> None:
    end = threading.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda *_: end.set())
    follow(
        args.folder,
        form=args.format,
        name=args.name,
        metrics=args.metrics,
        right_from=args.right_from,
        settle_seconds=args.settle,
        end=end,
    )
