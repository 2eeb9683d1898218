"""Included at /<team>/runs/, before what other apps export there."""

from __future__ import annotations

from django.urls import path, re_path

from dashboard.exchange.views.export import run_export, run_export_file

FILES = (
    "metrics.csv|metrics.jsonl|metrics.parquet|completions.csv|completions.jsonl|"
    "completions.parquet|tensorboard.zip|mlflow.zip"
).replace(".", r"\.")

urlpatterns = [
    path("<int:run_id>/export/", run_export, name="run_export"),
    re_path(
        rf"^(?P<run_id>\d{{1,18}})/export/(?P<file>{FILES})$",
        run_export_file,
        name="run_export_file",
    ),
]
