from __future__ import annotations

from django.urls import path

from dashboard.training import views

urlpatterns = [
    path("<int:run_id>/logs/", views.run_logs, name="run_logs"),
    path("<int:run_id>/logs/download", views.download_log, name="run_log_download"),
]
