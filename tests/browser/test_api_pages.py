"""The pages of API tokens, and Swagger UI."""

import pytest

from tests.browser.accessibility import findings_in_each_view

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_the_token_page_is_accessible(page, team):
    page.goto(f"/{team.slug}/tokens/")
    page.get_by_text("Custom", exact=True).click()
    page.get_by_label("Name").fill("nightly sweep")
    page.get_by_label("write").check()
    page.get_by_role("button", name="Create token").click()
    page.locator("[data-secret]").wait_for()

    assert findings_in_each_view(page) == []


def test_the_lines_for_a_trainer_are_copied(page, team):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"/{team.slug}/tokens/")
    page.get_by_role("button", name="Report runs", exact=True).click()
    token = page.locator("[data-secret]").inner_text()

    page.get_by_role("button", name="Copy the login").click()
    login = page.evaluate("navigator.clipboard.readText()")
    page.get_by_role("button", name="Copy the line for TRL").click()
    page.get_by_text("Copied", exact=True).nth(1).wait_for()

    assert token in login
    assert "cohort login http" in login
    assert 'report_to="cohort"' in page.evaluate("navigator.clipboard.readText()")


def test_swagger_ui_executes_an_operation(page, team):
    errors: list[str] = []
    page.on("console", lambda m: m.type == "error" and errors.append(m.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"/{team.slug}/tokens/")
    page.get_by_text("Custom", exact=True).click()
    page.get_by_label("Name").fill("trying")
    page.get_by_role("button", name="Create token").click()
    token = page.locator("[data-secret]").inner_text()

    page.get_by_role("link", name="API reference").click()
    page.get_by_role("button", name="Authorize").click()
    page.locator(".auth-container input").fill(token)
    page.locator(".auth-container").get_by_role("button", name="Apply").click()
    page.locator(".modal-ux").get_by_role("button", name="Close").click()
    page.locator(".opblock-tag", has_text="Token").click()
    operation = page.locator("[id$=-me]")
    operation.locator(".opblock-summary-control").click()
    operation.get_by_role("button", name="Try it out").click()
    operation.get_by_role("button", name="Execute").click()
    response = operation.locator(".live-responses-table .response")
    assert response.locator(".response-col_status").inner_text().strip() == "200"
    assert team.slug in response.locator(".response-col_description").inner_text()

    page.set_viewport_size({"width": 390, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert errors == []
