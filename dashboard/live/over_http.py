"""The stream for pages whose socket does not open: the same frames, when asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.http import HttpRequest, JsonResponse

from dashboard.live.messages import (
    PROTOCOL,
    Position,
    other_protocol,
    parse_position,
    parse_protocol,
)


def answer_page(
    request: HttpRequest, read_after: Callable[[Position], Mapping[str, Any]]
) -> JsonResponse:
    """409: the page is of another version, and is told as over the socket."""
    try:
        position = parse_position(request.GET)
        protocol = parse_protocol(request.GET)
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=400)
    if protocol != PROTOCOL:
        return JsonResponse(other_protocol(), status=409)
    return JsonResponse(read_after(position))
