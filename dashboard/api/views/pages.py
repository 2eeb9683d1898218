"""The pages about the API: the team's tokens, and what can be asked."""

from __future__ import annotations

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)
from ninja.openapi.docs import Swagger

from dashboard.accounts.access import get_membership, get_team
from dashboard.accounts.models import User
from dashboard.api.forms import TokenForm
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
        "base": request.build_absolute_uri("/api/v1"),
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
    """Swagger UI, of the files that django-ninja brings."""
    swagger = {
        **Swagger.default_settings,
        "url": reverse("api_openapi"),
        "docExpansion": "none",
        "defaultModelsExpandDepth": -1,
    }
    context = {"team": get_team(request, team), "swagger": swagger}
    return render(request, "api/docs.html", context)
