from __future__ import annotations

from django.urls import path

from dashboard.training import model_views
from dashboard.training.logs import views as logs
from dashboard.training.system import views as system

urlpatterns = [
    path("<int:run_id>/logs/", logs.run_logs, name="run_logs"),
    path("<int:run_id>/logs.json", logs.log_part, name="run_log_part"),
    path("<int:run_id>/logs/line.json", logs.log_line, name="run_log_line"),
    path("<int:run_id>/logs/search.json", logs.log_search, name="run_log_search"),
    path("<int:run_id>/logs/download", logs.download_log, name="run_log_download"),
    path("<int:run_id>/system/", system.run_system, name="run_system"),
    path("<int:run_id>/system.json", system.system_samples, name="run_system_samples"),
    path(
        "<int:run_id>/checkpoints/<slug:name>/model.tar",
        model_views.checkpoint_download,
        name="checkpoint_download",
    ),
    path(
        "<int:run_id>/checkpoints/<slug:name>/publish",
        model_views.checkpoint_publish,
        name="checkpoint_publish",
    ),
]
