"""What the server keeps of whoever is signed in: seen, taken along, erased."""

from __future__ import annotations

from allauth.account.internal.flows.reauthentication import (
    raise_if_reauthentication_required,
)
from django.contrib import messages
from django.contrib.auth import logout
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods

from dashboard.accounts.models import User
from dashboard.upkeep.people import Encoder, count_of, erase, export_of, why_kept


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def person_data(request: HttpRequest) -> HttpResponse:
    """A POST with one's own username deletes the account.

    The password is asked for first: whoever finds an open browser erases nobody.
    """
    assert isinstance(request.user, User)
    if request.method != "POST":
        return _show(request, request.user)
    if request.POST.get("username") != request.user.username:
        refusal = (
            f"Nothing was deleted: type {request.user.username}, your username, to "
            "confirm."
        )
        return _show(request, request.user, refusal)
    raise_if_reauthentication_required(request, app="dashboard.upkeep")
    try:
        erase(User.objects.get(pk=request.user.pk))
    except ValueError as error:
        return _show(request, request.user, str(error))
    logout(request)
    messages.success(request, "Your account is deleted.")
    return redirect("sign_in")


@never_cache
@require_GET
def person_download(request: HttpRequest) -> JsonResponse:
    assert isinstance(request.user, User)
    response = JsonResponse(
        export_of(request.user),
        encoder=Encoder,
        json_dumps_params={"indent": 1, "ensure_ascii": False},
    )
    response["Content-Disposition"] = 'attachment; filename="my-data.json"'
    return response


def _show(request: HttpRequest, user: User, refusal: str = "") -> HttpResponse:
    context = {
        "counts": count_of(user),
        "reason": why_kept(user),
        "refusal": refusal,
    }
    status = 422 if refusal else 200
    return render(request, "upkeep/person.html", context, status=status)
