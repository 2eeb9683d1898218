"""A drawn chart: lines and ticks as places in a box, with the colours' numbers.

It knows nothing of runs, so that a process without a database can draw it.
"""

from __future__ import annotations

from dataclasses import dataclass

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 70, 14, 12, 46


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    points: list[tuple[float, float]]
    colour: int
    dash: tuple[int, ...]
    is_faint: bool  # as measured, under the smoothed one
    is_bold: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    lines: list[Line]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    x_title: str
    y_title: str
    left: float = LEFT
    right: float = WIDTH - RIGHT
    top: float = TOP
    bottom: float = HEIGHT - BOTTOM
