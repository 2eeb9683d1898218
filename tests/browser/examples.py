"""Example data for screenshots: uploaded files, and a probe."""

import re

from playwright.sync_api import Page, expect

PROBED_WITHIN_SECONDS = 1_200  # its worker may train the first run until then
GOOD = '"What is {0} + {0}?",{1},{2}\r\n'
BAD = ['"",4,1\r\n', '"What is 2 + 2?",,2\r\n', '"What is 3 + 3?",6\r\n']


def make_examples(page: Page, team: str) -> dict[str, str]:
    """Pages by name; the files are there for a week, the probe for a month."""
    return {
        "upload-refused": _upload_messy(page, team),
        "upload-columns": _upload(page, team, "sums.csv", _rows(50)),
        "probe": _probe(page, team),
    }


def _rows(count: int) -> str:
    rows = (GOOD.format(number, 2 * number, number % 5) for number in range(count))
    return "\ufeffquestion,answer,level\r\n" + "".join(rows)


def _upload(page: Page, team: str, name: str, content: str) -> str:
    page.goto(f"{team}/datasets/upload")
    file = {"name": name, "mimeType": "text/csv", "buffer": content.encode()}
    page.set_input_files("input[type=file]", files=[file])
    page.wait_for_url(re.compile(r"/uploads/\d+$"))
    return page.url


def _upload_messy(page: Page, team: str) -> str:
    """Above 1 MiB, so that its page keeps the list of refused rows."""
    good = _rows(40_000).splitlines(keepends=True)
    for index, bad in enumerate(BAD * 40):
        good.insert(12 + 300 * index, bad)
    address = _upload(page, team, "messy.csv", "".join(good))
    page.get_by_role("button", name="Import", exact=True).click()
    expect(page.locator("[name=leave_out]")).to_be_visible(timeout=120_000)
    return address


def _probe(page: Page, team: str) -> str:
    page.goto(f"{team}/rewards/new?template=number")
    page.get_by_text("Advantages, new samples").click()
    page.get_by_label("Prompts per test").fill("16")
    page.get_by_role("button", name="Test first").click()
    page.wait_for_url(re.compile(r"/probes/\d+/$"))
    verdict = page.locator("[data-verdict]")
    expect(verdict).to_be_visible(timeout=PROBED_WITHIN_SECONDS * 1_000)
    return page.url
