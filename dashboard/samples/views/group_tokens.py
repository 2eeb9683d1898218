from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from dashboard.accounts.access import get_team
from dashboard.project.downloads import pack_answer, send_packed
from dashboard.runs.queries import get_run
from dashboard.samples.groups import get_group
from dashboard.samples.tokens import read_tokens, which_are_kept


@require_safe
def group_tokens(
    request: HttpRequest, team: str, run_id: int, step: int, prompt: int
) -> HttpResponse:
    """What the update did to each token of each of the group's completions."""
    run = get_run(get_team(request, team), run_id)
    completions = read_tokens(get_group(run, step, prompt))
    if completions is None:
        return JsonResponse({"error": which_are_kept(run)}, status=404)
    return send_packed(request, pack_answer({"completions": completions}))
