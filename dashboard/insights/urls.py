"""Included at /<team>/."""

from __future__ import annotations

from django.urls import path

from dashboard.insights.audit.views import run_audit, run_audit_examples
from dashboard.insights.duels.views import compare_prompt
from dashboard.insights.sweeps.views import sweep
from dashboard.insights.views import compare, compare_figure

urlpatterns = [
    path("compare", compare, name="compare"),
    path("compare/figure.json", compare_figure, name="compare_figure"),
    path("compare/prompt", compare_prompt, name="compare_prompt"),
    path("sweep", sweep, name="sweep"),
    path("runs/<int:run_id>/audit/", run_audit, name="run_audit"),
    path(
        "runs/<int:run_id>/audit/<str:signal>/",
        run_audit_examples,
        name="run_audit_examples",
    ),
]
