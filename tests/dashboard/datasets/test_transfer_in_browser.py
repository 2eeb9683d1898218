"""Large uploads in a browser: interrupted, resumed, cancelled, imported."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from dashboard.datasets.models import DatasetVersion, ImportJob, Upload
from dashboard.jobs.queue import notify_workers
from tests.browser.accessibility import findings_in_each_view
from tests.faults.workers import Worker

pytestmark = pytest.mark.browser

ROWS = "".join(
    json.dumps({"question": f"{i} + {i}?", "answer": 2 * i}) + "\n" for i in range(300)
)
PARTS = "**/parts?offset=*"
# A second's pause is a tenth of one.
QUICK_TIMERS = """
const after = window.setTimeout;
window.setTimeout = (call, ms, ...given) => after(call, ms / 10, ...given);
"""


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "sums.jsonl"
    path.write_text(ROWS)
    return path


def choose(page: Page, file: Path) -> None:
    """In parts of 2,000 bytes instead of mebibytes."""
    page.goto("/alpha/datasets/upload")
    page.eval_on_selector("input[type=file]", "field => field.dataset.partBytes = 2000")
    page.set_input_files("input[type=file]", file)


class Line:
    """A connection that breaks once at each offset, and always at the last."""

    def __init__(self, page: Page, *, breaks_at: tuple[int, ...] = ()) -> None:
        self.breaks_at = breaks_at
        self.broken: list[int] = []
        self.offsets: list[int] = []
        page.route(PARTS, self._carry)

    def _carry(self, route: Route) -> None:
        offset = int(route.request.url.rsplit("=", 1)[1])
        is_first = offset not in self.broken
        is_last = offset == (self.breaks_at or (None,))[-1]
        if offset in self.breaks_at and (is_first or is_last):
            self.broken.append(offset)
            route.abort()
        else:
            self.offsets.append(offset)
            route.continue_()


def test_an_interrupted_upload_resumes(team, alice, page, file):
    page.add_init_script(QUICK_TIMERS)
    line = Line(page, breaks_at=(2_000, 6_000))
    page.goto("/alpha/datasets/upload")
    trouble = page.locator("[data-trouble]")
    expect(trouble).to_be_hidden()
    choose(page, file)
    expect(trouble).to_contain_text(re.compile(r"in ([2-9]|\d\d) s"))  # not the first
    assert line.offsets == [0, 2_000, 4_000], "one break was outlived"

    page.reload()
    page.unroute(PARTS)

    row = page.locator("[data-unfinished]")
    expect(row).to_contain_text("5.86 KiB of")
    line = Line(page)
    choose(page, file)
    page.wait_for_url("**/uploads/*")
    assert line.offsets[0] == 6_000
    assert Upload.objects.get().path.read_text() == ROWS


@pytest.mark.slow
def test_an_interrupted_upload_is_accessible(team, alice, page, file):
    Line(page, breaks_at=(2_000,))
    choose(page, file)
    expect(page.locator("[data-trouble]")).to_contain_text("Retrying")
    found = findings_in_each_view(page)

    page.reload()
    row = page.locator("[data-unfinished]")
    expect(row.locator("[data-resume]")).to_be_visible()

    assert found + findings_in_each_view(page) == []


@pytest.mark.slow
def test_an_upload_is_cancelled_and_started_again(team, alice, page, file):
    page.route(PARTS, lambda route: None)  # the first part never arrives
    choose(page, file)
    cancel = page.get_by_role("button", name="Cancel")
    expect(cancel).to_be_visible()
    expect(page.get_by_text(re.compile(r"^0 B of .* KiB uploaded$"))).to_be_visible()

    cancel.press("Enter")

    expect(page.get_by_text("Upload cancelled")).to_be_visible()
    assert Upload.objects.count() == 0
    page.unroute(PARTS)
    page.get_by_role("button", name="Try again").click()
    page.wait_for_url("**/uploads/*")


@pytest.mark.slow
def test_an_upload_error_of_the_server_is_shown(team, alice, page, file):
    page.route(
        PARTS,
        lambda route: route.fulfill(status=507, json={"error": "disk is full"}),
    )
    choose(page, file)

    expect(page.locator("[data-trouble]")).to_have_text("disk is full")
    expect(page.get_by_role("button", name="Cancel")).to_be_hidden()


@pytest.mark.slow
def test_pasted_rows_lead_to_the_mapping(team, alice, page):
    page.goto("/alpha/datasets/upload?from=paste")
    page.get_by_label("Rows").fill("question\tanswer\n1 + 1?\t2\n")

    page.get_by_role("button", name="Map columns", exact=True).click()

    page.wait_for_url("**/uploads/*")
    expect(page.get_by_text("TSV")).to_be_visible()


@pytest.fixture
def start_default_worker(app_environment, tmp_path) -> Iterator[Callable[[], Worker]]:
    workers: list[Worker] = []

    def start() -> Worker:
        log = tmp_path / "default.log"
        worker = Worker("default", env=app_environment, log=log, queue="default")
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.terminate()


@pytest.mark.slow
def test_an_import_is_watched_until_its_version_is_there(
    team, alice, page, start_default_worker
):
    """The worker is started once the page has said that none runs."""
    rows = ROWS * 200
    page.goto("/alpha/datasets/upload")
    buffer = {"name": "sums.jsonl", "mimeType": "", "buffer": rows.encode()}
    page.set_input_files("input[type=file]", files=[buffer])
    page.wait_for_url("**/uploads/*")
    page.get_by_role("button", name="Import", exact=True).click()
    page.wait_for_url("**/imports/*")
    expect(page.get_by_text("No worker")).to_be_visible(timeout=15_000)
    assert findings_in_each_view(page) == []

    start_default_worker()
    notify_workers("default")

    done = page.get_by_text("Imported 60,000 rows")
    expect(done).to_be_visible(timeout=60_000)
    assert DatasetVersion.objects.get().num_rows == 60_000
    assert ImportJob.objects.get().job.done == 60_000
