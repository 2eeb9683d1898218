"""The numbers of /metrics that supervisors add to, by supervisors that do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.db import OperationalError

from dashboard.runs.models import Run, RunState
from dashboard.training import supervise as supervise_module
from dashboard.training.lease import Claim
from tests.dashboard.training.test_supervising_a_run import FAST, live
from tests.dashboard.upkeep.scraping import told

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("nothing_is_counted")]


def test_what_is_stored_is_counted_with_its_lag(run: Run) -> None:
    live(run, "finish")

    now = told()
    assert now["cohort_ingested_events_total"] == run.events.count() > 3
    groups = [len(group.completions) for group in run.groups.all()]
    assert now["cohort_ingested_completions_total"] == sum(groups)
    assert now["cohort_ingest_lag_seconds_count"] >= 1
    assert now["cohort_ingest_lag_seconds_sum"] > 0


@pytest.mark.django_db(transaction=True)  # an outage closes the connection
def test_each_renewal_is_counted_by_its_outcome(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew, num_renewals = supervise_module.renew, 0

    def renew_for_a_while(claim: Claim) -> RunState:
        nonlocal num_renewals
        num_renewals += 1
        if num_renewals == 3:
            raise OperationalError("the database is away")
        if num_renewals == 5:  # another took the run
            Run.objects.filter(pk=run.pk).update(epoch=2)
        return renew(claim)

    monkeypatch.setattr(supervise_module, "renew", renew_for_a_while)

    live(run, "train_until_told", timing=replace(FAST, renew_seconds=0.05))

    now = told()
    assert num_renewals == 5
    assert now['cohort_lease_renewals_total{outcome="renewed"}'] == 3
    assert now['cohort_lease_renewals_total{outcome="failed"}'] >= 1
    assert now['cohort_lease_renewals_total{outcome="fenced"}'] == 1
