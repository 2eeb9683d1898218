from __future__ import annotations

from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from dashboard.accounts.access import get_writable_team
from dashboard.accounts.models import Team, User
from dashboard.project.edits import (
    MAX_DIFFERENCES,
    Edit,
    EditConflict,
    compare_texts,
    show_conflict,
)
from dashboard.runs.launch.form import LaunchForm
from dashboard.runs.launch.sections import (
    delete_preset,
    mark,
    rename_preset,
    save_preset,
    write_kept,
)
from dashboard.runs.queries import get_team_preset
from dashboard.runs.views.launch import kept_choices, read_form, show_form

UNFINISHED = "Correct the form first: a preset holds settings that a run can have."


@require_POST
def preset_save(request: HttpRequest, team: str) -> HttpResponse:
    """Keep the settings of the form, and go on from them."""
    team_ = get_writable_team(request, team)
    assert isinstance(request.user, User)
    form = read_form(request, team_)
    launch = form.check()
    if launch is None:
        return show_form(request, team_, form, preset_problem=UNFINISHED, status=422)
    try:
        preset = save_preset(
            team=team_,
            user=request.user,
            name=request.POST.get("preset_name", ""),
            launch=launch,
            keeps_model=request.POST.get("keeps_model") == "on",
            keeps_recipe=request.POST.get("keeps_recipe") == "on",
            overwrites=request.POST.get("overwrites") == "on",
            seen=request.POST.get("seen_preset", ""),
        )
    except EditConflict as conflict:
        return _show_both(request, team_, form, conflict)
    except ValueError as error:
        return show_form(request, team_, form, preset_problem=str(error), status=422)
    messages.success(request, f"Saved the preset {preset.name}.")
    query = kept_choices(form) | {"preset": f"team:{preset.pk}"}
    return redirect(f"{reverse('run_new', args=[team_.slug])}?{urlencode(query)}")


def _show_both(
    request: HttpRequest, team: Team, form: LaunchForm, conflict: EditConflict
) -> HttpResponse:
    """Saved again, the reader's goes over what they have then seen."""
    [clash] = conflict.clashes
    theirs = form.start.team_preset
    assert theirs is not None
    changes = compare_texts(write_kept(clash.now), write_kept(clash.typed))
    return show_form(
        request,
        team,
        form,
        preset_problem=f"{theirs.saved_by or 'Somebody'} saved this preset after you "
        "opened the form. Save again to replace theirs with yours.",
        preset_changes=changes[:MAX_DIFFERENCES],
        seen_preset=mark(theirs),
        status=409,
    )


@require_POST
def preset_change(request: HttpRequest, team: str, pk: int) -> HttpResponse:
    """Rename it, or delete it."""
    team_ = get_writable_team(request, team)
    assert isinstance(request.user, User)
    preset = get_team_preset(team_, pk)
    address = reverse("run_new", args=[team_.slug])
    if request.POST.get("action") == "delete":
        delete_preset(preset=preset, user=request.user)
        messages.success(request, f"Deleted the preset {preset.name}.")
        return redirect(address)
    before, sent = preset.name, Edit.read(request.POST, ["preset_name"])
    edit = sent.rename({"preset_name": "name"})
    back = f"{address}?{urlencode({'preset': f'team:{pk}'})}"
    try:
        rename_preset(preset=preset, user=request.user, edit=edit)
    except EditConflict as conflict:
        return show_conflict(
            request,
            conflict,
            what=f"the preset {preset.name}",
            back=back,
            labels={"preset_name": "Name"},
            team=team_,
        )
    except ValueError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, f"Renamed the preset {before} to {preset.name}.")
    return redirect(back)
