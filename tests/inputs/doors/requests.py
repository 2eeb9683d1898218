"""Requests themselves: hosts, headers, cookies, bodies and methods."""

from __future__ import annotations

import json

from django.test import Client

from tests.dashboard.api.asking import BASE
from tests.inputs.cases import Answer, Case, Door, World, told_as_text, told_by_problem


def send(world: World, sent: dict[str, str]) -> Answer:
    """With these headers, to a page that anybody may see."""
    client = Client(raise_request_exception=False)
    answer = told_as_text(client.get("/sign-in/", headers=sent))
    return Answer(answer.status, answer.said.rpartition("</h1>")[2])


def send_cookie(world: World, cookie: str) -> Answer:
    client = Client(raise_request_exception=False, headers={"cookie": cookie})
    answer = client.get("/alpha/runs/")
    return Answer(answer.status_code, answer.headers.get("Location", ""))


def send_token(world: World, header: str) -> Answer:
    client = Client(raise_request_exception=False)
    return told_by_problem(client.get(f"{BASE}/me", headers={"Authorization": header}))


def send_body(world: World, sent: tuple[str, bytes]) -> Answer:
    kind, body = sent
    return told_by_problem(
        world.program.client.post(
            f"{BASE}/recipes",
            data=body,
            content_type=kind,
            headers=world.program.headers,
        )
    )


def send_key(world: World, key: str) -> Answer:
    tree = {"name": "a", "spec": {"rules": [{"name": "r", "kind": "length"}]}}
    program = world.program
    return told_by_problem(
        program.client.post(
            f"{BASE}/recipes",
            data=json.dumps(tree),
            content_type="application/json",
            headers=program.headers | {"Idempotency-Key": key},
        )
    )


JSON = "application/json"
HOSTS: list[Case] = [
    Case("a host of another", {"host": "evil.example"}, says=('</header> <div class="messages" id="messages" role="status"> </div>', "If you typed the address, check it.</p> <p>If every page says this,",)),
    Case("a host with a space", {"host": "local host"}, says=('</header> <div class="messages" id="messages" role="status"> </div>', "If you typed the address, check it.</p> <p>If every page says this,",)),
    Case("a host with a path", {"host": "localhost/../x"}, says=('</header> <div class="messages" id="messages" role="status"> </div>', "If you typed the address, check it.</p> <p>If every page says this,",)),
    Case("a host with markup", {"host": "<script>"}, says=('</header> <div class="messages" id="messages" role="status"> </div>', "If you typed the address, check it.</p> <p>If every page says this,",)),
    Case("a host of brackets", {"host": "[::1"}, says=('</header> <div class="messages" id="messages" role="status"> </div>', "If you typed the address, check it.</p> <p>If every page says this,",)),
    Case("a port of no meaning", {"host": "localhost:http"}, says=('</header> <div class="messages" id="messages" role="status"> </div>', "If you typed the address, check it.</p> <p>If every page says this,",)),
    Case("a host without an end", {"host": "x" * 5_000}, says=('</header> <div class="messages" id="messages" role="status"> </div>', "If you typed the address, check it.</p> <p>If every page says this,",)),
]  # fmt: skip
COOKIES = [
    Case("a session that is none", "cohort_session=abc", says=("/sign-in/?next=/alpha/runs/",)),
    Case("a session of markup", "cohort_session=<script>", says=("/sign-in/?next=/alpha/runs/",)),
    Case("a session without an end", "cohort_session=" + "x" * 5_000, says=("/sign-in/?next=/alpha/runs/",)),
    Case("a session with a NUL", "cohort_session=a%00b", says=("/sign-in/?next=/alpha/runs/",)),
    Case("a cookie without a name", "=abc", says=("/sign-in/?next=/alpha/runs/",)),
    Case("a cookie of bytes", "cohort_session=\xff\xfe", says=("/sign-in/?next=/alpha/runs/",)),
    Case("a thousand cookies", "; ".join(f"c{n}=1" for n in range(1_000)), says=("/sign-in/?next=/alpha/runs/",)),
    Case("messages that are none", "messages=[[1,2]; cohort_session=a", says=("/sign-in/?next=/alpha/runs/",)),
]  # fmt: skip
TOKENS = [
    Case("no token", "", says=("Send a token that works as “Authorization: Bearer cohort_…”.", "Tokens are made on the team's page API tokens;", "one may have expired or been revoked.",)),
    Case("a token that is none", "Bearer abc", says=("Send a token that works as “Authorization: Bearer cohort_…”.", "Tokens are made on the team's page API tokens;", "one may have expired or been revoked.",)),
    Case("a token of another kind", "Basic YTpi", says=("Send a token that works as “Authorization: Bearer cohort_…”.", "Tokens are made on the team's page API tokens;", "one may have expired or been revoked.",)),
    Case("a token of nothing", "Bearer ", says=("Send a token that works as “Authorization: Bearer cohort_…”.", "Tokens are made on the team's page API tokens;", "one may have expired or been revoked.",)),
    Case("a token without an end", "Bearer " + "x" * 50_000, says=("Send a token that works as “Authorization: Bearer cohort_…”.", "Tokens are made on the team's page API tokens;", "one may have expired or been revoked.",)),
    Case("a token of bytes", "Bearer \xff\xfe", says=("Send a token that works as “Authorization: Bearer cohort_…”.", "Tokens are made on the team's page API tokens;", "one may have expired or been revoked.",)),
    Case("two tokens", "Bearer cohort_a, Bearer cohort_b", says=("Send a token that works as “Authorization: Bearer cohort_…”.", "Tokens are made on the team's page API tokens;", "one may have expired or been revoked.",)),
]  # fmt: skip
BODIES = [
    Case("nothing", (JSON, b""), says=("body: Field required body: Field required",)),
    Case("no JSON", (JSON, b"{'a': 1}"), says=("The body is not JSON: Expecting property name enclosed in double", "Send one JSON object, as UTF-8."), status=400),
    Case("bytes that are no UTF-8", (JSON, b'{"name": "\xff"}'), says=("The body is not JSON: byte 11 is not UTF-8.", "Send one JSON object, as UTF-8."), status=400),
    Case("UTF-16", (JSON, '{"name": "a"}'.encode("utf-16")), says=("body.spec: Field required body.spec: Field required",)),
    Case("JSON cut short", (JSON, b'{"name": "a"'), says=("The body is not JSON: Expecting ',' delimiter at line 1, column 13.", "Send one JSON object, as UTF-8."), status=400),
    Case("JSON with more behind", (JSON, b'{"name": "a"} x'), says=("The body is not JSON: Extra data at line 1, column 15.", "Send one JSON object, as UTF-8."), status=400),
    Case("a number", (JSON, b"5"), says=("body: Input should be a valid dictionary or object to extract fields", "got 5 body: Input should be a valid dictionary or object to extract", "got 5")),
    Case("a text", (JSON, b'"a"'), says=("body: Input should be a valid dictionary or object to extract fields", "got \"a\" body: Input should be a valid dictionary or object to extract", "got \"a\"")),
    Case("lists 100,000 deep", (JSON, b"[" * 100_000), says=("The body is not JSON: it nests too deep or holds a number that is too", "Send one JSON object, as UTF-8."), status=400),
    Case("a number of 5,000 digits", (JSON, b'{"name": ' + b"9" * 5_000 + b"}"), says=("The body is not JSON: it nests too deep or holds a number that is too", "Send one JSON object, as UTF-8."), status=400),
    Case("a name that is no number", (JSON, b'{"name": NaN}'), says=("body.spec: Field required;", "body.name: Input should be a valid string;", "got NaN body.spec: Field required body.name: Input should be a valid", "got NaN")),
    Case("a surrogate", (JSON, b'{"name": "\\ud800", "spec": {}}'), says=("body: name: a text holds half of a surrogate pair (U+D800), '\\ud800';", "remove it body: name: a text holds half of a surrogate pair (U+D800),", "remove it")),
    Case("a form for JSON", ("application/x-www-form-urlencoded", b"name=a"), says=("The body is not JSON: Expecting value at line 1, column 1.", "Send one JSON object, as UTF-8."), status=400),
    Case("a form of parts without parts", ("multipart/form-data", b"name=a"), says=("The body is not JSON: Expecting value at line 1, column 1.", "Send one JSON object, as UTF-8."), status=400),
    Case("11 MB", (JSON, b'{"name": "' + b"x" * 11_000_000 + b'"}'), says=("The body has more than 10,485,760 bytes.", "Send less at once;", "files go in parts."), status=413),
    Case("a spec that is a list", (JSON, b'{"name": "a", "spec": []}'), says=("body.spec: Input should be a valid dictionary body.spec: Input should",)),
    Case("a spec of no rules", (JSON, b'{"name": "a", "spec": {"rules": []}}'), says=("body.spec: A recipe needs at least one rule; got none. Add a rule.",)),
    Case("code that is none", (JSON, json.dumps({"name": "a", "spec": {"rules": [{"name": "r", "kind": "python_function", "params": {"source": "def reward(:"}}]}}).encode()), says=("Line 1 is no Python: invalid syntax;", "got 'def reward(:'.", "Mend it.", "body.spec.rules.0.params.source: Line 1 is no Python: invalid syntax;")),
]  # fmt: skip
KEYS = [
    Case("a key without an end", "x" * 5_000, says=("Idempotency-Key has 1 to 100 printable ASCII characters;", "got", "A UUID is a good one.", "header.Idempotency-Key: Idempotency-Key has 1 to 100 printable ASCII",)),
    Case("a key of bytes", "\xff\xfe", says=("Idempotency-Key has 1 to 100 printable ASCII characters;", "got 'ÿþ'.", "A UUID is a good one.", "header.Idempotency-Key: Idempotency-Key has 1 to 100 printable ASCII",)),
]  # fmt: skip
DOORS: list[Door] = [
    Door("hosts", send, HOSTS, status=400),
    Door("cookies", send_cookie, COOKIES, status=302),
    Door("tokens", send_token, TOKENS, status=401),
    Door("bodies of the API", send_body, BODIES),
    Door("keys of a request", send_key, KEYS),
]
