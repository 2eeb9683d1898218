"""All addresses: health, metrics, API, operator pages, pages."""

from __future__ import annotations

from django.urls import URLPattern, include, path, re_path

from dashboard.api.guards import guarded
from dashboard.api.mcp.view import mcp
from dashboard.api.v1 import api, no_such_address, openapi
from dashboard.operations import views
from dashboard.operations.admin import site
from dashboard.web.middleware import PROBED, answer_probe, handle_not_found
from dashboard.web.overload import handle_server_error

# They wait for a subprocess and need no transaction of their own.
NOT_ATOMIC = {
    "api_check_recipe",
    "api_try_recipe",
    "api_start_import",
    "api_import_dataset_upload",
}
api_operations: list[URLPattern] = []
for route in api.urls[0]:
    assert isinstance(route, URLPattern)
    if route.name != "api-root":
        api_operations.append(
            URLPattern(
                route.pattern,
                guarded(route.callback, is_atomic=route.name not in NOT_ATOMIC),
                name=route.name,
            )
        )


api_patterns = [
    path("openapi.json", openapi, name="api_openapi"),
    *api_operations,
    re_path("", guarded(no_such_address), name="api_no_such_address"),
]

handler404 = handle_not_found
handler500 = handle_server_error
urlpatterns = [
    path("healthz", views.healthz, name="healthz"),
    path("readyz", views.readyz, name="readyz"),
    path("metrics", views.metrics, name="metrics"),
    path("api/v1/", include(api_patterns)),
    path("mcp", guarded(mcp, is_atomic=False), name="api_mcp"),
    path("mcp/", guarded(mcp, is_atomic=False), name="api_mcp_slash"),
    *(re_path(f"^{probed}$", answer_probe, name="api_probed") for probed in PROBED),
    path("admin/", site.urls),
    path("", include("dashboard.pages.urls")),
]
