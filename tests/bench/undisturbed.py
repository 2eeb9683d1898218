"""Chromium as its users have it: nothing is attached to it while a page loads.

While a debugger is, as Playwright, V8 finds where each function of a script lies once
anything asks for a stack. Of plotly.js that takes 0.17 s.
"""

import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Browser, Playwright

from dashboard.accounts.models import User
from tests.fixtures_app import CHROMIUM_FLAGS, free_port, sign_in

PATIENCE_SECONDS = 30.0


class Undisturbed:
    """A fresh profile. `attach` for what is done before and after a page loads."""

    def __init__(self, playwright: Playwright, profile: Path) -> None:
        self._playwright = playwright
        self._address = f"http://127.0.0.1:{free_port()}"
        path = shutil.which("chromium") or shutil.which("chromium-browser")
        assert path, "Benches of pages need chromium (apt-get install chromium)."
        self.process = subprocess.Popen(
            [
                path,
                *CHROMIUM_FLAGS,
                "--headless=new",
                "--window-size=1440,900",
                f"--user-data-dir={profile}",
                f"--remote-debugging-port={self._address.rpartition(':')[2]}",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self._ask("GET", "/json/version")
                return
            except OSError:
                assert time.monotonic() < deadline, "Chromium does not answer"
                time.sleep(0.1)

    def _ask(self, method: str, path: str) -> None:
        asked = urllib.request.Request(self._address + path, method=method)  # noqa: S310 - loopback
        with urllib.request.urlopen(asked, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 - as above
            answer.read()

    @contextmanager
    def attach(self) -> Iterator[Browser]:
        browser = self._playwright.chromium.connect_over_cdp(self._address)
        yield browser
        browser.close()  # lets go of it; the process lives on

    def sign_in(self, user: User, address: str) -> None:
        with self.attach() as browser:
            sign_in(browser.contexts[0], user, address)

    def open(self, url: str) -> None:
        # Chromium takes what follows an "&" for a parameter of its own.
        self._ask("PUT", f"/json/new?{quote(url, safe='')}")

    def read(self, url: str, expression: str) -> list[Any]:
        """Its value in each page of this address, the one opened first first."""
        asked = f"[performance.timeOrigin, {expression}]"
        with self.attach() as browser:
            pages = [p for p in browser.contexts[0].pages if p.url == url]
            found = sorted((p.evaluate(asked) for p in pages), key=lambda one: one[0])
        return [value for _, value in found]


@contextmanager
def undisturbed(playwright: Playwright) -> Iterator[Undisturbed]:
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        chromium = Undisturbed(playwright, Path(folder))
        try:
            yield chromium
        finally:
            chromium.process.terminate()
            chromium.process.wait(PATIENCE_SECONDS)
