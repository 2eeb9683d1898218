"""Hidden tabs, and delayed responses."""

from playwright.sync_api import Page, Route

from tests.browser.waiting import wait_for

HIDE = """(isHidden) => {
  Object.defineProperty(document, "hidden", {
    configurable: true, get: () => isHidden,
  });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def hide(page: Page) -> None:
    """Simulated, because a headless browser has no tab to hide."""
    page.evaluate(HIDE, True)


def show(page: Page) -> None:
    page.evaluate(HIDE, False)


class DelayedResponses:
    """Responses that are delayed until `release`."""

    def __init__(self, page: Page, pattern: str) -> None:
        self._page = page
        self._routes: list[Route] = []
        page.route(pattern, self._hold)

    def _hold(self, route: Route) -> None:
        self._routes.append(route)

    def wait_for_one(self) -> None:
        wait_for(self._page, lambda: bool(self._routes))

    def release(self) -> None:
        for route in list(self._routes):
            with self._page.expect_response(route.request.url):
                route.continue_()
