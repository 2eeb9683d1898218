"""The header of a run in every state: its tabs end at one height, on every page."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from dashboard.accounts.models import Team
from dashboard.runs.control import request_pause
from dashboard.runs.models import Run, RunState
from dashboard.supervision.external_runs import open_run
from tests.dashboard.alerts.factories import make_alert, make_rule
from tests.dashboard.runs.stories import Story, queue_run
from tests.dashboard.supervision.logs import LogBuilder
from tests.dashboard.supervision.sending import send
from tests.dashboard.supervision.test_opening_a_run import OPENING

pytestmark = [pytest.mark.browser, pytest.mark.slow]
LONG = "CUDA out of memory: 2 GB of 80 GB were free.\n" * 3
NAME = "a-run-with-a-name-as-long-as-a-team-may-give-it-that-says-each-of-its-settings"
TABS = (
    *("", "metrics/", "groups/", "completions/", "prompts/", "reward-log/"),
    *("health/", "checkpoints/", "config/", "logs/", "lineage/", "export/"),
)
# By screen: where the tabs end at the latest.
SCREENS = {(1440, 900): 165, (390, 844): 260}
BOTTOM = 'document.querySelector(".run .page-tabs").getBoundingClientRect().bottom'


def train(team: Team, name: str, **fields: Any) -> Story:
    story = Story(queue_run(team, name=name, num_steps=20, **fields))
    story.start()
    story.score_group()
    story.take_steps(3)
    return story


def finish(story: Story, state: RunState, **fields: Any) -> None:
    ended = {"finished_at": timezone.now() + timedelta(seconds=1)}
    story.end(state, **fields, **({} if state == RunState.PAUSED else ended))


@pytest.fixture
def runs(team, alice) -> dict[str, Run]:
    """A run in each state."""
    stories = {name: train(team, name) for name in ("running", "finished", "lost")}
    stories["running"].run = _rename(stories["running"].run)
    finish(stories["finished"], RunState.FINISHED)
    stories["lost"].end(RunState.LOST)
    stories["paused by itself"] = train(team, "stuck")
    finish(stories["paused by itself"], RunState.PAUSED, pause_reason=LONG)
    stories["paused by a person"] = train(team, "paused")
    request_pause(run=stories["paused by a person"].run, user=alice)
    stories["paused by a person"].end(RunState.PAUSED)
    stories["failed"] = Story(queue_run(team, name="failed"))
    finish(stories["failed"], RunState.FAILED, fail_reason=LONG)
    stories["failed late"] = train(team, "failed late")
    finish(stories["failed late"], RunState.FAILED, fail_reason=LONG)
    runs = {state: story.run for state, story in stories.items()}
    runs["fork"] = queue_run(
        team,
        name="fork",
        forked_from=runs["finished"],
        fork_step=2,
        fork_checkpoint="step-000002-attempt-1",
        fork_sha256="ab" * 32,
        tags=["baseline", "long"],
        on_hold=True,
    )
    runs["queued"] = queue_run(team, name="waits for a worker")
    external, _ = open_run(OPENING, team=team, user=alice)
    send(external, LogBuilder().stepped(1).stepped(2))
    runs["external"] = external
    make_alert(runs["running"], make_rule(team))
    Run.objects.filter(pk=runs["running"].pk).update(alerts_seq=1)
    return runs


def _rename(run: Run) -> Run:
    Run.objects.filter(pk=run.pk).update(name=NAME)
    run.refresh_from_db()
    return run


@pytest.mark.django_db(transaction=True)
def test_tabs_end_at_one_height_in_each_state_on_each_page(page, team, runs):
    bottoms = {}
    for state, run in runs.items():
        for tab in TABS:
            page.goto(f"/alpha/runs/{run.pk}/{tab}", wait_until="domcontentloaded")
            for width, height in SCREENS:
                page.set_viewport_size({"width": width, "height": height})
                bottoms[width, state, tab] = round(page.evaluate(BOTTOM))

    for (width, _), most in SCREENS.items():
        ys = {key[1:]: y for key, y in bottoms.items() if key[0] == width}
        assert len(set(ys.values())) == 1, ys
        assert 0 < max(ys.values()) <= most, ys
