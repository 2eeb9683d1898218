"""Two people edit the same thing at once: neither's text is lost without a word.

Each form is loaded twice, filled in as a browser would, and sent twice. A new route
that takes a form is a row here, or its reason why it cannot lose an edit.
"""

import html
import re
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin

import pytest
from django.http import HttpResponse
from django.test import Client

from dashboard.accounts.models import AuditEntry, Membership, Role, User
from dashboard.alerts.models import Channel, Event
from dashboard.analysis.reports.models import Report
from dashboard.analysis.reports.services import save_report
from dashboard.operations.models import Quota, Retention
from dashboard.runs.bulk_actions import act
from dashboard.runs.models import Run, SavedView, TeamPreset
from dashboard.web.edits import EditConflict, find_changes
from tests.dashboard.alerts.factories import make_rule
from tests.dashboard.analysis.reports.stories import make_report
from tests.dashboard.completions.factories import (
    make_checkpoint,
    make_evaluation,
    make_run,
)
from tests.dashboard.operations.test_every_act_is_written_down import WRITES
from tests.dashboard.runs.stories import queue_run
from tests.page_client import PageClient

pytestmark = pytest.mark.django_db


@dataclass(kw_only=True)
class Case:
    """A form, and its field that both change."""

    page: str  # where it stands, within the team
    action: str = ""  # how the address that it is sent to ends
    name: str
    texts: tuple[str, str]
    pressed: dict[str, str] = field(default_factory=dict)
    saved_on: str = ""  # the page that shows what is saved, where it is another
    is_alone: bool = False  # one person's own, in two tabs


CASES: dict[str, list[Case]] = {
    "run_describe": [
        Case(
            page="runs/{run}/",
            action="/describe",
            name="notes",
            texts=("Diverges at 40.\nSee W&B.", "A\nB <b>"),
        ),
        Case(
            page="runs/{run}/",
            action="/describe",
            name="name",
            texts=("first", "second"),
        ),
    ],
    "run_change": [
        Case(
            page="runs/{run}/change/",
            name="checkpoint.every_steps",
            texts=("11", "12"),
        )
    ],
    "run_priority": [
        Case(
            page="runs/{run}/",
            action="/priority",
            name="priority",
            texts=("high", "low"),
        )
    ],
    "run_best_by": [
        Case(
            page="runs/{run}/checkpoints/",
            action="/best",
            name="metric",
            texts=("eval/sums/mean", "none"),
        )
    ],
    "runs_view_change": [
        Case(
            page="runs/?view=code&q=state%3Drunning",
            action="/change",
            name="name",
            texts=("first", "second"),
            pressed={"action": "rename"},
            is_alone=True,  # then only they see it
        ),
        Case(
            page="runs/?view=code&q=state%3Drunning",
            action="/change",
            saved_on="runs/views/code/",
            name="query",
            texts=("q=tag%3Aa", "q=tag%3Ab"),
            pressed={"action": "update"},
        ),
    ],
    "preset_change": [
        Case(
            page="runs/new?preset=team:{preset}",
            action="/presets/{preset}",
            name="new_name",
            texts=("first", "second"),
            pressed={"action": "rename"},
        )
    ],
    "alert_rule": [
        Case(
            page="settings/alert-rules/{rule}/",
            name="threshold",
            texts=("0.5", "0.75"),
        ),
        Case(
            page="settings/alert-rules/{rule}/",
            name="kind",
            texts=("below", "changes"),
        ),
        Case(
            page="settings/alert-rules/{rule}/",
            name="run",
            texts=("{run}", "{other}"),
        ),
        Case(
            page="settings/alert-rules/{built_in}/",
            name="for_steps",
            texts=("5", "6"),
        ),
    ],
    "team_storage": [
        Case(
            page="settings/storage",
            name="days",
            texts=("10", "15"),
        )
    ],
    "team_compute": [
        Case(
            page="settings/compute",
            name="address",
            texts=("ray-b:6379", "ray-c:6379"),
        )
    ],
    "member_role": [
        Case(
            page="settings",
            action="/{carol}/role",
            name="role",
            texts=("viewer", "admin"),
        )
    ],
    "account": [
        Case(
            page="/account/",
            name="display_name",
            texts=("Ann", "Ann B."),
            is_alone=True,
        )
    ],
    "reward_edit": [
        Case(
            page="rewards/{recipe}/edit",
            name="clip_high",
            texts=("3.25", "4.75"),
            pressed={"action": "save"},
        )
    ],
    "report_edit": [
        Case(
            page="reports/{report}/edit",
            name="text",
            texts=("One.", "Two."),
        )
    ],
}


# By a test of its own.
APART = {
    "alert_channel_events": "test_events_that_two_people_choose_conflict",
    "preset_save": "runs/test_team_presets.py",
    "report_restore": "test_a_version_is_not_restored_over_one_that_was_not_seen",
    "report_pin": "reports/test_pinning.py",
}
NEW = "makes something new, and changes nothing that is there"
SWITCH = "a switch has two states: the second change is the same as the first"
ACT = "an act that takes no text; its audit entry tells who did it"
OWN_LINE = "each person's tag, thumb or comment is a line of its own"
NOT_LOST = {
    **dict.fromkeys(
        (
            *("dataset_map", "dataset_save", "dataset_split", "dataset_generate"),
            *("dataset_environment", "dataset_environments"),
            *("run_prompts", "reward_new", "probe_launch", "rescoring_new", "run_try"),
            *("run_questions", "compare_questions", "team_judges", "team_prices"),
            *("reproduction_launch",),
            *("runs_view_save", "run_new", "run_new_recipe", "run_new_from_toml"),
            *("run_new_rows", "run_new_model"),
            *("checkpoint_publish", "run_imports", "run_import", "alert_rules"),
            *("alert_delivery", "report_new", "team_new", "team_invite", "tokens"),
        ),
        NEW,
    ),
    **dict.fromkeys(
        (
            *("dataset_trash", "runs_act", "run_act", "run_hold", "run_release"),
            *("checkpoint_pin", "checkpoint_unpin", "alert_rule_switch"),
            *("alert_channel_switch", "worker_drain", "worker_undrain"),
            *("report_share", "member_deactivate", "member_reactivate"),
            *("run_alerts_mute", "alert_rule_mute"),
        ),
        SWITCH,
    ),
    **dict.fromkeys(
        (
            *("dataset_import", "probe_stop", "rescoring_stop", "rescoring_delete"),
            "question",
            *("run_stop", "run_cancel", "run_pause", "checkpoint_delete"),
            *("model_unpublish", "alert_acknowledge", "alert_rule_delete"),
            *("alert_channel_test", "alert_channel_secret", "alert_delivery_again"),
            *("alert_channel_delete", "report_delete", "person_data"),
            *("invitation_revoke", "team_leave", "team_transfer", "member_remove"),
            "token_revoke",
        ),
        ACT,
    ),
    "run_resume": "carries the attempt whose pause was seen",
    **dict.fromkeys(("group_marks", "run_comments", "report_comments"), OWN_LINE),
}


@dataclass
class Form:
    action: str
    is_sent: bool  # by POST
    fields: dict[str, Any]

    def send(self, client: Client, **changed: str) -> HttpResponse:
        sent = {**self.fields, **changed}
        emptied = {name for name, text in changed.items() if text == ""}
        flags = {n for n in emptied if self.fields.get(n) == "on"}
        data = {name: value for name, value in sent.items() if name not in flags}
        return client.post(self.action, data)  # type: ignore[return-value]


class _Reader(HTMLParser):
    """The forms of a page, as a browser would send them untouched."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address
        self.forms: list[Form] = []
        self.by_id: dict[str, Form] = {}
        self.select = self.option = self.textarea = None
        self.text = ""

    def handle_starttag(self, tag: str, pairs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in pairs}
        if tag == "form":
            action = urljoin(self.address, has.get("action") or self.address)
            self.forms.append(Form(action, has.get("method") == "post", {}))
            if "id" in has:
                self.by_id[has["id"]] = self.forms[-1]
        if not self.forms:
            return
        form = self.by_id.get(has.get("form", ""), self.forms[-1])
        fields, name = form.fields, has.get("name", "")
        if tag == "input" and name:
            if has.get("type") not in ("checkbox", "radio"):
                fields[name] = has.get("value", "")
            elif "checked" in has:
                self._tick(name, has.get("value", "on"))
        elif tag == "select":
            self.select = name
        elif tag == "option" and self.select:
            self.text, self.option = "", has
        elif tag == "textarea":
            self.text, self.textarea = "", name

    def _tick(self, name: str, value: str) -> None:
        fields = self.forms[-1].fields
        if name not in fields:
            fields[name] = value
        elif isinstance(fields[name], list):
            fields[name].append(value)
        else:
            fields[name] = [fields[name], value]

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea" and self.textarea:
            self.forms[-1].fields[self.textarea] = self.text.removeprefix("\n")
            self.textarea = None
        elif tag == "option" and self.option is not None and self.select:
            value = self.option.get("value", self.text.strip())
            fields = self.forms[-1].fields
            if "selected" in self.option or self.select not in fields:
                fields[self.select] = value
            self.option = None
        elif tag == "select":
            self.select = None


def read_form(client: Client, page: str, action: str, name: str) -> Form:
    answer = client.get(page, follow=True)
    assert answer.status_code == 200, page
    return form_in(answer.text, page, action, name)


def form_in(text: str, page: str, action: str, name: str) -> Form:
    reader = _Reader(page)
    reader.feed(text)
    fit = [one for one in reader.forms if one.is_sent and name in one.fields]
    return next(one for one in fit if one.action.partition("?")[0].endswith(action))


@pytest.fixture
def bob_client(bob) -> Client:
    Membership.objects.filter(user=bob).update(role=Role.ADMIN)
    client = PageClient()
    client.force_login(bob)
    return client


@pytest.fixture(autouse=True)
def clusters(settings) -> None:
    settings.COHORT_RAY_TEAM_ADDRESSES = ("ray-b:6379", "ray-c:6379")


@pytest.fixture
def known(team, alice, bob) -> dict[str, Any]:
    carol = User.objects.create_user("carol")
    run = queue_run(team, notes="Began", tags=["old"])
    make_checkpoint(run)
    make_evaluation(
        run, 1, {"eval/sums/mean": 0.5}, name="sums", seq=1, time=run.created_at
    )
    SavedView.objects.create(
        team=team, owner=alice, code="code", name="Ours", query="q=old", is_shared=True
    )
    preset = TeamPreset.objects.create(team=team, name="Ours", config=run.config)
    built_in = make_rule(team, built_in="kl", name="KL", threshold=None, for_steps=None)
    return {
        "run": run.pk,
        "other": make_run(
            team,
            "other",
            dataset_version=run.dataset_version,
            recipe_version=run.recipe_version,
        ).pk,
        "recipe": run.recipe_version.recipe_id,
        "preset": preset.pk,
        "rule": make_rule(team).pk,
        "built_in": built_in.pk,
        "carol": team.memberships.create(user=carol, role=Role.MEMBER).pk,
        "report": make_report(team, alice, "Text").pk,
    }


@dataclass
class Two:
    """Two people who have opened the form, and a third look at what is saved."""

    case: Case
    first: Client
    second: Client
    known: dict[str, Any]

    def __post_init__(self) -> None:
        self.forms = [self.open(one) for one in (self.first, self.second)]

    def open(self, client: Client, page: str = "") -> Form:
        page = (page or self.case.page).format(**self.known)
        action = self.case.action.format(**self.known)
        page = page if page.startswith("/") else f"/alpha/{page}"
        return read_form(client, page, action, self.case.name)

    def send(self, which: int, **changed: str) -> HttpResponse:
        client = (self.first, self.second)[which]
        return self.forms[which].send(client, **changed, **self.case.pressed)

    def saved(self, name: str) -> str:
        form = self.open(self.first, self.case.saved_on)
        return str(form.fields.get(name, ""))


def two_of(
    case: Case, alice_client: Client, bob_client: Client, known: dict[str, Any]
) -> Two:
    first, second = (text.format(**known) for text in case.texts)
    case = replace(case, texts=(first, second))
    return Two(case, alice_client, alice_client if case.is_alone else bob_client, known)


def rows(*, num_fast: int | None = None) -> list[Any]:
    """The cases; those behind the first `num_fast` are slow."""
    cases = [
        (case, f"{name}: {case.name}")
        for name, cases in CASES.items()
        for case in cases
    ]
    marks = [
        [] if num_fast is None or n < num_fast else [pytest.mark.slow]
        for n in range(len(cases))
    ]
    return [
        pytest.param(case, id=name, marks=slow)
        for (case, name), slow in zip(cases, marks, strict=True)
    ]


@pytest.mark.parametrize("case", rows())
def test_an_edit_of_an_older_version_is_shown_with_the_newer_one(
    case, alice_client, bob_client, known
):
    two = two_of(case, alice_client, bob_client, known)
    name, (first, second) = two.case.name, two.case.texts
    assert two.send(0, **{name: first}).status_code == 302
    written = AuditEntry.objects.count()

    response = two.send(1, **{name: second})

    assert response.status_code == 409
    for text in (first, second):
        assert html.escape(text) in response.text
    assert AuditEntry.objects.count() == written
    again = form_in(response.text, two.forms[1].action, "", name)
    assert again.fields[name] == second
    assert again.send(two.second, **case.pressed).status_code == 302
    assert two.saved(name) == second


def test_every_route_that_takes_a_form_is_here():
    """Those that store nothing of a team's have their reasons where EXEMPT is."""
    assert {*CASES, *APART, *NOT_LOST} == {*WRITES}
    assert len(CASES) + len(APART) + len(NOT_LOST) == len(WRITES)


@pytest.mark.parametrize("case", rows(num_fast=2))
def test_a_conflict_that_meets_another_is_shown_again(
    case, alice_client, bob_client, known
):
    two = two_of(case, alice_client, bob_client, known)
    name, (first, second) = case.name, two.case.texts
    began = two.forms[0].fields.get(name, "")
    two.send(0, **{name: first})
    shown = two.send(1, **{name: second}).content.decode()
    later = two.open(two.first)

    later.send(two.first, **{name: began}, **case.pressed)
    again = form_in(shown, two.forms[1].action, "", name)
    answer = again.send(two.second, **case.pressed)

    assert answer.status_code == 409


def test_events_that_two_people_choose_conflict(team, alice_client, bob_client):
    first, second, third, *_ = Event.values
    channel = Channel.objects.create(
        team=team, kind="email", address="a@b.org", events=[first, second]
    )
    case = Case(
        page="settings/notifications/", action="/events", name="events", texts=("", "")
    )
    two = two_of(case, alice_client, bob_client, {})

    two.forms[0].fields["events"] = [first, second, third]
    two.forms[1].fields["events"] = [first, third]
    assert two.send(0).status_code == 302
    refused = two.send(1)

    assert refused.status_code == 409
    channel.refresh_from_db()
    assert channel.events == [first, second, third]
    again = form_in(refused.text, two.forms[1].action, "", "events")
    assert again.fields["events"] == [first, third]
    assert again.send(two.second).status_code == 302
    channel.refresh_from_db()
    assert channel.events == [first, third]


def test_a_conflict_shows_the_fields_of_both_and_names_the_author(
    alice, alice_client, bob_client, known
):
    case = CASES["run_describe"][0]
    two = two_of(case, alice_client, bob_client, known)
    two.send(0, notes="Hers", tags="old, paper")

    refused = two.send(1, notes="His", name="Long run")

    assert refused.status_code == 409
    assert refused.context["saved"].actor == alice
    assert [field["name"] for field in refused.context["fields"]] == ["notes"]
    assert two.saved("name") != "Long run"
    again = form_in(refused.text, two.forms[1].action, "", "notes")
    assert again.send(two.second).status_code == 302
    assert two.saved("notes") == "His"
    assert two.saved("name") == "Long run"
    assert two.saved("tags") == "old, paper"


def test_edits_of_different_fields_are_both_kept(alice_client, bob_client, known):
    two = two_of(CASES["run_describe"][0], alice_client, bob_client, known)

    assert two.send(0, tags="old, paper").status_code == 302
    assert two.send(1, notes="A").status_code == 302

    assert two.saved("tags") == "old, paper"
    assert two.saved("notes") == "A"


def test_a_rules_form_keeps_a_field_that_its_author_left_alone(
    alice_client, bob_client, known
):
    two = two_of(CASES["alert_rule"][0], alice_client, bob_client, known)

    assert two.send(0, for_steps="7").status_code == 302
    assert two.send(1, name="Renamed").status_code == 302

    assert two.saved("for_steps") == "7"
    assert two.saved("name") == "Renamed"


def test_a_rules_form_that_is_shown_again_has_the_version_of_what_it_shows(
    alice_client, bob_client, known
):
    two = two_of(CASES["alert_rule"][0], alice_client, bob_client, known)
    opened = two.forms[1].fields["threshold"]
    assert two.send(0, threshold="0.7").status_code == 302
    refused = two.send(1, for_steps="no number")
    again = form_in(refused.text, two.forms[1].action, "", "threshold")

    assert refused.status_code == 400
    assert again.fields["threshold"] == "0.7"
    sent = again.send(two.second, for_steps="3", threshold=opened)
    assert sent.status_code == 302
    assert two.saved("threshold") == opened


@pytest.mark.parametrize("version", ["0" * 16, f"notes={'0' * 16}"])
def test_a_version_that_lacks_a_field_conflicts(version):
    typed = {"notes": "A", "tags": ["b"]}

    with pytest.raises(EditConflict) as caught:
        find_changes({"notes": "", "tags": []}, typed, version)

    assert [clash.field for clash in caught.value.clashes] == ["notes", "tags"]


def test_a_priority_that_arrives_live_brings_its_version(alice_client, known):
    page = alice_client.get(f"/alpha/runs/{known['run']}/").text

    opened = re.search(r'value="(priority=\w+)" data-run-priority-version', page)

    assert opened is not None
    assert f'<option value="normal" data-version="{opened[1]}"' in page


def test_a_form_that_changes_nothing_does_not_conflict(alice_client, bob_client, known):
    two = two_of(CASES["run_describe"][0], alice_client, bob_client, known)

    responses = [two.send(0, notes="A"), two.send(1, notes="A")]

    assert [response.status_code for response in responses] == [302, 302]
    assert two.saved("notes") == "A"


def test_a_version_is_not_restored_over_one_that_was_not_seen(
    team, alice, alice_client, known
):
    report = Report.objects.get(pk=known["report"])
    save_report(report=report, user=alice, number=1, title="T", text="Two")
    history = f"/alpha/reports/{report.pk}/history?version=1"
    form = read_form(alice_client, history, "/restore", "base_version")
    save_report(report=report, user=alice, number=2, title="T", text="Three")

    form.send(alice_client, version="1")

    report.refresh_from_db()
    assert (report.number, report.text) == (3, "Three")


def test_the_retention_preview_keeps_the_version_it_was_opened_with(
    alice_client, bob_client, known
):
    page = "/alpha/settings/storage"
    opened = read_form(alice_client, page, "", "days").fields
    read_form(bob_client, page, "", "days").send(bob_client, completion_days="90")
    query = {n: v for n, v in opened.items() if n != "csrfmiddlewaretoken"}

    preview = alice_client.get(page, query | {"completion_days": "60"})
    form = form_in(preview.text, page, "", "days")

    assert form.fields["completion_days"] == "60"
    assert form.send(alice_client).status_code == 409
    assert Retention.objects.get().completion_days == 90


def test_text_typed_for_a_locked_run_is_kept(alice, alice_client, bob_client, known):
    case = CASES["run_describe"][0]
    two = two_of(case, alice_client, bob_client, known)
    run = Run.objects.get(pk=known["run"])
    act("lock", Run.objects.all(), team=run.team, user=alice)

    refused = two.send(1, notes="A\nB", tags="old, mine")

    assert refused.status_code == 422
    act("unlock", Run.objects.all(), team=run.team, user=alice)
    again = form_in(refused.content.decode(), two.forms[1].action, "", "notes")
    assert again.send(two.second).status_code == 302
    run.refresh_from_db()
    assert (run.notes, run.tags) == ("A\nB", ["old", "mine"])


def test_two_operators_set_one_quota(team):
    client = PageClient()
    client.force_login(User.objects.create_user("olga", is_staff=True))
    quota = Quota.objects.create(team=team, max_bytes=1_000, max_runs=2)
    page = f"/admin/upkeep/quota/{quota.pk}/change/"
    first, second = (read_form(client, page, "", "max_bytes") for _ in range(2))
    first.send(client, max_bytes="5000")

    refused = second.send(client, max_bytes="6000", max_runs="7")

    quota.refresh_from_db()
    assert (quota.max_bytes, quota.max_runs) == (5_000, 2)
    assert "5000" in refused.text
    again = form_in(refused.text, page, "", "max_bytes")
    assert again.fields["max_bytes"] == "6000"
    assert again.send(client).status_code == 302
    quota.refresh_from_db()
    assert (quota.max_bytes, quota.max_runs) == (6_000, 7)
    entry = AuditEntry.objects.latest("pk")
    assert entry.detail["before"] == {"max_bytes": 5_000, "max_runs": 2}


def test_the_log_keeps_both_texts_of_an_edit_up_to_a_length(
    alice_client, bob_client, known
):
    two = two_of(CASES["run_describe"][0], alice_client, bob_client, known)
    long = "x" * 2_500

    two.send(0, notes=long)

    entry = AuditEntry.objects.get(verb="run.described")
    assert entry.detail["before"] == {"notes": "Began"}
    reported = entry.detail["after"]["notes"]
    assert reported.startswith("x" * 2_000 + "…")
    assert "2,000 of 2,500" in reported
    page = alice_client.get("/alpha/audit-log/").text
    assert "notes before" in page
    assert "2,000 of 2,500" in page
