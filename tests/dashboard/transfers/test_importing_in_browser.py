"""Files of another tool, from the file field to the page of a run."""

import pytest
from playwright.sync_api import expect

from dashboard.runs.models import Run
from tests.browser.accessibility import findings, findings_in_each_view
from tests.dashboard.transfers.tools import event_file, verl_jsonl

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_files_become_a_run(team, page):
    metrics = event_file([(s, 1e9 + s, {"actor/entropy": 0.1 * s}) for s in (1, 2)])
    sent = {"1.jsonl": verl_jsonl(1), "2.jsonl": verl_jsonl(2) + b"no json\n"}
    sent["events.out.tfevents.1"] = metrics
    page.goto("/alpha/runs/")
    page.get_by_role("link", name="Import").click()
    found = findings(page)
    page.locator("#import-files").set_input_files(
        [{"name": n, "mimeType": "", "buffer": data} for n, data in sent.items()]
    )
    page.get_by_role("button", name="Upload and inspect").click()
    expect(page.get_by_role("heading", name="verl, TensorBoard")).to_be_visible()
    expect(page.get_by_text("2.jsonl").first).to_be_visible()
    found += findings_in_each_view(page)
    page.get_by_label("Name").fill("from-verl")
    page.get_by_label("Leave out 1").check()
    page.get_by_role("button", name="Create run").click()

    expect(page.get_by_role("heading", name="from-verl")).to_be_visible()
    expect(page.get_by_text("verl and TensorBoard")).to_be_visible()
    expect(page.get_by_role("heading", name="entropy")).to_be_visible()
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    assert Run.objects.get().groups.count() == 4
    assert found == []
