"""The charts of the System tab; static/js/pages/system.js fills them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PERCENT = {"ticksuffix": " %", "rangemode": "tozero"}
# system.js divides bytes by the unit that fits, as Plotly knows no binary ones.
BYTES = {"ticksuffix": "B", "rangemode": "tozero"}
BYTES_PER_SECOND = {**BYTES, "ticksuffix": "B/s"}
HOVER = {" %": "%{y:.1f}", "B": "%{y:.3~g}", "B/s": "%{y:.3~g}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemChart:
    id: str
    title: str
    about: str
    of_gpus: bool = False
    figure: dict[str, Any]


def _figure(axis: dict[str, Any], **lines: str) -> dict[str, Any]:
    """`lines`: the metric and what it is called."""
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "line": {"width": 1.5, "color": f"var(--cohort-series-{i})"},
                "hovertemplate": HOVER[axis["ticksuffix"]],
                "meta": {"metric": metric},
            }
            for i, (metric, name) in enumerate(lines.items(), start=1)
        ],
        "layout": {"yaxis": axis, "xaxis": {}, "hovermode": "x unified"},
    }


CHARTS = (
    SystemChart(
        id="gpu-use",
        title="GPU use",
        about="Share of the time in which a kernel ran.",
        of_gpus=True,
        figure=_figure({**PERCENT, "range": [0, 103]}, gpu_use="GPU"),
    ),
    SystemChart(
        id="gpu-memory",
        title="GPU memory",
        about="Held on the GPU, by any process.",
        of_gpus=True,
        figure=_figure(BYTES, gpu_memory="GPU"),
    ),
    SystemChart(
        id="cpu",
        title="CPU",
        about="100 % is every core of the machine.",
        figure=_figure(PERCENT, trainer_cpu="trainer", cpu="machine"),
    ),
    SystemChart(
        id="memory",
        title="Memory",
        about="Resident: the trainer with what it started, and the machine.",
        figure=_figure(BYTES, trainer_memory="trainer", memory="machine"),
    ),
    SystemChart(
        id="disk",
        title="Disk traffic",
        about="All disks of the machine.",
        figure=_figure(BYTES_PER_SECOND, disk_read="read", disk_written="written"),
    ),
    SystemChart(
        id="disk-free",
        title="Disk space left",
        about="Where runs and checkpoints are kept.",
        figure=_figure(BYTES, disk_free="free"),
    ),
    SystemChart(
        id="network",
        title="Network",
        about="All interfaces but the loopback.",
        figure=_figure(
            BYTES_PER_SECOND, network_received="received", network_sent="sent"
        ),
    ),
)
