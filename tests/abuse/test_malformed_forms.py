"""Malformed forms: each URL responds with 4xx and a message."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from django.db import transaction
from django.test import Client

from dashboard.accounts.models import Team, User
from dashboard.api.problems import TYPE
from tests.dashboard.api.asking import BASE, Program, make_token
from tests.dashboard.api.conftest import no_limits as no_limits
from tests.dashboard.api.known_things import known_things
from tests.dashboard.api.rows_of_operations import QUERIES
from tests.dashboard.api.test_every_operation_is_guarded import operations
from tests.dashboard.test_every_route_is_guarded import VIEWERS_POST
from tests.dashboard.test_every_route_is_guarded import addresses as addresses
from tests.inputs.requesting import failures
from tests.page_client import PageClient

MULTIPART = "multipart/form-data; boundary=b"


def part(head: str, body: bytes = b"x", *, ends: bool = True) -> bytes:
    end = b"\r\n--b--\r\n" if ends else b""
    return b"--b\r\n" + head.encode() + b"\r\n\r\n" + body + end


FIELD = 'Content-Disposition: form-data; name="name"'
FILE = 'Content-Disposition: form-data; name="file"; filename="{}"'
FILES = FILE.replace('"file"', '"files"')
BASE64 = "\r\nContent-Transfer-Encoding: base64"
FORMS: dict[str, tuple[str, bytes]] = {
    "no boundary": ("multipart/form-data", b"x"),
    "an empty boundary": ("multipart/form-data; boundary=", part(FIELD)),
    "a boundary of no ASCII": ("multipart/form-data; boundary=\xe9", b"x"),
    "a boundary too long": ("multipart/form-data; boundary=" + "b" * 999, b"x"),
    "no form": (MULTIPART, b"x"),
    "a field of bad base64": (MULTIPART, part(FIELD + BASE64, b"x")),
    "a file of bad base64": (MULTIPART, part(FILE.format("a") + BASE64, b"x=x")),
    "files of bad base64": (MULTIPART, part(FILES.format("a") + BASE64, b"x=x")),
    "a file of base64 that is cut": (
        MULTIPART,
        part(FILE.format("a") + BASE64, b"YWJ", ends=False),
    ),
    "a file of a long name": (MULTIPART, part(FILE.format("x" * 1_006 + ".jsonl"))),
    "files of a long name": (MULTIPART, part(FILES.format("x" * 1_006 + ".jsonl"))),
    "a file without a name": (MULTIPART, part(FILE.format(""))),
    "a file named by a NUL": (MULTIPART, part(FILES.format("a\0b"))),
    "a file named by dots": (MULTIPART, part(FILE.format("../.."))),
    "a name of a strange charset": (
        MULTIPART,
        part("Content-Disposition: form-data; name*=bogus''x"),
    ),
    "a file name of a strange charset": (
        MULTIPART,
        part("Content-Disposition: form-data; name=file; filename*=hex''zz"),
    ),
    "a part of a strange charset": (
        MULTIPART,
        part(FIELD + "\r\nContent-Type: text/plain; charset=bogus"),
    ),
    "a head that is too long": (MULTIPART, part("X: " + "x" * 70_000)),
    "a length that is none": (MULTIPART, part(FIELD + "\r\nContent-Length: x")),
    **{
        f"{name} as the charset of {what}": (f"{kind}; charset={name}", body)
        for what, kind, body in (
            ("a form", MULTIPART, part(FIELD)),
            ("a short form", "application/x-www-form-urlencoded", b"name=x"),
            ("a tree", "application/json", b"{}"),
        )
        for name in ("bogus", "hex", "utf-16", "idna")
    },
    "too many fields": (MULTIPART, part(FIELD, ends=False).join([b"\r\n"] * 1_200)),
    "too many files": (
        MULTIPART,
        part(FILES.format("a"), ends=False).join([b"\r\n"] * 200),
    ),
}


def ask(client: Client, method: str, address: str, form: tuple[str, bytes]) -> Any:
    kind, body = form
    client.raise_request_exception = False
    with transaction.atomic():
        answer = client.generic(method, address, body, content_type=kind)
        transaction.set_rollback(True)
    return answer


Row = tuple[str, str, str, str]  # name, method, address, form


def faults(client: Client, rows: Iterable[Row], kinds: Sequence[str] = ()) -> list[Any]:
    """What fails, or refuses by an answer of none of these kinds."""
    wrong: list[Any] = []
    for name, method, address, what in rows:
        with failures() as errors:
            answer = ask(client, method, address, FORMS[what])
        kind = answer.headers.get("Content-Type", "").partition(";")[0]
        is_reported = answer.status_code < 400 or not kinds or kind in kinds
        if answer.status_code >= 500 or errors or not is_reported:
            wrong.append((name, what, answer.status_code, kind, errors))
    return wrong


def of_pages(addresses: dict[str, str]) -> Iterator[Row]:
    """Each address with each form."""
    for name, address in addresses.items():
        if VIEWERS_POST.get(name) != 405:
            yield from ((name, "POST", address, what) for what in FORMS)


def of_operations(team: Team, user: User) -> Iterator[Row]:
    known = known_things(team, user)
    for name, method, path, _ in operations():
        for what in FORMS if method not in ("GET", "DELETE") else ():
            # WSGI, which tests alone use, reads the query by the charset.
            query = "" if what.startswith("hex") else QUERIES.get(name, "")
            yield name, method, BASE + (path + query).format(**known), what


def some(rows: Iterable[Row], *, every: int, whole: str = "") -> list[Row]:
    """In turn; all of the operation that is named so."""
    return [
        row
        for place, row in enumerate(rows)
        if place % every == 0 or (whole and row[0] == whole)
    ]


@pytest.fixture
def clients(alice) -> list[Client]:
    """With the second, what checks where forms come from reads them first."""
    clients = [PageClient(enforce_csrf_checks=checks) for checks in (False, True)]
    for client in clients:
        client.force_login(alice)
    return clients


def program_of(user: User) -> Client:
    program = Program(make_token(user, "admin"))
    program.client.defaults["HTTP_AUTHORIZATION"] = program.headers["Authorization"]
    return program.client


def test_every_page_survives_some_malformed_forms(addresses, clients):
    """Each a form or two; the slow tests send each all of them."""
    rows = some(of_pages(addresses), every=len(FORMS) // 2)

    assert faults(clients[0], rows[::2]) == []
    assert faults(clients[1], rows[1::2]) == []
    assert {row[3] for row in rows} == set(FORMS)
    assert len({row[0] for row in rows}) > 80


@pytest.mark.usefixtures("no_limits")
def test_every_operation_survives_some_malformed_bodies(team, alice) -> None:
    rows = some(of_operations(team, alice), every=len(FORMS), whole="start_import")

    assert faults(program_of(alice), rows, [TYPE]) == []


@pytest.mark.parametrize(
    "what",
    [
        *("no boundary", "a file of bad base64", "a file of a long name"),
        *("hex as the charset of a form", "too many files"),
    ],
)
def test_a_malformed_form_is_400_with_a_code(what, team, alice, clients):
    answer = ask(program_of(alice), "POST", f"{BASE}/imports", FORMS[what])
    page = ask(clients[0], "POST", "/alpha/datasets/upload", FORMS[what])

    assert (answer.status_code, answer.json()["type"]) == (
        400,
        "urn:cohort:problem:bad_request",
    )
    assert (page.status_code, page.headers["Content-Type"]) == (
        400,
        "text/html; charset=utf-8",
    )


@pytest.mark.slow
def test_every_page_survives_every_malformed_form(addresses, clients):
    for client in clients:
        assert faults(client, of_pages(addresses)) == []


@pytest.mark.slow
@pytest.mark.usefixtures("no_limits")
def test_every_operation_survives_every_malformed_body(team, alice) -> None:
    assert faults(program_of(alice), of_operations(team, alice), [TYPE]) == []
