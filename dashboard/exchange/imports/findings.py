"""What is in an import's files, for the page that is shown before a run is made."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from dashboard.datasets.limits import MAX_ROWS, SHOWN_REFUSALS
from dashboard.datasets.parsing.records import Refusal
from dashboard.datasets.row import as_json
from dashboard.exchange.imports.items import LATEST_TIME, Point, Sample
from dashboard.exchange.imports.reading import WANDB, Found
from dashboard.exchange.imports.rewards import default_weights, reward_of
from dashboard.exchange.imports.scalars import SEPARATOR

SHOWN_FILES = 200
SHOWN_COLUMNS = 300
MAX_SCORES = 300  # each has a field on the page that makes the run


def digest_of(sample: Sample) -> bytes:
    """Of what makes its prompt another one: the text, and the answer where told."""
    return blake2b(
        as_json([sample.prompt, sample.answer]).encode(), digest_size=16
    ).digest()


@dataclass(slots=True)
class FileFindings:
    name: str
    num_bytes: int
    tool: str = ""
    num_rows: int = 0
    num_refused: int = 0
    first_step: int | None = None
    last_step: int | None = None

    def take(self, step: int) -> None:
        first, last = self.first_step, self.last_step
        self.first_step = step if first is None else min(first, step)
        self.last_step = step if last is None else max(last, step)

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class Findings:
    """Of all files, while they are read; memory grows with prompts and steps only."""

    files: dict[int, FileFindings] = field(default_factory=dict)
    columns: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    refusals: list[dict[str, Any]] = field(default_factory=list)
    num_refused: int = 0
    num_rows: int = 0
    num_samples: int = 0
    num_points: int = 0
    num_values: int = 0
    num_advantages: int = 0
    num_scored: int = 0
    first_time: float | None = None  # of those that the files tell
    scores: dict[str, int] = field(default_factory=dict)  # by rule: how many
    score_tools: dict[str, str] = field(default_factory=dict)
    highest: float | None = None
    lowest: float | None = None
    wandb_runs: dict[str, None] = field(default_factory=dict)
    steps: set[int] = field(default_factory=set)
    _prompts: set[bytes] = field(default_factory=set)
    _groups: set[bytes] = field(default_factory=set)
    _owners: dict[int, int] = field(default_factory=dict)  # of a step's completions

    def add(self, found: Found) -> Refusal | None:
        """Take it in; a refusal where the row cannot be taken."""
        file = self.files.setdefault(
            found.file.pk, FileFindings(found.file.filename, found.file.num_bytes)
        )
        file.tool = file.tool or found.tool
        item = found.item
        if isinstance(item, Sample):
            item = self._refuse_twice(found, item) or item
        if isinstance(item, Refusal):
            self._refuse(file, item)
            return item
        for column, meaning in found.columns.items():
            if len(self.columns) < SHOWN_COLUMNS:
                self.columns[found.tool, column, meaning] += 0
        if item is not None:
            file.num_rows += 1
            self.num_rows += 1
            self._take(found, file, item)
        return None

    def _refuse_twice(self, found: Found, sample: Sample) -> Refusal | None:
        owner = self._owners.setdefault(sample.step, found.file.pk)
        if owner == found.file.pk:
            return None
        other = self.files[owner].name
        return Refusal(
            value=f"step {sample.step}",
            problem=f"The completions of this step are in {other} already.",
            remedy="Import training and validation apart, and no file twice.",
        )

    def _refuse(self, file: FileFindings, refusal: Refusal) -> None:
        file.num_refused += 1
        self.num_refused += 1
        if len(self.refusals) < SHOWN_REFUSALS:
            place = refusal.place[0].upper() + refusal.place[1:]
            told = {"file": file.name, "place": place}
            self.refusals.append(told | refusal.as_json())

    def _take(self, found: Found, file: FileFindings, item: Sample | Point) -> None:
        file.take(item.step)
        self.steps.add(item.step)
        if isinstance(item, Point):
            self._take_point(found, item)
        else:
            self._take_sample(found, item)

    def _take_point(self, found: Found, point: Point) -> None:
        self.num_points += 1
        self.num_values += len(point.values)
        if point.time is not None and 0 <= point.time < LATEST_TIME:
            first = self.first_time
            self.first_time = point.time if first is None else min(first, point.time)
        told = set(point.values)
        for column, meaning in found.columns.items():
            key = (found.tool, column, meaning)
            if meaning in told and key in self.columns:
                self.columns[key] += 1
            if found.tool == WANDB:
                self.wandb_runs[column.rpartition(SEPARATOR)[0]] = None

    def _take_sample(self, found: Found, sample: Sample) -> None:
        self.num_samples += 1
        if self.num_samples > MAX_ROWS:
            raise ValueError(
                f"There are more than {MAX_ROWS:,} completions. Import fewer steps."
            )
        self.num_advantages += sample.advantage is not None
        for name, score in sample.scores.items():
            self.scores[name] = self.scores.get(name, 0) + (score is not None)
            self.score_tools.setdefault(name, found.tool)
            if len(self.scores) > MAX_SCORES:
                raise ValueError(
                    f"{found.file.filename} has scores of more than {MAX_SCORES:,} "
                    "rules. Leave out the columns that are no rule's."
                )
            key = (found.tool, name, f"reward/{name}/mean")
            if key in self.columns:
                self.columns[key] += score is not None
        digest = digest_of(sample)
        self._prompts.add(digest)
        self._groups.add(digest + sample.step.to_bytes(4, "big"))
        reward = reward_of(sample, default_weights(found.tool, sample.scores))
        if reward is not None:
            self.num_scored += 1
            low, high = self.lowest, self.highest
            self.lowest = reward if low is None else min(low, reward)
            self.highest = reward if high is None else max(high, reward)

    def as_json(self) -> dict[str, Any]:
        files = list(self.files.values())
        counted = ("num_refused", "num_rows", "num_samples", "num_points", "num_values")
        told = ("num_advantages", "num_scored", "first_time", "highest", "lowest")
        return {name: getattr(self, name) for name in (*counted, *told)} | {
            "files": [file.as_json() for file in files[:SHOWN_FILES]],
            "num_files": len(files),
            "num_bytes": sum(file.num_bytes for file in files),
            "tools": list(dict.fromkeys(f.tool for f in files if f.tool)),
            "columns": [
                {"tool": tool, "column": column, "meaning": meaning, "num_values": num}
                for (tool, column, meaning), num in self.columns.items()
            ],
            "refusals": self.refusals,
            "scores": [
                {"name": name, "tool": self.score_tools[name], "num_scored": num}
                for name, num in self.scores.items()
                if num
            ],
            "num_steps": len(self.steps),
            "first_step": min(self.steps, default=None),
            "last_step": max(self.steps, default=None),
            "num_prompts": len(self._prompts),
            "num_groups": len(self._groups),
            "wandb_runs": list(self.wandb_runs),
        }
