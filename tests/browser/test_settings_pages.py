"""Accessibility of pages about people, access and settings, on a wide light and a
narrow dark screen."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from allauth.account.forms import EmailAwarePasswordResetTokenGenerator
from allauth.account.models import EmailAddress
from allauth.account.utils import user_pk_to_url_str
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP
from django.utils import timezone
from playwright.sync_api import BrowserContext, Page

from dashboard.accounts.members import deactivate, invite
from dashboard.accounts.models import Membership, Role, Team, User
from dashboard.alerts.delivery import describe_run
from dashboard.alerts.models import Channel, Event
from dashboard.api.models import ApiToken
from dashboard.operations.models import Quota
from dashboard.training.workers import register
from tests.browser.accessibility import AT_REST, findings
from tests.dashboard.alerts.factories import make_delivery
from tests.dashboard.api.asking import make_token
from tests.dashboard.samples.factories import make_run
from tests.fixtures_app import (
    WebProcesses,
    _wait_until_idle,
    set_password,
)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
]
PASSWORD = "correct horse battery"
VIEWS = ((1440, "light"), (390, "dark"))
TEAM_PAGES = (
    *("settings", "settings/invitations", "settings/roles", "settings/danger"),
    *("settings/storage", "settings/storage?days=1", "tokens/", "audit-log/"),
    *("settings/notifications/", "settings/alert-rules/", "alerts/", "mentions/"),
    *("compute/", "search?q=alert", "runs/import/", "api/"),
)
ACCOUNT_PAGES = (
    *("/account/", "/account/email/", "/account/data/", "/teams/new", "/help/"),
    *("/account/factors/", "/account/factors/totp/deactivate/"),
    *("/account/factors/recovery-codes/", "/account/factors/recovery-codes/generate/"),
    *("/account/factors/webauthn/", "/account/factors/webauthn/add/"),
)
OPERATOR_PAGES = (
    *("/admin/", "/admin/upkeep/quota/", "/admin/accounts/user/"),
    "/admin/upkeep/quota/add/",
)
PUBLIC_PAGES = (
    *("/sign-in/", "/help/?q=reward", "/help/settings/", "/account/password/reset/"),
    *("/help/glossary/", "/help/about/clip/frac_…/"),
    *("/account/password/reset/done/", "/account/password/reset/key/done/"),
    *("/account/password/reset/key/1-gone/", "/account/inactive/"),
    *("/account/confirm-email/gone/", "/account/providers/error"),
)
Opener = Callable[[User | None], BrowserContext]


@pytest.fixture
def live_app(
    app_environment: dict[str, str], web_processes: WebProcesses
) -> Iterator[str]:
    """With an unreachable mail server and provider, so that every option is shown."""
    variables = {
        "COHORT_EMAIL_URL": "smtp+plain://127.0.0.1:9",
        "COHORT_OIDC_URL": "http://127.0.0.1:9",
        "COHORT_OIDC_ID": "cohort",
        "COHORT_OIDC_SECRET": "quiet",
        "COHORT_OIDC_NAME": "Example Work",
        "COHORT_GITHUB_ID": "cohort",
        "COHORT_GITHUB_SECRET": "quiet",
    }
    yield web_processes.serve(app_environment | variables)
    _wait_until_idle()


def findings_on(page: Page, addresses: tuple[str, ...]) -> list[str]:
    """Findings on these pages."""
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    for address in addresses:
        page.set_viewport_size({"width": 1440, "height": 900})
        answer = page.goto(address)
        assert answer
        assert answer.status < 500, address
        trouble += [f"{address}: {each}" for each in look_at(page)]
    return trouble


def look_at(page: Page) -> list[str]:
    found = []
    for width, theme in VIEWS:
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate("t => document.documentElement.dataset.bsTheme = t", theme)
        page.evaluate(AT_REST)
        found += [f"{width} {theme}: {each}" for each in findings(page)]
    return found


@pytest.fixture
def busy(team: Team, alice: User, bob: User) -> User:
    """A team with rows in every table, and an owner with every factor."""
    alice.email = "alice@laboratory.example.org"
    alice.save()
    set_password(alice, PASSWORD)
    EmailAddress.objects.create(
        user=alice, email=alice.email, verified=True, primary=True
    )
    EmailAddress.objects.create(user=alice, email="a@example.org")
    fill_people(team, alice)
    fill_channels(team)
    register("worker-on-a-machine-with-a-long-name", num_slots=2)
    Quota.objects.create(team=team, max_bytes=10**9, max_runs=4)
    return alice


def fill_people(team: Team, alice: User) -> None:
    by = Membership.objects.get(user=alice)
    for name in ("dora-with-a-rather-long-username", "erik"):
        user = User.objects.create_user(name, display_name=name.title())
        user.api_tokens.model.objects.filter(user=user).delete()
        place = Membership.objects.create(team=team, user=user, role=Role.ADMIN)
        make_token(user, "ingest", name="trainer of node-3")
    deactivate(by=by, member=place)
    make_token(alice, "read", "write", name="nightly sweep of the small models")
    expired = timezone.now() - timedelta(days=1)
    make_token(alice, "admin", expires_at=expired, name="old")
    ApiToken.objects.filter(name="nightly").update(last_used_at=timezone.now())
    invite(by=by, role="viewer")
    invite(by=by, role="admin", email="someone.with.a.long.name@example.org")


def fill_channels(team: Team) -> None:
    run = make_run(team, trashed_at=timezone.now() - timedelta(days=3))
    channel = Channel.objects.create(
        team=team,
        kind="webhook",
        address="https://hooks.example.org/services/T0",
        events=Event.values,
    )
    Channel.objects.create(team=team, kind="email", address="ops@example.org")
    make_delivery(channel)
    data = {"run": run, "event": "run.finished", "content": describe_run(run)}
    channel.deliveries.create(
        not_before=timezone.now(), num_attempts=3, result="HTTP 503", **data
    )


def test_team_pages(busy: User, open_browser: Opener) -> None:
    pages = tuple(f"/alpha/{path}" for path in TEAM_PAGES)

    assert findings_on(open_browser(busy).new_page(), pages) == []


def test_account_pages(busy: User, open_browser: Opener) -> None:
    page = sign_in(open_browser)
    found = findings_on(page, ("/account/reauthenticate/",))
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Confirm").click()
    page.wait_for_url("**/runs/")
    found += findings_on(page, ("/account/factors/totp/activate/",))
    TOTP.activate(busy, "JBSWY3DPEHPK3PXP")
    RecoveryCodes.activate(busy)

    assert found + findings_on(page, ACCOUNT_PAGES) == []
    page.context.clear_cookies()
    page = sign_in(open_browser, "**/factors/authenticate/")
    assert look_at(page) == []


def sign_in(open_browser: Opener, then: str = "**/runs/") -> Page:
    page = open_browser(None).new_page()
    page.goto("/sign-in/")
    page.get_by_label("Username").fill("alice")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.wait_for_url(then)
    return page


def test_operator_pages(busy: User, open_browser: Opener) -> None:
    User.objects.filter(pk=busy.pk).update(is_staff=True)

    assert findings_on(open_browser(busy).new_page(), OPERATOR_PAGES) == []


def test_pages_without_sign_in(busy: User, open_browser: Opener) -> None:
    token = invite(by=Membership.objects.get(user=busy), role="member")[1]
    uid = user_pk_to_url_str(busy)
    key = EmailAwarePasswordResetTokenGenerator().make_token(busy)
    linked_pages = (
        *(f"/invitation/{token}/", "/invitation/gone/", "/sign-in/gone/"),
        f"/account/password/reset/key/{uid}-{key}/",
    )
    page = open_browser(None).new_page()

    assert findings_on(page, PUBLIC_PAGES + linked_pages) == []
    page.goto("/sign-in/")
    page.get_by_label("Username").fill("nobody")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.get_by_text(re.compile("Please enter a correct")).wait_for()
    assert look_at(page) == []
