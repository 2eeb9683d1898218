"""The pages on which a run is extended, changed and cancelled, and its lineage."""

import pytest
from django.http import QueryDict
from django.utils.http import urlencode

from dashboard.accounts.models import AuditEntry
from dashboard.project.errors import UserError
from dashboard.runs.changes import next_step, propose_steps, read_intervals, read_steps
from dashboard.runs.models import Checkpoint, Run, RunState, SettingChange
from tests.dashboard.completions.factories import make_checkpoint, make_run
from tests.dashboard.runs.stories import Story, queue_run


def save_at(run: Run, step: int) -> None:
    make_checkpoint(run, step)


@pytest.fixture(scope="module")
def finished(shared_team) -> Run:
    run = make_run(shared_team)
    run.config["optim"] |= {"schedule": "linear", "learning_rate": 1e-3}
    run.save()
    save_at(run, run.num_steps)
    return run


def change(run: Run) -> str:
    return f"/alpha/runs/{run.id}/change/"


def test_extending_a_run_previews_the_learning_rate(alice_client, finished):
    to = finished.num_steps * 2

    answer = alice_client.get(f"{change(finished)}?num_steps={to}")

    first = finished.num_steps + 1
    rates = answer.context["rates"]
    assert answer.context["first_step"] == rates[0].step == first
    assert f'<th scope="row" class="number">{first}</th>' in answer.text
    assert f'name="num_steps" value="{to}"' in answer.text
    assert not finished.changes.exists()


def test_a_finished_run_is_extended_once(alice_client, finished, alice):
    to = finished.num_steps + 20

    alice_client.post(change(finished), {"num_steps": str(to)})
    again = alice_client.post(change(finished), {"num_steps": str(to)}, follow=True)

    finished.refresh_from_db()
    assert (finished.state, finished.num_steps) == (RunState.QUEUED, to)
    (*_, message) = again.context["messages"]
    assert (message.level_tag, str(to) in message.message) == ("error", True)
    entry = AuditEntry.objects.get(verb="run.extended")
    assert entry.actor == alice


def test_an_invalid_last_step_is_refused(alice_client, finished):
    for given in ("x", "-1", "1", "99999999999", "²"):
        shown = alice_client.get(change(finished), {"num_steps": given})
        sent = alice_client.post(change(finished), {"num_steps": given}, follow=True)

        (message,) = sent.context["messages"]
        assert repr(given) in shown.context["error"]
        assert 'class="field-error"' in shown.text
        assert (sent.status_code, message.level_tag) == (200, "error")
    finished.refresh_from_db()
    assert finished.state == RunState.FINISHED


def test_only_what_was_changed_on_the_page_is_changed(alice_client, alice, team):
    run = queue_run(team)
    Story(run).start()
    every = run.config["checkpoint"]["every_steps"]
    keep = run.config["checkpoint"]["keep_last"]

    alice_client.post(
        change(run),
        {
            "checkpoint.every_steps": str(every),
            "checkpoint.keep_last": "7",
        },
    )

    found = SettingChange.objects.get()
    assert found.after == {"checkpoint.keep_last": 7}
    entry = AuditEntry.objects.get(verb="run.settings_changed")
    assert (entry.actor, entry.object_id) == (alice, run.id)
    assert entry.detail == {
        "number": 1,
        "before": {"checkpoint.keep_last": keep},
        "after": {"checkpoint.keep_last": 7},
    }
    run.refresh_from_db()
    assert run.config["checkpoint"]["every_steps"] == every
    page = alice_client.get(f"/alpha/runs/{run.id}/config/").text
    assert 'id="changes-title"' in page
    assert ">pending<" in page
    found.applied_step = 12
    found.save()
    page = alice_client.get(f"/alpha/runs/{run.id}/config/").text
    assert 'after step <span class="number">12</span>' in page


def test_an_ended_run_has_no_intervals_to_change(alice_client, finished):
    sent = {"checkpoint.keep_last": "7"}

    answer = alice_client.post(change(finished), sent, follow=True)

    (message,) = answer.context["messages"]
    assert (message.level_tag, "finished" in message.message) == ("error", True)
    assert 'name="checkpoint.keep_last"' not in answer.text
    finished.refresh_from_db()
    assert finished.config["checkpoint"]["keep_last"] != 7


def test_a_cancelled_run_ends_at_once_and_shows_the_user(alice_client, team):
    run = queue_run(team)
    story = Story(run)
    story.start()
    story.take_steps(3)
    before = alice_client.get(f"/alpha/runs/{run.id}/").text

    page = alice_client.post(f"/alpha/runs/{run.id}/cancel", follow=True).text

    run.refresh_from_db()
    assert "last 3 steps" in before
    assert run.state == RunState.STOPPED
    frame = alice_client.get(f"/alpha/runs/{run.id}/stream.json?after=0").json()
    reason = frame["run"]["stop_reason"]
    assert "alice" in reason
    assert "last 3 steps" in reason
    assert f"data-run-stopped>{reason}<" in page
    again = alice_client.post(f"/alpha/runs/{run.id}/cancel", follow=True)
    (message,) = again.context["messages"]
    assert (message.level_tag, "stopped" in message.message) == ("info", True)


def test_a_viewer_is_offered_no_change(bob_client, finished):
    page = bob_client.get(f"/alpha/runs/{finished.id}/").text
    assert "data-run-cancel" not in page
    assert change(finished) not in page


@pytest.fixture(scope="module")
def family(shared_team, finished) -> tuple[Run, Run, Run]:
    origin = {"fork_sha256": "ab" * 32, "fork_checkpoint": "step-000020-attempt-1"}
    fork = make_run(shared_team, "fork", forked_from=finished, fork_step=20, **origin)
    clone = make_run(shared_team, "copy", cloned_from=fork)
    return finished, fork, clone


def test_a_run_links_to_its_parent_and_children(bob_client, family):
    parent, fork, _ = family

    of_parent = bob_client.get(f"/alpha/runs/{parent.id}/").text
    of_fork = bob_client.get(f"/alpha/runs/{fork.id}/").text

    assert ">1 fork<" in of_parent
    link = f'<a href="/alpha/runs/{parent.id}/">{parent.name}</a>'
    assert f'{link} at step <span class="number">20</span>' in of_fork
    assert ">1 clone<" in of_fork


def test_the_lineage_is_one_tree_from_any_of_its_runs(bob_client, family):
    pages = [bob_client.get(f"/alpha/runs/{run.id}/lineage/").text for run in family]

    for page, run in zip(pages, family, strict=True):
        tree = page[page.index('<ul class="lineage">') :]
        names = [tree.index(f">{each.name}</a>") for each in family]
        assert names == sorted(names)
        assert tree.count("<ul") == 3
        current = tree.index('aria-current="true"')
        assert tree.index(f">{run.name}</a>", current) - current < 200


def test_the_stream_names_the_fork(bob_client, family):
    parent, fork, _ = family

    frame = bob_client.get(f"/alpha/runs/{fork.id}/stream.json?after=0").json()

    assert frame["run"]["fork"] == {"run": parent.id, "step": 20, "seconds": None}


KEEP, EVERY = "checkpoint.keep_last", "checkpoint.every_steps"


def at_step_20(state: RunState) -> Run:
    """A run of 30 steps with a checkpoint of the 10th."""
    run = Run(state=state, last_step=20, num_steps=30)
    run.newest_checkpoint = Checkpoint(step=10)
    return run


@pytest.mark.parametrize(
    ("state", "first", "lowest"),
    [(RunState.RUNNING, 21, 31), (RunState.STOPPED, 11, 11)],
)
def test_an_extension_starts_at_the_next_possible_step(state, first, lowest):
    run = at_step_20(state)

    assert next_step(run) == first
    assert propose_steps(f" {lowest} ", run) == lowest
    with pytest.raises(UserError, match=f" {lowest} to 10,000,000") as refused:
        propose_steps(str(lowest - 1), run)
    assert refused.value.code == "runs.bad_last_step"


def test_a_last_step_may_have_commas_or_be_left_out():
    run = at_step_20(RunState.RUNNING)

    assert propose_steps("1,000", run) == 1_000
    assert propose_steps(" ", run) is None


def test_text_that_is_not_a_whole_number_is_refused():
    for text in ("", "x", "-1", "1.5", "\u00b2", "9" * 9):
        with pytest.raises(UserError, match=repr(text)) as refused:
            read_steps(text)
        assert refused.value.code == "runs.not_a_number"


def test_only_intervals_are_read():
    posted = {KEEP: " 7 ", EVERY: "", "optim.num_steps": "7"}

    assert read_intervals(QueryDict(urlencode(posted))) == {KEEP: 7}
