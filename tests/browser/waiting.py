import time
from collections.abc import Callable

from playwright.sync_api import Page


def wait_until(page: Page, expression: str, *, seconds: float = 30) -> None:
    """Until the expression is true in the page.

    Playwright's own wait_for_function evaluates text inside the page, which the
    content security policy forbids.
    """
    deadline = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"Not within {seconds:g} s: {expression}"
        page.wait_for_timeout(50)


def wait_until_true(condition: Callable[[], bool], *, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"Not within {seconds:g} s."
        time.sleep(0.05)


def wait_for(page: Page, condition: Callable[[], bool], *, seconds: float = 30) -> None:
    """Until a condition of the test holds; the page keeps running."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"Not within {seconds:g} s."
        page.wait_for_timeout(50)
