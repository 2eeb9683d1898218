import re
from typing import Any

import pytest
from django.urls import reverse

from dashboard.analysis.compare.differences import Setting, compare_settings
from dashboard.analysis.compare.series import PINNED, choose_pins
from dashboard.runs.models import PublishedModel, Run
from tests.dashboard.completions.factories import (
    RULES,
    make_config,
    make_dataset,
    make_run,
)


def differing(*runs: Run) -> dict[str, list[str | None]]:
    return {s.key: s.values for s in compare_settings(runs) if s.differs}


@pytest.fixture(scope="module")
def base(shared_team) -> Run:
    return make_run(shared_team, "base")


def like(base: Run, name: str = "like", **fields: Any) -> Run:
    given = {
        "dataset_version": base.dataset_version,
        "recipe_version": base.recipe_version,
        **fields,
    }
    return make_run(base.team, name, **given)


def test_runs_launched_alike_differ_in_nothing(base):
    assert differing(base, like(base)) == {}


def test_only_the_settings_that_differ_are_left(base):
    config = make_config(loss={"kl_coef": 0.04}, seed=7)

    assert differing(base, like(base, config=config)) == {
        "seed": ["0", "7"],
        "loss.kl_coef": ["0", "0.04"],
    }


def test_a_published_teacher_is_named(base):
    published = PublishedModel.objects.create(
        team=base.team,
        name="tutor",
        run_name="base",
        step=3,
        sha256="a" * 64,
        num_bytes=1,
    )
    path = f"{published.folder}/model"
    config = make_config(loss={"kl_coef": 1}, reference={"model": path})

    teachers = differing(base, like(base, config=config))["reference.model"]

    assert teachers[1] == "tutor (base, step 3)"


def test_the_distance_to_a_teacher_is_among_the_charts_of_a_comparison():
    known = [*PINNED, "loss"]

    assert "distill/kl" in choose_pins([], known)
    assert choose_pins(["loss"], known) == ["loss"]


def test_values_are_written_as_on_the_config_page(base):
    base.config["model"]["gradient_checkpointing"] = False
    base.save()
    config = make_config(
        optim={"learning_rate": 2e-6, "max_grad_norm": None},
        model={"path": "m", "gradient_checkpointing": True},
    )

    found = differing(base, like(base, config=config))

    assert found["optim.learning_rate"][1] == "2e-6"
    assert found["optim.max_grad_norm"] == ["1", "none"]
    assert found["model.gradient_checkpointing"] == ["no", "yes"]


def test_what_a_run_was_launched_with_has_a_title():
    titles = [Setting(key=key, values=[]).title for key in ("recipe", "dataset", "new")]

    assert titles == ["Reward", "Dataset", "new"]


def test_phases_differ_by_their_steps_and_by_setting(base):
    def phased(name: str, num_steps: int, rate: float) -> Run:
        rest = {
            "name": "rest",
            "num_steps": 100 - num_steps,
            "changes": {"optim": {"learning_rate": rate}},
        }
        phases = [{"name": "warm", "num_steps": num_steps}, rest]
        return like(base, name, config=make_config(phases=phases))

    runs = phased("a", 50, 1e-5), phased("b", 50, 2e-5), phased("c", 60, 1e-5)

    assert differing(*runs) == {
        "phases": ["warm 50 steps, rest 50 steps"] * 2
        + ["warm 60 steps, rest 40 steps"],
        "phases.rest.optim.learning_rate": ["1e-5", "2e-5", "1e-5"],
    }
    rate = compare_settings(runs)[-1]
    assert "rest" in rate.title
    # Of a run without phases that says all.
    assert [*differing(runs[0], like(base))] == ["phases"]


def test_phases_of_one_name_are_compared_one_by_one(base):
    def phased(name: str, *weights: float) -> Run:
        phases = [
            {"name": "a", "num_steps": 50, "changes": {"loss": {"kl_coef": weight}}}
            for weight in weights
        ]
        return like(base, name, config=make_config(phases=phases))

    assert differing(phased("one", 0.1, 0.3), phased("two", 0.2, 0.3)) == {
        "phases.a.loss.kl_coef": ["0.1", "0.2"]
    }
    assert differing(phased("one", 0.1, 0.3), phased("two", 0.1, 0.4)) == {
        "phases.a#2.loss.kl_coef": ["0.3", "0.4"]
    }


def test_a_default_left_out_equals_the_default_written(base):
    config = make_config()
    del config["optim"]

    assert differing(base, like(base, config=config)) == {}


def test_dataset_versions_differ(base):
    version = make_dataset(base.team)

    assert differing(base, like(base, dataset_version=version)) == {
        "dataset": ["sums v1", "sums v2"]
    }


def test_recipes_are_compared_rule_by_rule_whatever_their_order(base):
    rules = [
        {**RULES[1], "weight": 0.5},
        RULES[0],
        {"name": "short", "kind": "length", "weight": 0.1, "params": {}},
    ]
    found = differing(base, like(base, config=make_config(rules=rules)))

    assert found["rules.format.weight"] == ["0.2", "0.5"]
    assert found["rules.short.weight"] == [None, "0.1"]
    assert not any(key.startswith("rules.answer") for key in found)


def test_a_configuration_of_an_older_version_is_still_compared(base):
    config = {**make_config(), "gone": {"option": True}}

    assert differing(base, like(base, config=config)) == {"gone.option": [None, "yes"]}


def test_the_page_shows_differing_settings_and_all_on_demand(alice_client, base):
    other = like(base, config=make_config(seed=7))
    url = reverse("compare", args=["alpha"]) + f"?runs={base.pk},{other.pk}&by=none"

    few = alice_client.get(url).content.decode()
    every = alice_client.get(url + "&settings=all").content.decode()

    heading = re.search(r"(\d+) of (\d+) settings differ", few)
    assert heading
    assert heading[1] == "1"
    assert ">optim.learning_rate<" not in few
    assert ">optim.learning_rate<" in every
    assert '<td class="is-other"><bdi>7</bdi></td>' in few


def test_a_setting_with_markup_stays_text(alice_client, base):
    config = make_config(
        data={"rows": "r", "system_prompt": "<script>alert(1)</script>"}
    )
    other = like(base, config=config)

    html = alice_client.get(
        reverse("compare", args=["alpha"]) + f"?runs={base.pk},{other.pk}"
    ).content.decode()

    assert "<script>alert" not in html


def test_settings_an_imported_run_lacks_are_no_differences(base):
    imported = make_run(
        base.team,
        "imported",
        source={"tools": ["TRL"], "files": 1},
        dataset_version=None,
        recipe_version=None,
    )

    assert list(differing(base, imported)) == ["imported from"]
    settings = {s.key: s for s in compare_settings([base, imported])}
    assert settings["optim.learning_rate"].unknown == {1}
    other = like(base, config=make_config(seed=7))
    assert set(differing(base, imported, other)) == {"imported from", "seed"}
