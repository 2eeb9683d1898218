"""Formulas as outlines, by matplotlib's own TeX; what it does not know stays source."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dashboard.reports.pdf.sheet import Sheet

MAX_CHARS = 500
MM = 25.4 / 72  # of a point


def use_cache(folder: str) -> None:
    """Before matplotlib is imported, which lists the system's fonts once."""
    os.environ["MPLCONFIGDIR"] = folder


@cache
def _tools() -> tuple[Any, Any]:
    # Here: a report without formulas does not wait for them.
    from matplotlib.font_manager import FontProperties  # noqa: PLC0415
    from matplotlib.textpath import TextToPath  # noqa: PLC0415

    return TextToPath(), FontProperties(family="DejaVu Sans")


def draw_formula(sheet: Sheet, source: str, *, size: float, apart: bool) -> bool:
    """At the present place, or in the middle of a line of its own; False: not known."""
    made = _outline(source)
    if made is None:
        return False
    vertices, codes, width, height, descent = made
    scale = size / 100 * MM
    if width * scale > sheet.epw:
        scale = sheet.epw / width
    if apart:
        sheet.room(height * scale + 4)
        sheet.set_xy(sheet.l_margin + (sheet.epw - width * scale) / 2, sheet.y + 1)
    elif sheet.x + width * scale > sheet.w - sheet.r_margin:
        sheet.ln(size * 0.5)
    # Text keeps this distance from the place that it is written at.
    x = sheet.x + (0 if apart else sheet.c_margin)
    # Beside text: on its line's base. Apart: below what is above it.
    base = sheet.y + (
        (height - descent) * scale if apart else size * 0.5 * 0.5 + size * 0.12
    )
    _fill(sheet, vertices, codes, x=x, base=base, scale=scale)
    if apart:
        sheet.set_xy(sheet.l_margin, sheet.y + height * scale + 3)
    else:
        sheet.set_x(x + width * scale - sheet.c_margin)
    return True


@cache
def _outline(source: str) -> tuple[Any, Any, float, float, float] | None:
    if len(source) > MAX_CHARS or not source.strip():
        return None
    line = " ".join(source.split())
    try:
        tools, properties = _tools()
        written = f"${line}$"
        vertices, codes = tools.get_text_path(properties, written, ismath=True)
        width, height, descent = tools.get_text_width_height_descent(
            written, properties.copy(), ismath=True
        )
    except Exception:  # noqa: BLE001 - it raises whatever a formula leads it to
        return None
    by_size = 100 / properties.get_size_in_points()
    return vertices, codes, width * by_size, height * by_size, descent * by_size


def _fill(
    sheet: Sheet, vertices: Any, codes: Any, *, x: float, base: float, scale: float
) -> None:
    places = [(x + vx * scale, base - vy * scale) for vx, vy in vertices]
    with sheet.new_path() as path:
        path.style.fill_color = "#1d2733"
        path.style.stroke_color = None
        path.style.auto_close = False
        i = 0
        while i < len(codes):
            code = int(codes[i])
            if code == 1:
                path.move_to(*places[i])
            elif code == 2:
                path.line_to(*places[i])
            elif code == 3:
                path.quadratic_curve_to(*places[i], *places[i + 1])
                i += 1
            elif code == 4:
                path.curve_to(*places[i], *places[i + 1], *places[i + 2])
                i += 2
            elif code == 79:
                path.close()
            i += 1
