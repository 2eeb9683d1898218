"""Attempts, servers and judges times prices, by hand."""

from datetime import date

import pytest

from dashboard.costs import ledger
from dashboard.costs.ledger import read_bills, read_device, read_portions, read_prices
from dashboard.runs.models import Run
from tests.dashboard.costs.factories import (
    H100,
    add_attempt,
    add_evaluation,
    add_steps,
    at,
    make_costly_run,
    set_price,
)

pytestmark = pytest.mark.django_db
TOKENS = {
    "judge/quality/calls": 1_000,
    "judge/quality/input_tokens": 1.2e6,
    "judge/quality/cached_tokens": 0.3e6,
    "judge/quality/output_tokens": 0.08e6,
}


@pytest.fixture
def run(team):
    return make_costly_run(team)


@pytest.fixture
def prices(team):
    set_price(team, 2.5)
    for unit, amount in (("input", 0.4), ("cached", 0.1), ("output", 1.6)):
        set_price(team, amount, unit=f"{unit}_tokens", name="gpt-large")


def bill_of(run):
    return read_bills([Run.objects.get(pk=run.pk)])[run.pk]


def test_a_run_costs_its_attempts_servers_and_tokens(run, prices):
    add_attempt(run, 0, 1.5)
    add_attempt(run, 1.5, 2, number=2)
    hours = {f"server/rollout/{H100}/gpu_hours": 4.0}
    add_steps(run, {"hour": 1} | TOKENS | hours)

    bill = bill_of(run)

    assert bill.costs == {"EUR": pytest.approx(10 + 10 + 0.638)}
    assert bill.gpu_hours == pytest.approx(2 * 1.5 + 2 * 0.5 + 4)
    assert bill.text == "20.64 EUR"


def test_hours_of_a_server_with_unknown_gpus_have_no_price(run, prices):
    add_attempt(run, 0, 1.5)
    add_steps(run, {"hour": 1, "server/reference/unknown/hours": 1.5})

    bill = bill_of(run)

    assert bill.costs == {"EUR": pytest.approx(7.5)}
    assert bill.unpriced == {"gpu_hour": 1.5}
    assert (bill.gpu_hours, bill.worker_hours) == (pytest.approx(3), 1.5)
    assert bill.text == "≥ 7.50 EUR"


def test_a_price_change_at_midnight_splits_an_attempt(team, run, prices):
    set_price(team, 5.0, day=date(2026, 3, 2))
    add_attempt(run, 11, 14)  # an hour of the first of March, two of the second

    assert bill_of(run).costs == {"EUR": pytest.approx(2 * 2.5 + 4 * 5.0)}


def test_tokens_cost_the_price_of_their_day(team, run, prices):
    set_price(team, 4.0, unit="input_tokens", name="gpt-large", day=date(2026, 3, 2))
    tokens = {"judge/quality/input_tokens": 1e6}
    add_steps(run, {"hour": 11} | tokens, {"hour": 13} | tokens)
    Run.objects.filter(pk=run.pk).update(finished_at=at(14))

    assert bill_of(run).costs == {"EUR": pytest.approx(0.4 + 4.0)}


def test_a_corrected_price_corrects_what_was_used(team, run, prices):
    add_attempt(run, 0, 1)
    set_price(team, 3.0)  # of the same day, later

    assert bill_of(run).costs == {"EUR": pytest.approx(6.0)}


def test_a_queue_costs_nothing_and_a_held_worker_does(run, prices, monkeypatch):
    monkeypatch.setattr(ledger, "_now", lambda: at(6).timestamp())
    add_attempt(run, 0, 1)  # preempted; queued for four hours
    add_attempt(run, 5, None, number=2)  # pausing with the worker held

    assert bill_of(run).gpu_hours == pytest.approx(2 + 2)


def test_steps_that_a_resume_repeated_were_paid_for(run, prices):
    Run.objects.filter(pk=run.pk).update(attempt=2)
    run.refresh_from_db()
    tokens = {"judge/quality/input_tokens": 1e6}
    add_steps(run, {"hour": 0} | tokens, {"hour": 1} | tokens, superseded=1)

    assert bill_of(run).costs == {"EUR": pytest.approx(0.8)}


def test_evaluations_cost_tokens_too(run, prices):
    add_evaluation(run, 1, **{"mean": 0.5, "judge/quality/output_tokens": 1e6})

    assert bill_of(run).costs == {"EUR": pytest.approx(1.6)}


@pytest.mark.parametrize(
    "name", ["a/judge/b/calls", "a/b/c/judge/d/calls", "judge/quality/score"]
)
def test_another_trainers_metrics_of_such_names_cost_nothing(name, run, prices):
    add_steps(run, {"hour": 1, name: 7.0})

    bill = bill_of(run)

    assert (bill.costs, bill.amounts, bill.gpu_hours) == ({}, {}, 0)


def test_numbers_that_no_judge_takes_are_left_out(run, prices):
    name = "judge/quality/input_tokens"
    add_steps(run, {"hour": 1, name: 1.7e308}, {"hour": 2, name: 1.7e308})
    add_evaluation(run, 1, **{name: 1e6})

    assert bill_of(run).costs == {"EUR": pytest.approx(0.4)}


def test_a_run_of_an_older_release_costs_its_attempts(team, prices):
    run = make_costly_run(team, config={"reward": None})
    add_attempt(run, 0, 1)

    assert bill_of(run).costs == {"EUR": pytest.approx(5.0)}


def test_answers_without_usage_are_unknown_and_reused_ones_cost_nothing(run, prices):
    counts = {"calls": 3, "calls_without_usage": 3, "from_file": 5}
    tokens = dict.fromkeys(("input_tokens", "output_tokens"))
    step = {f"judge/quality/{name}": n for name, n in (counts | tokens).items()}
    add_steps(run, {"hour": 1} | step)

    bill = bill_of(run)

    assert bill.costs == {}
    assert bill.amounts == counts


def test_currencies_are_never_added(team, run, prices):
    set_price(team, 3.0, currency="USD", day=date(2026, 3, 2))
    add_attempt(run, 11, 13)

    bill = bill_of(run)

    assert bill.costs == {"EUR": pytest.approx(5.0), "USD": pytest.approx(6.0)}
    assert bill.text == "5.00 EUR + 6.00 USD"


def test_hours_without_a_price_are_shown(team, run):
    add_attempt(run, 0, 1.5)
    set_price(team, 2.5, name="NVIDIA L4")

    bill = bill_of(run)

    assert (bill.costs, bill.unpriced) == ({}, {"gpu_hour": 3.0})
    assert bill.text == "3 GPU-hours, price not set"


def test_a_price_may_end(team, run, prices):
    set_price(team, None, day=date(2026, 3, 2))
    add_attempt(run, 11, 13)

    bill = bill_of(run)

    assert bill.costs == {"EUR": pytest.approx(5.0)}
    assert bill.unpriced == {"gpu_hour": pytest.approx(2.0)}
    assert bill.text == "≥ 5.00 EUR"


def test_hours_of_a_cpu_have_no_price_unless_it_is_set(team, run, prices):
    add_attempt(run, 0, 2, device="cpu (4 threads)")
    before = bill_of(run)
    set_price(team, 0.1, name="cpu")

    assert (before.costs, before.unpriced) == ({}, {})
    assert (before.gpu_hours, before.worker_hours) == (0, 2)
    assert before.text == "2 worker-hours"
    assert bill_of(run).costs == {"EUR": pytest.approx(0.2)}


def test_an_attempt_without_a_device_has_that_of_the_one_before(run, prices):
    add_attempt(run, 0, 1)
    add_attempt(run, 1, 2, number=2, device="")

    assert bill_of(run).gpu_hours == pytest.approx(4)


def test_other_teams_prices_do_not_count(run, charlie):
    set_price(charlie.memberships.get().team, 2.5)
    add_attempt(run, 0, 1)

    assert bill_of(run).costs == {}


@pytest.mark.parametrize(
    ("device", "config", "item", "number"),
    [
        ("NVIDIA L4", {}, "NVIDIA L4", 1),
        ("8 × NVIDIA L4", {"distributed": {"num_processes": 8}}, "NVIDIA L4", 8),
        (
            "NVIDIA L4",
            {"rollout": {"engine": "vllm", "tensor_parallel_size": 4}},
            "NVIDIA L4",
            4,
        ),
        ("16 × NVIDIA L4", {"distributed": {"where": "ray"}}, "NVIDIA L4", 16),
        ("4 × cpu (1 threads)", {"distributed": {"num_nodes": 2}}, "cpu", 2),
        ("", {}, ledger.UNKNOWN, 1),
    ],
)
def test_hardware_and_its_number_follow_from_what_the_trainer_tells(
    device, config, item, number
):
    config = {"rollout": {}, "distributed": {}} | config

    assert read_device(device, config) == (item, number)


def test_costs_of_many_runs_take_as_many_queries_as_of_one(
    team, prices, django_assert_num_queries
):
    runs = [make_costly_run(team, name=f"run-{n}") for n in range(3)]
    for run in runs:
        add_attempt(run, 0, 1)
        add_steps(run, {"hour": 1} | TOKENS)
    listed = list(Run.objects.filter(team=team))

    with django_assert_num_queries(4):
        bills = read_bills(listed)

    assert {round(bill.costs["EUR"], 3) for bill in bills.values()} == {5.638}


def test_an_ended_run_is_read_once_until_it_is_extended(
    team, run, prices, django_assert_num_queries
):
    add_attempt(run, 0, 1)
    ended = Run.objects.get(pk=run.pk)
    read_bills([ended])

    with django_assert_num_queries(1):  # of prices
        again = read_bills([ended])[run.pk]
    set_price(team, 5.0)
    dearer = bill_of(run)
    add_attempt(run, 1, 2, number=2)
    Run.objects.filter(pk=run.pk).update(attempt=2)

    assert again.costs == {"EUR": pytest.approx(5)}
    assert dearer.costs == {"EUR": pytest.approx(10)}
    assert bill_of(run).costs == {"EUR": pytest.approx(20)}


def test_a_run_at_work_is_read_each_time(run, prices):
    add_attempt(run, 0, 1)
    Run.objects.filter(pk=run.pk).update(state="paused", finished_at=None)
    before = bill_of(run)
    add_attempt(run, 1, 2, number=2)

    assert before.gpu_hours == pytest.approx(2)
    assert bill_of(run).gpu_hours == pytest.approx(4)


def test_portions_by_step_and_by_day_cost_the_same(team, run, prices):
    add_attempt(run, 0, 2)
    add_steps(run, {"hour": 0.5} | TOKENS, {"hour": 1} | TOKENS)
    run.refresh_from_db()

    sums = []
    for by in ("day", "step"):
        portions = read_portions([run], read_prices(team), by=by)[run.pk]
        sums.append(sum(portion.cost or 0 for portion in portions))

    assert sums == [pytest.approx(10 + 2 * 0.638)] * 2


def test_runs_sort_by_cost_then_by_hours_and_free_ones_come_last(team, prices):
    names = {"free": 0.0, "cheap": 1.0, "dear": 3.0}
    for name, hours in names.items():
        add_attempt(make_costly_run(team, name=name), 0, hours)
    add_attempt(make_costly_run(team, name="unpriced"), 0, 1, device="NVIDIA L4")

    runs = Run.objects.filter(team=team)
    up = ledger.sort_by_cost(runs, descending=False)
    down = ledger.sort_by_cost(runs, descending=True)

    assert [run.name for run in down] == ["dear", "cheap", "unpriced", "free"]
    assert [run.name for run in up] == ["unpriced", "cheap", "dear", "free"]
