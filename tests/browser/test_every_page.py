"""Every page of a team at work, on a wide and on a narrow screen: it is accessible in
both themes, no wider than the screen, silent in the console, and its content begins no
lower than it did."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from allauth.account.forms import EmailAwarePasswordResetTokenGenerator
from allauth.account.utils import user_pk_to_url_str
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP
from django.urls import resolve
from playwright.sync_api import BrowserContext, ConsoleMessage, Locator, Page

from dashboard.accounts.members import invite
from dashboard.accounts.models import Membership, User
from tests.browser.accessibility import AT_REST, findings
from tests.browser.laboratory import PASSWORD, open_laboratory
from tests.dashboard.test_every_route_is_guarded import POST_ONLY, routes
from tests.fixtures_app import _wait_until_idle

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow(minutes=9),
    pytest.mark.django_db(transaction=True),
]
Opener = Callable[[User | None], BrowserContext]
SCREENS = {"wide": (1440, 900), "narrow": (390, 844)}
THEMES = ("light", "dark")
SET_THEME = """(theme) => {
  document.documentElement.dataset.bsTheme = theme;
  document.dispatchEvent(new Event("themechange"));
}"""

RUN = "/{team}/runs/{run_id}/"
GROUP = RUN + "groups/{step}/{prompt}/"
PAGES: dict[str, tuple[str, ...]] = {
    "run": (
        RUN,
        *("/{team}/runs/{training}/", "/{team}/runs/{starting}/"),
        *("/{team}/runs/{failed}/", "/{team}/runs/{paused}/"),
        *("/{team}/runs/{waiting}/", "/{team}/runs/{outside}/"),
        *(RUN + "metrics/", RUN + "metrics/?view=values", RUN + "metrics/#machine"),
        *(RUN + "checkpoints/", RUN + "try/", RUN + "lineage/", RUN + "export/"),
        *(RUN + "cost/", "/{team}/runs/{costly}/cost/"),
        *(RUN + "config/", RUN + "config/?all=1", RUN + "logs/", RUN + "change/"),
        *("/{team}/runs/{training}/change/", "/{team}/runs/{outside}/prompts/"),
        *("/{team}/runs/{outside}/config/", "/{team}/runs/{outside}/checkpoints/"),
    ),
    "samples": (
        *(RUN + "groups/?step={step}", GROUP, GROUP + "?layout=cards"),
        *(GROUP + "?view=rendered", GROUP + "?diff=on", GROUP + "#completion-2"),
        *(f"{GROUP}?view=tokens&color={c}" for c in ("logprob", "coefficient")),
        *(RUN + "completions/", RUN + "completions/?text=nowhere"),
        RUN + "completions/?text=numbers+so&match=words",
        RUN + "completions/?surprise=near&tag=reward-hack",
        *(RUN + "prompts/", RUN + "prompts/{prompt}/", RUN + "reward-log/"),
        *(RUN + "prompts/curriculum/", "/{team}/runs/{curriculum}/prompts/curriculum/"),
        *(RUN + "questions/", RUN + "questions/?first_step=2"),
        *(RUN + "questions/{question_id}/", RUN + "questions/{question_waiting}/"),
        RUN + "questions/{question_id}/check?num=50",
        *(RUN + "health/", RUN + "health/#length"),
        *(RUN + "health/length/", "/{team}/runs/{failed}/health/"),
        *(RUN + "health/mismatch/", "/{team}/runs/{training}/health/mismatch/"),
        *("/{team}/alerts/", "/{team}/alerts/{alert_id}/", "/{team}/mentions/"),
    ),
    "runs": (
        *("/{team}/runs/", "/{team}/runs/?by=dataset", "/{team}/runs/?q=nothing-like"),
        *("/{team}/runs/?q=trashed", "/{team}/runs/?q=state%3Anowhere("),
        *("/{team}/runs/?sweep={sweep}", "/{team}/runs/new"),
        "/{team}/runs/new?preset=reproduction:starter-countdown",
        "/{team}/runs/new?preset=verl&model=org/model&recipe={recipe_id}",
        "/{team}/runs/new?preset=team:{preset}&dataset={version}",
        "/{team}/runs/new?model=org/model&dataset={imported}&recipe={recipe_version}",
        "/{team}/runs/new?clone={run_id}",
        "/{team}/runs/new?fork={run_id}&checkpoint=step-000030-attempt-1",
        *("/{team}/runs/import/", "/{team}/runs/import/{import_id}/"),
        *("/{team}/compare", "/{team}/compare?runs={run_id}"),
        "/{team}/compare?runs={run_id},{base}&settings=all&prompt=1&metric=reward/mean",
        *(
            "/{team}/compare?runs={seeds}&each=on",
            "/{team}/compare?runs={seeds}&by=none",
        ),
        "/{team}/compare?runs={costly},{run_id}&x=cost",
        *("/{team}/compare/prompt", "/{team}/sweep?sweep={sweep}"),
        "/{team}/compare/prompt?a={run_id}&b={training}&prompt=3",
        "/{team}/compare/questions?runs={run_id},{base}",
        *("/{team}/reports/", "/{team}/reports/?q=nothing", "/{team}/reports/new"),
        *("/{team}/reports/{report_id}/", "/{team}/reports/{report_id}/edit"),
        "/{team}/reports/{report_id}/history?version=1",
        *("/{team}/compute/", "/{team}/models/", "/{team}/search?q=alert"),
        "/{team}/reproductions/",
    ),
    "data": (
        *("/{team}/datasets/", "/{team}/datasets/trash", "/{team}/datasets/{gone}/"),
        *("/{team}/datasets/upload", "/{team}/datasets/uploads/{upload_id}"),
        *("/{team}/datasets/imports/{job_id}", "/{team}/datasets/generate"),
        "/{team}/datasets/generate?task=chain_sum",
        *("/{team}/datasets/{dataset_id}/", "/{team}/datasets/{dataset_id}/?row=21"),
        "/{team}/datasets/{dataset_id}/?search=nothing",
        *("/{team}/datasets/{imported_id}/", "/{team}/datasets/{imported_id}/?row=1"),
        *("/{team}/datasets/{dataset_id}/versions", "/{team}/runs/prompts/"),
        *(
            "/{team}/datasets/{dataset_id}/changes",
            "/{team}/datasets/{dataset_id}/prompt",
        ),
        "/{team}/datasets/{dataset_id}/statistics",
        *("/{team}/datasets/{dataset_id}/split", "/{team}/datasets/{dataset_id}/leaks"),
        "/{team}/datasets/{dataset_id}/save",
        "/{team}/datasets/{dataset_id}/environment",
        "/{team}/datasets/environments",
        *("/{team}/rewards/", "/{team}/rewards/new", "/{team}/rewards/{recipe_id}/"),
        *("/{team}/rewards/new?template=number", "/{team}/rewards/new?run={run_id}"),
        *("/{team}/rewards/new?probe={probe_id}", "/{team}/rewards/{recipe_id}/edit"),
        *("/{team}/probes/", "/{team}/probes/{probe_id}/"),
        *("/{team}/probes/{probe_waiting}/", "/{team}/rescorings/"),
        *("/{team}/rescorings/new?run={run_id}", "/{team}/rescorings/{rescoring_id}/"),
        "/{team}/rescorings/{rescoring_failed}/",
        "/{team}/rescorings/{rescoring_waiting}/",
    ),
    "settings": (
        *("/{team}/settings", "/{team}/settings/invitations", "/{team}/settings/roles"),
        *("/{team}/settings/danger", "/{team}/settings/storage", "/{team}/tokens/"),
        *("/{team}/settings/compute", "/{team}/settings/judges"),
        *("/{team}/settings/prices", "/{team}/settings/costs"),
        "/{team}/settings/costs?by=model",
        *("/{team}/settings/storage?days=1", "/{team}/settings/notifications/"),
        *("/{team}/settings/alert-rules/", "/{team}/settings/alert-rules/{rule_id}/"),
        *("/{team}/audit-log/", "/{team}/api/"),
    ),
}
ACCOUNT_PAGES = (
    *("/account/", "/account/email/", "/account/data/", "/teams/new"),
    *("/account/factors/", "/account/factors/totp/deactivate/"),
    *("/account/factors/recovery-codes/", "/account/factors/recovery-codes/generate/"),
    *("/account/factors/webauthn/", "/account/factors/webauthn/add/"),
)
BEFORE_SIGN_IN = (
    *("/sign-in/", "/help/", "/help/?q=reward", "/help/settings/", "/help/glossary/"),
    *("/help/ray-clusters/", "/help/api-and-client/"),
    *("/help/about/clip/frac_…/", "/account/password/reset/"),
    *("/account/password/reset/done/", "/account/password/reset/key/done/"),
    *("/account/password/reset/key/1-gone/", "/account/inactive/"),
    *("/account/confirm-email/gone/", "/account/providers/error"),
    "/account/providers/cancelled",
)
OPERATOR_PAGES = (
    *("/admin/", "/admin/upkeep/quota/", "/admin/accounts/user/"),
    "/admin/upkeep/quota/add/",
)
# Pages whose menus are opened.
MENUS = (
    *(RUN, RUN + "checkpoints/", RUN + "metrics/", RUN + "prompts/", GROUP),
    *("/{team}/runs/", "/{team}/datasets/", "/{team}/datasets/{dataset_id}/"),
    *("/{team}/rewards/{recipe_id}/edit", "/{team}/models/"),
    "/{team}/compare?runs={seeds}&by=none",
)
# Where the content of a page begins at the latest, on a wide and on a narrow screen.
# Those of the goals: a chart by 330, a group, completion or prompt by 300.
TOPS: dict[str, tuple[str, int, int]] = {
    RUN: (".chart", 330, 990),
    "/{team}/runs/{training}/": (".chart", 330, 920),
    "/{team}/runs/{outside}/": (".chart", 330, 900),
    RUN + "metrics/": (".chart", 255, 490),
    RUN + "metrics/?view=values": ("[data-values]", 315, 555),
    RUN + "groups/?step={step}": (".group-link", 300, 405),
    GROUP: (".completion-text", 300, 560),
    GROUP + "?layout=cards": (".completion-text", 350, 610),
    GROUP + "?view=tokens&color=logprob": (".completion-text", 400, 685),
    RUN + "completions/": (".found-text", 300, 505),
    RUN + "prompts/": (".prompt-table tbody tr", 300, 565),
    RUN + "prompts/{prompt}/": ("[data-figure]", 320, 550),
    RUN + "reward-log/": (".found-list .found", 260, 435),
    # Below an open alert, which takes 120 and 155.
    RUN + "health/": (".verdict", 425, 565),
    RUN + "checkpoints/": ("#content .card:visible", 200, 330),
    RUN + "try/": ("#content textarea:visible", 475, 670),
    RUN + "config/": (".setting", 330, 485),
    RUN + "logs/": ("[data-log-view]", 300, 565),
    RUN + "export/": ("#content [name=what]:visible", 300, 500),
    "/{team}/runs/": ("[data-run]", 190, 315),
    "/{team}/runs/new": ("#field-dataset", 240, 420),
    "/{team}/compare?runs={seeds}&by=none": (".small-plot", 325, 555),
    "/{team}/sweep?sweep={sweep}": ("[data-figure]", 305, 450),
    "/{team}/reports/": ("#content tbody tr", 235, 305),
    "/{team}/compute/": ("#content .card:visible", 205, 275),
    "/{team}/models/": ("#content .card:visible", 160, 195),
    # Below two uploads that wait.
    "/{team}/datasets/": (".dataset-name", 230, 355),
    "/{team}/datasets/{dataset_id}/": ("[data-rows] tr[id]", 300, 340),
    "/{team}/datasets/{dataset_id}/statistics": (".fact", 220, 330),
    "/{team}/datasets/uploads/{upload_id}": ("#mapped tbody tr", 330, 670),
    "/{team}/rewards/": ("#content tbody tr", 235, 310),
    "/{team}/rewards/new?run={run_id}": (".rule", 300, 385),
    "/{team}/rewards/{recipe_id}/": ("#content .card:visible", 175, 245),
    "/{team}/probes/{probe_id}/": ("[data-verdict]", 440, 620),
    "/{team}/settings": ("#content tbody tr", 260, 345),
    "/help/": ("#content h2", 155, 300),
}

# Of routes that no page here is at: what they answer, or which test looks at it.
ELSEWHERE = {
    "data": {
        *("healthz", "readyz", "metrics", "audit_log_file", "checkpoint_download"),
        *(
            "compare_charts",
            "compare_figure",
            "dataset_download",
            "dataset_upload_parts",
        ),
        *("group_tokens", "person_download", "rescoring_export", "run_alerts_live"),
        *("run_annotations", "run_config_file", "run_curves", "run_export_file"),
        *("run_import_parts", "run_log_download", "run_log_line", "run_log_part"),
        *("run_log_search", "run_signals", "run_stream", "run_system_samples"),
        *("runs_live", "runs_suggest", "report_export", "mfa_download_recovery_codes"),
        *("mfa_login_webauthn", "team_costs_file"),
    },
    "part of a page": {
        *("dataset_choice", "notifications", "probe_progress", "recipe_findings"),
        *("report_block", "report_insert", "rescoring_progress", "reward_gallery"),
        *("run_headline", "run_new_model", "run_ranks", "run_samples"),
        *("question_progress", "shell_status"),
    },
    "moved": {
        *("home", "runs_view"),
        *("account_login", "account_logout", "sign_out"),
    },
    "takes a form": {
        *("provider_go", "provider_remove", "session_end", "sessions_end"),
        *("mfa_reauthenticate", "mfa_reauthenticate_webauthn", "mfa_remove_webauthn"),
        "mfa_edit_webauthn",
    },
    "by a test below": {
        *("account_reauthenticate", "invitation", "mfa_activate_totp"),
        *("mfa_authenticate", "sign_in_link"),
    },
    "test_external_sign_in.py": {
        *("github_callback", "google_callback", "openid_connect_callback"),
    },
    "test_reports.py": {"public_report"},
}


@pytest.fixture
def live_app(app_environment, web_processes) -> Iterator[str]:
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


@pytest.fixture
def known(team, alice, bob) -> dict[str, Any]:
    return open_laboratory(team, alice)


class Sweep:
    """Opens pages on each screen, and keeps what is wrong with them."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.trouble: list[str] = []
        self.said: list[str] = []
        self.address = ""
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("console", self._keep)

    def _keep(self, message: ConsoleMessage) -> None:
        # Chromium logs the page's own status, such as 410 of a link that is gone.
        is_status = message.location["url"].endswith(self.address)
        # axe cannot read all stylesheets of Django's admin, and says so.
        is_known = is_status or "/admin/" in self.address
        if message.type in ("error", "warning") and not is_known:
            self.said.append(message.text)

    def look(self, form: str, known: dict[str, Any] | None = None) -> None:
        for screen in SCREENS:
            self.open(form.format(**known) if known else form, screen)
            self._measure(form, screen, known or {})
            self.look_as_it_is(form, screen)

    def open(self, address: str, screen: str) -> None:
        width, height = SCREENS[screen]
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.goto("about:blank")  # an address that differs in its # is not opened
        self.address = address
        answer = self.page.goto(address)
        assert answer is not None
        assert answer.status < 500, address
        self.page.wait_for_load_state("networkidle")
        self.page.wait_for_timeout(300)  # charts draw after their values have come

    def look_as_it_is(self, name: str, screen: str) -> None:
        for theme in THEMES:
            self.page.evaluate(SET_THEME, theme)
            self.page.wait_for_timeout(50)  # Plotly draws again
            self.page.evaluate(AT_REST)
            found = [*findings(self.page), *self.said]
            self.said.clear()
            self.trouble += [f"{name} {screen} {theme}: {each}" for each in found]

    def look_at_menus(self, form: str, screen: str) -> None:
        """Open one menu of each kind: it is accessible and on the screen."""
        menus = self.page.locator("details[data-menu]:visible")
        kinds: dict[str, Locator] = {}
        for menu in menus.all():
            kinds.setdefault(str(menu.get_attribute("class")), menu)
        for kind, menu in kinds.items():
            menu.locator("summary").first.click()
            panel = menu.locator("> :not(summary)").first
            box, width = panel.bounding_box(), SCREENS[screen][0]
            name = f"{form} menu {kind}"
            if box is None or box["x"] < 0 or box["x"] + box["width"] > width:
                self.trouble.append(f"{name} {screen}: at {box}")
            self.look_as_it_is(name, screen)
            self.page.keyboard.press("Escape")

    def _measure(self, form: str, screen: str, known: Mapping[str, Any]) -> None:
        if form not in TOPS:
            return
        selector, *most = TOPS[form]
        box = self.page.locator(selector.format(**known)).first.bounding_box()
        top = dict(zip(SCREENS, most, strict=True))[screen]
        if box is None or not 0 < box["y"] <= top:
            at = box and round(box["y"])
            self.trouble.append(f"{form} {screen}: {selector} at {at}, not by {top}")


def test_every_page_is_here_or_elsewhere():
    """A new route needs a row: a page here, and what is no page in ELSEWHERE."""
    addresses = [
        re.sub(r"\{\w+\}", "1", form) for part in PAGES.values() for form in part
    ]
    addresses += [*ACCOUNT_PAGES, *BEFORE_SIGN_IN]
    paths = [a.partition("?")[0].partition("#")[0] for a in addresses]
    here = {resolve(path).url_name for path in paths}
    elsewhere = {name for names in ELSEWHERE.values() for name in names}

    assert sorted(here & (elsewhere | POST_ONLY)) == []
    every = {str(route.name) for route in routes()}
    assert sorted(every ^ (here | elsewhere | POST_ONLY)) == []


@pytest.mark.parametrize("part", PAGES)
def test_pages_of_a_team(part, known, alice, open_browser):
    sweep = Sweep(open_browser(alice).new_page())

    for form in PAGES[part]:
        sweep.look(form, known)

    assert not sweep.trouble, "\n".join(sweep.trouble)


def test_open_menus(known, alice, open_browser):
    sweep = Sweep(open_browser(alice).new_page())

    for form in MENUS:
        for screen in SCREENS:
            sweep.open(form.format(**known), screen)
            sweep.look_at_menus(form, screen)

    assert not sweep.trouble, "\n".join(sweep.trouble)


def test_account_pages(known, alice, open_browser):
    sweep = Sweep(sign_in(open_browser))
    sweep.look("/account/reauthenticate/")
    sweep.page.get_by_label("Password").fill(PASSWORD)
    sweep.page.get_by_role("button", name="Confirm").click()
    sweep.page.wait_for_url("**/runs/**")
    sweep.look("/account/factors/totp/activate/")
    TOTP.activate(alice, "JBSWY3DPEHPK3PXP")
    RecoveryCodes.activate(alice)
    for address in ACCOUNT_PAGES:
        sweep.look(address)
    assert not sweep.trouble, "\n".join(sweep.trouble)

    sweep.page.context.clear_cookies()
    second = Sweep(sign_in(open_browser, "**/factors/authenticate/"))
    second.look_as_it_is("the second factor", "wide")
    assert not second.trouble, "\n".join(second.trouble)


def sign_in(open_browser: Opener, then: str = "**/runs/**") -> Page:
    page = open_browser(None).new_page()
    page.goto("/sign-in/")
    page.get_by_label("Username").fill("alice")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.wait_for_url(then)
    return page


def test_operator_pages(known, alice, open_browser):
    User.objects.filter(pk=alice.pk).update(is_staff=True)
    sweep = Sweep(open_browser(alice).new_page())

    for address in OPERATOR_PAGES:
        sweep.look(address)

    assert not sweep.trouble, "\n".join(sweep.trouble)


def test_pages_before_sign_in(known, alice, open_browser):
    token = invite(by=Membership.objects.get(user=alice), role="member")[1]
    uid = user_pk_to_url_str(alice)
    key = EmailAwarePasswordResetTokenGenerator().make_token(alice)
    linked = (
        *(f"/invitation/{token}/", "/invitation/gone/", "/sign-in/gone/"),
        f"/account/password/reset/key/{uid}-{key}/",
    )
    sweep = Sweep(open_browser(None).new_page())

    for address in (*BEFORE_SIGN_IN, *linked):
        sweep.look(address)
    sweep.open("/sign-in/", "narrow")
    sweep.page.get_by_label("Username").fill("nobody")
    sweep.page.get_by_label("Password").fill("wrong")
    sweep.page.get_by_role("button", name="Sign in", exact=True).click()
    sweep.page.get_by_text(re.compile("Please enter a correct")).wait_for()
    sweep.look_as_it_is("refused", "narrow")

    assert not sweep.trouble, "\n".join(sweep.trouble)
