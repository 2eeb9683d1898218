"""The API's pages: the team's tokens, and the documentation of operations."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)
from ninja.openapi.docs import Swagger

from dashboard.accounts.access import get_membership, look_up
from dashboard.accounts.models import Membership, Team
from dashboard.api.auth import create_token, may_use, revoke_token, visible_tokens
from dashboard.api.models import Scope
from dashboard.project.forms import set_choices

PER_PAGE = 50
LIFETIMES = [("7", "7 days"), ("30", "30 days"), ("90", "90 days"), ("365", "1 year")]
FOR_EVER = ("", "never")
ABOUT = {
    Scope.READ: "read everything in the team",
    Scope.WRITE: "read, and change what a member may: upload, launch, stop",
    Scope.INGEST: "send events of external runs; read nothing",
    Scope.ADMIN: "all of these, and team administration",
}


@dataclass(frozen=True)
class Use:
    """A purpose whose token takes one click, and what the person pastes then."""

    name: str
    button: str
    about: str
    scopes: tuple[Scope, ...]
    noun: str
    paste: str


USES = (
    Use(
        name="Report runs",
        button="Report runs",
        about="For TRL, verl or your own trainer. The token cannot read runs.",
        scopes=(Scope.INGEST,),
        noun="line for TRL",
        paste='import cohort; args = GRPOConfig(report_to="cohort")',
    ),
    Use(
        name="Command line",
        button="Use the command line",
        about="Upload, launch and read runs from a terminal or a script.",
        scopes=(Scope.READ, Scope.WRITE),
        noun="first command",
        paste="cohort runs list",
    ),
)


class TokenForm(forms.Form):
    """Offers the scopes that the person's role allows."""

    name = forms.CharField(
        max_length=80, label="Name", help_text="What uses it, such as “nightly sweep”."
    )
    scopes = forms.MultipleChoiceField(
        label="Scopes",
        error_messages={"required": "Choose what the token may do."},
    )
    lifetime = forms.ChoiceField(
        label="Expires after", choices=[*LIFETIMES, FOR_EVER], required=False
    )

    def __init__(self, membership: Membership, data: Any = None) -> None:
        super().__init__(data)
        self.allowed = [scope for scope in Scope if may_use(membership, scope)]
        choices = [(scope.value, scope.value) for scope in self.allowed]
        set_choices(self, "scopes", choices)

    def clean_name(self) -> str:
        name = " ".join(str(self.cleaned_data["name"]).split())
        if not name:
            raise forms.ValidationError("The name must not be empty.", code="required")
        return name

    @property
    def offered(self) -> list[tuple[str, str, bool]]:
        """List each scope, what it is for, and whether it is chosen."""
        chosen = self["scopes"].value() or ([] if self.is_bound else [Scope.READ])
        return [(scope.value, ABOUT[scope], scope in chosen) for scope in self.allowed]

    @property
    def lifetimes(self) -> list[tuple[str, str, bool]]:
        chosen = self["lifetime"].value() if self.is_bound else "90"
        return [(v, title, v == chosen) for v, title in [*LIFETIMES, FOR_EVER]]

    @property
    def expires_at(self) -> datetime | None:
        days = self.cleaned_data["lifetime"]
        return timezone.now() + timedelta(days=int(days)) if days else None


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@look_up(get_membership)
def tokens(request: HttpRequest, membership: Membership) -> HttpResponse:
    """Create a token; its text is in the response to the form and nowhere else."""
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
    pages = Paginator(visible_tokens(membership), PER_PAGE)
    context = {
        "team": membership.team,
        "membership": membership,
        "form": form,
        "made": made,
        "text": text,
        "base": request.build_absolute_uri("/api/v1"),
        "uses": [use for use in USES if set(use.scopes) <= set(form.allowed)],
        "used": made and next((u for u in USES if u.scopes == (*made.scopes,)), None),
        "server": request.build_absolute_uri("/").rstrip("/"),
        "mcp": request.build_absolute_uri(reverse("api_mcp")),
        "page": pages.get_page(request.GET.get("page")),
    }
    status = 422 if is_posted and made is None else 200
    return render(request, "api/tokens.html", context, status=status)


@require_POST
@look_up(get_membership)
def token_revoke(
    request: HttpRequest, membership: Membership, token_id: int
) -> HttpResponse:
    """One's own, also as a viewer; others' by those who manage the team."""
    token = get_object_or_404(visible_tokens(membership), pk=token_id)
    if revoke_token(token=token, user=membership.user):
        messages.success(request, f"Revoked {token}.")
    else:
        messages.info(request, f"{token} was already revoked.")
    return redirect("tokens", membership.team.slug)


@require_safe
@look_up(get_membership)
def docs(request: HttpRequest, team: Team) -> HttpResponse:
    """Swagger UI, of the files that django-ninja brings."""
    swagger = {
        **Swagger.default_settings,
        "url": reverse("api_openapi"),
        "docExpansion": "none",
        "defaultModelsExpandDepth": -1,
    }
    return render(request, "api/docs.html", {"team": team, "swagger": swagger})
