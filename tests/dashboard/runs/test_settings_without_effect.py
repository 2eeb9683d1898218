"""The marks "no effect" of the launch form."""

import json
import math
import re
from html import unescape
from itertools import product
from typing import Any

import numpy as np
import pytest

from dashboard.runs.config.fields import (
    find_unused,
    recipe_facts,
    unused_table,
    write_texts,
)
from tests.dashboard.runs.launching import make_config, make_recipe
from trainer.algorithm.advantages import group_advantages, rule_advantages
from trainer.config import AdvantageConfig, RunConfig
from trainer.rewards.spec import Recipe

DEFAULTS = write_texts({})
REINFORCE = {"loss.surrogate": "reinforce"}
WHITENED = {"advantage.whiten": "completions"}
ANALYTIC = {"advantage.credit": "pass_at_k_analytic"}
FROZEN = {"reference.kind": "frozen"}


IS_UNUSED: list[tuple[str, dict[str, str]]] = [
    ("loss.kl_target", {"loss.kl_coef": "0.0"}),
    ("loss.kl_estimator", {"loss.kl_coef": "0e3"}),
    ("loss.clip_high", {"loss.surrogate": "reinforce"}),
    ("model.lora_alpha", {"model.lora_rank": "0"}),
    ("reference.mix_alpha", {"reference.mix_every_steps": "0"}),
    ("rollout.max_refills", {"rollout.dynamic_sampling": "drop"}),
    ("loss.importance_cap", {"loss.importance_correction": ""}),
    ("reward.step_recipe", {"advantage.credit": "outcome"}),
    ("advantage.ddof", {"advantage.scale": "mean"}),
    ("advantage.eps", {"advantage.scale": "none"}),
    ("advantage.eps", {"advantage.credit": "indicator"}),
    ("advantage.combine", {"advantage.credit": "indicator"}),
    ("advantage.combine", {"advantage.credit": "process"}),
    ("advantage.ddof", {"advantage.scale": "none", "advantage.whiten": "tokens"}),
    ("advantage.pass_k", {"advantage.credit": "outcome"}),
    ("advantage.baseline", {"advantage.credit": "pass_at_k"}),
    ("advantage.singleton", ANALYTIC),
    ("advantage.scale", ANALYTIC),
    ("advantage.eps", ANALYTIC),
    ("advantage.indicator_threshold", {"advantage.credit": "pass_at_k"}),
    ("loss.dual_clip", REINFORCE | {"optim.minibatches": "4"}),
    ("loss.dual_clip", {"loss.surrogate": "cispo", "optim.minibatches": "4"}),
    ("loss.covariance_share", {}),
    ("loss.covariance_low", {"loss.covariance": "kl"}),
    ("loss.covariance_coef", {"loss.covariance": "clip", "optim.minibatches": "4"}),
    ("loss.covariance_coef", {"loss.covariance": "kl"}),
    ("loss.clip_high", {"loss.covariance": "kl", "optim.minibatches": "4"}),
    ("loss.old_logprobs", REINFORCE),
    ("loss.old_logprobs", REINFORCE | {"loss.kl_coef": "0.1"}),
    ("loss.old_logprobs", REINFORCE | {"loss.kl_ratio": "on"}),
    ("loss.kl_aggregation", {"loss.kl_coef": "0.1", "loss.kl_in": "reward"}),
    ("reference.reset_every_steps", {"loss.kl_coef": "0"}),
    ("reference.mix_every_steps", {"loss.kl_coef": "0"}),
    ("reference.mix_alpha", {"reference.mix_every_steps": "512"}),
]
IS_READ: list[tuple[str, dict[str, str]]] = [
    ("loss.kl_estimator", {"loss.kl_coef": "0.001"}),
    # A frozen reference is measured against, with or without a weight.
    ("loss.kl_estimator", {"loss.kl_coef": "0", "reference.kind": "frozen"}),
    ("loss.kl_estimator", {"advantage.credit": "preference"}),
    ("loss.kl_aggregation", {"loss.kl_coef": "0.1"}),
    ("loss.dual_clip", {"loss.surrogate": "gspo", "optim.minibatches": "4"}),
    ("loss.covariance_share", {"loss.covariance": "kl"}),
    ("loss.covariance_high", {"loss.covariance": "clip"}),
    ("loss.covariance_coef", {"loss.covariance": "kl", "optim.minibatches": "4"}),
    ("loss.old_logprobs", {}),
    (
        "loss.old_logprobs",
        REINFORCE | {"loss.importance_correction": "token_mask"},
    ),
    (
        "loss.old_logprobs",
        REINFORCE | {"loss.kl_coef": "0.1", "loss.kl_ratio": "on"},
    ),
    ("advantage.combine", {}),
    ("advantage.ddof", {"advantage.scale": "mean"} | WHITENED),
    ("advantage.eps", {"advantage.scale": "none"} | WHITENED),
    ("advantage.eps", {"advantage.credit": "indicator"} | WHITENED),
    ("advantage.scale", {"advantage.credit": "pass_at_k"}),
    ("advantage.pass_k", ANALYTIC),
    ("advantage.indicator_threshold", ANALYTIC),
    ("advantage.eps", ANALYTIC | WHITENED),
    ("loss.clip_high", {"optim.minibatches": "4"}),
    ("loss.clip_high", {"loss.old_logprobs": "sampling"}),
    ("model.lora_alpha", {"model.lora_rank": "16"}),
    ("reference.mix_alpha", FROZEN | {"reference.mix_every_steps": "512"}),
    ("loss.kl_horizon", {"loss.kl_coef": "0.1", "loss.kl_target": "6"}),
    ("advantage.indicator_threshold", {"advantage.credit": "indicator"}),
    # While a number is half typed, no setting that depends on it is unused.
    ("reference.mix_alpha", FROZEN | {"reference.mix_every_steps": "x"}),
    ("reference.mix_alpha", FROZEN | {"reference.mix_every_steps": ""}),
]


def test_unused_settings_are_found():
    read = [one for one in IS_UNUSED if one[0] not in find_unused(DEFAULTS | one[1])]
    unused = [one for one in IS_READ if one[0] in find_unused(DEFAULTS | one[1])]

    assert (read, unused) == ([], [])


def test_a_switch_of_an_older_run_is_a_choice_of_the_form():
    for older, now in ((True, "completions"), (False, "no")):
        texts = write_texts({"advantage": {"whiten": older}})

        assert texts["advantage.whiten"] == now


def test_a_reference_moves_where_there_is_one():
    kinds, credits = ("auto", "frozen"), ("outcome", "indicator", "preference")
    for kind, kl_coef, credit in product(kinds, (0.0, 0.1), credits):
        config = RunConfig.model_validate(
            make_config(
                advantage={"credit": credit},
                loss={"kl_coef": kl_coef, "surrogate": "reinforce"},
                reference={"kind": kind},
            )
        )

        moved = {"reference.reset_every_steps", "reference.mix_every_steps"}
        unused = moved & find_unused(write_texts(config.model_dump())).keys()
        assert unused == (set() if config.has_reference else moved), (kind, credit)


ONE = {"name": "a", "kind": "numeric_answer", "weight": 1.0}
OTHER = {"name": "b", "kind": "length", "params": {"maximum": 9}}
LATER = {"points": [{"step": 9, "weight": 0.5}]}


JOINED: list[tuple[dict[str, Any], dict[str, str], bool]] = [
    ({"rules": [ONE, OTHER], "combine": "normalize_then_sum"}, {}, True),
    ({"rules": [ONE, OTHER]}, {}, False),
    ({"rules": [ONE]}, {}, True),
    # The penalty is normalised like a rule.
    ({"rules": [ONE]}, {"reward.overlong_buffer_tokens": "8"}, False),
    ({"rules": [ONE | {"weight": 2.0}]}, {}, False),
    ({"rules": [ONE | {"schedule": LATER}]}, {}, False),
    ({"rules": [ONE], "clip": {"low": 0.5}}, {}, False),
]


def test_the_recipe_decides_whether_combine_is_unused():
    for recipe, texts, is_unused in JOINED:
        spec = Recipe.model_validate(recipe).model_dump(mode="json")

        unused = find_unused(DEFAULTS | texts, recipe_facts(spec))

        assert ("advantage.combine" in unused) == is_unused, (recipe, texts)


@pytest.mark.parametrize("weight", [1.0, 2.0])
def test_combine_has_no_effect_for_a_single_rule_of_weight_1(weight):
    recipe = {"rules": [ONE | {"weight": weight}]}
    rewards = np.array([[1.0, 0.0, math.nan, 0.5]])
    config = AdvantageConfig()

    summed = group_advantages(weight * rewards, config)
    by_rule = rule_advantages(rewards[:, :, None], [weight], config)

    is_same = np.allclose(summed, by_rule, rtol=1e-3)
    assert is_same == (
        "advantage.combine" in find_unused(DEFAULTS, recipe_facts(recipe))
    )


def test_the_form_uses_the_facts_of_the_chosen_reward(alice_client, team):
    spec = {"rules": [ONE, OTHER], "combine": "normalize_then_sum"}
    joined = make_recipe(team, "joined", spec)
    make_recipe(team, "plain", {"rules": [ONE, OTHER]})

    page = unescape(alice_client.get(f"/alpha/runs/new?recipe={joined.pk}").text)

    facts = recipe_facts(Recipe.model_validate(spec).model_dump(mode="json"))
    reason = find_unused(DEFAULTS, facts)["advantage.combine"]
    assert _mark(page, "advantage.combine") == f"not used: {reason}"
    found = re.search(r'<script id="recipe-facts"[^>]*>(.*?)</script>', page)
    assert found
    facts = json.loads(found[1])
    assert facts[str(joined.pk)]["recipe.combine"] == "normalize_then_sum"
    assert len(facts) == 2


def _mark(page: str, path: str) -> str:
    block = page[page.index(f'data-setting="{path}"') :]
    found = re.search(r"<span[^>]*data-unused( hidden)?>(.*?)</span>", block)
    assert found
    return "" if found[1] else found[2]


def test_the_form_shows_why_a_setting_is_unused(alice_client, team):
    page = unescape(alice_client.get(f"/{team.slug}/runs/new").text)

    assert (
        _mark(page, "loss.kl_in") == f"not used: {find_unused(DEFAULTS)['loss.kl_in']}"
    )
    assert _mark(page, "loss.surrogate") == ""
    found = re.search(r'<script id="unused-table"[^>]*>(.*?)</script>', page)
    assert found
    assert json.loads(found[1]) == unused_table()


def test_with_phases_no_setting_is_unused(alice_client, team):
    form = {"phases": '[[phases]]\nname = "a"\nnum_steps = 100'}

    page = unescape(alice_client.post(f"/{team.slug}/runs/new", form).text)

    assert _mark(page, "loss.kl_in") == ""
