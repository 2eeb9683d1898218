"""The pages on which a run is extended, changed and cancelled, and its lineage."""

from __future__ import annotations

from html import unescape

import pytest
from django.db.models.functions import Now
from django.test import Client

from dashboard.accounts.models import AuditEntry, Team, User
from dashboard.runs.models import Checkpoint, Run, RunState, SettingChange
from tests.dashboard.runs.stories import Story, queue_run
from tests.dashboard.samples.factories import make_run


def save_at(run: Run, step: int) -> None:
    Checkpoint.objects.create(
        run=run,
        step=step,
        epoch=1,
        name=f"step-{step:06d}-epoch-1",
        sha256="ab" * 32,
        num_bytes=1,
        saved_at=Now(),
    )


@pytest.fixture
def finished(team: Team) -> Run:
    run = make_run(team)
    run.config["optim"] |= {"schedule": "linear", "learning_rate": 1e-3}
    run.save()
    save_at(run, run.num_steps)
    return run


def change(run: Run) -> str:
    return f"/alpha/runs/{run.id}/change/"


def test_what_an_extension_does_to_the_learning_rate_is_shown_first(
    alice_client: Client, finished: Run
) -> None:
    to = finished.num_steps * 2

    page = unescape(alice_client.get(f"{change(finished)}?num_steps={to}").text)

    assert f'from step <span class="number">{finished.num_steps + 1}</span>' in page
    assert "The learning rate's schedule runs over all steps" in page
    assert f"Extend to step {to}</button>" in page
    assert not finished.changes.exists()


def test_a_finished_run_is_extended_once(
    alice_client: Client, finished: Run, alice: User
) -> None:
    to = finished.num_steps + 20

    alice_client.post(change(finished), {"num_steps": str(to)})
    again = alice_client.post(change(finished), {"num_steps": str(to)}, follow=True)

    finished.refresh_from_db()
    assert (finished.state, finished.num_steps) == (RunState.QUEUED, to)
    assert f"The run goes to step {to} already" in again.text
    entry = AuditEntry.objects.get(verb="run.extended")
    assert entry.actor == alice


@pytest.mark.parametrize("given", ["x", "-1", "1", "99999999999", "²"])
def test_steps_that_are_none_are_answered(
    alice_client: Client, finished: Run, given: str
) -> None:
    shown = alice_client.get(change(finished), {"num_steps": given})
    sent = alice_client.post(change(finished), {"num_steps": given}, follow=True)

    assert "must be a whole number" in shown.text
    assert sent.status_code == 200
    finished.refresh_from_db()
    assert finished.state == RunState.FINISHED


def test_only_what_was_changed_on_the_page_is_changed(
    alice_client: Client, alice: User, team: Team
) -> None:
    run = queue_run(team)
    Story(run).start()
    every = run.config["checkpoint"]["every_steps"]
    keep = run.config["checkpoint"]["keep_last"]

    alice_client.post(
        change(run),
        {
            "was.checkpoint.every_steps": "99",  # an older page, where it was so
            "checkpoint.every_steps": "99",
            "was.checkpoint.keep_last": str(keep),
            "checkpoint.keep_last": "7",
        },
    )

    found = SettingChange.objects.get()
    assert found.after == {"checkpoint.keep_last": 7}
    entry = AuditEntry.objects.get(verb="run.settings_changed")
    assert (entry.actor, entry.object_id) == (alice, run.id)
    assert entry.detail == {"number": 1, "checkpoint.keep_last": 7}
    run.refresh_from_db()
    assert run.config["checkpoint"]["every_steps"] == every
    page = alice_client.get(f"/alpha/runs/{run.id}/config/").text
    assert "Changed since the launch" in page
    assert "not heard by a trainer yet" in page
    found.heard_step = 12
    found.save()
    page = alice_client.get(f"/alpha/runs/{run.id}/config/").text
    assert 'behind step <span class="number">12</span>' in page


def test_an_ended_run_has_no_intervals_to_change(
    alice_client: Client, finished: Run
) -> None:
    sent = {"was.checkpoint.keep_last": "2", "checkpoint.keep_last": "7"}

    answer = alice_client.post(change(finished), sent, follow=True)

    assert "Nothing was changed: the run is finished." in unescape(answer.text)
    assert "no step to come" in answer.text


def test_a_run_is_cancelled_at_once_and_says_by_whom(
    alice_client: Client, team: Team
) -> None:
    run = queue_run(team)
    story = Story(run)
    story.start()
    story.take_steps(3)
    before = alice_client.get(f"/alpha/runs/{run.id}/").text

    page = alice_client.post(f"/alpha/runs/{run.id}/cancel", follow=True).text

    run.refresh_from_db()
    assert "its last 3 steps stay recorded" in before
    assert run.state == RunState.STOPPED
    assert "alice cancelled it. None was saved: its last 3 steps" in page
    again = alice_client.post(f"/alpha/runs/{run.id}/cancel", follow=True).text
    assert "Nothing to cancel: the run is stopped." in again
    frame = alice_client.get(f"/alpha/runs/{run.id}/stream.json?after=0").json()
    assert "alice cancelled it" in frame["run"]["stop_reason"]


@pytest.mark.parametrize("verb", ["cancel", "change/"])
def test_a_viewer_and_a_stranger_may_neither(
    bob_client: Client, charlie_client: Client, finished: Run, verb: str
) -> None:
    data = {"num_steps": "900"}

    page = bob_client.get(f"/alpha/runs/{finished.id}/").text
    assert "data-run-cancel" not in page
    assert "Extend or change" not in page
    address = f"/alpha/runs/{finished.id}/{verb}"
    assert bob_client.post(address, data).status_code == 403
    assert charlie_client.post(address, data).status_code == 404
    other = f"/other/runs/{finished.id}/{verb}"
    assert charlie_client.post(other, data).status_code == 404
    finished.refresh_from_db()
    assert finished.state == RunState.FINISHED


@pytest.fixture
def family(team: Team, finished: Run) -> tuple[Run, Run, Run]:
    origin = {"fork_sha256": "ab" * 32, "fork_checkpoint": "step-000020-epoch-1"}
    fork = make_run(team, "fork", forked_from=finished, fork_step=20, **origin)
    clone = make_run(team, "copy", cloned_from=fork)
    return finished, fork, clone


def test_a_run_names_what_it_comes_from_and_what_was_made_of_it(
    bob_client: Client, family: tuple[Run, Run, Run]
) -> None:
    parent, fork, clone = family

    of_parent = bob_client.get(f"/alpha/runs/{parent.id}/").text
    of_fork = bob_client.get(f"/alpha/runs/{fork.id}/").text

    assert (
        f'Made of it: <a href="/alpha/runs/{fork.id}/">fork</a> (fork at step'
        in of_parent
    )
    link = f'<a href="/alpha/runs/{parent.id}/">{parent.name}</a>'
    assert f'Forked from {link} at step <span class="number">20</span>' in of_fork
    assert f'Made of it: <a href="/alpha/runs/{clone.id}/">copy</a> (clone).' in of_fork


def test_the_lineage_is_one_tree_from_any_of_its_runs(
    bob_client: Client, family: tuple[Run, Run, Run]
) -> None:
    pages = [bob_client.get(f"/alpha/runs/{run.id}/lineage/").text for run in family]

    for page, run in zip(pages, family, strict=True):
        tree = page[page.index('<ul class="lineage">') :]
        names = [tree.index(f">{each.name}</a>") for each in family]
        assert names == sorted(names)
        assert tree.count("<ul") == 3
        current = tree.index('aria-current="true"')
        assert tree.index(f">{run.name}</a>", current) - current < 200


def test_the_stream_names_the_fork(
    bob_client: Client, family: tuple[Run, Run, Run]
) -> None:
    parent, fork, _ = family

    frame = bob_client.get(f"/alpha/runs/{fork.id}/stream.json?after=0").json()

    assert frame["run"]["fork"] == {"run": parent.id, "step": 20, "seconds": None}
