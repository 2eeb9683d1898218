"""/api/v1 itself: its operations, and how it answers."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from ninja import NinjaAPI
from ninja.operation import Operation
from ninja.router import Router

from dashboard.api.problems import handle_problems
from dashboard.api.resources import (
    alerts,
    audit_log,
    compare,
    completions,
    datasets,
    groups,
    invitations,
    launches,
    me,
    measurements,
    members,
    mentions,
    outside,
    queue,
    recipe_versions,
    recipes,
    rescorings,
    runs,
    team,
    team_presets,
    tokens,
    views,
    workers,
)

DESCRIPTION = """\
Everything belongs to the team of the token that asks; what another team has is not \
found (404). Tokens are made on the team's page API tokens and sent as \
`Authorization: Bearer cohort_…`.
"""


class Api(NinjaAPI):
    def get_operation_url_name(self, operation: Operation, router: Router) -> str:
        return f"api_{operation.view_func.__name__}"

    def get_openapi_operation_id(self, operation: Operation) -> str:
        return operation.view_func.__name__


def make_api() -> NinjaAPI:
    api = Api(
        title="Cohort",
        version="1",
        description=DESCRIPTION,
        docs_url=None,
        openapi_url=None,
        urls_namespace="api-v1",
    )
    handle_problems(api)
    routers: list[tuple[str, Any]] = [
        ("", me.router),
        ("/runs", runs.router),
        ("/runs", measurements.router),
        ("/runs", groups.router),
        ("/runs", completions.router),
        ("/compare", compare.router),
        *alerts.ROUTERS,
        ("", launches.router),
        ("/team-presets", team_presets.router),
        ("/queue", queue.router),
        ("/runs", queue.of_runs),
        *datasets.ROUTERS,
        ("/recipes", recipes.router),
        ("", recipe_versions.router),
        ("/rescorings", rescorings.router),
        ("/workers", workers.router),
        ("/views", views.router),
        ("/mentions", mentions.router),
        ("/team", team.router),
        ("/members", members.router),
        ("/invitations", invitations.router),
        ("/audit-log", audit_log.router),
        ("/outside-runs", outside.router),
        ("/tokens", tokens.router),
        ("/me", tokens.own),  # the last: whoever revokes its token asks no more
    ]
    for prefix, router in [*routers, *settings.API_ROUTERS]:
        api.add_router(prefix, router)
    return api


api = make_api()
