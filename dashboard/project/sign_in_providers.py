"""Providers of the environment, as django-allauth wants them told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dashboard.project.environment import SignInProvider


def provider_settings(providers: Iterable[SignInProvider]) -> dict[str, Any]:
    return {_library_name(each): {"APPS": [_app(each)]} for each in providers}


def _library_name(provider: SignInProvider) -> str:
    return "openid_connect" if provider.key == "oidc" else provider.key


def _app(provider: SignInProvider) -> dict[str, Any]:
    return {
        "provider_id": provider.key,
        "name": provider.name,
        "client_id": provider.client_id,
        "secret": provider.secret,
        "settings": {"server_url": provider.url, "oauth_pkce_enabled": True},
    }
