from __future__ import annotations

from django.urls import include, path

from dashboard import health
from dashboard.project.overload import handle_server_error
from dashboard.upkeep.admin import site
from dashboard.upkeep.views import server

handler500 = handle_server_error
urlpatterns = [
    path("healthz", health.healthz, name="healthz"),
    path("readyz", server.readyz, name="readyz"),
    path("metrics", server.metrics, name="metrics"),
    path("api/v1/", include("dashboard.api.urls")),
    path("admin/", site.urls),
    path("", include("dashboard.pages.urls")),
]
