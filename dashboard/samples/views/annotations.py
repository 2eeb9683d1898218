"""What people say of groups and completions: marked one by one, and taken as a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_POST, require_safe

from dashboard.accounts.access import get_membership_for, get_team
from dashboard.accounts.models import Membership, User
from dashboard.project.downloads import Streamed
from dashboard.runs.models import Run
from dashboard.runs.queries import get_run
from dashboard.samples.annotation_exports import EXPORTS
from dashboard.samples.annotations import (
    Marks,
    Target,
    add_comment,
    add_tag,
    delete_comment,
    find_target,
    judge,
    read_marks,
    remove_tag,
)
from dashboard.samples.groups import get_group

Do = Callable[[User, Target, str], None]
# By the name of the button, or of the field, that was sent.
ACTIONS: dict[str, Do] = {
    "judge": lambda user, target, value: judge(user, target, is_up=_judgement(value)),
    "untag": remove_tag,
    "uncomment": delete_comment,
    "tag": add_tag,
    "comment": add_comment,
}


def _judgement(value: str) -> bool | None:
    return {"good": True, "bad": False}.get(value)


@require_POST
def group_marks(
    request: HttpRequest, team: str, run_id: int, step: int, prompt: int
) -> HttpResponse:
    membership = get_membership_for(request, team)
    run = get_run(membership.team, run_id)
    group = get_group(run, step, prompt)
    target = find_target(group, request.POST.get("position", ""))
    asked = next((name for name in ACTIONS if name in request.POST), None)
    problem = "Nothing was sent to do."
    if asked:
        problem = _try(asked, membership.user, target, request.POST[asked])
    if getattr(request, "htmx", False):
        sent = {"asked": asked, "typed": request.POST.get(asked or "", "")}
        return _answer(request, run, membership, target, problem=problem, **sent)
    if problem:
        messages.error(request, problem)
    at = "#group-marks" if target.position is None else f"#completion-{target.position}"
    return redirect(reverse("group", args=[team, run_id, step, prompt]) + at)


def _try(asked: str, user: User, target: Target, value: str) -> str:
    try:
        ACTIONS[asked](user, target, value)
    except ValueError as error:
        return str(error)
    return ""


def _answer(
    request: HttpRequest,
    run: Run,
    membership: Membership,
    target: Target,
    **said: str | None,
) -> HttpResponse:
    group = target.group
    found = read_marks([group.pk], membership.user)
    context: dict[str, Any] = {
        "team": membership.team,
        "run": run,
        "group": group,
        "place": target.position,
        "key": target.key,
        "marks": found.get((group.pk, target.position), Marks()),
        "can_write": membership.can_write,
        **said,
    }
    return render(request, "samples/marks.html", context)


@require_safe
def run_annotations(
    request: HttpRequest, team: str, run_id: int, export: str
) -> HttpResponseBase:
    run = get_run(get_team(request, team), run_id)
    if export not in EXPORTS:
        raise Http404(f"There is no export {export!r}.")
    lines = (line.encode() for line in EXPORTS[export](run))
    filename = content_disposition_header(
        as_attachment=True, filename=f"{run.name}-{export}.jsonl"
    )
    headers = {"Content-Disposition": filename or ""}
    return Streamed(lines, content_type="application/jsonl", headers=headers)
