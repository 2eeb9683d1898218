"""The prompt preview in a browser."""

import json
import re

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from playwright.sync_api import Locator, expect

from dashboard.datasets.imports import store_upload
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.row import Row
from tests.browser.accessibility import findings_in_each_view
from tests.dashboard.completions.factories import store_dataset
from tests.dashboard.datasets.chat_model import save_chat_model

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("chat") / "model"
    save_chat_model(folder)
    # What the launch form looks for in a folder.
    (folder / "config.json").write_text("{}")
    return str(folder)


@pytest.fixture
def version(team) -> DatasetVersion:
    rows = [Row(prompt=f"{i} plus 4 is?", answer=str(i + 4)) for i in range(8)]
    return store_dataset(team, rows)


def test_prompt_settings_are_copied_to_a_run(page, version, model):
    page.goto(f"/alpha/datasets/{version.dataset_id}/prompt")
    preview = page.locator("#prompt-preview")
    expect(preview).to_contain_text("Choose a model")

    page.get_by_label("Model", exact=True).fill(model)
    expect(preview).to_contain_text("Completion starts here", timeout=30_000)
    page.get_by_label("Prompt template").fill("Work out {prompt}")
    expect(preview).to_contain_text("Work out 0 plus 4 is?")
    preview.get_by_role("button", name="Row 2").click()
    expect(preview).to_contain_text("Work out 2 plus 4 is?")
    # Typing on keeps the row.
    page.get_by_label("Prompt template").fill("Add {what}")
    expect(preview).to_contain_text("{what}")
    page.get_by_label("Prompt template").fill("Add {prompt}")
    page.get_by_role("button", name="New run with these settings").click()

    expect(page).to_have_url(re.compile(r"/alpha/runs/new\?"))
    expect(page.locator("#prompt-preview")).to_contain_text("Add 0 plus 4 is?")
    expect(page.locator("#field-model_other")).to_have_value(model)


@pytest.fixture
def sent(team, alice) -> str:
    """The address of the columns of a file."""
    lines = [{"question": f"{i} plus 4 is?", "hint": f"Take {i}."} for i in range(3)]
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = SimpleUploadedFile("rows.jsonl", text)
    upload = store_upload(team=team, user=alice, file=file, dataset=None)
    return f"/alpha/datasets/uploads/{upload.pk}"


def height_of(shown: Locator) -> float:
    box = shown.bounding_box()
    assert box
    return box["height"]


def test_before_an_import_the_columns_are_tried(page, sent, model):
    page.goto(sent)
    preview = page.locator("#prompt-preview")
    page.locator("summary", has_text="Prompt preview").press("Enter")
    expect(preview).to_contain_text("Choose a model")
    height = height_of(preview)

    page.get_by_label("Model", exact=True).fill(model)
    expect(preview).to_contain_text("0 plus 4 is?", timeout=30_000)
    assert height_of(preview) == height  # what stands below does not jump
    page.get_by_role("combobox", name="Prompt", exact=True).select_option("hint")
    expect(preview).to_contain_text("Take 0.")
    page.get_by_label("Prompt template").fill("Well: {prompt}")
    expect(preview).to_contain_text("Well: Take 0.")
    preview.get_by_role("button", name="Row 2").press("Enter")
    expect(preview).to_contain_text("Well: Take 2.")
    assert height_of(preview) == height  # what stands below does not jump


@pytest.mark.parametrize("place", ["dataset", "launch", "mapping"])
def test_the_preview_is_accessible(page, version, sent, model, place):
    address = {
        "mapping": f"{sent}?",
        "dataset": f"/alpha/datasets/{version.dataset_id}/prompt?",
        "launch": f"/alpha/runs/new?dataset={version.pk}&",
    }[place]
    page.goto(f"{address}model={model}&data.completion_prefix=%3Cthink%3E")
    if place == "mapping":
        page.locator("summary", has_text="Prompt preview").click()
    expect(page.locator("#prompt-preview")).to_contain_text(
        "Completion starts here", timeout=30_000
    )

    assert findings_in_each_view(page) == []
