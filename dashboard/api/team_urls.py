"""Included at /<team>/."""

from __future__ import annotations

from django.urls import path

from dashboard.api.views import pages

urlpatterns = [
    path("tokens/", pages.tokens, name="tokens"),
    path("tokens/<int:token_id>/revoke", pages.token_revoke, name="token_revoke"),
    path("api/", pages.docs, name="docs"),
]
