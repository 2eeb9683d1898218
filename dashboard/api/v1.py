"""/api/v1: the routers of its operations, and OpenAPI's document of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe
from ninja import NinjaAPI
from ninja.errors import ValidationError, ValidationErrorContext
from ninja.operation import Operation
from ninja.router import Router

from dashboard.api import (
    alerts,
    checkpoints,
    compare,
    completions,
    costs,
    dataset_imports,
    dataset_uploads,
    datasets,
    external_runs,
    launches,
    measurements,
    members,
    probes,
    prompts,
    questions,
    queue,
    recipes,
    reports,
    rescoring,
    run_imports,
    runs,
    sweeps,
)
from dashboard.api.problems import CODES, TYPE, Problem, ProblemSchema, handle_problems

DESCRIPTION = """\
All operations act on the token's team. Objects of other teams are \
not found (404). Create tokens on the team's page “API tokens” and send them as \
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
        result = super().validation_error_from_error_contexts(error_contexts)
        inputs = [
            fault["input"]
            for context in error_contexts
            for fault in context.pydantic_validation_error.errors(include_url=False)
        ]
        for error, value in zip(result.errors, inputs, strict=True):
            error["input"] = value
        return result


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
        ("/costs", costs.router),
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
        ("/alert-rules", alerts.rules_router),
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
        ("/questions", questions.router),
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


SHARED = ("401", "403", "429")
# They change nothing, but may return 409.
REFUSING = (
    *("dataset_rows", "dataset_file"),
    *("completions", "checkpoint_model", "report_file"),
)
TOKEN = {"type": "http", "scheme": "bearer"}
KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 100},
    "description": (
        "A repeated request with the same key within a day returns the first "
        "response and changes nothing."
    ),
}
Schema = Mapping[str, Any]
BY_FORMAT = {"date-time": "2026-03-01T12:00:00Z", "binary": "(bytes)"}
BY_TYPE: dict[str, Any] = {
    "string": "",
    "integer": 1,
    "number": 0.5,
    "boolean": False,
    "null": None,
}


# Examples of bodies, made of those of their fields.


def example_of(schema: Schema, parts: Mapping[str, Schema]) -> Any:
    """
    >>> example_of({"type": "array", "items": {"type": "integer", "examples": [7]}}, {})
    [7]
    """
    if "$ref" in schema:
        return example_of(parts[schema["$ref"].rsplit("/", 1)[1]], parts)
    for name in ("examples", "enum"):
        if schema.get(name):
            return schema[name][0]
    if "default" in schema:
        return schema["default"]
    for name in ("anyOf", "allOf", "oneOf"):
        if schema.get(name):
            return example_of(schema[name][0], parts)
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type")
    if kind == "array":
        return [example_of(schema.get("items", {}), parts)]
    if kind == "object":
        fields = schema.get("properties", {})
        return {name: example_of(part, parts) for name, part in fields.items()}
    return BY_FORMAT.get(schema.get("format", ""), BY_TYPE.get(str(kind)))


# The document.


@cache
def openapi_document() -> dict[str, Any]:
    document: dict[str, Any] = api.get_openapi_schema(path_prefix="/api/v1/")
    parts = document["components"]
    parts["schemas"]["Problem"] = ProblemSchema.model_json_schema(
        ref_template="#/components/schemas/{model}"
    )
    parts["schemas"] |= parts["schemas"]["Problem"].pop("$defs", {})
    parts["securitySchemes"] = {"Token": TOKEN}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            _complete(path, method, operation)
            _add_examples(operation, parts["schemas"])
    return document


def _add_examples(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
    for body in bodies:
        for media, content in body.get("content", {}).items():
            if media in ("application/json", TYPE):
                content["example"] = example_of(content["schema"], schemas)


def _complete(path: str, method: str, operation: dict[str, Any]) -> None:
    (name,) = operation["security"][0]
    scope = name.removesuffix("Token").lower()
    about = operation.get("description", "")
    operation["security"] = [{"Token": [] if scope == "any" else [scope]}]
    operation["description"] = f"{about}\n\nScope of the token: {scope}.".lstrip()
    operation["responses"] = {str(s): r for s, r in operation["responses"].items()}
    content = operation["responses"].get("200", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    if schema.get("format") == "binary":
        content = {"*/*": {"schema": {"type": "string", "format": "binary"}}}
        operation["responses"]["200"] = {"description": "The file", "content": content}
    statuses = [*SHARED, "422"]
    if "{" in path:
        statuses.append("404")
    if "requestBody" in operation:
        statuses += ["400", "413"]
    if method == "post":
        operation.setdefault("parameters", []).append(KEY)
    if method != "get" or operation["operationId"] in REFUSING:
        statuses.append("409")
    for status in sorted(statuses):
        operation["responses"].setdefault(
            status,
            {
                "description": CODES[int(status)][1],
                "content": {TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        )


@login_not_required
@require_safe
def openapi(request: HttpRequest) -> HttpResponse:
    """Public: it describes the operations and contains no data."""
    return JsonResponse(openapi_document(), json_dumps_params={"indent": 1})


def no_such_address(request: HttpRequest) -> HttpResponse:
    raise Problem(
        404,
        f"Address {request.path[:200]} not found. /api/v1/openapi.json lists all "
        "addresses.",
    )
