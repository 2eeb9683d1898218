"""A paused run's page: why it waits, what to do, and the buttons that do it."""

from typing import Any

import pytest

from dashboard.runs.models import Run, RunState
from tests.dashboard.completions.factories import make_checkpoint, make_run
from tests.dashboard.runs.stories import Story, queue_run
from tests.page_client import PageClient

SHARE = {"max_error_share": 0.1}
REASON = '100% of the scores failed.\n16 times, rule "judge": <b>away</b>'


@pytest.fixture(scope="module")
def paused(shared_team) -> Run:
    return make_run(shared_team, state="paused", finished_at=None, pause_reason=REASON)


def page(client: PageClient, run: Run) -> str:
    return client.read(f"/alpha/runs/{run.id}/")


ALLOWED = 'name="max_error_share"'


def share_offered(html: str) -> str:
    field = html[html.index(ALLOWED) :]
    return field.partition(' value="')[2].partition('"')[0]


def is_offered(html: str, mark: str) -> bool:
    tag = html[html.index(mark) : html.index(">", html.index(mark))]
    return "hidden" not in tag


def test_a_paused_run_shows_the_reason_and_can_be_resumed_or_stopped(
    alice_client, paused
):
    html = page(alice_client, paused)

    assert "data-run-needs" in html
    assert "16 times, rule &quot;judge&quot;: &lt;b&gt;away&lt;/b&gt;" in html
    assert is_offered(html, "data-run-resume")
    assert is_offered(html, "data-run-stop")
    assert ALLOWED in html


def tell_of_faults(run: Run, **fault: Any) -> None:
    run.events.create(
        seq=7,
        attempt=1,
        line=7,
        type="run_paused",
        step=0,
        time=run.created_at,
        body={"faults": [{"rule": "judge", "error": "away", "count": 4, **fault}]},
    )


@pytest.mark.parametrize(
    ("fault", "shown"), [({"rows": [2, 5]}, "rows=2%2C5"), ({}, "run=")]
)
def test_a_run_that_paused_itself_leads_to_its_reward_and_the_rows_that_failed(
    alice_client, paused, fault, shown
):
    recipe = paused.recipe_version.recipe_id
    tell_of_faults(paused, **fault)

    html = page(alice_client, paused)

    edit = html[html.index(f'"/alpha/rewards/{recipe}/edit?version=1') :]
    assert shown in edit.partition('"')[2].partition('"')[0]


def test_a_saved_reward_continues_the_run_that_waits_for_it(alice_client, paused):
    recipe = paused.recipe_version.recipe_id
    address = f"/alpha/rewards/{recipe}/edit?continue={paused.pk}"
    assert f"continue={paused.pk}" in alice_client.read(address)
    version = paused.recipe_version.recipe.versions.create(
        number=2, content_sha256="ab" * 32, spec=paused.recipe_version.spec
    )

    saved = alice_client.read(f"/alpha/rewards/{recipe}/?continue={paused.pk}")
    make_checkpoint(paused, step=4)
    forked = alice_client.read(f"/alpha/rewards/{recipe}/?continue={paused.pk}")

    clone = f"/alpha/runs/new?clone={paused.pk}&amp;recipe={version.pk}"
    assert clone in saved
    fork = f"/alpha/runs/new?fork={paused.pk}&amp;checkpoint=step-000004-attempt-1"
    assert f"{fork}&amp;recipe={version.pk}" in forked
    form = alice_client.get(f"{fork}&recipe={version.pk}".replace("&amp;", "&"))
    assert f'value="{version.pk}" selected' in form.text.replace("\n", " ")


def test_a_running_run_can_be_paused(alice_client, team):
    run = queue_run(team)
    Story(run).start()

    html = page(alice_client, run)
    response = alice_client.post(f"/alpha/runs/{run.id}/pause")

    run.refresh_from_db()
    assert is_offered(html, "data-run-pause>")
    assert not is_offered(html, "data-run-resume")
    assert response.status_code == 302
    assert run.state == RunState.PAUSING
    assert "alice" in run.pause_reason


def test_resuming_queues_it_with_the_errors_that_are_allowed(alice_client, paused):
    address = f"/alpha/runs/{paused.id}/resume"

    alice_client.post(address, {"max_error_share": "0.5"})

    paused.refresh_from_db()
    assert paused.state == RunState.QUEUED
    assert paused.config["reward"]["max_error_share"] == 0.5
    for verb in ("resume", "pause"):
        alice_client.post(f"/alpha/runs/{paused.id}/{verb}")
        paused.refresh_from_db()
        assert paused.state == RunState.QUEUED, verb


def test_an_old_page_does_not_resume_a_later_pause(alice_client, paused):
    """Someone resumed it with another share, and it has paused again since."""
    seen = page(alice_client, paused)
    assert f'name="attempt" value="{paused.attempt}"' in seen
    form = {"max_error_share": "0.2", "attempt": str(paused.attempt)}
    paused.config["reward"]["max_error_share"] = 0.5
    paused.attempt += 1
    paused.last_step = 40
    paused.save(update_fields=["config", "attempt", "last_step"])

    address = f"/alpha/runs/{paused.id}/resume"
    answer = alice_client.post(address, form, follow=True)

    (message,) = answer.context["messages"]
    html = answer.text
    paused.refresh_from_db()
    assert paused.state == RunState.PAUSED
    assert paused.config["reward"]["max_error_share"] == 0.5
    assert (message.level_tag, " 40" in message.message) == ("info", True)
    assert share_offered(html) == "0.5"
    assert f'name="attempt" value="{paused.attempt}"' in html


def test_a_resume_offers_the_share_that_is_allowed(alice_client, paused):
    assert share_offered(page(alice_client, paused)) == "0.2"

    phase = {"name": "a", "num_steps": 100, "changes": {"reward": SHARE}}
    paused.config["phases"] = [phase]
    paused.save(update_fields=["config"])

    # Else a resume that changes nothing would change the phase's own.
    assert share_offered(page(alice_client, paused)) == ""


def test_an_invalid_share_is_refused(alice_client, paused):
    address = f"/alpha/runs/{paused.id}/resume"

    for given in ("1.5", "-0.1", "nan", "half"):
        answer = alice_client.post(address, {"max_error_share": given}, follow=True)

        (message,) = answer.context["messages"]
        assert (message.level_tag, given in message.message) == ("error", True), given
    paused.refresh_from_db()
    assert paused.state == RunState.PAUSED


def test_a_viewer_is_not_offered_to_resume(bob_client, paused):
    html = page(bob_client, paused)

    assert "16 times" in html
    assert "data-run-resume" not in html


def test_the_stream_has_the_pause_reason(alice_client, paused):
    address = f"/alpha/runs/{paused.id}/stream.json?after=0"

    run = alice_client.get(address).json()["run"]

    assert (run["state"], run["pause_reason"]) == ("paused", REASON)
    assert run["seconds_left"] is None


def test_active_runs_include_paused_runs(alice_client, paused, team):
    make_run(team, "done")

    for state in ("paused", "active"):
        html = alice_client.get(f"/alpha/runs/?state={state}").content.decode()
        assert paused.name in html
        assert ">done<" not in html
