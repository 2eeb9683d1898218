"""Members of a team: invitation, roles, removal, passkeys; accessible pages."""

import pytest
from playwright.sync_api import Page, expect

from tests.browser.accessibility import (
    findings_in_each_view,
    looking_with,
    none,
)
from tests.fixtures_app import set_password

pytestmark = pytest.mark.browser


@pytest.mark.slow
def test_an_invited_user_signs_up_becomes_an_admin_and_is_removed(
    page, bob, open_browser
):
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("console", lambda m: m.type == "error" and trouble.append(m.text))
    page.goto("/alpha/settings/invitations")
    trouble += findings_in_each_view(page)
    page.get_by_role("button", name="Create link").click()
    link = page.locator("#invitation-link").input_value()
    trouble += findings_in_each_view(page)

    dora = open_browser(None).new_page()
    dora.goto(link)
    trouble += findings_in_each_view(dora)
    dora.get_by_label("Username").fill("dora")
    dora.get_by_label("Password", exact=True).fill("correct horse battery")
    dora.get_by_label("Password, again").fill("correct horse battery")
    dora.get_by_role("button", name="Sign up and join").click()
    expect(dora.locator("#messages")).to_contain_text("Alpha")
    again = dora.goto(link)
    assert again
    assert again.status == 410
    trouble += findings_in_each_view(dora)

    page.goto("/alpha/settings")
    page.get_by_label("Role of dora", exact=True).select_option("admin")
    undo = page.get_by_role("button", name="Undo")
    expect(undo).to_be_visible()
    expect(page.get_by_label("Role of dora", exact=True)).to_have_value("admin")
    undo.click()
    expect(page.get_by_label("Role of dora", exact=True)).to_have_value("member")
    page.goto("/alpha/settings")
    page.get_by_label("Role of dora", exact=True).focus()
    page.keyboard.press("ArrowUp")
    page.wait_for_timeout(500)
    expect(undo).to_have_count(0)  # the arrow keys may go on
    page.keyboard.press("Tab")
    undo.click()
    expect(page.get_by_label("Role of dora", exact=True)).to_have_value("member")
    page.locator("summary", has_text="deactivate dora").click()
    trouble += findings_in_each_view(page)
    page.get_by_role("button", name="Remove from the team").click()
    expect(page.get_by_label("Role of dora", exact=True)).to_have_count(0)
    for address in ("/account/", "/teams/new"):
        page.goto(address)
        trouble += findings_in_each_view(page)
    assert not {text.split(": ", 1)[-1] for text in trouble if "410" not in text}


@looking_with(findings_in_each_view)
def test_a_passkey_signs_in_and_a_session_is_ended(alice, live_app, open_browser, look):
    """WebAuthn works on localhost, not on an IP address."""
    set_password(alice, "correct horse battery")
    here = live_app.replace("127.0.0.1", "localhost")
    page = open_browser(None).new_page()
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("console", lambda m: m.type == "error" and trouble.append(m.text))
    add_authenticator(page)
    page.goto(f"{here}/sign-in/")
    trouble += look(page)
    page.get_by_label("Username").fill("alice")
    page.get_by_label("Password").fill("correct horse battery")
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.wait_for_url("**/alpha/runs/")

    page.goto(f"{here}/account/factors/webauthn/add/")
    trouble += look(page)  # asks for the password first
    page.get_by_label("Password").fill("correct horse battery")
    page.get_by_role("button", name="Confirm").click()
    page.wait_for_url("**/webauthn/add/")
    trouble += look(page)
    page.get_by_label("Passwordless").check()
    page.get_by_role("button", name="Add").click()
    page.wait_for_url("**/recovery-codes/**")
    others = ("", "webauthn/", "recovery-codes/", "totp/activate/", "../email/")
    for address in others if look is not none else ():
        page.goto(f"{here}/account/factors/{address}")
        trouble += look(page)
    page.goto(f"{here}/account/")
    expect(page.get_by_text("Key “")).to_be_visible()
    page.get_by_text("A", exact=True).first.click()
    page.get_by_role("button", name="Sign out").click()

    page.get_by_role("button", name="Sign in with a passkey").click()
    page.wait_for_url("**/alpha/runs/")
    page.goto(f"{here}/account/")
    trouble += look(page)
    expect(page.get_by_text("(this session)")).to_be_visible()
    assert not {text.split(": ", 1)[-1] for text in trouble}


def add_authenticator(page: Page) -> None:
    """Chromium's virtual authenticator, which confirms every request."""
    devtools = page.context.new_cdp_session(page)
    devtools.send("WebAuthn.enable")
    options = {
        "protocol": "ctap2",
        "transport": "internal",
        "hasResidentKey": True,
        "hasUserVerification": True,
        "isUserVerified": True,
        "automaticPresenceSimulation": True,
    }
    devtools.send("WebAuthn.addVirtualAuthenticator", {"options": options})
