"""Included at /<team>/runs/, before what other apps export there."""

from __future__ import annotations

from django.urls import path, re_path

from dashboard.exchange.views.export import run_export, run_export_file
from dashboard.exchange.views.imports import run_import, run_imports
from dashboard.exchange.views.parts import run_import_files, run_import_parts

FILES = (
    "metrics.csv|metrics.jsonl|metrics.parquet|completions.csv|completions.jsonl|"
    "completions.parquet|tensorboard.zip"
).replace(".", r"\.")

urlpatterns = [
    path("import/", run_imports, name="run_imports"),
    path("import/<int:import_id>/", run_import, name="run_import"),
    path("import/<int:import_id>/files", run_import_files, name="run_import_files"),
    path(
        "import/<int:import_id>/files/<int:file_id>/parts",
        run_import_parts,
        name="run_import_parts",
    ),
    path("<int:run_id>/export/", run_export, name="run_export"),
    re_path(
        rf"^(?P<run_id>\d{{1,18}})/export/(?P<file>{FILES})$",
        run_export_file,
        name="run_export_file",
    ),
]
