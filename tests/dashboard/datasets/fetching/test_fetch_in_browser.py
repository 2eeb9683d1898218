"""From a link to a version in a real browser, with a real worker and a web server."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from dashboard.datasets.models import DatasetVersion, ImportJob
from tests.browser.accessibility import findings_in_each_view
from tests.dashboard.datasets.fetching.hub_site import MAIN, add_dataset
from tests.dashboard.datasets.fetching.site import Site, file, status, web_site
from tests.dashboard.datasets.test_transfer_in_browser import ROWS, start_default_worker

pytestmark = [pytest.mark.browser, pytest.mark.slow]
__all__ = ["start_default_worker"]
FETCH = "Download and map columns"


@pytest.fixture
def site() -> Iterator[Site]:
    with web_site() as site:
        yield site


@pytest.fixture
def app_environment(app_environment, site) -> dict[str, str]:
    """The site is an allowed host and the Hub."""
    return {
        **app_environment,
        "COHORT_DATASET_HOSTS": site.host,
        "HF_ENDPOINT": site.url(""),
    }


def give(page: Page, link: str) -> None:
    page.goto("/alpha/datasets/")
    page.get_by_role("main").get_by_role("link", name="From a URL").click()
    page.get_by_label("URL or Hugging Face dataset ID").fill(link)
    page.get_by_role("button", name=FETCH).click()


def follow(page: Page, shown: Locator) -> None:
    """To the next page; after a quick download, by the button of its page."""
    next_page = page.get_by_role("link", name="Continue")
    expect(next_page.or_(shown)).to_be_visible(timeout=60_000)
    if next_page.is_visible():
        next_page.click()
    expect(shown).to_be_visible()


def import_as(page: Page, name: str) -> None:
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("button", name="Import", exact=True).click()
    expect(page.get_by_text("Imported 300 rows")).to_be_visible()


def test_a_link_and_a_hub_dataset_become_versions(
    team,
    alice,
    page,
    site,
    start_default_worker,  # a fixture
):
    body = ROWS.encode()
    site.pages["/rows.jsonl"] = file(body, breaks_at=(2_000,))
    files = {"train.jsonl": body, "test.jsonl": body}
    add_dataset(site, "maths/sums", files)
    give(page, "http://10.0.0.7/rows.jsonl")
    expect(page.locator("#id_link_error")).to_contain_text("10.0.0.7")
    start_default_worker()  # which is up once the page has been looked at
    found = findings_in_each_view(page)
    give(page, site.url("/rows.jsonl?key=hush"))
    follow(page, page.locator("#mapped"))
    import_as(page, "By its URL")
    expect(
        page.get_by_text(f"http://{site.host}/rows.jsonl?…, fetched")
    ).to_be_visible()
    assert site.ranges()[:2] == ["", "bytes=2000-"]

    give(page, "maths/sums")
    follow(page, page.get_by_label("test.jsonl"))
    found += findings_in_each_view(page)
    page.get_by_label("test.jsonl").check()
    page.get_by_role("button", name=FETCH).click()
    follow(page, page.locator("#mapped"))
    import_as(page, "From the hub")
    assert DatasetVersion.objects.latest("pk").source["commit"] == MAIN

    site.pages["/gone.jsonl"] = status(404)
    give(page, site.url("/gone.jsonl"))
    expect(page.get_by_text("status 404")).to_be_visible()
    assert found == []
    assert ImportJob.objects.filter(kind="fetch").count() == 4
