"""The blocks of reports, their prose and charts: `{% load reports %}`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from dashboard.accounts.templatetags.numbers import sig3
from dashboard.analysis.reports.document import (
    Shown,
    describe_block,
    describe_newest,
    name_block,
)
from dashboard.analysis.reports.rendering import render_prose
from dashboard.analysis.reports.svg_charts import (
    HEIGHT,
    WIDTH,
    Drawing,
    Line,
    draw_chart,
    x_of,
)
from dashboard.runs.charts.chart import NOTE, has_clipped
from trainer.metric_names import title_of

register = template.Library()


register.simple_tag(render_prose, name="prose")
register.filter("block_name", name_block)
register.filter("block_words", describe_block)
register.filter("block_newest", describe_newest)


@register.filter
def is_block(part: object) -> bool:
    return isinstance(part, Shown)


@register.filter
def at(items: Sequence[Any], index: int) -> Any:
    return items[index]


@register.filter
def last_of(line: dict[str, Any]) -> str:
    """Return a curve's newest value, and where."""
    if not line["values"]:
        return "no value"
    return f"{sig3(line['values'][-1])} at step {line['steps'][-1]:,}"


@register.filter
def values_of(chart: dict[str, Any]) -> dict[str, Any]:
    """List the values that the page reads at a chart's pointer."""
    return {
        "axis": chart["axis"],
        "is_by_step": chart["is_by_step"],
        "is_log": chart["is_log"],
        "lines": [
            {
                "name": line["name"],
                "colour": line["colour"],
                "x": x_of(line),
                "steps": line["steps"],
                "values": line["values"],
            }
            for line in chart["lines"]
        ],
    }


@register.filter
def clip_note(chart: dict[str, Any]) -> str:
    is_clipped = any(has_clipped(line["values"]) for line in chart["lines"])
    return f" {NOTE}" if is_clipped else ""


@register.simple_tag
def chart_svg(chart: dict[str, Any]) -> SafeString:
    """Empty where there is nothing to draw. Colours are classes, as no style may be."""
    drawing = draw_chart(chart)
    if drawing is None:
        return SafeString("")
    return format_html(
        '<svg class="chart-svg" viewBox="0 0 {} {}" role="img" aria-label="{}">'
        "{}{}{}{}</svg>",
        WIDTH,
        HEIGHT,
        _label(chart),
        _x_axis(drawing),
        _y_axis(drawing),
        format_html_join("", "{}", ((_line(line),) for line in drawing.lines)),
        format_html(
            '<line class="chart-cursor" y1="{}" y2="{}" x1="-9" x2="-9"/>',
            drawing.top,
            drawing.bottom,
        ),
    )


def _label(chart: dict[str, Any]) -> str:
    names = ", ".join(line["name"] for line in chart["lines"])
    return f"{title_of(chart['metric'])} of {names}, by {chart['axis']}"


def _x_axis(drawing: Drawing) -> SafeString:
    ticks = format_html_join(
        "",
        '<line class="chart-grid" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>'
        '<text class="chart-tick" x="{0}" y="{3}" text-anchor="middle">{4}</text>',
        (
            (f"{t.at:.1f}", drawing.top, drawing.bottom, drawing.bottom + 18, t.label)
            for t in drawing.x_ticks
        ),
    )
    middle = (drawing.left + drawing.right) / 2
    return format_html(
        '{}<text class="chart-axis" x="{}" y="{}" text-anchor="middle">{}</text>',
        ticks,
        middle,
        HEIGHT - 6,
        drawing.x_title,
    )


def _y_axis(drawing: Drawing) -> SafeString:
    ticks = format_html_join(
        "",
        '<line class="chart-grid" x1="{1}" x2="{2}" y1="{0}" y2="{0}"/>'
        '<text class="chart-tick" x="{3}" y="{0}" dy="4" text-anchor="end">{4}</text>',
        (
            (f"{t.at:.1f}", drawing.left, drawing.right, drawing.left - 6, t.label)
            for t in drawing.y_ticks
        ),
    )
    return format_html(
        '{}<text class="chart-axis" transform="translate(12 {}) rotate(-90)" '
        'text-anchor="middle">{}</text>',
        ticks,
        (drawing.top + drawing.bottom) / 2,
        drawing.y_title,
    )


def _line(line: Line) -> SafeString:
    classes = f"chart-line series-{line.colour}"
    classes += " is-faint" * line.is_faint + " is-bold" * line.is_bold
    points = " ".join(f"{x:g},{y:g}" for x, y in line.points)
    dash = " ".join(map(str, line.dash)) or "none"
    if len(line.points) == 1:
        x, y = line.points[0]
        return format_html('<circle class="{}" cx="{}" cy="{}" r="3"/>', classes, x, y)
    return format_html(
        '<polyline class="{}" points="{}" stroke-dasharray="{}"/>',
        classes,
        points,
        dash,
    )
