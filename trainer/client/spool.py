"""A run's events on this machine's disk, until the server has them all.

    run.json       how the run is opened
    state.json     its number on the server, and its lives: from which step, which epoch
    life-1.jsonl   what the first life of the trainer told, a line each
    prompts        a digest of 16 bytes for each prompt, in the order of their numbers

What is not sent stays: `cohort sync FOLDER` sends it later.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

DIGEST_BYTES = 16


@dataclass(slots=True)
class Life:
    """One process that trains; the next one goes on from behind `from_step`."""

    from_step: int
    epoch: int | None = None  # None: the server does not know it yet


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
        lives = [Life(**one) for one in tree.pop("lives")]
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
