"""The OpenAPI document, and the answer where there is no operation."""

from __future__ import annotations

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from dashboard.api.document import openapi_document
from dashboard.api.problems import Problem


@login_not_required
@require_safe
def openapi(request: HttpRequest) -> HttpResponse:
    """Open to everybody: it tells what can be asked, and of nobody's things."""
    return JsonResponse(openapi_document(), json_dumps_params={"indent": 1})


def no_such_address(request: HttpRequest) -> HttpResponse:
    raise Problem(
        404,
        f"There is no address {request.path[:200]}. /api/v1/openapi.json has them all.",
    )
