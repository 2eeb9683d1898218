"""Blocks on paper: a chart is drawn from the very lines that the page shows."""

from __future__ import annotations

from collections.abc import Mapping

from dashboard.reports.drawing.figure import HEIGHT, WIDTH, Drawing, Line
from dashboard.reports.pdf.fonts import MONO
from dashboard.reports.pdf.items import Chart, Panel, Table, Text
from dashboard.reports.pdf.sheet import (
    INK,
    MONO_SIZE,
    QUIET,
    RULE,
    SMALL_SIZE,
    SUNKEN,
    Sheet,
)
from dashboard.reports.pdf.tables import draw_table

Colours = Mapping[str, str]


def draw_panel(sheet: Sheet, panel: Panel, colours: Colours) -> None:
    sheet.ln(2)
    sheet.room(20)
    sheet.use(style="B")
    sheet.paragraph(panel.name)
    if panel.words:
        sheet.use(size=SMALL_SIZE, color=QUIET)
        sheet.paragraph(panel.words)
    sheet.ln(1)
    for item in panel.items:
        if isinstance(item, Text):
            _draw_text(sheet, item)
        elif isinstance(item, Table):
            draw_table(sheet, item.head, item.rows, num_words=item.num_words)
        else:
            _draw_chart(sheet, item, colours)
    sheet.ln(3)


def _draw_text(sheet: Sheet, item: Text) -> None:
    if item.name:
        sheet.room(12)
        sheet.use(size=SMALL_SIZE, style="B")
        sheet.paragraph(item.name)
    if item.mono:
        sheet.use(family=MONO, size=MONO_SIZE)
        sheet.set_fill_color(*SUNKEN)
    else:
        sheet.use(size=SMALL_SIZE, color=QUIET if item.small else INK)
    sheet.paragraph(item.text or " ", fill=item.mono)
    sheet.ln(1)


def _draw_chart(sheet: Sheet, chart: Chart, colours: Colours) -> None:
    scale = sheet.epw / WIDTH
    sheet.room(HEIGHT * scale + 6)
    _draw_axes(sheet, chart.drawing, scale)
    x, y = sheet.l_margin, sheet.y
    for line in chart.drawing.lines:
        _draw_line(sheet, line, colours, (x, y, scale))
    sheet.set_dash_pattern()
    sheet.set_xy(x, y + HEIGHT * scale + 1)
    for colour, words in chart.legend:
        sheet.room(5)
        sheet.set_fill_color(*_rgb(colours[f"series-{colour}"]))
        sheet.rect(sheet.l_margin, sheet.y + 1.6, 6, 0.8, style="F")
        sheet.use(size=SMALL_SIZE)
        sheet.set_x(sheet.l_margin + 8)
        sheet.paragraph(words)
    sheet.ln(1)


def _draw_axes(sheet: Sheet, drawing: Drawing, scale: float) -> None:
    x, y = sheet.l_margin, sheet.y
    sheet.set_draw_color(*RULE)
    sheet.set_line_width(0.1)
    sheet.use(size=7, color=QUIET)
    for tick in drawing.x_ticks:
        at = x + tick.at * scale
        sheet.line(at, y + drawing.top * scale, at, y + drawing.bottom * scale)
        sheet.set_xy(at - 10, y + drawing.bottom * scale + 1)
        sheet.cell(20, 3, tick.label, align="C")
    for tick in drawing.y_ticks:
        at = y + tick.at * scale
        sheet.line(x + drawing.left * scale, at, x + drawing.right * scale, at)
        sheet.set_xy(x, at - 1.5)
        sheet.cell(drawing.left * scale - 1, 3, tick.label, align="R")
    sheet.set_xy(x + drawing.left * scale, y + drawing.bottom * scale + 5)
    sheet.cell(
        (drawing.right - drawing.left) * scale,
        3,
        sheet.clean(drawing.x_title),
        align="C",
    )
    sheet.set_xy(x, y)


def _draw_line(
    sheet: Sheet, line: Line, colours: Colours, box: tuple[float, float, float]
) -> None:
    x, y, scale = box
    colour = _rgb(colours[f"series-{line.colour}"])
    sheet.set_draw_color(*(_paler(colour) if line.is_faint else colour))
    sheet.set_line_width(0.15 if line.is_faint else 0.6 if line.is_bold else 0.4)
    dash, gap = (*line.dash, 0, 0)[:2]
    if dash:
        sheet.set_dash_pattern(dash=dash * scale, gap=gap * scale)
    else:
        sheet.set_dash_pattern()
    places = [(x + px * scale, y + py * scale) for px, py in line.points]
    if len(places) == 1:
        sheet.set_fill_color(*colour)
        sheet.circle(*places[0], 0.8, style="F")
    else:
        sheet.polyline(places)


def _rgb(colour: str) -> tuple[int, int, int]:
    """Of #0b62c4."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _paler(colour: tuple[int, int, int]) -> tuple[int, int, int]:
    red, green, blue = (round(255 - (255 - part) * 0.35) for part in colour)
    return red, green, blue
