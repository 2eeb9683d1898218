"""A program that calls the API with a token."""

import json
from datetime import datetime
from typing import Any

from django.http.response import HttpResponseBase
from django.test import Client

from dashboard.accounts.models import Membership, User
from dashboard.accounts.services import digest
from dashboard.api.auth import create_token
from dashboard.api.models import ApiToken, Scope

BASE = "/api/v1"


def make_token(
    user: User, *scopes: str, expires_at: datetime | None = None, name: str = "test"
) -> str:
    """The text of a token of the user's first team."""
    membership = Membership.objects.select_related("team", "user").get(user=user)
    _, text = create_token(
        membership=membership,
        name=name,
        scopes=scopes or [Scope.READ],
        expires_at=expires_at,
    )
    return text


def token_of(text: str) -> ApiToken:
    return ApiToken.objects.get(token_sha256=digest(text))


class Program:
    def __init__(self, token: str = "") -> None:
        self.client = Client(raise_request_exception=False)
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def ask(
        self, method: str, path: str, tree: Any = None, **headers: str
    ) -> HttpResponseBase:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        body = {} if tree is None else {"data": json.dumps(tree)}
        return self.client.generic(  # type: ignore[no-any-return]
            method,
            BASE + path,
            content_type="application/json",
            headers=self.headers | named,
            **body,
        )

    def get(self, path: str, **headers: str) -> Any:
        return self.ask("GET", path, **headers)

    def read(self, path: str) -> Any:
        """What a GET is answered with."""
        response = self.get(path)
        assert response.status_code == 200, response.text
        return response.json()

    def post(self, path: str, tree: Any = None, **headers: str) -> Any:
        return self.ask("POST", path, tree, **headers)

    def patch(self, path: str, tree: Any) -> Any:
        return self.ask("PATCH", path, tree)

    def delete(self, path: str) -> Any:
        return self.ask("DELETE", path)
