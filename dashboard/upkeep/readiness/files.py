"""The data folder, and the files that pages load."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from django.conf import settings
from django.contrib.staticfiles import finders

from dashboard.accounts.templatetags.numbers import num_bytes as in_bytes
from dashboard.upkeep.readiness.parts import Part, missing
from dashboard.upkeep.readiness.waiting import in_thread

# One of each place that static files come from.
LOADED = (
    "css/app.css",
    "js/shell.js",
    "vendor/tabler/css/tabler.min.css",
    "vendor/plotly/plotly-cartesian.min.js",
    "vendor/htmx/htmx.min.js",
    "vendor/diff/diff.min.js",
)


async def check_static() -> list[Part]:
    return [await in_thread("static", look_for_static)]


async def check_folder() -> list[Part]:
    return [await in_thread("folder", look_at_folder)]


def look_for_static() -> Part:
    lost = [name for name in LOADED if finders.find(name) is None]
    if lost:
        return missing(
            "static files",
            f"not found: {', '.join(lost)}",
            "Run: make setup (in a container: build the image anew)",
            runbook="an-upgrade-went-wrong",
            is_required=True,
        )
    return Part(
        name="static files",
        state="ok",
        value=f"{len(LOADED)} of {len(LOADED)} found",
        is_required=True,
        runbook="an-upgrade-went-wrong",
    )


def look_at_folder() -> Part:
    folder = Path(settings.COHORT_DATA)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
            file.flush()
        use = shutil.disk_usage(folder)
    except OSError as error:
        return missing(
            "data folder",
            f"{folder} cannot be written: {os.strerror(error.errno or 0)}",
            "Free space there, or mount it writable for Cohort's user.",
            runbook="the-disk-is-full",
        )
    is_low = use.free < settings.LEAST_FREE_BYTES
    return Part(
        name="data folder",
        state="degraded" if is_low else "ok",
        value=f"{in_bytes(use.free)} free of {in_bytes(use.total)}; low below "
        f"{in_bytes(settings.LEAST_FREE_BYTES)}",
        remedy="Delete runs, checkpoints or datasets, or make the disk larger."
        if is_low
        else "",
        runbook="the-disk-is-full",
    )
