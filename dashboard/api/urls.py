"""Included at /api/v1/."""

from __future__ import annotations

from django.urls import URLPattern, path, re_path

from dashboard.api.entrance import entrance
from dashboard.api.v1 import api
from dashboard.api.views.schema import no_such_address, openapi

# They wait for a child, and what they write needs no transaction of theirs.
NOT_ATOMIC = {"api_check_recipe", "api_start_import", "api_import_dataset_upload"}
operations: list[URLPattern] = []
for found in api.urls[0]:
    assert isinstance(found, URLPattern)
    if found.name != "api-root":
        operations.append(
            URLPattern(
                found.pattern,
                entrance(found.callback, is_atomic=found.name not in NOT_ATOMIC),
                name=found.name,
            )
        )

urlpatterns = [
    path("openapi.json", openapi, name="api_openapi"),
    *operations,
    re_path("", entrance(no_such_address), name="api_no_such_address"),
]
