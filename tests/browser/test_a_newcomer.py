"""From one's own file to the first group of completions, without help."""

import json
import re

import pytest
from playwright.sync_api import expect

from dashboard.runs.models import Run
from tests.dashboard.runs.stories import Story

pytestmark = [pytest.mark.browser, pytest.mark.slow]
MAX_CLICKS = 12
NEWCOMER = """
window.addEventListener("click", (event) => {
  if (event.isTrusted) sessionStorage.clicks = 1 + Number(sessionStorage.clicks ?? 0);
}, { capture: true });
"""


def test_a_first_group_is_read_within_twelve_clicks(page, team, tmp_path):
    rows = [
        {"question": f"What is {a} + {b}?", "answer": str(a + b)}
        for a in range(20)
        for b in range(10)
    ]
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page.add_init_script(NEWCOMER)
    page.goto("/")

    page.get_by_role("navigation", name="Main").get_by_text("Datasets").click()
    with page.expect_file_chooser() as chooser:
        page.get_by_label("File", exact=True).click()
    chooser.value.set_files(file)
    page.get_by_role("button", name=re.compile("^Import")).click()
    page.get_by_role("link", name="Try a reward on these rows").click()
    page.get_by_role("button", name="Save", exact=True).last.click()
    page.get_by_role("main").get_by_role("link", name="New run").click()

    form = page.locator("#launch-form")
    expect(form.locator("[name=dataset] option:checked")).to_contain_text("sums")
    expect(form.locator("[name=recipe] option:checked")).not_to_have_text("")
    page.locator("[name=model_other]").click()
    page.keyboard.type("org/model")
    launch = page.get_by_role("button", name="Launch", exact=True)
    launch.click()
    page.wait_for_url(re.compile(r"/alpha/runs/\d+/$"))

    story = Story(Run.objects.get())
    story.start()
    story.score_group(3)
    story.take_steps(1)
    page.get_by_role("link", name="Samples", exact=True).click()
    expect(page.locator("[id^=completion-]").first).to_be_visible()

    clicks = int(page.evaluate("sessionStorage.clicks"))
    # The file chooser's own: the file, and Open.
    assert clicks + 2 <= MAX_CLICKS
