"""/api/v1: the routers of its operations under their addresses."""

from __future__ import annotations

from typing import Any

from ninja import NinjaAPI
from ninja.errors import ValidationError, ValidationErrorContext
from ninja.operation import Operation
from ninja.router import Router

from dashboard.api import (
    alert_rules,
    alerts,
    checkpoints,
    compare,
    completions,
    dataset_imports,
    dataset_uploads,
    datasets,
    external_runs,
    groups,
    launches,
    measurements,
    members,
    probes,
    prompts,
    queue,
    recipes,
    reports,
    rescoring,
    run_imports,
    runs,
    sweeps,
)
from dashboard.api.problems import handle_problems

DESCRIPTION = """\
All operations act on the token's team. Objects of other teams are \
not found (404). Create tokens on the team's page “API and tokens” and send them as \
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
        """Add the value of each field, which django-ninja leaves out."""
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
    routers: list[tuple[str, Router]] = [
        ("", members.me_router),
        ("/runs", runs.router),
        ("/runs", measurements.router),
        ("/runs", groups.router),
        ("/runs", completions.router),
        ("/runs", prompts.router),
        ("/runs", checkpoints.router),
        ("/models", checkpoints.models_router),
        ("/runs", measurements.traces_router),
        ("/runs", measurements.logs_router),
        ("/compare", compare.router),
        ("/compare", sweeps.importance_router),
        ("/reports", reports.router),
        ("/alerts", alerts.router),
        ("/alert-rules", alert_rules.router),
        ("", launches.router),
        ("/sweeps", sweeps.router),
        ("/probes", probes.router),
        ("/queue", queue.router),
        ("", datasets.router),
        ("", dataset_imports.router),
        ("/dataset-uploads", dataset_uploads.router),
        ("", dataset_uploads.fetches_router),
        (
            "",
            recipes.versions_router,
        ),  # whose /recipes/check would match a number's route
        ("/recipes", recipes.router),
        ("/rescorings", rescoring.router),
        ("/workers", queue.workers_router),
        ("/members", members.router),
        ("/invitations", members.invitations_router),
        ("/external-runs", external_runs.router),
        ("/run-imports", run_imports.router),
        ("/tokens", members.tokens_router),
        (
            "/me",
            members.own_token_router,
        ),  # last, because later requests of a revoked token fail
    ]
    for prefix, router in routers:
        api.add_router(prefix, router)
    return api


api = make_api()
