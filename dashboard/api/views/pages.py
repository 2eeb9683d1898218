"""The pages about the API: the team's tokens, and what can be asked."""

from __future__ import annotations

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)

from dashboard.accounts.access import get_membership, get_team
from dashboard.accounts.models import User
from dashboard.api import limits
from dashboard.api.forms import TokenForm
from dashboard.api.manual import BASE, read_manual
from dashboard.api.tokens import create_token, revoke_token, visible_tokens

PER_PAGE = 50


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def tokens(request: HttpRequest, team: str) -> HttpResponse:
    """A new token's text is in the answer to the form, and nowhere afterwards."""
    assert isinstance(request.user, User)
    membership = get_membership(request.user, team)
    is_posted = request.method == "POST"
    form = TokenForm(membership, request.POST if is_posted else None)
    made, text = None, ""
    if is_posted and form.is_valid():
        try:
            made, text = create_token(
                membership=membership,
                name=form.cleaned_data["name"],
                scopes=form.cleaned_data["scopes"],
                expires_at=form.expires_at,
            )
            form = TokenForm(membership)
        except ValueError as error:
            form.add_error(None, str(error))
    found = Paginator(visible_tokens(membership), PER_PAGE)
    context = {
        "team": membership.team,
        "membership": membership,
        "form": form,
        "made": made,
        "text": text,
        "base": request.build_absolute_uri(BASE),
        "page": found.get_page(request.GET.get("page")),
    }
    status = 422 if is_posted and made is None else 200
    return render(request, "api/tokens.html", context, status=status)


@require_POST
def token_revoke(request: HttpRequest, team: str, token_id: int) -> HttpResponse:
    """One's own, also as a viewer; others' by those who manage the team."""
    assert isinstance(request.user, User)
    membership = get_membership(request.user, team)
    token = get_object_or_404(visible_tokens(membership), pk=token_id)
    if revoke_token(token=token, user=membership.user):
        messages.success(request, f"{token} lets nobody in any more.")
    else:
        messages.info(request, f"{token} was revoked before.")
    return redirect("tokens", membership.team.slug)


@require_safe
def docs(request: HttpRequest, team: str) -> HttpResponse:
    base = request.build_absolute_uri(BASE)
    parts = [
        (title, [(entry, entry.curl(base)) for entry in entries])
        for title, entries in read_manual().items()
    ]
    context = {
        "team": get_team(request, team),
        "base": base,
        "parts": parts,
        "num_operations": sum(len(entries) for _, entries in parts),
        "limits": limits,
    }
    return render(request, "api/docs.html", context)
