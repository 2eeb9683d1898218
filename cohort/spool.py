"""A run's events on this machine's disk, until the server has them all.

    run.json       the request that opens the run
    state.json     the run's number on the server, and its attempts ("lives"): first
                   step and number on the server
    life-1.jsonl   the events of the first attempt, one a line
    prompts        a 16-byte digest per prompt, in the order of their numbers

`Writer` computes and writes the events in its own thread. `cohort sync FOLDER` sends
what is left later.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, get_args

from cohort.lines import (
    Author,
    Completion,
    encode,
    group_tree,
    metric_name,
    metrics_of,
    number,
)

if TYPE_CHECKING:
    from cohort.mismatch import GapMeasure

DIGEST_BYTES = 16
BAD_VALUE = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)


@dataclass(slots=True)
class Attempt:
    """A trainer process; it continues after `from_step`."""

    from_step: int
    number: int | None = None  # on the server; None: not registered there yet


@dataclass(slots=True)
class State:
    run: int | None = None
    address: str = ""  # of its page
    attempts: list[Attempt] = field(default_factory=list)


class Spool:
    """A run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def exists(self) -> bool:
        return (self.folder / "run.json").exists()

    def create(self, opening: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        _replace(self.folder / "run.json", opening)

    def opening(self) -> dict[str, Any]:
        return dict(_read(self.folder / "run.json"))

    def state(self) -> State:
        path = self.folder / "state.json"
        if not path.exists():
            return State()
        tree = _read(path)
        attempts = [
            Attempt(item["from_step"], item.get("attempt", item.get("epoch")))
            for item in tree["lives"]
        ]
        return State(tree["run"], tree["address"], attempts)

    def save(self, state: State) -> None:
        attempts = [
            {"from_step": attempt.from_step, "attempt": attempt.number}
            for attempt in state.attempts
        ]
        tree = {"run": state.run, "address": state.address, "lives": attempts}
        _replace(self.folder / "state.json", tree)

    def begin_attempt(self, from_step: int) -> BinaryIO:
        """Return the file for its lines. Only whole lines of an earlier attempt are
        sent.
        """
        state = self.state()
        state.attempts.append(Attempt(from_step=from_step))
        file = self.events_path(len(state.attempts)).open("ab")
        self.save(state)
        return file

    def events_path(self, index: int) -> Path:
        """Return the path of an attempt, counted from 1 in this folder."""
        return self.folder / f"life-{index}.jsonl"


def free_folder(folder: Path) -> Path:
    """Return the folder of a new run: this one, or with a number if it has a run."""
    others = (folder.with_name(f"{folder.name}-{n}") for n in range(2, 1_000))
    return next(path for path in (folder, *others) if not Spool(path).exists)


class PromptNumbers:
    """0, 1, 2 … in the order of first appearance, the same in every attempt."""

    def __init__(self, path: Path) -> None:
        self._path = path
        data = path.read_bytes() if path.exists() else b""
        whole = len(data) - len(data) % DIGEST_BYTES
        digests = (data[at : at + DIGEST_BYTES] for at in range(0, whole, DIGEST_BYTES))
        self._numbers = {digest: number for number, digest in enumerate(digests)}
        if whole < len(data):  # the process was killed while writing the last one
            with path.open("r+b") as file:
                file.truncate(whole)

    def number_all(self, prompts: Iterable[str]) -> list[int]:
        numbers, new = [], b""
        for prompt in prompts:
            digest = blake2b(
                prompt.encode("utf-8", "replace"), digest_size=DIGEST_BYTES
            ).digest()
            if digest not in self._numbers:
                self._numbers[digest] = len(self._numbers)
                new += digest
            numbers.append(self._numbers[digest])
        if new:
            with self._path.open("ab") as file:
                file.write(new)
        return numbers


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _replace(path: Path, tree: dict[str, Any]) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(tree, indent=2), encoding="utf-8")
    draft.replace(path)


logger = logging.getLogger("cohort")
# Prompt → (answer, completions).
Groups = dict[str, tuple[str | Sequence[str] | None, list[Completion]]]


class Writer:
    """Writes a trainer's reports as events.

    Groups wait for the end of their step, because a prompt may repeat within it.
    """

    def __init__(
        self, spool: Spool, file: BinaryIO, *, right_from: float | None
    ) -> None:
        self._file = file
        self._numbers = PromptNumbers(spool.folder / "prompts")
        self._right_from = right_from
        self._lowest: float | None = None
        self._groups: dict[int, Groups] = {}
        self._gaps: dict[int, list[tuple[GapMeasure, list[Any], dict[str, Any]]]] = {}
        self._step = 0
        self._num_dropped = 0

    def write(self, report: tuple[Any, ...]) -> None:
        """Write a report; an invalid one is dropped with a warning."""
        at, method, *rest = report
        try:
            method(self, at, *rest)
        except BAD_VALUE as error:
            logger.warning("Dropped an invalid %s: %s", method.__name__, error)

    def flush(self, *, num_dropped: int) -> None:
        if num_dropped > self._num_dropped:
            lost = num_dropped - self._num_dropped
            self._num_dropped = num_dropped
            message = (
                f"Dropped {lost:,} reports, because the trainer's disk could not write "
                "them fast enough."
            )
            self.warned(time.time(), self._step, "reports_dropped", message)
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def group(
        self,
        at: float,
        step: int,
        prompt: str,
        completions: Sequence[Any],
        answer: str | Sequence[str] | None,
    ) -> None:
        if not isinstance(prompt, str):
            raise TypeError(f"the prompt must be text; got {type(prompt).__name__}")
        for item in completions:
            if not (
                isinstance(item, Completion)
                and all(turn.author in get_args(Author) for turn in item.turns)
                and isinstance(item.text, str)
            ):
                raise TypeError(f"expected a Completion with text; got {item!r:.80}")
        groups = self._groups.setdefault(int(step), {})
        groups.setdefault(prompt, (answer, []))[1].extend(completions)

    def mismatch(
        self,
        at: float,
        step: int,
        gaps: GapMeasure,
        advantages: list[float | None],
        fields: dict[str, Any],
    ) -> None:
        self._gaps.setdefault(int(step), []).append((gaps, advantages, fields))

    def step(self, at: float, step: int, metrics: dict[str, Any]) -> None:
        reported = {metric_name(name): number(v) for name, v in metrics.items()}
        groups = self._write_groups(at, step)
        if parts := self._gaps.pop(step, []):
            gaps, advantages, fields = zip(*parts, strict=True)
            tree = gaps[0].joined(gaps).tree()
            tree |= {"advantages": list(chain.from_iterable(advantages))}
            self._add("mismatch_measured", at, step, **tree, **fields[0])
        self._step = max(self._step, step)
        self._add("step_finished", at, step, metrics=reported | metrics_of(groups))

    def _write_groups(self, at: float, step: int) -> list[dict[str, Any]]:
        """Write groups, also of earlier steps that never ended, under their step."""
        trees: list[dict[str, Any]] = []
        for due in sorted(s for s in self._groups if s <= step):
            groups = self._groups.pop(due)
            rewards = [number(c.reward) for _, some in groups.values() for c in some]
            self._lowest = min(
                (r for r in (*rewards, self._lowest) if r is not None), default=None
            )
            numbers = self._numbers.number_all(groups)
            for index, (prompt, (answer, some)) in zip(
                numbers, groups.items(), strict=True
            ):
                tree = group_tree(
                    prompt,
                    index,
                    some,
                    answer=answer,
                    right_from=self._right_from,
                    lowest=self._lowest,
                )
                self._file.write(encode({"time": at, "step": due} | tree))
                if due == step:
                    trees.append(tree)
        return trees

    def evaluated(
        self,
        at: float,
        step: int,
        name: str,
        metrics: dict[str, Any],
        num_prompts: int,
        samples_per_prompt: int,
    ) -> None:
        self._add(
            "evaluated",
            at,
            step,
            name=name,
            num_prompts=num_prompts,
            samples_per_prompt=samples_per_prompt,
            metrics={f"eval/{name}/{key}": number(v) for key, v in metrics.items()},
        )

    def warned(self, at: float, step: int, code: str, message: str) -> None:
        self._add("warned", at, step, code=code, message=message)

    def ended(self, at: float, kind: str, fields: dict[str, Any]) -> None:
        for step in sorted(self._groups):
            self._write_groups(at, step)
        self._add(kind, at, self._step, **fields)

    def _add(self, kind: str, at: float, step: int, **fields: Any) -> None:
        tree = {"type": kind, "time": at, "step": int(step)}
        self._file.write(encode(tree | fields))
