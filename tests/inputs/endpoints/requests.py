"""Requests themselves: hosts, headers, cookies, bodies and methods."""

import json

from django.test import Client

from tests.dashboard.api.asking import BASE
from tests.inputs.cases import (
    Case,
    Endpoint,
    Response,
    World,
    message_of_problem,
    shown_as_text,
)


def send(world: World, sent: dict[str, str]) -> Response:
    """With these headers, to a public page."""
    client = Client(raise_request_exception=False)
    answer = shown_as_text(client.get("/sign-in/", headers=sent))
    return Response(answer.status, answer.message.rpartition("</h1>")[2])


def send_cookie(world: World, cookie: str) -> Response:
    client = Client(raise_request_exception=False, headers={"cookie": cookie})
    answer = client.get("/alpha/runs/")
    return Response(answer.status_code, answer.headers.get("Location", ""))


def send_token(world: World, header: str) -> Response:
    client = Client(raise_request_exception=False)
    return message_of_problem(
        client.get(f"{BASE}/me", headers={"Authorization": header})
    )


def send_body(world: World, sent: tuple[str, bytes]) -> Response:
    kind, body = sent
    return message_of_problem(
        world.program.client.post(
            f"{BASE}/recipes",
            data=body,
            content_type=kind,
            headers=world.program.headers,
        )
    )


def send_key(world: World, key: str) -> Response:
    tree = {"name": "a", "spec": {"rules": [{"name": "r", "kind": "length"}]}}
    program = world.program
    return message_of_problem(
        program.client.post(
            f"{BASE}/recipes",
            data=json.dumps(tree),
            content_type="application/json",
            headers=program.headers | {"Idempotency-Key": key},
        )
    )


JSON = "application/json"
HOSTS: list[Case] = [
    Case("a host of another", {"host": "evil.example"}),
    Case("a host with a space", {"host": "local host"}),
    Case("a host with a path", {"host": "localhost/../x"}),
    Case("a host with markup", {"host": "<script>"}),
    Case("a host of brackets", {"host": "[::1"}),
    Case("a port of no meaning", {"host": "localhost:http"}),
    Case("a host without an end", {"host": "x" * 5_000}),
]  # fmt: skip
COOKIES = [
    Case("a session that is none", "cohort_session=abc"),
    Case("a session of markup", "cohort_session=<script>"),
    Case("a session without an end", "cohort_session=" + "x" * 5_000),
    Case("a session with a NUL", "cohort_session=a%00b"),
    Case("a cookie without a name", "=abc"),
    Case("a cookie of bytes", "cohort_session=\xff\xfe"),
    Case("a thousand cookies", "; ".join(f"c{n}=1" for n in range(1_000))),
    Case("messages that are none", "messages=[[1,2]; cohort_session=a"),
]  # fmt: skip
TOKENS = [
    Case("no token", ""),
    Case("a token that is none", "Bearer abc"),
    Case("a token of another kind", "Basic YTpi"),
    Case("a token of nothing", "Bearer "),
    Case("a token without an end", "Bearer " + "x" * 50_000),
    Case("a token of bytes", "Bearer \xff\xfe"),
    Case("two tokens", "Bearer cohort_a, Bearer cohort_b"),
]  # fmt: skip
BODIES = [
    Case("nothing", (JSON, b"")),
    Case("no JSON", (JSON, b"{'a': 1}"), status=400),
    Case("bytes that are no UTF-8", (JSON, b'{"name": "\xff"}'), status=400),
    Case("UTF-16", (JSON, '{"name": "a"}'.encode("utf-16"))),
    Case("JSON cut short", (JSON, b'{"name": "a"'), status=400),
    Case("JSON with more behind", (JSON, b'{"name": "a"} x'), status=400),
    Case("a number", (JSON, b"5")),
    Case("a text", (JSON, b'"a"')),
    Case("lists 100,000 deep", (JSON, b"[" * 100_000), status=400),
    Case("a number of 5,000 digits", (JSON, b'{"name": ' + b"9" * 5_000 + b"}"), status=400),
    Case("a name that is no number", (JSON, b'{"name": NaN}')),
    Case("a surrogate", (JSON, b'{"name": "\\ud800", "spec": {}}')),
    Case("a form for JSON", ("application/x-www-form-urlencoded", b"name=a"), status=400),
    Case("a form of parts without parts", ("multipart/form-data", b"name=a"), status=400),
    Case("11 MB", (JSON, b'{"name": "' + b"x" * 11_000_000 + b'"}'), status=413),
    Case("a spec that is a list", (JSON, b'{"name": "a", "spec": []}')),
    Case("a spec of no rules", (JSON, b'{"name": "a", "spec": {"rules": []}}')),
    Case("code that is none", (JSON, json.dumps({"name": "a", "spec": {"rules": [{"name": "r", "kind": "python_function", "params": {"source": "def reward(:"}}]}}).encode())),
]  # fmt: skip
KEYS = [
    Case("a key without an end", "x" * 5_000),
    Case("a key of bytes", "\xff\xfe"),
]  # fmt: skip
ENDPOINTS: list[Endpoint] = [
    Endpoint("hosts", send, HOSTS, status=400),
    Endpoint("cookies", send_cookie, COOKIES, status=302),
    Endpoint("tokens", send_token, TOKENS, status=401),
    Endpoint("bodies of the API", send_body, BODIES),
    Endpoint("keys of a request", send_key, KEYS),
]
