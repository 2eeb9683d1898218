"""Included at /<team>/."""

from __future__ import annotations

from django.urls import path

from dashboard.rescoring.views import new, result

urlpatterns = [
    path("rescorings/", result.rescorings, name="rescorings"),
    path("rescorings/new", new.rescoring_new, name="rescoring_new"),
    path("rescorings/<int:rescoring_id>/", result.rescoring, name="rescoring"),
    path(
        "rescorings/<int:rescoring_id>/progress",
        result.rescoring_progress,
        name="rescoring_progress",
    ),
    path(
        "rescorings/<int:rescoring_id>/stop",
        result.rescoring_stop,
        name="rescoring_stop",
    ),
    path(
        "rescorings/<int:rescoring_id>/delete",
        result.rescoring_delete,
        name="rescoring_delete",
    ),
    path(
        "rescorings/<int:rescoring_id>/completions.<file_format>",
        result.rescoring_export,
        name="rescoring_export",
    ),
]
