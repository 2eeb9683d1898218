"""What a run learned, as programs read it: the same as pages show."""

import pytest

from dashboard.runs.models import Run, Sweep
from tests.dashboard.analysis.probes.factories import make_version
from tests.dashboard.completions.factories import (
    make_config,
    make_group,
    make_recipe,
    make_run,
    make_steps,
)

RIGHT, WRONG = (1.2, 1.2), (0.0, 0.0)


@pytest.fixture
def run(team) -> Run:
    """Prompt 0 is never right, 1 is learned, 2 is forgotten."""
    run = make_run(team, dataset_version=make_version(team))
    courses = {0: (WRONG, WRONG), 1: (WRONG, RIGHT), 2: (RIGHT, WRONG)}
    for prompt, course in courses.items():
        for step, rewards in enumerate(course, start=1):
            make_group(run, step=step, prompt_index=prompt, rewards=rewards)
    return run


def test_prompts_are_listed_with_their_learning(program, run):
    found = program.read(f"/runs/{run.pk}/prompts?visits=1&sort=prompt")

    kinds = [(each["prompt_index"], each["kind"]) for each in found["items"]]
    assert kinds == [(0, "never"), (1, "always"), (2, "forgotten")]
    assert found["kinds"]["never"] == 1
    assert (found["total"], found["num_seen"]) == (3, 3)
    assert found["items"][1]["text"] == "1+1?"


def test_prompts_are_chosen_and_paged(program, run):
    address = f"/runs/{run.pk}/prompts?visits=1&sort=prompt&limit=2"
    first = program.read(address)
    second = program.read(f"{address}&cursor={first['next_cursor']}")
    never = program.read(f"/runs/{run.pk}/prompts?which=never&visits=1")

    assert [each["prompt_index"] for each in second["items"]] == [2]
    assert second["next_cursor"] is None
    assert [each["prompt_index"] for each in never["items"]] == [0]
    assert program.get(f"/runs/{run.pk}/prompts?which=odd").status_code == 422


def test_curves_of_seeds_become_bands_with_a_verdict(program, team):
    runs, version, recipe = [], make_version(team), make_recipe(team)
    same = {"dataset_version": version, "recipe_version": recipe}
    for lr, level in ((1e-6, 0.2), (3e-6, 0.6)):
        for seed in (1, 2, 3):
            config = make_config(seed=seed, optim={"learning_rate": lr})
            run = make_run(team, f"{lr}-{seed}", config=config, **same)
            make_steps(run, {"reward/mean": [level + seed / 100] * 4})
            runs.append(run.pk)
    named = ",".join(map(str, runs))

    found = program.read(f"/compare/curves?runs={named}")

    base, other = found["sets"]
    assert [len(each["run_ids"]) for each in found["sets"]] == [3, 3]
    assert base["band"]["num"] == [3, 3, 3, 3]
    assert base["verdict"] is None
    assert other["difference"]["values"] == pytest.approx([0.4] * 4)
    assert other["verdict"]["kind"] == "better"
    assert found["lines"] == []
    alone = program.read(f"/compare/curves?runs={named}&by=none&smooth=0")
    assert [each["run_id"] for each in alone["lines"]] == runs
    assert alone["lines"][0]["values"] == pytest.approx([0.21] * 4)
    assert program.get("/compare/curves?runs=").status_code == 422


def test_a_sweep_is_weighed_by_its_settings(program, team):
    group = Sweep.objects.create(team=team, name="Rates")
    version, recipe = make_version(team), make_recipe(team)
    for number in range(8):
        rate = (1e-6, 3e-6)[number % 2]
        make_run(
            team,
            f"r{number}",
            sweep=group,
            dataset_version=version,
            recipe_version=recipe,
            config=make_config(seed=number, optim={"learning_rate": rate}),
            summary={"last": {"reward/mean": rate * 1e5 + number / 1000}},
        )

    found = program.read(f"/compare/sweep?sweep_id={group.pk}")

    assert [each["key"] for each in found["settings"]] == ["optim.learning_rate"]
    assert found["runs"][0]["values"] == {"optim.learning_rate": "3e-6"}
    assert found["weights"][0]["key"] == "optim.learning_rate"
    assert found["weights"][0]["share"] > 0.9
    assert [each["key"] for each in found["weights"]][-1] is None
