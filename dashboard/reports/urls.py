"""Included at /<team>/reports/."""

from __future__ import annotations

from django.urls import path

from dashboard.reports.views.edit import (
    report_edit,
    report_insert,
    report_new,
    report_preview,
)
from dashboard.reports.views.export import report_export
from dashboard.reports.views.history import report_history, report_restore
from dashboard.reports.views.list import reports
from dashboard.reports.views.read import report, report_block, report_pin
from dashboard.reports.views.sharing import report_delete, report_share

urlpatterns = [
    path("", reports, name="reports"),
    path("new", report_new, name="report_new"),
    path("preview", report_preview, name="report_preview"),
    path("insert", report_insert, name="report_insert"),
    path("<int:report_id>/", report, name="report"),
    path("<int:report_id>/edit", report_edit, name="report_edit"),
    path("<int:report_id>/history", report_history, name="report_history"),
    path("<int:report_id>/restore", report_restore, name="report_restore"),
    path("<int:report_id>/blocks/<int:place>", report_block, name="report_block"),
    path("<int:report_id>/pin", report_pin, name="report_pin"),
    path("<int:report_id>/share", report_share, name="report_share"),
    path("<int:report_id>/delete", report_delete, name="report_delete"),
    path("<int:report_id>/export.html", report_export, name="report_export"),
]
