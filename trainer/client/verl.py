"""verl's rollout dumps, followed: what RayPPOTrainer writes becomes a run of Cohort.

    trainer.rollout_data_dir=/data/rollouts      # verl's own setting

    cohort verl /data/rollouts --name my-run
    cohort verl /data/rollouts --metrics /data/metrics.jsonl

verl writes `<step>.jsonl` for each step (`_dump_generations`): input, output, gts,
score, step, and what the reward function told besides. Metrics are of verl's file
logger (`trainer.logger=["console","file"]`, `VERL_FILE_LOGGER_PATH`): lines of
`{"step", "data"}`. The follower runs beside the training, not in it, so it can neither
slow nor stop it; it may be started late, and again.
"""

from __future__ import annotations

import json
import logging
import signal
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainer.client.lines import Completion, answer_of, number, text_of
from trainer.client.reporter import Reporter
from trainer.client.spool import Spool

logger = logging.getLogger("cohort")
ABOUT = "follow verl's rollout dumps; Ctrl-C ends the run as finished"
OWN = {"input", "output", "gts", "score", "step"}
LOOK_SECONDS = 1.0


class Follower:
    """Tells each step once its file is whole: when the next one has begun, or nothing
    was added to it between two looks."""

    def __init__(
        self, folder: Path, reporter: Reporter, *, metrics: Path | None, behind: int = 0
    ) -> None:
        self._folder = folder
        self._reporter = reporter
        self._metrics = MetricLines(metrics) if metrics else None
        self._told = behind  # the last step
        self._sizes: dict[int, int] = {}

    def look(self, *, is_over: bool = False) -> int:
        """Tell what is new; how many steps. `is_over`: no file grows any more."""
        if self._metrics:
            self._metrics.read()
        there = sorted(step for step in _steps(self._folder) if step > self._told)
        num = 0
        for step in there:
            if not (is_over or step != there[-1] or self._rests(step)):
                break
            self._tell(step)
            num += 1
        return num

    def _rests(self, step: int) -> bool:
        size = self._path(step).stat().st_size
        rests = self._sizes.get(step) == size
        self._sizes = {step: size}
        return rests and size > 0

    def _path(self, step: int) -> Path:
        return self._folder / f"{step}.jsonl"

    def _tell(self, step: int) -> None:
        groups: dict[tuple[str, str | None], list[Completion]] = {}
        for row in _rows(self._path(step)):
            key = (text_of(row["input"]), answer_of(row.get("gts")))
            groups.setdefault(key, []).append(_completion(row))
        for (prompt, answer), completions in groups.items():
            self._reporter.group(step, prompt, completions, answer=answer)
        told = self._metrics.of(step) if self._metrics else {}
        self._reporter.step(step, told)
        self._told = step


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
                    known = self._by_step.setdefault(tree["step"], {})
                    known |= data if isinstance(data, dict) else {}

    def of(self, step: int) -> dict[str, Any]:
        """Once; those of steps before are forgotten."""
        found = self._by_step.get(step, {})
        self._by_step = {s: one for s, one in self._by_step.items() if s > step}
        return found


def _steps(folder: Path) -> Iterator[int]:
    if folder.is_dir():
        for path in folder.iterdir():
            if path.suffix == ".jsonl" and path.stem.isdecimal():
                yield int(path.stem)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for place, line in enumerate(file, start=1):
            row = _tree(line)
            if isinstance(row.get("input"), str | list) and "output" in row:
                yield row
            else:
                logger.warning(
                    "%s, line %d has no input and output, so it is skipped.",
                    path,
                    place,
                )


def _tree(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _completion(row: Mapping[str, Any]) -> Completion:
    """The score is the reward; what else is a number was told besides."""
    score = number(row.get("score"))
    besides = {
        name: number(value)
        for name, value in row.items()
        if name not in OWN and isinstance(value, int | float)
    }
    return Completion(
        text=text_of(row["output"]), reward=score, rules={"score": score} | besides
    )


def follow(
    folder: Path,
    *,
    name: str = "",
    metrics: Path | None = None,
    right_from: float | None = None,
    end: threading.Event,
) -> None:
    """Send new dumps until `end` is set, then the rest, and finish the run.

    A folder that was followed before goes on with its run, which keeps its name.
    """
    kept = folder / "cohort"
    spool = Spool(kept)
    behind = _last_told(spool)
    if spool.is_there:
        _say_continued(spool, name, behind)
    with Reporter(
        name or folder.resolve().name,
        tool="verl",
        folder=kept,
        from_step=behind,
        right_from=right_from,
        rules={"score": 1.0},
    ) as reporter:
        follower = Follower(folder, reporter, metrics=metrics, behind=behind)
        while not end.wait(LOOK_SECONDS):
            follower.look()
        follower.look(is_over=True)


def _say_continued(spool: Spool, name: str, behind: int) -> None:
    """ValueError where the run has another name than the one asked for."""
    known, state = str(spool.opening()["name"]), spool.state()
    run = "a run not sent yet" if state.run is None else f"run {state.run}"
    if name.strip()[:80] not in ("", known):
        raise ValueError(
            f"{spool.folder} belongs to {run}, named {known!r}; got --name {name!r}. "
            f"Leave --name out to continue that run, or move {spool.folder} away to "
            "begin another."
        )
    logger.warning(
        "Continues %s (%s) after step %d. %s", run, known, behind, state.address
    )


def _last_told(spool: Spool) -> int:
    """The last step that a life before finished telling of."""
    last = 0
    for place in range(1, len(spool.state().lives) + 1):
        with spool.life(place).open("rb") as file:
            for line in file:
                if line.startswith(b'{"type":"step_finished"') and line.endswith(b"\n"):
                    last = max(last, int(json.loads(line)["step"]))
    return last


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, help="the folder of verl's trainer.rollout_data_dir"
    )
    parser.add_argument(
        "--name", default="", help="the run's name (default: the folder's name)"
    )
    parser.add_argument(
        "--metrics", type=Path, metavar="FILE", help="the file of verl's file logger"
    )
    parser.add_argument(
        "--right-from",
        type=float,
        metavar="SCORE",
        help="count a completion as right from this score on",
    )


def run(given: Namespace) -> None:
    end = threading.Event()
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, lambda *_: end.set())
    follow(
        given.folder,
        name=given.name,
        metrics=given.metrics,
        right_from=given.right_from,
        end=end,
    )
