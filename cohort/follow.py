"""Report a run of verl by following the rollout dumps of its RayPPOTrainer.

    trainer.rollout_data_dir=/data/rollouts      # verl's own setting

    cohort verl /data/rollouts --name my-run
    cohort verl /data/rollouts --metrics /data/metrics.jsonl

verl writes `<step>.jsonl` for each step (`_dump_generations`): input, output, gts,
score, step, and the reward function's extra values. Metrics come from verl's file
logger (`trainer.logger=["console","file"]`, `VERL_FILE_LOGGER_PATH`): lines of
`{"step", "data"}`. The follower is a separate process, so it cannot slow or stop the
training; it can be started late or restarted.
"""

from __future__ import annotations

import json
import logging
import signal
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cohort.lines import (
    Completion,
    answer_of,
    guess_turns,
    number,
    text_of,
)
from cohort.reporter import Reporter
from cohort.spool import Spool

logger = logging.getLogger("cohort")
ABOUT = "follow verl's rollout dumps; Ctrl-C ends the run as finished"
OWN = {"input", "output", "gts", "score", "step"}
POLL_SECONDS = 1.0


class Follower:
    """Reports each step when its file is complete: the next one has begun, or the size
    stayed the same between two polls.
    """

    def __init__(
        self,
        folder: Path,
        reporter: Reporter,
        *,
        metrics: Path | None,
        last_step: int = 0,
    ) -> None:
        self._folder = folder
        self._reporter = reporter
        self._metrics = MetricLines(metrics) if metrics else None
        self._last_step = last_step
        self._sizes: dict[int, int] = {}

    def poll(self, *, is_over: bool = False) -> int:
        """Report new steps; returns their number. `is_over`: verl has ended."""
        if self._metrics:
            self._metrics.read()
        new = sorted(step for step in _steps(self._folder) if step > self._last_step)
        num = 0
        for step in new:
            if not (is_over or step != new[-1] or self._is_complete(step)):
                break
            self._report(step)
            num += 1
        return num

    def _is_complete(self, step: int) -> bool:
        size = self._path(step).stat().st_size
        is_unchanged = self._sizes.get(step) == size
        self._sizes = {step: size}
        return is_unchanged and size > 0

    def _path(self, step: int) -> Path:
        return self._folder / f"{step}.jsonl"

    def _report(self, step: int) -> None:
        groups: dict[tuple[str, str | tuple[str, ...] | None], list[Completion]] = {}
        for row in _rows(self._path(step)):
            truth = answer_of(row.get("gts"))
            answer = tuple(truth) if isinstance(truth, list) else truth
            key = (text_of(row["input"]), answer)
            # The score is the reward; other numbers are further rules.
            score = number(row.get("score"))
            others = {
                name: number(value)
                for name, value in row.items()
                if name not in OWN and isinstance(value, int | float)
            }
            text = text_of(row["output"])
            groups.setdefault(key, []).append(
                Completion(
                    text=text,
                    turns=guess_turns(text),
                    reward=score,
                    rules={"score": score} | others,
                )
            )
        for (prompt, answer), completions in groups.items():
            self._reporter.group(step, prompt, completions, answer=answer)
        metrics = self._metrics.of(step) if self._metrics else {}
        self._reporter.step(step, metrics)
        self._last_step = step


class MetricLines:
    """The file logger's lines, read as they are written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._by_step: dict[int, dict[str, Any]] = {}

    def read(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                tree = _tree(line)
                if isinstance(tree.get("step"), int):
                    data = tree.get("data")
                    metrics = self._by_step.setdefault(tree["step"], {})
                    metrics |= data if isinstance(data, dict) else {}

    def of(self, step: int) -> dict[str, Any]:
        """Drops them, and those of earlier steps."""
        metrics = self._by_step.get(step, {})
        self._by_step = {s: data for s, data in self._by_step.items() if s > step}
        return metrics


def _steps(folder: Path) -> Iterator[int]:
    if folder.is_dir():
        for path in folder.iterdir():
            if path.suffix == ".jsonl" and path.stem.isdecimal():
                yield int(path.stem)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            row = _tree(line)
            if isinstance(row.get("input"), str | list) and "output" in row:
                yield row
            else:
                logger.warning(
                    "Skipped %s, line %d: input or output is missing.", path, number
                )


def _tree(line: bytes) -> dict[str, Any]:
    try:
        tree = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


def follow(
    folder: Path,
    *,
    name: str = "",
    metrics: Path | None = None,
    right_from: float | None = None,
    end: threading.Event,
) -> None:
    """Report new dumps until `end` is set, then the rest, and finish the run.

    A folder followed before continues its run, under the same name.
    """
    state = folder / "cohort"
    spool = Spool(state)
    last_step = 0
    for index in range(1, len(spool.state().attempts) + 1):
        with spool.events_path(index).open("rb") as file:
            for line in file:
                if line.startswith(b'{"type":"step_finished"') and line.endswith(b"\n"):
                    last_step = max(last_step, int(json.loads(line)["step"]))
    if spool.exists:
        _log_continued(spool, name, last_step)
    with Reporter(
        name or folder.resolve().name,
        tool="verl",
        folder=state,
        from_step=last_step,
        right_from=right_from,
        rules={"score": 1.0},
    ) as reporter:
        follower = Follower(folder, reporter, metrics=metrics, last_step=last_step)
        while not end.wait(POLL_SECONDS):
            follower.poll()
        follower.poll(is_over=True)


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
    parser.add_argument(
        "folder", type=Path, help="folder of verl's trainer.rollout_data_dir"
    )
    parser.add_argument(
        "--name", default="", help="run name (default: the folder name)"
    )
    parser.add_argument(
        "--metrics", type=Path, metavar="FILE", help="output of verl's file logger"
    )
    parser.add_argument(
        "--right-from",
        type=float,
        metavar="SCORE",
        help="lowest score of a correct completion",
    )


def run(args: Namespace) -> None:
    end = threading.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda *_: end.set())
    follow(
        args.folder,
        name=args.name,
        metrics=args.metrics,
        right_from=args.right_from,
        end=end,
    )
