"""/api/v1 itself: its operations, and how it answers."""

from __future__ import annotations

from typing import Any

from ninja import NinjaAPI
from ninja.errors import ValidationError, ValidationErrorContext
from ninja.operation import Operation
from ninja.router import Router

from dashboard.api.problems import handle_problems
from dashboard.api.resources import (
    alerts,
    audit_log,
    audits,
    changes,
    checkpoints,
    compare,
    compare_curves,
    completions,
    datasets,
    groups,
    invitations,
    launch_checks,
    launches,
    logs,
    me,
    measurements,
    members,
    models,
    outside,
    probes,
    prompts,
    queue,
    recipe_versions,
    recipes,
    reports,
    rescoring,
    rescorings,
    run_imports,
    runs,
    sweeps,
    swept,
    tokens,
    traces,
    workers,
)

DESCRIPTION = """\
Everything belongs to the team of the token that asks; what another team has is not \
found (404). Tokens are made on the team's page API and tokens and sent as \
`Authorization: Bearer cohort_…`.
"""


class Api(NinjaAPI):
    def get_operation_url_name(self, operation: Operation, router: Router) -> str:
        return f"api_{operation.view_func.__name__}"

    def get_openapi_operation_id(self, operation: Operation) -> str:
        return operation.view_func.__name__

    def validation_error_from_error_contexts(
        self, error_contexts: list[ValidationErrorContext[Any]]
    ) -> ValidationError:
        """With the value of each field, which django-ninja leaves out."""
        found = super().validation_error_from_error_contexts(error_contexts)
        given = [
            each["input"]
            for context in error_contexts
            for each in context.pydantic_validation_error.errors(include_url=False)
        ]
        for error, value in zip(found.errors, given, strict=True):
            error["input"] = value
        return found


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
        ("/runs", prompts.router),
        ("/runs", checkpoints.router),
        ("/models", models.router),
        ("/runs", audits.router),
        ("/runs", traces.router),
        ("/runs", logs.router),
        ("/runs", changes.router),
        ("/compare", compare.router),
        ("/compare", compare_curves.router),
        ("/compare", swept.router),
        ("/reports", reports.router),
        *alerts.ROUTERS,
        ("", launches.router),
        ("", launch_checks.router),
        ("/sweeps", sweeps.router),
        ("/probes", probes.router),
        ("/queue", queue.router),
        *datasets.ROUTERS,
        ("", recipe_versions.router),  # whose /recipes/check looks like a number's
        ("/recipes", recipes.router),
        ("/rescorings", rescorings.router),
        ("/rescorings", rescoring.router),
        ("/workers", workers.router),
        ("/members", members.router),
        ("/invitations", invitations.router),
        ("/audit-log", audit_log.router),
        ("/outside-runs", outside.router),
        ("/run-imports", run_imports.router),
        ("/tokens", tokens.router),
        # By name: storage is of a rung above.
        ("/storage", "dashboard.upkeep.operations.router"),
        ("/me", tokens.own),  # the last: whoever revokes its token asks no more
    ]
    for prefix, router in routers:
        api.add_router(prefix, router)
    return api


api = make_api()
