"""Errors as RFC 9457's problem+json. `errors` name the fields."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.core.exceptions import (
    BadRequest,
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
    TooManyFieldsSent,
    TooManyFilesSent,
)
from django.db import OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from django.http.multipartparser import MultiPartParserError
from ninja import NinjaAPI, Schema
from ninja.errors import AuthenticationError, HttpError, ValidationError
from psycopg.errors import LockNotAvailable
from pydantic import Field

from dashboard.project.errors import code_of
from dashboard.web.edits import Clash, EditConflict
from dashboard.web.overload import RETRY_SECONDS, overload_of

logger = logging.getLogger(__name__)
TYPE = "application/problem+json"
MAX_SHOWN = 60  # characters of a value
CODES = {
    400: ("bad_request", "Malformed request"),
    401: ("unauthorized", "Token missing or invalid"),
    403: ("forbidden", "Not allowed"),
    404: ("not_found", "Not found"),
    405: ("method_not_allowed", "Method not allowed"),
    409: ("conflict", "Conflict with the current state"),
    413: ("too_large", "The request is too large"),
    422: ("invalid", "The request has invalid fields"),
    429: ("rate_limited", "Too many requests"),
    500: ("server_error", "Internal error"),
    503: ("busy", "The server is busy"),
}


class FieldError(Schema):
    field: str = Field(
        description="Path of the field: `query.limit`, `path.run_id`, "
        "`body.rules.0.kind`.",
        examples=["query.limit"],
    )
    code: str = Field(
        description="Stable code. The message may change.",
        examples=["less_than_equal"],
    )
    message: str = Field(
        examples=["Input should be less than or equal to 200; got 500"]
    )


class ConflictSchema(Schema):
    field: str = Field(examples=["notes"])
    now: Any = Field(description="The current value.", examples=["Diverges at 40."])
    sent: Any = Field(examples=["Diverges at step 40."])


class ProblemSchema(Schema):
    type: str = Field(examples=["urn:cohort:problem:invalid"])
    title: str = Field(examples=["The request has invalid fields"])
    status: int = Field(examples=[422])
    code: str = Field(
        description="Stable code. The text may change.",
        examples=["datasets.name_taken"],
    )
    detail: str = Field(
        description="What happened, the value and what to do.",
        examples=["query.limit: Input should be less than or equal to 200; got 500"],
    )
    errors: list[FieldError] = Field(
        default=[], description="With 422: every invalid field."
    )
    conflicts: list[ConflictSchema] = Field(
        default=[],
        description="With 409: every field that changed since you read it.",
    )


@dataclass(frozen=True, slots=True)
class WrongField:
    field: str
    message: str
    code: str = ""


class Problem(Exception):
    """Raised by operations. The default code is that of the status."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        code: str = "",
        errors: Iterable[WrongField] = (),
        headers: Mapping[str, str] | None = None,
        conflicts: Sequence[Clash] = (),
    ) -> None:
        super().__init__(detail)
        self.conflicts = conflicts
        self.status, self.detail = status, detail
        self.code = code or CODES[status][0]
        self.errors = list(errors)
        self.headers = dict(headers or {})


NO_TOKEN = Problem(
    401,
    "The token is missing, expired or revoked. Create one on the team's page “API "
    "tokens” and send it as “Authorization: Bearer cohort_…”.",
    headers={"WWW-Authenticate": 'Bearer realm="Cohort"'},
)
# A web process waits for 3 s, and with a key for the first request of that key.
BUSY = Problem(
    409,
    "The request timed out waiting for another request to the same object. "
    "Nothing changed. Try again in a few seconds with the same Idempotency-Key.",
    code="locked",
    headers={"Retry-After": "3"},
)
TOO_BIG = Problem(
    413,
    f"The body exceeds {settings.DATA_UPLOAD_MAX_MEMORY_SIZE:,} bytes. Send less "
    "at once, and files in parts.",
)


def refuse_field(field: str, error: str | ValueError, code: str = "") -> Problem:
    """Return a 422 for one field, such as `body.name`."""
    code = code or (code_of(error) if isinstance(error, ValueError) else "")
    errors = [WrongField(field, str(error), code)]
    return Problem(422, str(error), code=code, errors=errors)


@contextmanager
def or_conflict(field: str = "") -> Iterator[None]:
    """Answer a service's ValueError with 409:

    a valid request that conflicts with the current state.
    """
    try:
        yield
    except ValueError as error:
        code = code_of(error)
        errors = [WrongField(field, str(error), code)] if field else []
        raise Problem(409, str(error), code=code, errors=errors) from error


@contextmanager
def or_refuse(field: str) -> Iterator[None]:
    """Answer a service's ValueError with 422: this field, such as `body.name`, is
    invalid.
    """
    try:
        yield
    except ValueError as error:
        raise refuse_field(field, error) from error


def answer(problem: Problem) -> HttpResponse:
    kind, title = CODES[problem.status]
    tree: dict[str, Any] = {
        "type": f"urn:cohort:problem:{kind}",
        "title": title,
        "status": problem.status,
        "code": problem.code,
        "detail": problem.detail,
    }
    if problem.errors:
        tree["errors"] = [
            {
                "field": error.field,
                "code": error.code or problem.code,
                "message": error.message,
            }
            for error in problem.errors
        ]
    if problem.conflicts:
        tree["conflicts"] = [
            {"field": conflict.field, "now": conflict.now, "sent": conflict.typed}
            for conflict in problem.conflicts
        ]
    response = HttpResponse(json.dumps(tree), status=problem.status, content_type=TYPE)
    for name, value in problem.headers.items():
        response.headers[name] = value
    return response


def handle_problems(api: NinjaAPI) -> None:
    """Turn every exception of an operation into a problem."""

    def on_exception(request: HttpRequest, error: Any) -> HttpResponse:
        return answer(read_problem(request, error))

    # django-ninja has its own handlers for the last three.
    for kind in (Exception, Http404, HttpError, ValidationError):
        api.add_exception_handler(kind, on_exception)


def read_problem(request: HttpRequest, error: Exception) -> Problem:
    match error:
        case Problem():
            return error
        case ValidationError():
            return _of_fields(error)
        case EditConflict():
            named = ", ".join(clash.field for clash in error.clashes)
            return Problem(
                409,
                f"Not changed: {named} has changed since you read it. Compare the "
                "values in `conflicts`, then send yours with the current `was`.",
                code="edit_conflict",
                errors=[
                    WrongField(
                        f"body.{clash.field}", "It has changed since.", "changed"
                    )
                    for clash in error.clashes
                ],
                conflicts=error.clashes,
            )
        case AuthenticationError():
            return NO_TOKEN
        case HttpError():
            code = "bad_json" if error.__cause__ else ""
            return Problem(error.status_code, _of_http(error), code=code)
        case Http404():
            return Problem(404, str(error) or "Not found.")
        case PermissionDenied():
            return Problem(403, str(error))
        case RequestDataTooBig():
            return TOO_BIG
        case TooManyFilesSent() | TooManyFieldsSent():
            return Problem(
                400,
                "The form has too many fields or files. Send fewer.",
                code="too_many_fields",
            )
        case MultiPartParserError():
            return Problem(400, _of_form(error), code="bad_form")
        case SuspiciousOperation() | BadRequest():
            return Problem(400, str(error))
        case OperationalError() if isinstance(error.__cause__, LockNotAvailable):
            return BUSY
    if sentence := overload_of(error):
        return Problem(503, sentence, headers={"Retry-After": str(RETRY_SECONDS)})
    logger.error("%s %s failed", request.method, request.path, exc_info=error)
    return Problem(
        500,
        "Internal error. Nothing changed. See the log of the web process.",
    )


def _of_form(error: MultiPartParserError) -> str:
    """Plain text: Django's message names its parser's state."""
    text = str(error).lower()
    if "boundary" in text:
        return (
            "The form has no multipart boundary. Send it as multipart/form-data "
            "with a boundary, as `curl -F` does."
        )
    if "header" in text:
        return (
            "The header of a form part exceeds 1,024 bytes. Shorten the field or "
            "file name."
        )
    if "base64" in text:
        return "A form part is not valid base64. Send it unencoded."
    return "The form is truncated or damaged. Send it again."


def _of_http(error: HttpError) -> str:
    """Says where the body stops being valid JSON."""
    match error.__cause__:
        case json.JSONDecodeError() as cause:
            why = f"{cause.msg} at line {cause.lineno}, column {cause.colno}"
        case UnicodeDecodeError() as cause:
            why = f"byte {cause.start + 1:,} is not UTF-8"
        case ValueError() | RecursionError():
            why = "it is nested too deeply or contains a number that is too long"
        case _:
            return str(error)
    return f"The body is not valid JSON: {why}. Send one JSON object in UTF-8."


def _of_fields(error: ValidationError) -> Problem:
    errors = [
        WrongField(_place(fault["loc"]), _message(fault), fault["type"])
        for fault in error.errors
    ]
    detail = "; ".join(f"{field.field}: {field.message}" for field in errors[:5])
    return Problem(422, detail, errors=errors)


def _message(error: Mapping[str, Any]) -> str:
    """Add the value seen, unless the message has it, or it is a whole tree."""
    message = str(error["msg"]).removeprefix("Value error, ")
    value = error["input"]
    has_value = error["type"] in ("value_error", "missing")
    if has_value or not isinstance(value, str | int | float | None):
        return message
    return f"{message}; got {_shown(value)}"


def _shown(value: str | float | None) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except ValueError:  # an integer too long to write
        text = "a number too long to show"
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def _place(location: Iterable[Any]) -> str:
    """
    >>> _place(("body", "payload", "rules", 0))
    "body.rules.0"
    """
    source, *rest = map(str, location)
    if source in ("body", "form", "file") and rest:
        rest = rest[1:] if rest[0] == "payload" else rest
    return ".".join([source, *rest])
