"""Alerts as a run's events come in: once each, whatever happens to the worker."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dashboard.alerts import delivery as outbox
from dashboard.alerts import firing
from dashboard.alerts.firing import TITLES
from dashboard.alerts.models import Alert, Channel, Delivery, MutedRun, Rule
from dashboard.alerts.queries import list_rules
from dashboard.alerts.services import acknowledge, change_rule, switch_rule
from dashboard.runs.control import resume_run
from dashboard.runs.models import Run
from dashboard.supervision.ingest import ingest
from dashboard.supervision.lease import Claim, claim_run
from dashboard.supervision.takeover import cut_history
from tests.dashboard.alerts.factories import make_rule
from tests.dashboard.supervision.logs import LogBuilder, group
from trainer.alerts.conditions import Kind
from trainer.alerts.rules import BY_CODE
from trainer.events import Evaluated, GroupScored, PhaseStarted, StepFinished, Warned

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def fresh_process() -> None:
    firing._cached.clear()


class LogSteps:
    """Tells a run's metrics step by step, as one life of its trainer does."""

    def __init__(self, claim: Claim, *, step: int = 0) -> None:
        self.claim = claim
        self.log = LogBuilder(attempt=claim.attempt)
        self.step = step
        self.num_sent = 0

    def __call__(self, *values: float | None, metric: str = "kl/mean") -> None:
        for value in values:
            self.step += 1
            self.log.add(StepFinished, step=self.step, metrics={metric: value})
            self.flush()

    def flush(self) -> None:
        ingest(self.claim, self.log.events[self.num_sent :])
        self.num_sent = len(self.log.events)


@pytest.fixture
def log_steps(claim) -> LogSteps:
    return LogSteps(claim)


def found(run: Run) -> list[tuple[int, str, int | None]]:
    alerts = Alert.objects.filter(run=run).order_by("id")
    return list(alerts.values_list("step", "state", "ended_step"))


def test_a_rule_fires_once_and_is_resolved(run, log_steps):
    make_rule(run.team, for_steps=2)

    log_steps(0.5, 2, 2, 2, 0.5, 0.5, 0.5)

    assert found(run) == [(3, "resolved", 6)]


def test_a_metric_of_some_steps_counts_only_these(run, log_steps):
    """KL over a sample of tokens is measured every n-th step."""
    make_rule(run.team, for_steps=3)

    for place, value in enumerate((2, 2, 2, 2, 0.5, 0.5, 0.5)):
        log_steps(value)
        log_steps(*[1e-6] * 15, metric="lr")
        firing._cached.clear()  # what another process reads from the rows
        if place == 3:
            alert = Alert.objects.get(run=run)
            assert alert.readings["kl/mean"] == [[1, 2], [17, 2], [33, 2], [49, 2]]

    assert found(run) == [(33, "resolved", 97)]


def test_repeated_lines_raise_no_second_alert(run, claim, log_steps):
    make_rule(run.team)
    log_steps(2)

    ingest(claim, log_steps.log.events)

    assert found(run) == [(1, "firing", None)]


def test_the_evidence_is_five_readings_on_both_sides_and_three_groups(run, log_steps):
    make_rule(run.team)
    log_steps(*[0.1] * 7)
    for index in range(5):
        fields = group(index) | {"reward_mean": index / 10}
        log_steps.log.add(GroupScored, step=8, **fields)

    log_steps(2, 2, 2, 2, 2, 2, 2, 2)

    alert = Alert.objects.get(run=run)
    assert [step for step, _ in alert.readings["kl/mean"]] == list(range(3, 14))
    assert alert.readings["kl/mean"][5] == [8, 2]
    assert alert.groups == [[8, 0], [8, 2], [8, 4]]
    assert alert.read_as["text"] == "kl/mean above 1"
    assert (alert.value, alert.bound) == (2, 1)


def test_pages_are_notified_through_the_stream(run, log_steps):
    make_rule(run.team)
    log_steps(0)
    run.refresh_from_db()
    assert run.alerts_seq == 0

    log_steps(2)

    run.refresh_from_db()
    assert run.alerts_seq == run.seq


def test_a_metric_the_run_has_had_and_no_longer_has_is_missing(run, log_steps):
    make_rule(run.team, metric="loss", kind="missing", threshold=None)

    log_steps(1, metric="kl/mean")  # it never had a loss
    assert found(run) == []
    log_steps(1, metric="loss")
    log_steps(1, metric="kl/mean")

    own = Alert.objects.filter(run=run, rule__built_in="")
    assert [alert.step for alert in own] == [3]


def test_a_rule_may_be_for_one_run_or_for_a_name(run, launch, log_steps):
    make_rule(run.team, name="another", run=launch(name="second"))
    make_rule(run.team, name="other names", name_pattern="sft-*")
    make_rule(run.team, name="these", name_pattern="fir*")

    log_steps(2)

    alerts = Alert.objects.filter(run=run)
    assert [alert.read_as["name"] for alert in alerts] == ["these"]


def test_evaluations_count_by_themselves(run, log_steps):
    make_rule(run.team, metric="eval/heldout/mean", kind="below", for_steps=2)
    for value in (0.5, 0.4):
        log_steps(0.1, 0.1)
        log_steps.log.add(
            Evaluated,
            step=log_steps.step,
            name="heldout",
            num_prompts=1,
            samples_per_prompt=1,
            metrics={"eval/heldout/mean": value},
        )
        log_steps.flush()

    assert found(run) == [(4, "firing", None)]


def test_a_warning_covered_by_a_rule_raises_no_second_alert(run, log_steps):
    log_steps.log.add(Warned, step=1, code="truncated", message="Most are cut.")
    log_steps.log.add(Warned, step=1, code="dead_groups", message="An older trainer's.")
    log_steps(*[0.6] * 10, metric="completion/frac_truncated")

    alert = Alert.objects.get(run=run)
    assert (alert.rule and alert.rule.built_in, alert.step) == ("truncated", 10)


def test_a_team_may_change_what_only_the_trainer_watched(run, alice, log_steps):
    rule = next(rule for rule in list_rules(run.team_id) if rule.built_in == "clipped")
    rule.threshold, rule.for_steps = 0.1, 2
    change_rule(rule=rule, user=alice)

    log_steps(*[0.2] * 3, metric="clip/frac")

    alert = Alert.objects.get(run=run)
    assert (alert.rule_id, alert.step, alert.bound) == (rule.pk, 2, 0.1)


def test_any_warning_can_be_kept(run, log_steps):
    for _ in range(2):
        log_steps.log.add(Warned, step=1, code="odd\0", message="a\0b")
        log_steps.flush()
        firing._cached.clear()

    alert = Alert.objects.get(run=run)
    assert (alert.code, alert.read_as["why"]) == ("odd␀", "a␀b")


def test_a_phase_has_its_own_running_median(run, log_steps):
    make_rule(run.team, kind="times_usual", threshold=10, metric="grad")
    log_steps(*[1.0] * 12, metric="grad")
    log_steps.log.add(PhaseStarted, step=13, name="grpo", first_step=13, last_step=40)

    log_steps(*[100.0] * 12, metric="grad")

    assert found(run) == []


@pytest.mark.parametrize("has_restarted", [False, True])
def test_a_rule_that_is_switched_off_is_withdrawn(run, alice, log_steps, has_restarted):
    rule = make_rule(run.team)
    log_steps(2)

    switch_rule(rule=rule, user=alice, is_enabled=False)
    if has_restarted:
        firing._cached.clear()
    log_steps(2, 0, 2)

    assert found(run) == [(1, "withdrawn", None)]


def test_a_changed_rule_fires_again_from_the_history(
    run, alice, log_steps, monkeypatch
):
    monkeypatch.setattr(firing, "RULES_SECONDS", 0)
    rule = make_rule(run.team, threshold=5, for_steps=3)
    log_steps(2, 2)

    Rule.objects.filter(pk=rule.pk).update(threshold=1, revision=2)
    log_steps(2)

    assert found(run) == [(3, "firing", None)]


def test_a_resume_supersedes_what_came_after_its_checkpoint(run, log_steps):
    make_rule(run.team, name="KL")
    log_steps(2, 2, 0, 2)  # 1: fires, 3: resolved, 4: fires

    claim = _go_back(run, after=2)

    assert found(run) == [(1, "firing", None), (4, "superseded", None)]
    first = Alert.objects.filter(run=run).earliest("id")
    assert first.readings["kl/mean"] == [[1, 2], [2, 2]]
    again = LogSteps(claim, step=2)
    again(0, 2)
    assert found(run) == [
        (1, "resolved", 3),
        (4, "superseded", None),
        (4, "firing", None),
    ]


def _go_back(run: Run, *, after: int) -> Claim:
    Run.objects.filter(id=run.id).update(state="queued", lease_until=None)
    claim = claim_run(run.id, "worker-2")
    assert claim is not None
    cut_history(claim, after=after, checkpoint=None)
    return claim


def test_a_rolled_back_batch_is_evaluated_again(run, log_steps):
    make_rule(run.team, for_steps=2)
    log_steps(2)
    log_steps.log.add(StepFinished, step=2, metrics={"kl/mean": 2})
    with suppress(ZeroDivisionError), transaction.atomic():
        ingest(log_steps.claim, log_steps.log.events)
        _go_away()
    assert found(run) == []

    log_steps.flush()

    assert found(run) == [(2, "firing", None)]


def _go_away() -> None:
    raise ZeroDivisionError  # as when the database does


def test_a_muted_alert_is_kept_and_not_sent(run, alice, log_steps):
    Channel.objects.create(team=run.team, kind="email", address="a@example.org")
    later = timezone.now() + timedelta(hours=1)
    MutedRun.objects.create(run=run, until=later)
    make_rule(run.team, pauses_run=True)

    log_steps(2)

    assert Alert.objects.get(run=run).is_muted
    assert not Delivery.objects.exists()
    assert Run.objects.get(id=run.id).state == "starting"


def test_an_alert_is_queued_for_every_channel(run, log_steps):
    for is_enabled in (True, False):
        Channel.objects.create(
            team=run.team, kind="email", address="a@b.org", is_enabled=is_enabled
        )
    make_rule(run.team)
    make_rule(run.team, name="quiet", is_sent=False)

    log_steps(2)

    delivery = Delivery.objects.get()
    assert delivery.alert is not None
    assert delivery.alert.read_as["name"] == "KL"


def test_a_channel_gets_a_limited_number_of_alerts(run, log_steps, monkeypatch):
    monkeypatch.setattr(outbox, "MAX_AN_HOUR", 2)
    Channel.objects.create(team=run.team, kind="email", address="a@b.org")
    for name in ("one", "two", "three"):
        make_rule(run.team, name=name)

    log_steps(2)

    states = Delivery.objects.order_by("alert").values_list("state", flat=True)
    assert list(states) == ["pending", "pending", "failed"]
    assert "2 messages" in Delivery.objects.get(state="failed").result


def test_a_pause_is_requested_once_per_alert(run, alice, log_steps):
    make_rule(run.team, pauses_run=True)
    log_steps.log.started()
    log_steps(2)
    run.refresh_from_db()
    assert run.state == "pausing"
    assert "“KL”" in run.pause_reason
    assert "step 1: kl/mean above 1" in run.pause_reason

    Run.objects.filter(id=run.id).update(state="paused", lease_until=None)
    run.refresh_from_db()
    assert resume_run(run=run, user=alice)
    claim = _go_back(run, after=0)  # no checkpoint was saved: it comes to it again
    again = LogSteps(claim)
    again.log.started()
    again(2, 2)
    assert found(run) == [(1, "superseded", None), (1, "firing", None)]
    assert Run.objects.get(id=run.id).state == "running"

    again(0, 2)  # a new finding

    assert Run.objects.get(id=run.id).state == "pausing"


def test_an_acknowledged_alert_is_not_raised_again(run, alice, log_steps):
    make_rule(run.team)
    log_steps(2)
    alert = Alert.objects.get(run=run)

    assert acknowledge(alert=alert, user=alice)
    assert not acknowledge(alert=alert, user=alice)
    log_steps(2, 2)

    assert found(run) == [(1, "acknowledged", None)]
    log_steps(0)
    alert.refresh_from_db()
    assert (alert.state, alert.acknowledged_by) == ("resolved", alice)


def test_a_step_without_alerts_makes_no_alert_query(run, log_steps):
    for n in range(20):
        make_rule(run.team, name=f"rule {n}")
    log_steps(0)

    with CaptureQueriesContext(connection) as queries:
        log_steps(0)

    assert not [q for q in queries.captured_queries if "alerts_" in q["sql"]]


def test_a_restart_reads_the_steps_of_a_young_run_once_for_all_rules(run, log_steps):
    for n in range(8):
        make_rule(run.team, name=f"rule {n}", metric=f"metric/{n}")
    log_steps(2, metric="metric/1")
    firing._cached.clear()

    with CaptureQueriesContext(connection) as queries:
        log_steps(2, metric="metric/0")

    read = [q for q in queries.captured_queries if 'FROM "runs_step"' in q["sql"]]
    assert len(read) == 1
    assert found(run) == [(1, "firing", None), (2, "firing", None)]


def test_every_team_has_the_built_in_rules(team):
    rules = list_rules(team.pk)

    assert [rule.built_in for rule in rules][:2] == ["not_finite", "kl"]
    assert len(rules) == len(list_rules(team.pk)) == 23


COURSES = st.lists(
    st.none() | st.sampled_from([0.0, 0.5, 1.0, 1.0, 3.0, 20.0]),
    min_size=15,
    max_size=25,
)
KINDS = [k for k in Kind if k not in (Kind.OVERFITS, Kind.WARNED)]


@settings(
    max_examples=3,  # a quarter of a second of SQL each
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(course=COURSES, restarts=st.sets(st.integers(0, 25)), data=st.data())
def test_restarts_of_the_worker_change_nothing(launch, course, restarts, data) -> None:
    Rule.objects.all().delete()
    for kind in KINDS:
        fields = {"threshold": data.draw(st.sampled_from([0.4, 1.0, 2.0, 40.0]))}
        steps = {"for_steps": data.draw(st.integers(1, 4)), "back": 3}
        make_rule(launch.team, name=kind.value, kind=kind.value, **fields, **steps)

    def run_through(restarts: set[int]) -> list[Any]:
        firing._cached.clear()
        run = launch()
        claim = claim_run(run.id, "w")
        assert claim is not None
        log_steps = LogSteps(claim)
        for place, value in enumerate(course):
            if place in restarts:
                firing._cached.clear()
            log_steps(value)
        alerts = Alert.objects.filter(run=run).order_by("id")
        names = ("rule__name", "step", "state", "ended_step", "bound", "readings")
        return sorted(alerts.values_list(*names), key=repr)

    assert run_through(restarts) == run_through(set())


def test_a_title_is_of_a_warning_that_no_rule_watches_for():
    assert not TITLES.keys() & BY_CODE.keys()
