"""A run's events on this machine's disk, until the server has them all.

    run.json       how the run is opened
    state.json     its number on the server, and its lives: from which step, and
                   which attempt the server calls each
    life-1.jsonl   what the first life of the trainer told, a line each
    prompts        a digest of 16 bytes for each prompt, in the order of their numbers

`Writer` works them out and writes them, in a thread of its own. What is not sent stays:
`cohort sync FOLDER` sends it later.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

from trainer.client.lines import (
    Completion,
    encode,
    group_tree,
    metric_name,
    metrics_of,
    number,
)

DIGEST_BYTES = 16
BAD_VALUE = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)


@dataclass(slots=True)
class Life:
    """One process that trains; the next one goes on from behind `from_step`."""

    from_step: int
    attempt: int | None = None  # None: the server does not know it yet


@dataclass(slots=True)
class State:
    run: int | None = None
    address: str = ""  # of its page
    lives: list[Life] = field(default_factory=list)


class Spool:
    """One run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def is_there(self) -> bool:
        return (self.folder / "run.json").exists()

    def create(self, opening: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        _replace(self.folder / "run.json", opening)

    def opening(self) -> dict[str, Any]:
        tree: dict[str, Any] = _read(self.folder / "run.json")
        return tree

    def state(self) -> State:
        path = self.folder / "state.json"
        if not path.exists():
            return State()
        tree = _read(path)
        lives = [
            Life(one["from_step"], one.get("attempt", one.get("epoch")))
            for one in tree.pop("lives")
        ]
        return State(**tree, lives=lives)

    def keep(self, state: State) -> None:
        _replace(self.folder / "state.json", asdict(state))

    def begin_life(self, from_step: int) -> BinaryIO:
        """Where its lines go. Only whole lines of a life before are ever sent."""
        state = self.state()
        state.lives.append(Life(from_step=from_step))
        file = self.life(len(state.lives)).open("ab")
        self.keep(state)
        return file

    def life(self, number: int) -> Path:
        return self.folder / f"life-{number}.jsonl"


class PromptNumbers:
    """0, 1, 2 … in the order in which prompts come first, the same in every life."""

    def __init__(self, path: Path) -> None:
        self._path = path
        data = path.read_bytes() if path.exists() else b""
        whole = len(data) - len(data) % DIGEST_BYTES
        digests = (data[at : at + DIGEST_BYTES] for at in range(0, whole, DIGEST_BYTES))
        self._numbers = {digest: number for number, digest in enumerate(digests)}
        if whole < len(data):  # its writer was killed at the last one
            with path.open("r+b") as file:
                file.truncate(whole)

    def number_all(self, prompts: Iterable[str]) -> list[int]:
        found, new = [], b""
        for prompt in prompts:
            digest = blake2b(
                prompt.encode("utf-8", "replace"), digest_size=DIGEST_BYTES
            ).digest()
            if digest not in self._numbers:
                self._numbers[digest] = len(self._numbers)
                new += digest
            found.append(self._numbers[digest])
        if new:
            with self._path.open("ab") as file:
                file.write(new)
        return found


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _replace(path: Path, tree: dict[str, Any]) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(tree, indent=2), encoding="utf-8")
    draft.replace(path)


logger = logging.getLogger("cohort")
# By prompt: its answer, and its completions.
Groups = dict[str, tuple[str | None, list[Completion]]]


class Writer:
    """Writes what a trainer tells.

    Groups wait for the end of their step: a prompt may come twice within it.
    """

    def __init__(
        self, spool: Spool, file: BinaryIO, *, right_from: float | None
    ) -> None:
        self._file = file
        self._numbers = PromptNumbers(spool.folder / "prompts")
        self._right_from = right_from
        self._lowest: float | None = None
        self._groups: dict[int, Groups] = {}
        self._step = 0
        self._num_dropped = 0

    def write(self, told: tuple[Any, ...]) -> None:
        """One thing told that is no good takes nothing else with it."""
        at, method, *rest = told
        try:
            method(self, at, *rest)
        except BAD_VALUE as error:
            logger.warning("Cohort dropped a %s: %s", method.__name__, error)

    def flush(self, *, num_dropped: int) -> None:
        if num_dropped > self._num_dropped:
            lost = num_dropped - self._num_dropped
            self._num_dropped = num_dropped
            message = (
                f"{lost:,} reports came faster than the trainer's disk could write "
                "them and were dropped."
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
        answer: str | None,
    ) -> None:
        if not isinstance(prompt, str):
            raise TypeError(f"its prompt is a {type(prompt).__name__}, no text")
        for one in completions:
            if not (isinstance(one, Completion) and isinstance(one.text, str)):
                raise TypeError(f"a completion must be a Completion; got {one!r:.80}")
        groups = self._groups.setdefault(int(step), {})
        groups.setdefault(prompt, (answer, []))[1].extend(completions)

    def step(self, at: float, step: int, metrics: dict[str, Any]) -> None:
        told = {metric_name(name): number(value) for name, value in metrics.items()}
        found = self._write_groups(at, step)
        derived = metrics_of(found) if found else {}
        self._step = max(self._step, step)
        self._add("step_finished", at, step, metrics=derived | told)

    def _write_groups(self, at: float, step: int) -> list[dict[str, Any]]:
        """Those of steps before that nobody ended go with it, each with its own."""
        found: list[dict[str, Any]] = []
        for due in sorted(one for one in self._groups if one <= step):
            groups = self._groups.pop(due)
            self._note_lowest(groups)
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
                    found.append(tree)
        return found

    def _note_lowest(self, groups: Groups) -> None:
        rewards = [number(c.reward) for _, some in groups.values() for c in some]
        known = [one for one in (*rewards, self._lowest) if one is not None]
        self._lowest = min(known, default=None)

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
            metrics={f"eval/{name}/{one}": number(v) for one, v in metrics.items()},
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
