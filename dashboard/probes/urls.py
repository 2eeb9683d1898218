"""Included at /<team>/."""

from __future__ import annotations

from django.urls import path

from dashboard.probes.views import probe, workbench

urlpatterns = [
    path("runs/<int:run_id>/try/", probe.run_try, name="run_try"),
    path("rewards/workbench", workbench.workbench, name="workbench"),
    path(
        "rewards/workbench/scores", workbench.workbench_scores, name="workbench_scores"
    ),
    path("rewards/workbench/rows", workbench.workbench_rows, name="workbench_rows"),
    path("rewards/findings", workbench.recipe_findings, name="recipe_findings"),
    path("probes/", probe.probes, name="probes"),
    path("runs/new/probe", probe.probe_launch, name="probe_launch"),
    path("probes/<int:probe_id>/", probe.probe, name="probe"),
    path("probes/<int:probe_id>/progress", probe.probe_progress, name="probe_progress"),
    path("probes/<int:probe_id>/stop", probe.probe_stop, name="probe_stop"),
]
