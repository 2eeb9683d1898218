"""A run's figure has the charts of its page, in their colours."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dashboard.runs.charts.figures import metrics_of, overview_sections
from trainer.client.api import charts
from trainer.client.api.figure import figure, places_shown
from trainer.client.api.records import Metrics, Point
from trainer.config import RunConfig

NOW = datetime(2026, 3, 1, tzinfo=UTC)
RULES = [
    {"name": name, "kind": "exact_answer", "weight": 1.0} for name in ("answer", "form")
]
CONFIG = RunConfig.model_validate(
    {
        "model": {"path": "m"},
        "data": {"rows": "r"},
        "reward": {"recipe": {"rules": RULES}},
        "loss": {"kl_coef": 0.1},
    }
)
COLORS = Path(__file__).parents[3] / "static" / "css" / "colors.css"


def run_of(values: dict[str, list[float]]) -> Any:
    """With these metrics, a value a step from 1 on."""
    num = max(map(len, values.values()), default=0)
    points = [
        Point(i + 1, NOW, {name: v[i] for name, v in values.items() if i < len(v)})
        for i in range(num)
    ]
    return SimpleNamespace(
        id=7,
        name="warm <b>otter</b>",
        metric_names=lambda: list(values),
        metrics=lambda *names: Metrics(list(names), points),
    )


def drawn(run: Any, *names: str, **options: Any) -> Any:
    return figure(run, names, **{"smoothing": 0.6, "theme": "light", **options})


def test_it_has_the_charts_of_the_runs_page() -> None:
    page = [one for part in overview_sections(CONFIG) for one in part.charts]
    known = sorted(set().union(*map(metrics_of, page)) | {"eval/heldout/mean"})
    rules = [f"reward/{rule['name']}/mean" for rule in RULES]
    known = rules + [name for name in known if name not in rules]

    ours = charts.charts_of(known)

    shown = {
        one.title: (one.figure["layout"]["yaxis"]["title"]["text"], terms_of(one))
        for one in page
    }
    drawn = {one.title: (one.y, [line.terms for line in one.lines]) for one in ours}
    held_out = ("score", [(("eval/heldout/mean", 1.0),)])
    assert drawn.pop("eval/heldout/…") == held_out
    left_out = {"eval/heldout/…", "mismatch/…"}  # filled by pattern; not on the figure
    assert drawn == {title: shown[title] for title in shown if title not in left_out}
    assert [title for title in shown if title in drawn] == list(drawn)


def terms_of(chart: Any) -> list[tuple[tuple[str, float], ...]]:
    lines = [trace for trace in chart.figure["data"] if "terms" in trace["meta"]]
    shown = [trace for trace in lines if trace.get("hoverinfo") != "skip"]
    return [tuple((n, float(f)) for n, f in one["meta"]["terms"]) for one in shown]


@pytest.mark.parametrize("theme", ["LIGHT", "DARK"])
def test_its_colours_are_those_of_the_pages(theme: str) -> None:
    css = COLORS.read_text().split('[data-bs-theme="dark"]')[theme == "DARK"]
    ours: dict[str, str] = getattr(charts, theme)

    found = dict(re.findall(r"--cohort-([\w-]+): (#\w+);", css))

    assert ours["series"].split() == [found[f"series-{n}"] for n in range(1, 11)]
    assert {name: found[name] for name in ours if name != "series"} == {
        name: color for name, color in ours.items() if name != "series"
    }


def test_the_reward_has_its_spread_around_it_and_is_smoothed() -> None:
    run = run_of(
        {"reward/mean": [0.0, 1.0], "reward/std": [0.5, 0.5], "kl/mean": [1.0]}
    )

    found = drawn(run, smoothing=0.5)

    low, high, raw, mean, *kl = found.data
    assert (list(low.y), list(high.y)) == ([-0.5, 1 / 6], [0.5, 1 + 1 / 6])
    assert (high.fill, high.fillcolor) == ("tonexty", "rgba(11,98,196,0.16)")
    assert (list(raw.y), raw.opacity) == ([0.0, 1.0], 0.25)
    assert list(mean.y) == [0.0, 2 / 3]
    assert [one.xaxis for one in kl] == ["x2", "x2"]
    assert found.layout.title.text == "warm &lt;b&gt;otter&lt;/b&gt;"


def test_metrics_are_drawn_by_name() -> None:
    run = run_of({"lr": [1.0, 0.5], "loss": [1.0, 2.0]})

    found = drawn(run, "lr", theme="dark")

    assert [(list(one.y), one.line.color) for one in found.data] == [
        ([1.0, 0.5], "#6aa9ff")  # a schedule has no noise to smooth away
    ]


def test_what_cannot_be_drawn_is_said() -> None:
    for names, options, says in [
        (("los",), {}, "'los'"),
        ((), {}, "no metrics"),
        (("loss",), {"smoothing": 1.0}, "got 1.0"),
        (("loss",), {"theme": "blue"}, "got 'blue'"),
    ]:
        with pytest.raises(ValueError, match=re.escape(says)):
            drawn(run_of({"loss": [1.0]}), *names, **options)


def test_without_plotly_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)

    with pytest.raises(ImportError, match="pip install 'plotly>=6'"):
        drawn(run_of({"loss": [1.0]}), "loss")


def test_a_long_line_keeps_its_spikes() -> None:
    values = [0.0] * 100_000
    values[77_777] = 9.0

    shown = places_shown(values)

    assert len(shown) <= 1_000
    assert 77_777 in shown
    assert (shown[0], shown[-1]) == (0, 99_999)


def test_layers_that_are_thinned_stand_on_the_same_steps() -> None:
    num = 5_000
    names = ("group/frac_zero_std", "group/frac_all_max", "group/frac_all_min")
    run = run_of({name: [0.25] * num for name in names})

    found = drawn(run)

    assert len({tuple(one.x) for one in found.data}) == 1
    assert len(found.data[0].x) <= 1_000
    assert [one.y[0] for one in found.data] == [0.25, 0.75, -0.25, 0.25]
