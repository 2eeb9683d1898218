"""Costs of runs and of a team on pages and by the API, and the team's prices."""

import csv
import io

import pytest
from django.urls import reverse
from django.utils import timezone

from dashboard.accounts.models import AuditEntry
from dashboard.costs.models import Price, add_judge_use
from dashboard.runs.checkpoints.files import CheckpointStore
from dashboard.runs.models import Run
from dashboard.supervision.models import SystemSample
from dashboard.supervision.system_metrics import METRICS
from tests.dashboard.api.asking import Program, make_token
from tests.dashboard.completions.factories import make_checkpoint
from tests.dashboard.costs.factories import (
    H100,
    NOON,
    add_attempt,
    add_steps,
    make_costly_run,
    set_price,
)
from tests.dashboard.noted_sql import noting_sql

pytestmark = pytest.mark.django_db
REWARD = {"reward/mean": 0.5}


@pytest.fixture
def run(team, alice):
    set_price(team, 2.5)
    run = make_costly_run(team, owner=alice)
    add_attempt(run, 0, 2)
    judged = {
        "judge/quality/calls": 2.0,
        "judge/quality/from_file": 1.0,
        "judge/quality/input_tokens": 1e6,
    }
    add_steps(run, {"hour": 1} | REWARD | judged, {"hour": 2, "reward/mean": 0.2})
    return run


@pytest.fixture
def program(alice):
    return Program(make_token(alice, name="costs"))


def page(name, *args):
    return reverse(name, args=["alpha", *args])


def test_a_run_has_a_page_of_its_attempts_and_judges(
    team, run, alice_client, monkeypatch
):
    set_price(team, 0.4, unit="input_tokens", name="gpt-large")
    checkpoint = make_checkpoint(run, step=1)
    monkeypatch.setattr(CheckpointStore, "names", lambda store: {checkpoint.name})
    for use in (3.0, 40.0):
        SystemSample.objects.create(
            run=run,
            attempt=1,
            time=NOON,
            step=1,
            values=[None] * len(METRICS) + [use, 1],
        )

    response = alice_client.get(page("run_cost", run.pk))

    cost = response.context["cost"]
    assert cost.bill.costs == {"EUR": pytest.approx(10.4)}
    assert [(line.kind, line.label, line.item) for line in cost.lines] == [
        ("attempt", "1", H100),
        ("judge", "quality", "gpt-large"),
    ]
    assert cost.per_step == {"EUR": pytest.approx(5.2)}
    assert cost.best_step == 1
    assert cost.until_best == {"EUR": pytest.approx(5.4)}
    assert cost.after_best == {"EUR": pytest.approx(5.0)}
    assert cost.saved == {"EUR": pytest.approx(0.2)}
    assert response.context["idle_hours"] == pytest.approx(2.0)  # half of 4


def test_a_forks_cost_is_spread_over_its_own_steps(team, run, alice_client):
    fork = {"fork_step": 8, "fork_sha256": "a" * 64, "fork_checkpoint": "step-8"}
    Run.objects.filter(pk=run.pk).update(last_step=10, num_steps=12, **fork)

    cost = alice_client.get(page("run_cost", run.pk)).context["cost"]

    assert cost.per_step == {"EUR": pytest.approx(10 / 2)}


def test_a_run_without_prices_shows_its_hours(team, run, alice_client):
    Price.objects.all().delete()

    response = alice_client.get(page("run_cost", run.pk))

    assert response.context["cost"].bill.unpriced == {
        "gpu_hour": 4.0,
        "input_tokens": 1e6,
    }
    assert "price not set" in response.text


@pytest.mark.parametrize(
    ("engine", "metric", "servers"),
    [
        ("auto", "server/reference/unknown/hours", ["reference"]),
        ("vllm_server", f"server/rollout/{H100}/gpu_hours", []),
        ("vllm_server", "server/rollout/unknown/gpu_hours", []),  # by the settings
        ("vllm_server", "loss", ["rollout"]),  # an older release told nothing
    ],
)
def test_a_run_names_servers_whose_gpus_are_unknown(
    engine, metric, servers, team, alice_client
):
    run = make_costly_run(team)
    run.config["rollout"]["engine"] = engine
    add_attempt(run, 0, 2)
    add_steps(run, {"hour": 1, metric: 1.0})

    response = alice_client.get(page("run_cost", run.pk))

    assert response.context["unknown_servers"] == servers
    assert response.text.count("data-unknown-server") == len(servers)


def test_a_run_that_waits_has_no_cost_yet(team, alice_client):
    waiting = make_costly_run(team, name="waits")

    assert alice_client.get(page("run_cost", waiting.pk)).context["rows"] == []


@pytest.mark.parametrize("by", ["month", "person", "model"])
def test_a_teams_costs_are_listed_and_exported(by, team, run, alice, alice_client):
    add_judge_use(
        {"gpt-large": {"calls": 3, "output_tokens": 10}},
        team=team,
        user=alice,
        source="trial",
    )
    other = make_costly_run(team, name="april")
    add_attempt(other, 31 * 24 - 13, 31 * 24 - 11)  # from 23:00 to 01:00

    response = alice_client.get(page("team_costs"), {"by": by})
    file = alice_client.get(page("team_costs_file"), {"by": by})

    rows = {row.key: row for row in response.context["rows"]}
    hours = {key: round(row.bill.gpu_hours, 3) for key, row in rows.items()}
    today = f"{timezone.now():%Y-%m}"
    expected = {
        "month": {"2026-03": 6, "2026-04": 2, today: 0},
        "person": {"alice": 4, "former member": 4},
        "model": {"tiny": 8, "gpt-large": 0},
    }
    assert hours == {
        (str(alice) if key == "alice" else key): value
        for key, value in expected[by].items()
    }
    table = list(csv.DictReader(io.StringIO(b"".join(file).decode("utf-8-sig"))))
    assert [line[by] for line in table] == list(rows)
    assert sum(float(line["cost_EUR"] or 0) for line in table) == pytest.approx(20)
    assert {line["input_tokens"] for line in table} == {"", "1000000.0"}


def test_a_formula_in_a_models_name_is_not_exported_as_one(team, run, alice_client):
    Run.objects.filter(pk=run.pk).update(model_label="=HYPERLINK(1)")

    file = alice_client.get(page("team_costs_file"), {"by": "model"})

    (line,) = csv.DictReader(io.StringIO(b"".join(file).decode("utf-8-sig")))
    assert line["model"] == "'=HYPERLINK(1)"


def test_a_team_without_runs_has_no_costs(team, alice_client):
    assert alice_client.get(page("team_costs")).context["rows"] == []


def test_the_api_tells_what_the_teams_page_shows(run, program):
    team = program.get("/costs?by=person").json()

    (row,) = team["items"]
    assert row["costs"] == {"EUR": 10.0}
    assert row["unpriced"] == {"input_tokens": 1e6}
    assert (team["by"], row["num_runs"], row["gpu_hours"]) == ("person", 1, 4.0)
    assert program.get("/costs?by=moon").status_code == 422


def test_an_admin_adds_a_price_and_keeps_those_before(team, alice, alice_client):
    set_price(team, 2.5)
    fields = {
        "unit": "gpu_hour",
        "name": H100,
        "amount": "3",
        "currency": "EUR",
        "valid_from": "2026-03-02",
    }

    response = alice_client.post(page("team_prices"), fields)

    assert response.status_code == 302
    assert list(team.prices.order_by("pk").values_list("amount", flat=True)) == [2.5, 3]
    entry = AuditEntry.objects.get(verb="price.added")
    assert (entry.actor, entry.detail["amount"]) == (alice, 3.0)
    shown = alice_client.get(page("team_prices"))
    assert shown.context["form"]["currency"].value() == "EUR"


@pytest.mark.parametrize(
    "change",
    [
        {"amount": "-1"},
        {"currency": "euro"},
        {"currency": ""},
        {"unit": "hour"},
        {"valid_from": "soon"},
        {"name": ""},
        {"amount": "nan"},
        {"amount": "1e300"},
    ],
)
def test_a_bad_price_is_refused(change, team, alice_client):
    fields = {
        "unit": "gpu_hour",
        "name": H100,
        "amount": "3",
        "currency": "EUR",
        "valid_from": "2026-03-02",
    }

    assert alice_client.post(page("team_prices"), fields | change).status_code == 422
    assert not Price.objects.exists()


def test_names_and_currencies_are_written_as_runs_report_them(team, run, alice_client):
    Price.objects.all().delete()
    fields = {"unit": "gpu_hour", "amount": "3", "valid_from": "2026-03-02"}

    alice_client.post(page("team_prices"), fields | {"name": "CPU", "currency": "eur"})

    price = Price.objects.get()
    assert (price.name, price.currency) == ("cpu", "EUR")
    assert alice_client.get(page("team_prices")).context["items"] == [H100, "gpt-large"]


def test_the_run_list_shows_and_sorts_costs(team, run, alice_client):
    cheap = make_costly_run(team, name="cheap")
    add_attempt(cheap, 0, 1)

    def names(sort):
        query = {"cols": "state,cost", "sort": sort}
        response = alice_client.get(page("runs"), query)
        return [(row.run.name, row.cells[1].text) for row in response.context["rows"]]

    dear = (run.name, "≥ 10.00 EUR")
    assert names("-cost") == [dear, ("cheap", "5.00 EUR")]
    assert names("cost") == [("cheap", "5.00 EUR"), dear]


def test_the_run_list_reads_costs_of_all_rows_at_once(team, run, alice_client):
    at_once = []
    for _ in range(2):
        with noting_sql() as noted:
            alice_client.get(page("runs"), {"cols": "state,cost"})
        at_once.append(len(noted))
        for n in range(4):
            add_attempt(make_costly_run(team, name=f"more-{n}"), 0, 1)

    assert at_once[0] == at_once[1]


def test_the_api_lists_runs_by_cost(team, run, program):
    add_attempt(make_costly_run(team, name="cheap"), 0, 1)

    listed = program.get("/runs?sort=-cost").json()

    assert [each["name"] for each in listed["items"]] == [run.name, "cheap"]


@pytest.mark.parametrize(
    ("axis", "places"), [("gpu_hours", [2.0, 4.0]), ("cost", [5.4, 10.4])]
)
def test_curves_lie_along_what_was_used(axis, places, team, run, program):
    set_price(team, 0.4, unit="input_tokens", name="gpt-large")

    curves = program.get(f"/compare/curves?runs={run.pk}&x={axis}").json()

    assert _x_of(curves) == [pytest.approx(place) for place in places]


def _x_of(curves):
    return curves["lines"][0]["x"]


def test_a_run_whose_cost_is_not_known_is_not_placed(team, run, alice_client):
    query = {"runs": run.pk, "metric": "reward/mean", "x": "cost"}

    figure = alice_client.get(page("compare_figure"), query).json()

    assert not any(line["x"] for line in figure["data"])


def test_an_axis_of_costs_has_a_currency(team, run, alice_client):
    found = alice_client.get(page("compare"), {"runs": run.pk, "x": "cost"})

    assert (found.context["axis"], found.context["currency"]) == ("cost", "EUR")


def test_a_former_members_runs_still_cost(team, run, alice_client):
    Run.objects.filter(pk=run.pk).update(owner=None)

    rows = alice_client.get(page("team_costs"), {"by": "person"}).context["rows"]

    assert [row.key for row in rows] == ["former member"]
