"""An alert when a run passes its budget, and what a launch will cost."""

from datetime import timedelta

import pytest
from django.db.models.functions import Now
from django.utils import timezone

from dashboard.alerts.firing import OVER_BUDGET, alert_of_budgets
from dashboard.alerts.models import Alert
from dashboard.alerts.queries import list_rules
from dashboard.costs.reports import forecast
from dashboard.runs.models import Run, RunState
from tests.dashboard.completions.factories import make_config
from tests.dashboard.costs.factories import (
    H100,
    add_attempt,
    make_costly_run,
    set_price,
)
from trainer.config import RunConfig

pytestmark = pytest.mark.django_db


def start(run, *, budget, hours=2.0):
    """Let it train since some hours, on two GPUs."""
    attempt = add_attempt(run, 0, None)
    attempt.claimed_at = timezone.now() - timedelta(hours=hours)
    attempt.save()
    config = run.config | {"logging": {"budget_cost": budget}}
    Run.objects.filter(pk=run.pk).update(
        state=RunState.RUNNING, finished_at=None, lease_until=Now(), config=config
    )


def alerts():
    return list(Alert.objects.filter(code=OVER_BUDGET).values_list("run", "bound"))


def test_a_run_over_its_budget_raises_one_alert_and_goes_on(team):
    list_rules(team.pk)
    set_price(team, 2.5)
    over, under, without = (make_costly_run(team, name=n) for n in "abc")
    start(over, budget=9.9)
    start(under, budget=10.5)
    start(without, budget=None)

    alert_of_budgets()
    alert_of_budgets()

    assert alerts() == [(over.pk, 9.9)]
    assert Run.objects.get(pk=over.pk).state == RunState.RUNNING


@pytest.mark.parametrize("price", [None, 0.0])
def test_a_run_without_a_price_passes_no_budget(price, team):
    list_rules(team.pk)
    set_price(team, price)
    start(make_costly_run(team), budget=0.1)

    alert_of_budgets()

    assert alerts() == []


def test_a_forecast_prices_the_gpus_of_the_run(team):
    set_price(team, 2.5)
    config = RunConfig.model_validate(
        make_config(rollout={"engine": "vllm", "tensor_parallel_size": 4})
    )

    bill = forecast(team, config, device=H100, seconds=1_800)

    assert bill.costs == {"EUR": pytest.approx(4 * 0.5 * 2.5)}
