from __future__ import annotations

from django.urls import include, path

from dashboard import health
from dashboard.help import views as help_pages
from dashboard.project.overload import handle_server_error
from dashboard.reports.views.public import public_report
from dashboard.runs.views.queue import queue
from dashboard.upkeep.admin import site
from dashboard.upkeep.urls import personal
from dashboard.upkeep.views import server

handler500 = handle_server_error
urlpatterns = [
    path("healthz", health.healthz, name="healthz"),
    path("readyz", server.readyz, name="readyz"),
    path("metrics", server.metrics, name="metrics"),
    path("public/<str:token>/", public_report, name="public_report"),
    path("help/", help_pages.contents, name="help"),
    path("help/<slug:topic>/", help_pages.topic, name="help_topic"),
    path("api/v1/", include("dashboard.api.urls")),
    path("admin/", site.urls),
    *personal,
    path("", include("dashboard.accounts.urls")),
    path("<slug:team>/datasets/", include("dashboard.datasets.urls")),
    path("<slug:team>/rewards/", include("dashboard.rewards.urls")),
    path("<slug:team>/queue/", queue, name="queue"),
    path("<slug:team>/runs/", include("dashboard.runs.urls")),
    path("<slug:team>/runs/", include("dashboard.exchange.urls")),
    path("<slug:team>/runs/", include("dashboard.samples.urls")),
    path("<slug:team>/runs/", include("dashboard.training.urls")),
    path("<slug:team>/", include("dashboard.samples.team_urls")),
    path("<slug:team>/", include("dashboard.alerts.urls")),
    path("<slug:team>/", include("dashboard.training.team_urls")),
    path("<slug:team>/", include("dashboard.probes.urls")),
    path("<slug:team>/", include("dashboard.rescoring.urls")),
    path("<slug:team>/", include("dashboard.insights.urls")),
    path("<slug:team>/reports/", include("dashboard.reports.urls")),
    path("<slug:team>/audit-log/", include("dashboard.auditlog.urls")),
    path("<slug:team>/", include("dashboard.api.team_urls")),
    path("<slug:team>/", include("dashboard.upkeep.urls")),
]
