"""Whatever has a name may be called by markup, and no page takes it for any."""

from __future__ import annotations

import re

import pytest
from django.db.models import Value
from django.db.models.functions import Concat
from django.test import Client
from django.utils import timezone

from dashboard.accounts.models import Team, User
from dashboard.alerts.models import Alert, Channel, Delivery, Rule
from dashboard.datasets.models import Dataset, DatasetRow
from dashboard.rewards.models import RewardRecipe
from dashboard.runs.models import Run
from dashboard.samples.models import Group
from dashboard.training.workers import register
from tests.dashboard.samples.factories import make_note, make_steps
from tests.dashboard.samples.stored import change_completions
from tests.dashboard.test_every_route_is_guarded import POST_ONLY, VIEWERS_POST
from tests.dashboard.test_every_route_is_guarded import addresses as addresses

pytestmark = pytest.mark.django_db

# Without one that starts a library for seconds, and shows only its own texts.
PAGES = sorted(VIEWERS_POST.keys() - POST_ONLY - {"dataset_generate"})
EVIL = (
    "<script>evil()</script><img src=x onerror=evil()><svg onload=evil()>"
    "</script></textarea></title>[evil](javascript:evil())'\"{{7919*7919}}"
)
# As it may stand where data is JSON inside of a script element, or in an attribute.
RAW = re.compile(r"<script>evil|<img src=x|<svg onload|href=.?javascript:|\b62710561\b")


@pytest.fixture
def everything_is_evil(addresses: dict[str, str], team: Team, alice: User) -> None:
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
    Group.objects.update(prompt=EVIL, answer=EVIL)
    change_completions(text=EVIL)
    for group in Group.objects.all():
        make_note(group, EVIL, is_error=True)
    DatasetRow.objects.update(answer=EVIL)
    Rule.objects.update(name=EVIL[:80], metric=EVIL[:120], name_pattern=EVIL[:80])
    told = {"name": EVIL, "text": EVIL, "why": EVIL, "kind": "warned", "covers": [EVIL]}
    Alert.objects.update(
        read_as=told, metric=EVIL[:120], readings={EVIL: [[1, 0.5]]}, state="firing"
    )
    Run.objects.update(alerts_seq=1)
    channel = Channel.objects.get()
    Delivery.objects.create(
        channel=channel, event="test", not_before=timezone.now(), said=EVIL
    )
    Team.objects.update(name=EVIL[:80])
    User.objects.filter(pk=alice.pk).update(display_name=EVIL[:80])
    register(EVIL[:100], num_slots=1)


@pytest.mark.usefixtures("everything_is_evil")
def test_no_page_holds_markup_that_somebody_typed(
    addresses: dict[str, str], alice_client: Client
) -> None:
    num_seen = 0
    for name in PAGES:
        page = alice_client.get(addresses[name])
        if page.headers["Content-Type"].startswith("text/html"):
            html = page.content.decode()
            found = RAW.search(html)

            assert page.status_code in (200, 302, 404), name
            assert found is None, (name, html[max(0, found.start() - 80) :][:200])
            num_seen += "evil()" in html

    assert num_seen > 20


@pytest.mark.usefixtures("everything_is_evil")
def test_what_is_no_page_is_never_taken_for_one(
    addresses: dict[str, str], alice_client: Client
) -> None:
    for name in PAGES:
        answer = alice_client.get(addresses[name])
        kind = answer.headers["Content-Type"]

        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        how = answer.headers.get("Content-Disposition", "")
        is_saved = how.startswith("attachment")
        is_inert = kind.startswith(("text/html", "application/json", "text/plain"))
        assert is_saved or is_inert, name


@pytest.mark.usefixtures("everything_is_evil")
def test_a_chart_shows_a_metrics_name_as_text(
    addresses: dict[str, str], alice_client: Client
) -> None:
    run = Run.objects.get()
    page = alice_client.get(f"/alpha/compare?runs={run.pk}", {"metric": EVIL})

    assert page.status_code == 200
    assert RAW.search(page.content.decode()) is None
