"""A visitor signs in while passwords are guessed from many addresses at once."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from contextlib import closing
from http.client import HTTPConnection
from urllib.parse import urlencode, urlsplit

import pytest

from tests.fixtures_app import set_password

pytestmark = pytest.mark.slow(2)
NUM_ADDRESSES = 200
PASSWORD = "correct horse battery"
PATIENCE_SECONDS = 240
# Answers that others get during a visitor's request: those that had one of three places
# when it came, and those that get one while its own runs.
MOST_BEFORE = 12


class Visitor:
    """A browser at an address of its own."""

    def __init__(self, address: str, url: str) -> None:
        self._address, self._host = address, urlsplit(url).netloc
        self.cookies: dict[str, str] = {}
        self._token = ""

    def open_form(self) -> int:
        status, page = self._ask("GET")
        if found := re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page):
            self._token = found[1]
        return status

    def sign_in(self, login: str, password: str) -> int:
        fields = {"username": login, "password": password}
        return self._ask("POST", {**fields, "csrfmiddlewaretoken": self._token})[0]

    def _ask(
        self, method: str, fields: dict[str, str] | None = None
    ) -> tuple[int, str]:
        headers = {"Cookie": "; ".join(f"{k}={v}" for k, v in self.cookies.items())}
        if fields:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        connection = HTTPConnection(
            self._host, timeout=60, source_address=(self._address, 0)
        )
        with closing(connection):
            connection.request(method, "/sign-in/", urlencode(fields or {}), headers)
            response = connection.getresponse()
            for cookie in response.headers.get_all("Set-Cookie") or ():
                name, _, value = cookie.partition(";")[0].partition("=")
                self.cookies[name] = value
            return response.status, response.read().decode()


class Attack:
    """Wrong passwords from each address, one after another."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.statuses: Counter[int] = Counter()
        self.served: set[int] = set()
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        # The forms are opened before, by one.
        self._guesser = Visitor("127.0.2.1", url)
        assert self._guesser.open_form() == 200
        numbers = range(1, NUM_ADDRESSES + 1)
        self._threads = [
            threading.Thread(target=self._guess, args=[n]) for n in numbers
        ]

    def __enter__(self) -> Attack:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _guess(self, number: int) -> None:
        visitor = Visitor(f"127.0.1.{number}", self._url)
        visitor.cookies, visitor._token = (
            dict(self._guesser.cookies),
            self._guesser._token,
        )
        while not self._is_over.is_set():
            status = visitor.sign_in(f"user-{number}", "wrong")
            with self._lock:
                self.statuses[status] += 1
                if status != 429:
                    self.served.add(number)

    def wait_until_all_were_served_once(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(self.served) < NUM_ADDRESSES:
            assert time.monotonic() < deadline, (len(self.served), self.statuses)
            time.sleep(0.05)


def test_a_visitor_signs_in_while_200_addresses_guess_passwords(live_app, alice):
    set_password(alice, PASSWORD)
    visitor = Visitor("127.0.3.1", live_app)
    with Attack(live_app) as attack:
        attack.wait_until_all_were_served_once()
        form = visitor.open_form()
        before = attack.statuses[422]
        signed_in = visitor.sign_in("alice", PASSWORD)
        num_before = attack.statuses[422] - before
        again = visitor.open_form()

    assert attack.statuses[429] > 0
    assert (form, signed_in, again) == (200, 302, 302)
    assert num_before <= MOST_BEFORE
