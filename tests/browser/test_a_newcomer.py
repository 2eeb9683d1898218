"""From one's own file to a real run of it; the model comes from the hub."""

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from dashboard.datasets.row import Row
from dashboard.datasets.services import create_dataset_version
from dashboard.runs.models import Run
from tests.browser.accessibility import findings_in_each_view
from tests.browser.waiting import wait_for
from tests.dashboard.datasets.fetching.hub_site import add_model
from tests.dashboard.datasets.fetching.site import Site, web_site
from tests.dashboard.datasets.test_transfer_in_browser import start_default_worker
from tests.faults.tiny import save_model
from tests.faults.workers import Worker

pytestmark = [pytest.mark.browser(minutes=1), pytest.mark.slow]
__all__ = ["start_default_worker"]
MAX_CLICKS = 8
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
NEWCOMER = """
window.addEventListener("click", (event) => {
  if (event.isTrusted) sessionStorage.clicks = 1 + Number(sessionStorage.clicks ?? 0);
}, { capture: true });
"""


@pytest.fixture
def site() -> Iterator[Site]:
    with web_site() as site:
        yield site


@pytest.fixture
def app_environment(app_environment, site) -> dict[str, str]:
    return {**app_environment, "HF_ENDPOINT": site.url("")}


@pytest.fixture
def worker(app_environment, tmp_path) -> Iterator[Worker]:
    worker = Worker("newcomer", env=app_environment, log=tmp_path / "worker.log")
    yield worker
    worker.terminate()


def test_a_newcomers_own_file_trains_within_eight_clicks(
    page, team, tmp_path, site, worker, start_default_worker
):
    rows = [
        {"question": f"{a}+{b}=", "answer": str(a + b)}
        for a in range(20)
        for b in range(10)
    ]
    create_dataset_version(  # as the starter's, which stands in the list
        team=team,
        name="Starter",
        rows=[Row(prompt="1")],
        mapping={},
        source={},
        user=None,
    )
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    start_default_worker()
    page.set_default_timeout(60_000)
    page.add_init_script(NEWCOMER)
    page.goto("/")

    page.get_by_role("navigation", name="Main").get_by_text("Datasets").click()
    with page.expect_file_chooser() as chooser:
        page.get_by_label("File", exact=True).click()
    chooser.value.set_files(file)
    page.get_by_role("button", name=re.compile("^Import")).click()
    page.get_by_role("button", name="Start a run").click()

    form = page.locator("#launch-form")
    expect(form.locator("[name=dataset] option:checked")).to_contain_text("sums")
    expect(form.locator("[name=recipe] option:checked")).to_contain_text("Numeric")
    add = form.get_by_role("button", name="Add SmolLM2-135M")
    add.click()
    expect(form.get_by_text("Try again")).to_be_visible()  # the hub has no such model
    assert findings_in_each_view(page) == []
    save_model(tmp_path / "model")
    files = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    add_model(site, MODEL, files)
    page.evaluate("sessionStorage.clicks = Number(sessionStorage.clicks) - 1")
    form.get_by_role("button", name="Try again").click()
    chosen = form.locator("[name=model] option:checked")
    expect(chosen).to_have_text("SmolLM2-135M-Instruct")
    expect(page.locator("#launch-line")).to_contain_text("completions")
    page.get_by_role("button", name="Launch", exact=True).click()
    page.wait_for_url(re.compile(r"/alpha/runs/\d+/$"))
    clicks = int(page.evaluate("sessionStorage.clicks"))

    run = Run.objects.get()
    wait_for(page, lambda: Run.objects.get().last_step >= 1, seconds=120)
    assert run.config["model"]["path"].endswith("/starter/smollm2/model")
    # The file chooser's own: the file, and Open.
    assert clicks + 2 <= MAX_CLICKS
