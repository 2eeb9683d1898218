"""What a curriculum gained, and what one would have: numbers, page and export."""

import json

import numpy as np
import pytest

from dashboard.analysis.curriculum import (
    compare_with_uniform,
    inclusion_chances,
    preview_of,
    ratio_interval,
    read_lab,
)
from dashboard.completions.prompt_visits import VISIT
from dashboard.completions.prompts import pass_rate_lines
from dashboard.runs.charts.series import Series
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import (
    make_config,
    make_group,
    make_run,
    make_steps,
    store_dataset,
)
from tests.dashboard.completions.prompts import MAPPING, ROWS, visit
from trainer.config import CurriculumConfig
from trainer.curriculum import Beliefs, draw, draw_keys
from trainer.seeding import derive, permutation

POOLS = {"kind": "pools", "drop_after": 2, "recheck_every": 5}
NUM, PER_STEP = 200, 20


@pytest.fixture
def version(team):
    return store_dataset(team, ROWS, mapping=MAPPING)


def curriculum_page(client, run):
    page = client.get(f"/alpha/runs/{run.pk}/prompts/curriculum/")
    assert page.status_code == 200
    return page


def record(step, places, right):
    groups = np.zeros(len(places), VISIT)
    groups["prompt"], groups["step"] = places, step
    groups["num_completions"] = groups["num_scored"] = 8
    groups["num_right"] = right
    groups["std"] = (right > 0) & (right < 8)
    return groups


def test_a_ratio_has_the_interval_of_its_steps():
    same = ratio_interval(np.array([0.4, 0.8, 1.2]), np.array([2.0, 2.0, 2.0]))
    assert same.value[0] == pytest.approx(0.4)
    reach = 4.303 * 0.2 / 3**0.5  # t(0.975, 2)·s/√n of 0.2, 0.4, 0.6
    assert same.high[0] - 0.4 == pytest.approx(reach, rel=1e-3)
    fixed = ratio_interval(np.array([1.0, 2.0]), np.array([2.0, 4.0]))
    assert fixed.interval == (pytest.approx(0.5), pytest.approx(0.5))


def test_chances_follow_from_weights_and_the_number_that_is_drawn():
    """Of 200 prompts, by as many draws as give two decimals."""
    weights = np.repeat([1.0, 0.2, 0.05], 40)
    seeds = range(4_000)

    chances = np.mean(
        [inclusion_chances(weights, (1.0, 80), num=20, seed=seed) for seed in seeds],
        axis=0,
    )

    every = np.concatenate([weights, np.ones(80)])
    keys = np.stack([draw_keys(every, seed=9_000 + seed) for seed in seeds])
    drawn = (np.argsort(np.argsort(-keys)) < 20).mean(axis=0)[:120].reshape(3, 40)
    assert chances[::40] == pytest.approx(drawn.mean(axis=1), rel=0.08)
    assert inclusion_chances(weights, (1.0, 0), num=120, seed=0).tolist() == [1.0] * 120


def test_a_preview_tells_what_a_curriculum_then_draws():
    """Of prompts with fixed pass rates, half of them always right."""
    random = np.random.default_rng(3)
    rates = np.where(np.arange(NUM) % 2, 0.5, 1.0)
    config = CurriculumConfig(kind="pools")
    visits = []
    for step in range(1, 61):
        epoch, index = divmod(step - 1, NUM // PER_STEP)
        order = permutation(derive(0, epoch), NUM)[index * PER_STEP :][:PER_STEP]
        visits.append(record(step, order, random.binomial(8, rates[order])))
    visits = np.concatenate(visits)

    preview = preview_of(visits, "pools", num_rows=NUM)

    beliefs, shares = Beliefs.about(range(NUM)), []
    for step in range(1, 61):
        places = np.array(
            draw(
                beliefs,
                config,
                prompts_per_step=PER_STEP,
                group_size=8,
                seed=step,
                step=step,
            ).places[:PER_STEP]
        )
        right = random.binomial(8, rates[places])
        shares.append(((right > 0) & (right < 8)).mean())
        beliefs.add_visits(
            places,
            right=right * 1.0,
            scored=np.full(PER_STEP, 8),
            step=step,
            decay=0.5,
        )
    assert (preview.first_step, preview.would.num[0]) == (11, 50)
    assert preview.had == pytest.approx(0.5, abs=0.02)
    low, high = preview.would.interval
    assert low < np.mean(shares[20:]) < high
    assert low > 0.7
    assert high - low < 0.1


def test_a_run_without_second_visits_has_no_preview():
    visits = record(1, [0, 1], np.array([4, 8]))

    assert preview_of(visits, "pools", num_rows=9) is None
    assert preview_of(visits[:0], "pools", num_rows=9) is None


def test_an_estimate_of_uniform_order_stays_a_share():
    steps = np.array([1, 2])
    had = Series(steps=steps, values=np.array([0.9, 0.9]))

    shares = compare_with_uniform(had, Series(steps=steps, values=np.array([0.9, 1.2])))

    assert shares["uniform"].value[0] == 1
    assert shares["uniform"].interval == (0, 1)
    assert shares["difference"].value[0] == pytest.approx(-0.15)


def make_curriculum_run(team, version, *, uniform=(0.5, 0.45, 0.55)):
    """Prompt 0 is always right, 1 always wrong, 2 mixed."""
    run = make_run(team, dataset_version=version, config=make_config(curriculum=POOLS))
    for step in (1, 2, 3):
        visit(run, step, 2, 2)
        if step < 3:
            visit(run, step, 0, 4)
        if step != 2:
            visit(run, step, 1, 0)
    make_steps(
        run,
        {
            "group/frac_zero_std": [0.5, 0.25, 0.25],
            "curriculum/uniform_signal": list(uniform),
            "curriculum/num_out": [0.0, 0.0, 1.0],
            "curriculum/unseen": [1.0, 0.5, 0.0],
            "curriculum/hard": [0.0, 0.0, 0.25],
            "curriculum/normal": [0.0, 0.5, 0.5],
            "curriculum/easy": [0.0, 0.0, 0.25],
        },
    )
    return run


@pytest.mark.django_db
def test_the_page_compares_the_drawn_groups_with_uniform_order(
    alice_client, team, version
):
    run = make_curriculum_run(team, version)

    page = curriculum_page(alice_client, run)

    lab = page.context["lab"]
    values = {name: share.value[0] for name, share in lab.shares.items()}
    assert values == pytest.approx(
        {"drawn": 2 / 3, "uniform": 0.5, "difference": 1 / 6}
    )
    low, high = lab.shares["difference"].interval
    assert low < 0 < high
    pools = {trace["name"]: trace["y"] for trace in lab.figures["pools"]["data"]}
    assert pools["unseen"] == [1.0, 0.5, 0.0]
    assert pools["hard"] == [0.0, 0.0, 0.25]
    assert lab.figures["pools"]["layout"]["xaxis"]["dtick"] == 1  # each step once
    draws = lab.figures["draws"]["data"][0]["y"]
    assert (draws[0], draws[5], draws[10]) == (2, 3, 2)


@pytest.mark.django_db
def test_an_estimate_above_one_is_drawn_at_one(alice_client, team, version):
    run = make_curriculum_run(team, version, uniform=(0.5, 1.2, 0.5))

    lab = curriculum_page(alice_client, run).context["lab"]

    drawn = {trace["name"]: trace["y"] for trace in lab.figures["signal"]["data"]}
    assert drawn["uniform order"] == [0.5, 1.0, 0.5]


@pytest.mark.django_db
def test_the_page_lists_what_is_out_and_when_it_comes_back(alice_client, team, version):
    run = make_curriculum_run(team, version)

    rows = [each for each, _ in curriculum_page(alice_client, run).context["dropped"]]

    names = ("prompt", "due_step", "is_right", "is_due")
    out = [tuple(each[name] for name in names) for each in rows]
    assert out == [(0, 7, True, False), (1, 8, False, False)]


@pytest.mark.django_db
def test_a_run_in_uniform_order_has_a_preview_and_a_launch(alice_client, team, version):
    data = {"rows": "rows.jsonl", "num_eval_rows": 0}
    run = make_run(team, dataset_version=version, config=make_config(data=data))
    for step in range(1, 7):
        visit(run, step, 0, 4)
        visit(run, step, 1, 2)
    make_steps(run, {"reward/mean": [0.5] * 6})

    page = curriculum_page(alice_client, run)

    (pools, url), _ = page.context["previews"]
    assert (pools.had, pools.first_step, pools.would.num[0]) == (0.5, 2, 5)
    assert 0.5 < pools.would.value[0] < 1
    assert url in page.text.replace("&amp;", "&")
    form = alice_client.get(url).context["form"]
    assert form.texts["curriculum.kind"] == "pools"
    assert form.texts["curriculum.start_from"] == f"pass-rates-run-{run.pk}.jsonl"


@pytest.mark.django_db
def test_a_run_without_groups_has_neither(alice_client, team, version):
    run = make_run(team, dataset_version=version)

    assert curriculum_page(alice_client, run).context["lab"] is None


@pytest.mark.django_db
def test_an_imported_run_has_a_preview(team):
    config = {"reward": {"right_from": 1.0}}
    source = {"tools": ["TRL"]}
    run = make_run(team, config=config, source=source, dataset_version=None)
    assert run.is_imported
    for step in (1, 2, 3):
        visit(run, step, 5, 4)
        visit(run, step, 9, 2)
    Run.objects.filter(pk=run.pk).update(last_step=3)
    run.refresh_from_db()

    pools, _ = read_lab(run).previews

    assert (pools.had, pools.would.num[0]) == (0.5, 2)
    assert pools.would.value[0] == 0.5  # both prompts are drawn at each step


@pytest.mark.django_db
def test_pass_rates_are_of_the_last_groups(alice_client, team, version):
    run = make_curriculum_run(team, version)
    visit(run, 4, 2, 4)

    page = alice_client.get(f"/alpha/runs/{run.pk}/export/pass-rates.jsonl")

    lines = [json.loads(line) for line in page.getvalue().decode().splitlines()]
    assert lines == [
        {"row": 0, "num_right": 8, "num_scored": 8},
        {"row": 1, "num_right": 0, "num_scored": 8},
        {"row": 2, "num_right": 8, "num_scored": 12},
    ]


@pytest.mark.django_db
def test_graded_rewards_count_by_their_place_between_the_bounds(team, version):
    rules = [{"name": "tags", "kind": "tag_count", "weight": 2.0, "params": {}}]
    run = make_run(
        team, dataset_version=version, config=make_config(rules), rules=rules
    )
    make_group(run, step=1, prompt_index=3, rewards=(1.5, 1.5, 0.9, None))

    (line,) = pass_rate_lines(run)

    assert json.loads(line) == {"row": 3, "num_right": 1.95, "num_scored": 3}


@pytest.mark.django_db
def test_graded_rewards_below_the_highest_drop_no_prompt(team, version):
    """Rounded, 3 × 0.9 would be all of 3."""
    rules = [{"name": "tags", "kind": "tag_count", "params": {}}]
    config = make_config(rules, curriculum=POOLS | {"drop_after": 1})
    run = make_run(team, dataset_version=version, config=config, rules=rules)
    make_group(run, step=1, prompt_index=0, rewards=(0.9, 0.9, 0.9))
    make_group(run, step=1, prompt_index=1, rewards=(1.0, 1.0, 1.0))
    Run.objects.filter(pk=run.pk).update(last_step=1)
    run.refresh_from_db()

    assert [each["prompt"] for each in read_lab(run).dropped] == [1]
