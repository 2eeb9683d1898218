"""Included at /api/v1/."""

from __future__ import annotations

from django.urls import URLPattern, path, re_path

from dashboard.api.entrance import entrance
from dashboard.api.v1 import api
from dashboard.api.views.schema import no_such_address, openapi

COMPUTED = {"api_check_recipe"}
operations: list[URLPattern] = []
for found in api.urls[0]:
    assert isinstance(found, URLPattern)
    if found.name != "api-root":
        operations.append(
            URLPattern(
                found.pattern,
                entrance(found.callback, only_computes=found.name in COMPUTED),
                name=found.name,
            )
        )

urlpatterns = [
    path("openapi.json", openapi, name="api_openapi"),
    *operations,
    re_path("", entrance(no_such_address), name="api_no_such_address"),
]
