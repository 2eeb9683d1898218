"""Fonts for a PDF: DejaVu, which matplotlib brings, and what the system has besides."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from fontTools.ttLib import TTFont, TTLibError

SANS, MONO = "sans", "mono"
FILES = {
    (SANS, ""): "DejaVuSans.ttf",
    (SANS, "B"): "DejaVuSans-Bold.ttf",
    (SANS, "I"): "DejaVuSans-Oblique.ttf",
    (SANS, "BI"): "DejaVuSans-BoldOblique.ttf",
    (MONO, ""): "DejaVuSansMono.ttf",
    (MONO, "B"): "DejaVuSansMono-Bold.ttf",
}
FOLDERS = (
    "/usr/share/fonts",
    "/usr/local/share/fonts",
    "~/.local/share/fonts",
    "~/.fonts",
    "/System/Library/Fonts",
    "/Library/Fonts",
)
ENDINGS = (".ttf", ".otf", ".ttc")
SECONDS = 10.0  # that a search for further fonts may take
MISSING = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Further:
    path: Path
    has: frozenset[str]


def own_fonts() -> Path:
    """Found without importing matplotlib, which takes half a second."""
    spec = find_spec("matplotlib")
    assert spec
    assert spec.origin
    return Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf"


@cache
def own_characters() -> frozenset[str]:
    """That the plain one has, which the others fall back on."""
    with TTFont(own_fonts() / FILES[SANS, ""], lazy=True) as font:
        return _characters(font)


def find_further(characters: Iterable[str]) -> tuple[list[Further], frozenset[str]]:
    """Fonts of the system for what DejaVu lacks, and what no font has."""
    lacking = frozenset(c for c in characters if c.isprintable()) - own_characters()
    found: list[Further] = []
    deadline = time.monotonic() + SECONDS
    for font in _system_fonts():
        if not lacking or time.monotonic() > deadline:
            break
        if has := lacking & font.has:
            found.append(font)
            lacking -= has
    return found, lacking


def _system_fonts() -> Iterator[Further]:
    for folder in FOLDERS:
        for path in sorted(Path(folder).expanduser().rglob("*")):
            if path.suffix.lower() in ENDINGS:
                yield from _read(path)


def _read(path: Path) -> Iterator[Further]:
    try:
        # Of a file of several fonts the first is as good as any.
        with path.open("rb") as file, TTFont(file, lazy=True, fontNumber=0) as font:
            # Pictures in colour are no outlines that could be drawn.
            if "glyf" in font or "CFF " in font:
                yield Further(path=path, has=_characters(font))
    except (OSError, TTLibError, KeyError, ValueError):
        return  # one broken file is not worth a report


def _characters(font: TTFont) -> frozenset[str]:
    return frozenset(map(chr, font.getBestCmap() or ()))
