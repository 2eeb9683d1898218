"""What a page of paper is made of: plain values that cross into another process."""

from __future__ import annotations

from dataclasses import dataclass, field

from dashboard.reports.drawing.figure import Drawing


@dataclass(frozen=True, kw_only=True, slots=True)
class Prose:
    markdown: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    text: str
    name: str = ""  # a line above it
    mono: bool = False
    small: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    head: list[str]
    rows: list[list[str]]
    num_words: int  # columns of words, before those of numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    drawing: Drawing
    legend: list[tuple[int, str]]  # a series' colour and its words


Item = Text | Table | Chart


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """A block: its name, since when it is, and what it holds."""

    name: str
    words: str
    items: list[Item] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Paper:
    title: str
    facts: str  # the line under it
    parts: list[Prose | Panel]
    colours: dict[str, str]  # by name: series-1 is #0b62c4
    cache: str  # a folder for what matplotlib finds out about fonts
