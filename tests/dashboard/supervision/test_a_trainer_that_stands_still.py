"""A trainer without a sign of progress: pages say so, promise nothing and alert."""

from datetime import timedelta
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from django.utils import timezone

from dashboard.alerts.firing import NO_STEP, alert_of_silence
from dashboard.alerts.models import Alert, AlertState
from dashboard.alerts.queries import list_rules
from dashboard.runs.models import Run, RunState
from dashboard.runs.progress import CONTACT, describe_progress
from dashboard.supervision import watchdog
from dashboard.supervision.external_runs import open_run
from dashboard.supervision.lease import Claim, renew
from dashboard.supervision.watchdog import Watchdog
from tests.dashboard.runs.stories import Story
from tests.dashboard.supervision.logs import LogBuilder
from tests.dashboard.supervision.machines import register
from tests.dashboard.supervision.sending import send
from tests.dashboard.supervision.test_opening_a_run import OPENING


def fall_silent(run: Run, seconds: float, *, pace: float = 10.0) -> Run:
    """A run whose trainer made no progress for this time."""
    Run.objects.filter(pk=run.pk).update(
        state=RunState.RUNNING,
        lease_until=timezone.now() + timedelta(minutes=1),
        active_at=timezone.now() - timedelta(seconds=seconds),
        last_step=5,
        num_steps=20,
        summary={"step_seconds": [pace], "last": {}, "best": {}},
    )
    return Run.objects.get(pk=run.pk)


@pytest.mark.parametrize(
    ("pace", "seconds", "silence"),
    [
        (10.0, 55, ""),
        (10.0, 65, "no step for 1 min"),
        (2.0, 50, ""),  # at least a minute
        (100.0, 450, ""),  # steps are long
        (100.0, 545, "no step for 9 min"),
    ],
)
def test_after_five_steps_and_a_minute_no_time_is_promised(run, pace, seconds, silence):
    progress = describe_progress(fall_silent(run, seconds, pace=pace))

    assert progress.silence == silence
    assert (progress.seconds_left is None) is bool(silence)
    assert bool(progress.notice) is bool(silence)


@pytest.mark.parametrize("state", ["starting", "pausing", "paused", "queued", "failed"])
def test_only_a_running_run_is_silent(run, state):
    silent = fall_silent(run, 3_600)
    silent.state = state

    assert describe_progress(silent).silence == ""


def test_page_list_and_compute_tell_of_it(run, alice_client):
    register("training@gpu-1", num_slots=1)
    fall_silent(run, 6.5 * 3_600)
    Run.objects.filter(pk=run.pk).update(worker="training@gpu-1")

    page = alice_client.get(f"/alpha/runs/{run.pk}/").text
    listed = alice_client.get("/alpha/runs/").context["rows"][0]
    answer = alice_client.get(f"/alpha/runs/live.json?ids={run.pk}").json()
    live = answer["rows"][str(run.pk)]
    compute = alice_client.get("/alpha/compute/").text

    assert "data-run-left data-silent>no step for 6 h<" in page
    assert "notice notice-warning" in page
    assert listed.silence == live["silence"] == "no step for 6 h"
    assert listed.left == live["left"] == ""
    assert "data-silence>no step for 6 h<" in compute


def test_list_and_page_agree_on_a_run_that_was_just_resumed(run, alice_client):
    """Its summary has the last step alone."""
    silent = fall_silent(run, 65)
    summary = {"last": {"time/step": 10.0}, "best": {}}
    Run.objects.filter(pk=silent.pk).update(summary=summary)

    listed = alice_client.get("/alpha/runs/").context["rows"][0]

    assert listed.silence == "no step for 1 min"
    assert listed.silence == describe_progress(Run.objects.get(pk=run.pk)).silence


def test_a_pulse_is_a_sign_of_progress(run, tmp_path, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: clock.now))
    pulse = tmp_path / "pulse"
    pulse.touch()
    guard = Watchdog(Mock(), pulse, Mock(), hang_seconds=1_800)
    story = Story(run)
    story.start()
    story.take_steps(2, **{"time/step": 10.0})

    def silence_after(seconds: float, *, pulses: bool) -> str:
        clock.now += seconds
        if pulses:
            pulse.write_text(str(clock.now))
        guard.check()
        renew(story.claim, silent_for=guard.silent_for)
        return describe_progress(Run.objects.get(pk=run.pk)).silence

    assert silence_after(600, pulses=True) == ""  # a long generation
    assert silence_after(600, pulses=False) == "no step for 10 min"
    assert silence_after(1, pulses=True) == ""


def test_an_alert_fires_once_and_ends_with_the_next_pulse(run, team):
    def alerts() -> list[tuple[str, str, int]]:
        found = Alert.objects.filter(run=run).order_by("pk")
        return list(found.values_list("code", "state", "step"))

    before = run.alerts_seq
    fall_silent(run, 40)
    alert_of_silence()
    assert alerts() == []

    fall_silent(run, 400)
    alert_of_silence()
    alert_of_silence()
    assert alerts() == [(NO_STEP, AlertState.FIRING, 5)]
    run.refresh_from_db()
    assert run.alerts_seq == run.seq > before

    renew(Claim(run_id=run.pk, attempt=run.attempt))
    alert_of_silence()
    assert alerts() == [(NO_STEP, AlertState.RESOLVED, 5)]

    fall_silent(run, 400)
    rule = next(rule for rule in list_rules(team.pk) if rule.condition.kind == "warned")
    type(rule).objects.filter(pk=rule.pk).update(is_enabled=False)
    before = Run.objects.get(pk=run.pk).seq
    alert_of_silence()
    assert len(alerts()) == 1
    assert Run.objects.get(pk=run.pk).seq == before, "no page is woken for nothing"


def test_an_external_run_is_silent_without_its_events(team, alice):
    run = open_run(OPENING, team=team, user=alice)[0]
    send(run, LogBuilder().stepped(1))
    run.refresh_from_db()
    assert run.active_at is not None

    silent = describe_progress(fall_silent(run, 400))
    Run.objects.filter(pk=run.pk).update(lease_until=timezone.now() + CONTACT)
    contact = describe_progress(Run.objects.get(pk=run.pk)).notice
    alert_of_silence()

    assert (silent.silence, silent.seconds_left) == ("no step for 6 min", None)
    assert "Compute" not in contact
    assert contact.endswith("reported 0 s ago.")
    assert not Alert.objects.exists()  # its evaluations send no pulse


def test_a_lost_external_run_names_its_last_contact(team, alice, alice_client):
    from dashboard.supervision import lease

    run = open_run(OPENING, team=team, user=alice)[0]
    fall_silent(run, 0)
    contact = timezone.now() - timedelta(minutes=40)
    lease_until = contact + timedelta(minutes=5)
    Run.objects.filter(pk=run.pk).update(lease_until=lease_until)

    assert lease.reap(grace=timedelta(0)) == [run.pk]

    lost = describe_progress(Run.objects.get(pk=run.pk))
    assert (lost.state, lost.seconds_left, lost.silence) == (RunState.LOST, None, "")
    assert f"{contact:%H:%M} UTC (40 min)" in lost.notice
    assert alice_client.get("/alpha/runs/").context["rows"][0].left == ""
    assert "notice notice-warning" in alice_client.get(f"/alpha/runs/{run.pk}/").text
