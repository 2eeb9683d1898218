"""An OpenID provider on loopback: discovery, a sign-in page, codes with PKCE, ID
tokens signed with RS256, and user info. It refuses invalid requests as the standard
says."""

import base64
import hashlib
import html
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

CLIENT, SECRET = "cohort", "quiet"
PAGE = """<!doctype html><html lang="en"><title>Work</title><h1>Work</h1>
<form method="post" action="/authorize?{query}">
<label>Name <input name="who" required></label> <button>Sign in at Work</button></form>
"""


@dataclass
class Provider:
    """Users by code, and refused requests."""

    url: str = ""
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    key: rsa.RSAPrivateKey = field(
        default_factory=lambda: rsa.generate_private_key(65_537, 2_048)
    )

    def discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "userinfo_endpoint": f"{self.url}/userinfo",
            "jwks_uri": f"{self.url}/keys",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "token_endpoint_auth_methods_supported": ["client_secret_post"],
            "code_challenge_methods_supported": ["S256"],
        }

    def keys(self) -> dict[str, Any]:
        public = jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {"keys": [{**public, "kid": "1", "alg": "RS256", "use": "sig"}]}

    def check_question(self, query: dict[str, str]) -> str:
        """Why the request is refused; "" if it is valid."""
        if query.get("client_id") != CLIENT:
            return "an unknown client"
        if query.get("response_type") != "code" or not query.get("state"):
            return "missing response_type=code or state"
        if query.get("code_challenge_method") != "S256":
            return "no challenge"
        return "" if "openid" in query.get("scope", "").split() else "no openid"

    def give_code(self, query: dict[str, str], who: str) -> str:
        code = secrets.token_urlsafe(16)
        self.codes[code] = {**query, "who": who}
        return code

    def exchange(self, form: dict[str, str]) -> dict[str, Any] | None:
        given = self.codes.pop(form.get("code", ""), None)  # good once
        if given is None or form.get("client_secret") != SECRET:
            return None
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        proof = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        is_same = form.get("redirect_uri") == given["redirect_uri"]
        if proof != given["code_challenge"] or not is_same:
            return None
        token = secrets.token_urlsafe(16)
        self.tokens[token] = given["who"]
        return {
            "access_token": token,
            "token_type": "Bearer",
            "expires_in": 300,
            "id_token": self._id_token(given["who"]),
        }

    def claims(self, who: str) -> dict[str, Any]:
        return {"sub": f"id-of-{who}", "preferred_username": who}

    def _id_token(self, who: str) -> str:
        now = int(time.time())
        about = {"iss": self.url, "aud": CLIENT, "iat": now, "exp": now + 300}
        claims = {**self.claims(who), **about}
        return jwt.encode(claims, self.key, "RS256", headers={"kid": "1"})


@contextmanager
def serve_provider() -> Iterator[Provider]:
    provider = Provider()
    handler = type("Handler", (_Handler,), {"provider": provider})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        provider.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    provider: Provider

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        match parts.path:
            case "/.well-known/openid-configuration":
                self._json(self.provider.discovery())
            case "/keys":
                self._json(self.provider.keys())
            case "/authorize":
                page = PAGE.format(query=html.escape(parts.query))
                self._answer(200, "text/html", page)
            case "/userinfo":
                token = self.headers.get("Authorization", "").removeprefix("Bearer ")
                who = self.provider.tokens.get(token)
                self._json(self.provider.claims(who) if who else None)
            case _:
                self._answer(404, "text/plain", "")

    def do_POST(self) -> None:
        parts = urlsplit(self.path)
        form = _flat(self.rfile.read(int(self.headers["Content-Length"])).decode())
        if parts.path == "/token":
            self._json(self.provider.exchange(form))
            return
        query = _flat(parts.query)
        if why := self.provider.check_question(query):
            self.provider.refused.append(why)
            self._answer(400, "text/plain", why)
            return
        code = self.provider.give_code(query, form["who"])
        answer = urlencode({"code": code, "state": query["state"]})
        self.send_response(302)
        self.send_header("Location", f"{query['redirect_uri']}?{answer}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _json(self, tree: Any) -> None:
        if tree is None:
            self.provider.refused.append(self.path)
        status = 200 if tree is not None else 401
        self._answer(status, "application/json", json.dumps(tree))

    def _answer(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        pass


def _flat(query: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(query).items()}
