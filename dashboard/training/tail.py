"""The end of a log file, without reading the rest of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dashboard.project.database import clean_text

BLOCK_BYTES = 64 * 1024
MAX_TAIL_BYTES = 1024 * 1024
SHOWN_LINES = 20  # behind a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    lines: list[str]
    num_lines: int  # in the whole file
    num_bytes: int

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def is_cut(self) -> bool:
        return len(self.lines) < self.num_lines


def read_tail(path: Path, *, max_lines: int) -> Tail:
    """The last lines, at most 1 MiB of them; an absent file is an empty one."""
    if not path.is_file():
        return Tail(lines=[], num_lines=0, num_bytes=0)
    with path.open("rb") as file:
        num_bytes = file.seek(0, 2)
        num_lines = _count_lines(path)
        start = max(0, num_bytes - MAX_TAIL_BYTES)
        file.seek(start)
        data = file.read(MAX_TAIL_BYTES)
    # Only \n ends a line: a progress bar's \r shows its last state.
    lines = data.decode("utf-8", "replace").removesuffix("\n").split("\n")
    if start and len(lines) > 1:
        lines = lines[1:]  # begins in the middle of a line
    shown = [line.rsplit("\r", 1)[-1] for line in lines[-max_lines:]]
    return Tail(lines=shown if data else [], num_lines=num_lines, num_bytes=num_bytes)


def with_tail(sentence: str, lines: Sequence[str]) -> str:
    """The sentence, and the last of a log's lines behind it."""
    shown = "\n".join(lines[-SHOWN_LINES:])
    return clean_text(f"{sentence} Its last lines:\n{shown}" if shown else sentence)


def _count_lines(path: Path) -> int:
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")
