"""Charts drawn on the server: where their lines and ticks lie."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.analysis.reports.svg_charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    draw_chart,
    linear_ticks,
    log_ticks,
)
from dashboard.pages.templatetags.reports import chart_svg


def line(values: list[float], **fields: Any) -> dict[str, Any]:
    steps = list(range(1, len(values) + 1))
    return {
        "id": 1,
        "name": "one",
        "colour": 1,
        "dash": "solid",
        "steps": steps,
        "x": [],
        "values": values,
        **fields,
    }


def chart(*lines: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "metric": "loss",
        "axis": "step",
        "is_by_step": True,
        "is_log": False,
        "smoothing": 0,
        "lines": list(lines),
        **fields,
    }


def test_a_line_spans_its_box():
    drawing = draw_chart(chart(line([0.0, 5.0, 10.0])))

    assert drawing
    middle = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    assert drawing.lines[0].points == [
        (LEFT, HEIGHT - BOTTOM),
        pytest.approx(middle),
        (WIDTH - RIGHT, TOP),
    ]
    assert [tick.label for tick in drawing.y_ticks] == ["0", "2", "4", "6", "8", "10"]


def test_a_smoothed_line_lies_over_what_was_measured():
    drawing = draw_chart(chart(line([1.0, 1.0, 4.0]), line([1.0]), smoothing=0.5))

    assert drawing
    assert [one.is_faint for one in drawing.lines] == [True, True, False, False]
    assert [one.is_bold for one in drawing.lines] == [False, False, True, False]
    raw, smoothed = drawing.lines[0].points[-1][1], drawing.lines[2].points[-1][1]
    assert raw == TOP
    # 2.714 of 1 … 4, as smooth() says by its own example
    assert smoothed == pytest.approx(TOP + (HEIGHT - BOTTOM - TOP) * 0.4286, abs=0.1)


def test_a_logarithmic_axis_leaves_out_values_at_or_below_zero():
    drawing = draw_chart(chart(line([-1.0, 0.0, 0.01, 1.0]), is_log=True))

    assert drawing
    assert len(drawing.lines[0].points) == 2
    assert [tick.label for tick in drawing.y_ticks] == ["0.01", "0.1", "1"]
    assert draw_chart(chart(line([-1.0, 0.0]), is_log=True)) is None


@pytest.mark.parametrize("values", [[3.0], [3.0, 3.0], [0.0], [-1e-30], [1e300]])
def test_one_value_is_drawn_in_the_middle(values):
    drawing = draw_chart(chart(line(values)))

    assert drawing
    assert drawing.lines[0].points[0][1] == (TOP + HEIGHT - BOTTOM) / 2
    assert len(drawing.y_ticks) >= 2


def test_without_values_nothing_is_drawn():
    assert draw_chart(chart(line([]))) is None
    assert chart_svg(chart(line([]))) == ""


def test_names_are_text_in_a_drawing():
    svg = chart_svg(chart(line([1.0, 2.0], name='"><script>'), metric="<b>"))

    assert "<script>" not in svg
    assert "&lt;b&gt;" in svg
    assert "&quot;&gt;&lt;script&gt;" in svg
    assert "style=" not in svg  # the page's policy lets none through


@given(
    st.floats(-1e12, 1e12),
    st.floats(1e-6, 1e12),
    st.integers(2, 8),
)
def test_ticks_are_few_round_and_inside(low, width, most):
    high = low + width
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        return
    ticks = linear_ticks(low, high, most)

    assert len(ticks) <= most + 1
    assert all(low - width / 1e6 <= tick <= high + width / 1e6 for tick in ticks)
    assert ticks == sorted(ticks)


def test_ticks_of_few_decades_stand_at_2_and_5_too():
    assert log_ticks(1.5, 6) == [2, 5]
    assert log_ticks(1e-3, 1e3, 3) == [1e-3, 1e-1, 1e1, 1e3]
