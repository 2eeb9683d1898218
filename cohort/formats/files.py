"""Files of steps: where each step's lines stand, and completions in a line."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any, ClassVar

from cohort.lines import Completion

# Only these are looked at again. A trainer that restarts goes back to a checkpoint.
MAX_LOOKED_AT = 1_000  # of the steps reported last
_SECRET = re.compile(r"(token|key|secret|password)$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """The place of a step's lines, from byte `start` to byte `end`."""

    path: Path
    start: int = 0
    end: int
    changed: int = 0  # nanoseconds since 1970; 0: the file has other steps, too


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """A completion, with its prompt."""

    prompt: str
    completion: Completion
    answer: str | list[str] | None = None
    group: str = ""  # if the trainer names it; else equal prompts are of one group

    @property
    def key(self) -> tuple[object, ...]:
        """The same for all rollouts of a group."""
        answers = self.answer if isinstance(self.answer, str) else self.answer or ()
        return (self.group,) if self.group else (self.prompt, tuple(answers))


class Format:
    """The files of a trainer, each of which has the lines of one step."""

    name: ClassVar[str]  # as `--format` has it
    tool: ClassVar[str]
    # Under `place` there is a file of each step, or `inner` in a folder of each.
    place: ClassVar[str] = ""
    step_name: ClassVar[re.Pattern[str]]
    inner: ClassVar[str] = ""
    keys: ClassVar[frozenset[str]]  # of each line
    first_step: ClassVar[int] = 1  # Cohort counts steps from 1
    is_appended: ClassVar[bool] = False  # a restarted trainer appends to the files
    settings_path: ClassVar[str] = ""  # JSON
    metrics_path: ClassVar[str] = ""  # JSONL
    # The beginning of a metric's name that is logged last in a step.
    last_metric: ClassVar[str] = ""
    rules: ClassVar[Mapping[str, float]] = {}  # weights that are not 1
    notes: ClassVar[str] = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def parts(self, after: int) -> dict[int, Part]:
        """Return steps by their number, from a while before `after` on."""
        place, parts = self.folder / self.place, {}
        names = os.listdir(place) if place.is_dir() else ()
        for match in filter(None, map(self.step_name.fullmatch, names)):
            name, step = match[0], int(match[1]) + 1 - self.first_step
            if step <= max(0, after - MAX_LOOKED_AT):
                continue
            path = place / name / self.inner if self.inner else place / name
            with suppress(OSError):  # the folder is made first
                stat = path.stat()
                if stat.st_size and S_ISREG(stat.st_mode):
                    parts[step] = Part(
                        path=path, end=stat.st_size, changed=stat.st_mtime_ns
                    )
        return parts

    def is_found(self) -> bool:
        """Return whether the first whole line of a step has the keys."""
        parts = self.parts(0)
        line = next(read_lines(parts[min(parts)]), b"") if parts else b""
        return line.endswith(b"\n") and self.keys <= set(tree_of(line))

    def rollouts(self, tree: dict[str, Any], part: Part) -> Sequence[Rollout]:
        """Return the completions of a line. LookupError, TypeError, ValueError or
        AttributeError: it is not a line of this format.
        """
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """Return the trainer's settings by their path, if it has written them."""
        path = self.folder / self.settings_path
        return settings_of(tree_of(path.read_bytes())) if path.is_file() else {}

    def metrics_step(self, tree: dict[str, Any]) -> int:
        """Return the step of a line of metrics; 0: it has none."""
        step = tree.get("step")
        return step + 1 - self.first_step if isinstance(step, int) else 0

    def metrics_of(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Return the metrics of a line."""
        return {
            name: value
            for name, value in tree.items()
            if isinstance(value, int | float) and name not in ("step", "time")
        }


def read_lines(part: Part) -> Iterator[bytes]:
    """Yield a part's lines, the last of which may have no end."""
    if part.start == part.end:
        return
    with part.path.open("rb") as file:
        file.seek(part.start)
        while line := file.readline(part.end - file.tell()):
            yield line


def tree_of(line: bytes) -> dict[str, Any]:
    """Return the object that a line holds; empty if it is none."""
    try:
        tree = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


def settings_of(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by their path, without secrets.

    >>> settings_of({"optim": {"lr": 1e-6}, "hub_token": "hf_", "env": [{"key": ""}]})
    {'optim.lr': 1e-06, 'env': [{}]}
    """
    values: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            values |= settings_of(value, f"{prefix}{name}.")
        elif value is not None and not _SECRET.search(str(name)):
            values[f"{prefix}{name}"] = _without_secrets(value)
    return values


def _without_secrets(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_without_secrets(item) for item in value]
    return settings_of(value) if isinstance(value, Mapping) else value
