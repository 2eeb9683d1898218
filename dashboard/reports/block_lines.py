"""A report's text: Markdown, with blocks on lines of their own.

`::chart runs=3,5 metric=reward/mean` is a block, live; `pin=2` at its end shows what
was pinned under that number, a bare `pin` asks for the present to be pinned when the
report is saved.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from urllib.parse import quote, unquote

KINDS = ("chart", "group", "compare", "table")
LINE = re.compile(r"^::([a-z]+)(?:\s+(.*?))?\s*$")
FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
WRITTEN_PLAIN = "/,.:+-_@$()"  # what a value may hold as it is
MAX_PIN = 10**6


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    kind: str
    options: dict[str, str] = field(default_factory=dict)
    pin: int | None = None  # the number of what is shown; None: what is there now
    wants_pin: bool = False
    problem: str = ""  # why the line is no block that can be shown

    @property
    def line(self) -> str:
        """As it stands in the text."""
        words = [f"::{self.kind}"]
        words += [
            f"{k}={quote(v, safe=WRITTEN_PLAIN)}" for k, v in self.options.items()
        ]
        if self.pin is not None:
            words.append(f"pin={self.pin}")
        elif self.wants_pin:
            words.append("pin")
        return " ".join(words)

    @property
    def live(self) -> Block:
        return replace(self, pin=None, wants_pin=False)


def split_text(text: str) -> Iterator[str | Block]:
    """Text and blocks in turn; lines inside fenced code are text.

    >>> [str(part) for part in split_text("a\\nb")]
    ['a\\nb']
    """
    prose: list[str] = []
    for line, is_code in read_lines(text):
        block = None if is_code else read_block(line)
        if block is None:
            prose.append(line)
            continue
        if any(prose):
            yield "\n".join(prose)
        prose = []
        yield block
    if any(prose):
        yield "\n".join(prose)


def list_blocks(text: str) -> list[Block]:
    return [part for part in split_text(text) if isinstance(part, Block)]


def replace_blocks(text: str, blocks: list[Block]) -> str:
    """The text with its blocks, in their order, written anew."""
    left = iter(blocks)
    lines = [
        line
        if is_code or read_block(line) is None
        else _written(next(left), instead_of=line)
        for line, is_code in read_lines(text)
    ]
    assert next(left, None) is None
    return "\n".join(lines)


def _written(block: Block, *, instead_of: str) -> str:
    return instead_of if block.problem else block.line


def read_lines(text: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it belongs to fenced code."""
    fence = ""
    for line in text.split("\n"):
        found = FENCE.match(line)
        if fence:
            yield line, True
            closes = found and found[1].startswith(fence) and not line.strip("`~ ")
            fence = "" if closes else fence
        else:
            fence = found[1] if found else ""
            yield line, bool(found)


def read_block(line: str) -> Block | None:
    found = LINE.match(line)
    if found is None:
        return None
    kind, words = found[1], (found[2] or "").split()
    if kind not in KINDS:
        known = ", ".join(f"::{name}" for name in KINDS)
        return Block(kind=kind, problem=f"There is no block ::{kind}, but {known}.")
    options: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and name != "pin":
            said = f"{word!r} is no option. Options are written as name=value."
            return Block(kind=kind, problem=said)
        options[name] = unquote(value)
    return _with_pin(kind, options)


def _with_pin(kind: str, options: dict[str, str]) -> Block:
    pin = options.pop("pin", None)
    if not pin:
        return Block(kind=kind, options=options, wants_pin=pin is not None)
    if not (pin.isascii() and pin.isdigit() and 0 < int(pin[:9]) < MAX_PIN):
        said = f"pin={pin[:20]} names no pin. A bare pin pins what is there now."
        return Block(kind=kind, problem=said)
    return Block(kind=kind, options=options, pin=int(pin[:9]))
