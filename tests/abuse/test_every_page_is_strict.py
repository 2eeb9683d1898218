"""Security headers and escaping of every page.

Whatever has a name may be called by markup, and no page takes it for any; a text that
turns the direction of writing turns itself alone.
"""

import re
from html.parser import HTMLParser

import pytest
from django.db.models import Value
from django.db.models.functions import Concat
from django.http import HttpResponseBase
from django.test import Client
from django.utils import timezone

from dashboard.accounts.models import Team, User
from dashboard.alerts.models import Alert, Channel, Delivery, Rule
from dashboard.completions.models import Group
from dashboard.datasets.models import Dataset, DatasetRow
from dashboard.rewards.models import RewardRecipe
from dashboard.runs.models import Run
from dashboard.supervision.workers import register
from tests.dashboard.completions.factories import make_note, make_steps
from tests.dashboard.completions.stored import change_completions
from tests.dashboard.test_every_route_is_guarded import OPEN, PERSONAL, VIEWERS_POST
from tests.dashboard.test_every_route_is_guarded import addresses as addresses

PAGES = sorted({*OPEN, *PERSONAL, *VIEWERS_POST})
# Data in a script element is no script, so its kind is named.
INLINE = re.compile(
    r"<script(?![^>]*\b(?:src=|type=\"application/json\"))|<style|\sstyle=|<[a-z][^>]*"
    r"\son[a-z]+=|javascript:|(?:src|action)=\"(?:https?:)?//",
    re.IGNORECASE,
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
}
# A public report leads to other sites, which get no referrer at all.
REFERRERS = {"same-origin", "no-referrer"}
EVIL = (
    "<script>evil()</script><img src=x onerror=evil()><svg onload=evil()>"
    "</script></textarea></title>[evil](javascript:evil())'\"{{7919*7919}}"
)
# As it may stand where data is JSON inside of a script element, or in an attribute.
RAW = re.compile(r"<script>evil|<img src=x|<svg onload|href=.?javascript:|\b62710561\b")
# What of it looks like script of the page's own, though it is escaped.
TYPED = re.compile(r"\son(?:error|load)=evil|javascript:evil")
ODD = "\N{RIGHT-TO-LEFT OVERRIDE}.tfel \N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN} שלום"
VOID = {"input", "img", "link", "meta", "br", "hr", "path", "source", "wbr"}
# Shown by the browser in a box of their own, or not at all.
BOXES = {"bdi", "textarea", "option", "title", "script", "input"}


@pytest.fixture
def everything_is_evil(addresses, team, alice) -> None:
    run = Run.objects.get()
    make_steps(run, {EVIL: [0.5], "reward/mean": [0.5]})
    Run.objects.update(
        name=EVIL[:80],
        model_label=EVIL[:150],
        fail_reason=EVIL,
        summary={"last": {EVIL: 1}},
    )
    for model in (Dataset, RewardRecipe):
        # A name is taken once in a team.
        model._default_manager.update(name=Concat(Value(EVIL[:60]), "id"))
    RewardRecipe.objects.update(description=EVIL)
    Group.objects.update(prompt=ODD + EVIL, answer=ODD + EVIL)
    change_completions(text=ODD + EVIL)
    for group in Group.objects.all():
        make_note(group, ODD + EVIL)
        make_note(group, ODD + EVIL, is_error=True)
    DatasetRow.objects.update(
        prompt=ODD + EVIL, answer=ODD + EVIL, columns={"level": ODD + EVIL}
    )
    Rule.objects.update(name=EVIL[:80], metric=EVIL[:120], name_pattern=EVIL[:80])
    data = {"name": EVIL, "text": EVIL, "why": EVIL, "kind": "warned"}
    Alert.objects.update(
        read_as=data, metric=EVIL[:120], readings={EVIL: [[1, 0.5]]}, state="firing"
    )
    Run.objects.update(alerts_seq=1)
    channel = Channel.objects.get()
    Delivery.objects.create(
        channel=channel, event="test", not_before=timezone.now(), result=EVIL
    )
    Team.objects.update(name=EVIL[:80])
    User.objects.filter(pk=alice.pk).update(display_name=EVIL[:80])
    register(EVIL[:100], num_slots=1)


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[tuple[str, bool]] = []
        self.bare: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append((tag, tag in BOXES or ("dir", "auto") in attrs))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop()[0] != tag:
            continue

    def handle_data(self, data: str) -> None:
        if ODD[:6] in data and not any(is_separate for _, is_separate in self.open):
            self.bare.append(" > ".join(tag for tag, _ in self.open[-4:]))


def assert_strict(name: str, answer: HttpResponseBase) -> None:
    policy = answer.headers["Content-Security-Policy"]
    rules = dict(rule.strip().partition(" ")[::2] for rule in policy.split(";"))
    assert "unsafe" not in policy, name
    assert "*" not in policy, name
    assert {key: answer.headers.get(key) for key in HEADERS} == HEADERS, name
    assert answer.headers["Referrer-Policy"] in REFERRERS, name
    if "sandbox" in rules:  # a file to keep, which can do nothing anywhere
        assert answer.headers["Content-Disposition"].startswith("attachment"), name
        return
    assert rules["default-src"] in ("'self'", "'none'"), name
    assert rules["object-src" if "object-src" in rules else "default-src"] == "'none'"
    assert (rules["base-uri"], rules["frame-ancestors"]) == ("'none'", "'none'"), name
    assert rules["form-action"] in ("'self'", "'none'"), name


def faults_of(answer: HttpResponseBase) -> set[str]:
    """What an answer of an address holds that it should not."""
    kind = answer.headers["Content-Type"]
    is_saved = answer.headers.get("Content-Disposition", "").startswith("attachment")
    if not kind.startswith("text/html"):
        is_inert = kind.startswith(("application/json", "text/plain"))
        return set() if is_saved or is_inert else {"may be taken for a page"}
    html = answer.content.decode()
    reader = Reader()
    reader.feed(html)
    found = {f"bare: {place}" for place in reader.bare}
    if answer.status_code >= 500:
        found.add(f"status {answer.status_code}")
    if not is_saved and (inline := INLINE.search(TYPED.sub("", html))):
        found.add(f"inline: {inline[0]}")
    if raw := RAW.search(html):
        found.add(f"raw: {html[max(0, raw.start() - 80) :][:200]}")
    return found


@pytest.mark.usefixtures("everything_is_evil")
def test_every_page_is_strict_and_escapes_text(addresses, alice_client) -> None:
    faults, num_pages, num_evil, num_odd = {}, 0, 0, 0

    for name in OPEN:
        assert_strict(name, Client().get(addresses[name]))
    for name in PAGES:
        answer = alice_client.get(addresses[name])
        assert_strict(name, answer)
        if found := faults_of(answer):
            faults[name] = found
        if answer.headers["Content-Type"].startswith("text/html"):
            html = answer.content.decode()
            num_pages += answer.status_code == 200
            num_evil += "evil()" in html
            num_odd += ODD[:6] in html

    assert faults == {}
    assert num_pages > 60
    assert num_evil > 40
    assert num_odd > 6


@pytest.mark.usefixtures("everything_is_evil")
def test_a_chart_shows_a_metrics_name_as_text(addresses, alice_client) -> None:
    run = Run.objects.get()
    page = alice_client.get(f"/alpha/compare?runs={run.pk}", {"metric": EVIL})

    assert page.status_code == 200
    assert RAW.search(page.content.decode()) is None


@pytest.mark.parametrize("address", ["/no/such/page/", "/alpha/runs/999999/"])
def test_not_found_pages_are_as_strict(alice_client, address):
    answer = alice_client.get(address)

    assert answer.status_code == 404
    assert_strict(address, answer)


def test_cookies_are_httponly_and_samesite(alice):
    alice.set_password("a long enough secret")
    alice.save()
    client = Client()
    form = {"username": "alice", "password": "a long enough secret"}
    client.get("/sign-in/", secure=True)

    answer = client.post("/sign-in/", form, secure=True)

    assert answer.status_code == 302
    cookies = answer.cookies
    assert {"cohort_session", "cohort_device"} <= set(cookies)
    for name, cookie in cookies.items():
        assert cookie["samesite"] in ("Lax", "Strict"), name
        assert cookie["secure"], name
        assert not cookie["domain"], name
        assert cookie["httponly"] or name == "cohort_csrf"
