"""Included at /<team>/audit-log/."""

from __future__ import annotations

from django.urls import path

from dashboard.auditlog import views

urlpatterns = [
    path("", views.audit_log, name="audit_log"),
    path("<slug:file_format>", views.audit_log_file, name="audit_log_file"),
]
