"""What programs ask about the server: is it ready, and its numbers."""

from __future__ import annotations

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST

from dashboard.upkeep.access import REFUSAL, may_see_server
from dashboard.upkeep.health_checks import read_report
from dashboard.upkeep.metrics.exposition import exposition


@never_cache
@require_safe
@login_not_required
async def readyz(request: HttpRequest) -> JsonResponse:
    """503 where pages could not be served whole; the parts, to whom it concerns."""
    report = await read_report()
    told: dict[str, object] = {"status": report.status}
    if may_see_server(request):
        told["parts"] = [part.as_json() for part in report.parts]
    return JsonResponse(told, status=200 if report.is_ready else 503)


@never_cache
@require_safe
@login_not_required
async def metrics(request: HttpRequest) -> HttpResponse:
    if not may_see_server(request):
        return HttpResponse(REFUSAL, status=403, content_type="text/plain")
    return HttpResponse(await exposition(), content_type=CONTENT_TYPE_LATEST)
