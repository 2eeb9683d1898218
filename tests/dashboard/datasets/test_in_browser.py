"""From a file to a dataset and a recipe, in a browser."""

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from dashboard.datasets.models import DatasetVersion, Upload
from dashboard.datasets.row import Row
from dashboard.rewards.models import RecipeVersion
from tests.browser.accessibility import findings_in_each_view
from tests.dashboard.completions.factories import store_dataset

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ROWS = [
    {"question": f"What is {i} + {i}?", "answer": 2 * i, "level": i % 3}
    for i in range(30)
]


@pytest.fixture
def quiet_page(page) -> Iterator[Page]:
    """A page without console errors; Chromium logs every 422."""
    logged: list[str] = []
    page.on("pageerror", lambda error: logged.append(str(error)))
    page.on(
        "console",
        lambda m: (
            logged.append(m.text)
            if m.type in ("error", "warning") and "422" not in m.text
            else None
        ),
    )
    yield page
    assert logged == []


def drop(page: Page, name: str, content: str) -> None:
    transfer = page.evaluate_handle(
        """([name, content]) => {
            const data = new DataTransfer();
            data.items.add(new File([content], name));
            return data;
        }""",
        [name, content],
    )
    page.dispatch_event("[data-drop-zone]", "drop", {"dataTransfer": transfer})


def as_lines(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def upload(page: Page, rows: list[dict[str, object]]) -> None:
    page.goto("/alpha/datasets/upload")
    drop(page, "sums.jsonl", as_lines(rows))
    page.wait_for_url("**/uploads/*")


def test_a_dropped_file_becomes_a_dataset(team, quiet_page):
    page = quiet_page
    upload(page, ROWS)
    page.get_by_label("Answer", exact=True).select_option("level")
    expect(page.locator("#mapped tbody tr").nth(1).locator("td").nth(1)).to_have_text(
        "1"
    )
    page.get_by_label("Answer", exact=True).select_option("answer")

    page.get_by_role("button", name="Import").click()

    expect(page.get_by_text("Imported 30 rows")).to_be_visible()
    page.get_by_label("Search prompts and answers").fill("What is 7 ")
    page.keyboard.press("Enter")
    expect(page.get_by_text("1 matching row", exact=True)).to_be_visible()
    assert DatasetVersion.objects.get().num_rows == 30


def test_a_template_is_previewed_while_one_types(team, quiet_page):
    page = quiet_page
    rows: list[dict[str, object]] = [
        {"question": f"Which is {i}?", "choices": [f"{i}", f"{i + 1}"], "answer": 0}
        for i in range(3)
    ]
    upload(page, rows)
    first = page.locator("#mapped tbody tr").first.locator("td").first
    expect(first).to_have_text("Which is 0?\n\nA) 0\nB) 1")
    template = page.get_by_label("Template", exact=True)

    template.fill("{{ question }} {{ choices | join(' or ') }}?")
    expect(first).to_have_text("Which is 0? 0 or 1?")
    template.fill("{{ question")
    expect(page.locator("#id_template_error .field-error")).to_be_visible()
    expect(first).to_have_count(0)
    template.fill("{{ question }}")
    warning = page.locator('[data-warning="options_missing"]')
    expect(warning).to_contain_text("3 of 3 rows")
    template.fill("{{ question }} {{ choices[0] }} or {{ choices[1] }}?")
    expect(warning).to_have_count(0)
    page.get_by_role("button", name="Import").click()

    page.get_by_role("link", name="Try a reward on these rows").click()
    kind = page.locator("[name=rules-0-kind]")
    expect(kind).to_have_value("multiple_choice")
    column = page.locator("[name=rules-0-params-options_column]")
    expect(column).to_have_value("choices")
    row = DatasetVersion.objects.get().rows.order_by("position")[0]
    assert row.prompt == "Which is 0? 0 or 1?"


def test_a_fix_changes_the_columns_in_one_click(team, quiet_page):
    page = quiet_page
    rows: list[dict[str, object]] = [
        {"question": f"{i} + {i}?", "graded": {"truth": 2 * i}} for i in range(3)
    ]
    upload(page, rows)
    page.get_by_label("Name", exact=True).fill("Graded")
    page.get_by_label("Answer", exact=True).select_option("graded")
    button = page.locator("#import-action .btn-primary")
    expect(button).to_be_disabled()
    expect(page.locator("[data-column=graded]")).to_be_hidden()

    page.get_by_role("link", name="Use “graded.truth” as the answer").click()

    expect(button).to_have_text("Import 3 rows")
    expect(page.locator("#mapped tbody tr").nth(1).locator("td").nth(1)).to_have_text(
        "2"
    )
    button.click()
    expect(page.get_by_role("heading", name="Graded")).to_be_visible()
    assert list(DatasetVersion.objects.get().rows.values_list("answer", flat=True)) == [
        "0",
        "2",
        "4",
    ]


def test_a_second_click_imports_nothing_more(team, quiet_page):
    page = quiet_page
    upload(page, ROWS)
    methods: list[str] = []
    page.on(
        "request", lambda r: methods.append(r.method) if r.method == "POST" else None
    )

    # Far enough apart for the first request to have left.
    page.get_by_role("button", name="Import").evaluate(
        "button => [0, 15, 30].forEach(ms => setTimeout(() => button.click(), ms))"
    )

    expect(page.get_by_text("Imported 30 rows")).to_be_visible()
    assert methods == ["POST"]
    assert DatasetVersion.objects.count() == 1


def test_an_unreadable_file_is_reported_on_the_upload_page(team, quiet_page):
    page = quiet_page
    page.goto("/alpha/datasets/upload")
    drop(page, "sums.jsonl", "{not json}\n")

    expect(page.locator("#refusals-title")).to_contain_text("1 row")

    # The page still works: the next file goes through.
    drop(page, "sums.jsonl", as_lines(ROWS))
    page.wait_for_url("**/uploads/*")


def test_a_file_dropped_on_an_empty_list_becomes_a_dataset(team, quiet_page):
    page = quiet_page
    page.goto("/alpha/datasets/")
    drop(page, "sums.jsonl", "{not json}\n")
    expect(page.locator("#refusals-title")).to_contain_text("1 row")
    assert page.url.endswith("/alpha/datasets/upload")

    page.goto("/alpha/datasets/")
    drop(page, "sums.jsonl", as_lines(ROWS))
    page.get_by_role("button", name="Import").click()

    expect(page.get_by_text("Imported 30 rows")).to_be_visible()
    page.get_by_role("link", name="Datasets", exact=True).first.click()
    row = page.locator(".dataset-row")
    expect(row).to_contain_text("What is 0 + 0?")
    expect(row).to_contain_text("30 rows")
    page.get_by_text("Add dataset").click()
    page.get_by_role("link", name="Link or Hugging Face").click()
    expect(page.get_by_label("Revision")).to_be_visible()
    page.goto("/alpha/datasets/upload#from-a-link")
    expect(page.get_by_label("Revision")).to_be_visible()


def test_valid_rows_of_a_file_with_errors_are_imported(team, quiet_page):
    page = quiet_page
    bad: list[dict[str, object]] = [{"question": "", "answer": 1}] * 214
    upload(page, [*ROWS, *bad])
    expect(page.get_by_text("211 more")).to_be_visible()
    page.set_viewport_size({"width": 390, "height": 900})
    box = page.locator("[name=leave_out]").bounding_box()
    assert box
    assert box["x"] + box["width"] <= 390
    assert box["y"] + box["height"] <= 900, "the button stays on a narrow screen"

    page.get_by_role("button", name="Import 30 of 244 rows").click()

    expect(page.get_by_text("skipped 214")).to_be_visible()
    expect(page.get_by_role("heading", name="214 skipped rows")).to_be_visible()
    assert DatasetVersion.objects.get().num_left_out == 214


def test_the_browser_does_not_send_a_file_that_is_too_large(team, quiet_page):
    page = quiet_page
    page.goto("/alpha/datasets/upload")
    page.eval_on_selector("input[type=file]", "field => field.dataset.maxBytes = 10")

    drop(page, "sums.jsonl", "x" * 11)

    expect(page.locator("[data-too-large]")).to_contain_text("10 B")
    expect(page.locator("[data-progress]")).to_be_hidden()
    assert Upload.objects.count() == 0


def test_a_long_search_continues_automatically(team, quiet_page):
    page = quiet_page
    # Long enough that half a second does not reach the end.
    rows = (Row(prompt="ab" * 20_000, answer=str(i)) for i in range(3_000))
    version = store_dataset(team, rows, name="Long")
    page.goto(f"/alpha/datasets/{version.dataset_id}/?q=nowhere")

    expect(page.get_by_text("3,000 rows searched")).to_be_visible(timeout=30_000)
    expect(page.get_by_text("0 matching rows", exact=True)).to_be_visible()


def test_a_versions_lengths_are_drawn(team, quiet_page):
    page = quiet_page
    upload(page, ROWS)
    page.get_by_role("button", name="Import").click()
    page.get_by_role("link", name="Statistics").click()

    expect(page.locator(".fact").first).to_contain_text("30")
    bars = page.locator("[data-figure=prompt_chars] .barlayer path")
    expect(bars).not_to_have_count(0)
    expect(page.locator("[data-clean]")).to_contain_text("30 rows checked")
    expect(page.locator(".is-finding")).to_have_count(0)


def test_a_row_opens_beside_the_table_and_has_an_address(team, quiet_page):
    page = quiet_page
    rows = [
        Row(prompt=f"What is {i}? " + "word " * 500, answer=str(i), columns={"i": i})
        for i in range(45)
    ]
    version = store_dataset(team, rows, name="Long", mapping={"columns": ["i"]})
    page.goto(f"/alpha/datasets/{version.dataset_id}/?from=20")
    title = page.locator("#row-drawer-title")
    expect(title).to_have_count(0)

    page.locator("#row-21 .row-prompt").click()
    expect(title).to_have_text("Row 21")
    expect(title).to_be_focused()
    expect(page.locator("#row-21")).to_have_attribute("aria-current", "true")
    page.keyboard.press("j")
    expect(title).to_have_text("Row 22")
    expect(page).to_have_url(re.compile(r"from=20&row=22"))
    page.go_back()
    expect(title).to_have_text("Row 21")
    page.reload()
    expect(title).to_have_text("Row 21")
    expect(page.locator(".row-full").first).to_contain_text("word " * 499)
    page.get_by_text("Rendered prompt").click()
    expect(page.locator("#prompt-preview")).to_contain_text("Choose a model")
    found = findings_in_each_view(page)
    page.keyboard.press("Escape")

    expect(title).to_be_hidden()
    expect(page.locator("#row-21 [data-row]")).to_be_focused()
    assert "row=" not in page.url
    assert found == []


def test_filters_are_chips_that_can_be_removed(team, quiet_page):
    page = quiet_page
    rows = [Row(prompt=f"What is {i}?", answer=str(i) if i else None) for i in range(9)]
    version = store_dataset(team, rows)
    page.goto(f"/alpha/datasets/{version.dataset_id}/")
    page.locator(".rows-filter summary").click()
    page.get_by_label("Answer", exact=True).select_option("no")
    page.get_by_label("Sort by").select_option("-position")
    page.get_by_role("button", name="Show").click()

    expect(page.locator("[data-rows] tr[id]")).to_have_count(1)
    expect(page.locator(".chip")).to_have_count(2)
    page.locator(".chip").first.click()
    expect(page.locator("[data-rows] tr[id]").first).to_have_attribute("id", "row-8")
    expect(page.locator(".chip")).to_have_count(1)


def test_a_recipe_is_composed_tried_and_saved(team, alice, quiet_page):
    page = quiet_page
    upload(page, ROWS)
    page.get_by_role("button", name="Import").click()
    page.wait_for_url("**/datasets/*/")
    page.goto("/alpha/rewards/new?template=number")

    page.get_by_role("button", name="Add rule").click()
    page.get_by_role("button", name="Add Length", exact=True).click()
    weight = page.locator("#rules-2-weight")
    expect(weight).to_be_focused()
    weight.fill("5000")
    weight.press("Tab")
    expect(page.locator("#rules-2-weight_error")).to_contain_text("got '5000'")
    expect(page.locator("#rules-2_invalid")).to_contain_text("1 error")
    expect(page.locator("#rules-2-name")).to_be_focused()
    weight.fill("-0.5")
    weight.press("Tab")
    expect(page.locator("#recipe-formula")).to_have_value(re.compile("− 0.5·length"))

    page.get_by_role("button", name="Remove format_tags").click()
    expect(page.locator(".rule")).to_have_count(2)
    page.get_by_label("More actions").click()
    page.get_by_role("button", name="JSON", exact=True).click()
    recipe = page.get_by_label("Reward as JSON")
    recipe.fill(recipe.input_value().replace('"weight": -0.5', '"weight": -0.25'))
    page.get_by_role("button", name="Apply JSON").click()
    expect(page.locator("#rules-1-weight")).to_have_value("-0.25")

    page.get_by_label("Completions of row 3").fill("It is 6.\n---\nIt is 7.")
    scores = page.locator("#scores-3 tr")
    expect(scores.nth(0).locator("strong")).to_have_text("0.75")
    expect(scores.nth(1).locator("strong")).to_have_text("-0.25")

    page.get_by_label("Name", exact=True).first.fill("Sums")
    page.get_by_role("button", name="Save", exact=True).last.click()
    expect(page.get_by_text("Saved as version 1.")).to_be_visible()
    kinds = [rule["kind"] for rule in RecipeVersion.objects.get().spec["rules"]]
    assert kinds == ["numeric_answer", "length"]


def test_refused_rows_are_shown_accessibly(team, page):
    upload(page, [*ROWS, {"question": "", "answer": 1}])

    expect(page.locator("#refusals-title")).to_contain_text("1 row")
    assert findings_in_each_view(page) == []
