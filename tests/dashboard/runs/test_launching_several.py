"""Several runs from one form: a grid or a list of values."""

from typing import Any

import pytest
from django.test import Client

from dashboard.accounts.models import AuditEntry, Team
from dashboard.project.errors import UserError
from dashboard.runs.config.fields import all_fields
from dashboard.runs.launch import launching
from dashboard.runs.launch.launching import Launch
from dashboard.runs.launch.sweep import Row, SweepPlan
from dashboard.runs.models import Run, Sweep
from tests.dashboard.runs.launching import make_dataset, make_recipe, make_run
from tests.dashboard.runs.test_clone import _fields

RATES = {"sweep-1-path": "optim.learning_rate", "sweep-1-values": "1e-6, 3e-6"}
SEEDS = {"sweep-2-path": "seed", "sweep-2-values": "0..2"}


@pytest.fixture
def filled(alice_client, team) -> dict[str, Any]:
    make_dataset(team)
    make_recipe(team)
    fields = _fields(alice_client.get(f"/{team.slug}/runs/new").text)
    chosen = {"model_other": "org/model", "model": "", "name": "brave-otter"}
    return fields | chosen


def _plan(client: Client, team: Team, fields: dict[str, Any]) -> SweepPlan:
    planned: SweepPlan = client.post(f"/{team.slug}/runs/new/plan", fields).context[
        "sweep"
    ]
    return planned


def test_a_grid_is_launched_as_a_sweep(alice_client, team, filled):
    fields = filled | RATES | SEEDS

    planned = _plan(alice_client, team, fields)
    answer = alice_client.post(f"/{team.slug}/runs/new", fields)

    assert len(planned.runs) == 6
    group = Sweep.objects.get()
    assert answer.headers["Location"] == f"/{team.slug}/runs/?sweep={group.pk}"
    runs = list(group.runs.order_by("pk"))
    assert [run.name for run in runs] == [f"brave-otter-{n}" for n in range(1, 7)]
    assert [(r.config["optim"]["learning_rate"], r.config["seed"]) for r in runs] == [
        (rate, seed) for rate in (1e-6, 3e-6) for seed in (0, 1, 2)
    ]
    entry = AuditEntry.objects.get(verb="sweep.launched")
    assert entry.detail == {"name": "brave-otter", "num_runs": 6}


def test_too_many_values_are_refused_early():
    for text in ("0..49," * 100_000, "1," * 1_000_000):
        with pytest.raises(UserError) as refused:
            _ = Row(path="seed", text=text).values

        assert refused.value.code == "sweeps.too_many_runs"


def test_a_setting_is_chosen_by_its_title(alice_client, team, filled):
    named = RATES | {"sweep-1-path": "learning rate"}

    answer = alice_client.post(f"/{team.slug}/runs/new/plan", filled | named)

    assert answer.context["sweep"].used[0].path == "optim.learning_rate"
    titles = list(answer.context["sweep_settings"])
    assert titles == sorted(titles)
    assert len(titles) == len(all_fields())  # none is named twice


def test_pairs_take_the_first_values_together(alice_client, team, filled):
    pairs = RATES | SEEDS | {"sweep-2-values": "4, 5", "sweep_mode": "pairs"}

    alice_client.post(f"/{team.slug}/runs/new", filled | pairs)

    assert [
        (run.config["optim"]["learning_rate"], run.config["seed"])
        for run in Run.objects.order_by("pk")
    ] == [(1e-6, 4), (3e-6, 5)]


def test_an_invalid_sweep_shows_its_problem_and_launches_nothing(
    alice_client, team, filled
):
    switch = {"sweep-1-path": "loss.mask_truncated", "sweep-1-values": "on, yes"}
    for changes, code in (
        ({"sweep-1-values": "1e-6"}, "too_few_values"),
        ({"sweep-1-values": "1e-6, 0.000001"}, "duplicate_value"),
        ({"sweep-1-path": ""}, "no_setting"),
        ({"sweep-1-path": "nope"}, "no_setting"),
        ({"sweep-1-values": "1e-6, fast"}, "bad_run"),
        ({"sweep-2-values": "0..50"}, "too_many_runs"),
        ({"sweep-2-values": "0..49"}, "too_many_runs"),
        ({"sweep_mode": "pairs"}, "unequal_values"),
        ({"sweep-1-path": "seed", "sweep-1-values": "1,2"}, "duplicate_setting"),
        (switch, "not_a_switch"),
    ):
        fields = filled | RATES | SEEDS | changes

        planned = _plan(alice_client, team, fields)

        assert planned.problem_code == f"sweeps.{code}", changes
    answer = alice_client.post(f"/{team.slug}/runs/new", fields)
    assert answer.status_code == 422
    assert answer.context["form"].problems.general == [planned.problem]
    assert not Run.objects.exists()


def test_all_are_launched_or_none(alice_client, team, filled, monkeypatch):
    whole, count = launching.launch_run, iter(range(9))

    def fail_second(launch: Launch, **options: Any) -> Run:
        if next(count) == 1:
            raise ValueError("in the trash")
        return whole(launch, **options)

    monkeypatch.setattr(launching, "launch_run", fail_second)

    answer = alice_client.post(f"/{team.slug}/runs/new", filled | RATES)

    assert answer.status_code == 422
    assert answer.context["form"].problems.general == ["in the trash"]
    assert not Run.objects.exists()
    assert not Sweep.objects.exists()


def test_the_list_shows_a_sweep_and_links_to_its_comparison(alice_client, team, filled):
    alice_client.post(f"/{team.slug}/runs/new", filled | RATES)
    dataset, recipe = make_dataset(team, "other"), make_recipe(team, "other")
    make_run(team, "lonely", dataset=dataset, recipe=recipe)
    group = Sweep.objects.get()

    page = alice_client.get(f"/{team.slug}/runs/?sweep={group.pk}").text

    assert "brave-otter-2" in page
    assert "lonely" not in page
    address = f"/{team.slug}/compare?sweep={group.pk}"
    assert address in page
    compared = alice_client.get(address).text
    assert all(run.name in compared for run in group.runs.all())


def test_ranges_are_whole_numbers_only():
    assert Row(path="seed", text="0..2, 7").values == ["0", "1", "2", "7"]
    assert Row(path="optim.learning_rate", text="0..2").values == ["0..2"]
