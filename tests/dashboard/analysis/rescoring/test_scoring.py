"""What a rescoring finds, and what it leaves as it is."""

import numpy as np
import pytest

from dashboard.analysis.rescoring.credit import SIGNALS, count_reordered, ranks
from dashboard.analysis.rescoring.results import correlation, mean_ranks, read_columns
from dashboard.analysis.rescoring.services import list_failures
from dashboard.completions.models import Group, GroupCompletions
from dashboard.datasets.row import Row
from tests.dashboard.analysis.rescoring.factories import (
    RIGHT,
    SHORT,
    make_scored_run,
    see_through,
    start,
)
from tests.dashboard.completions.factories import store_dataset

FAILING = """
def reward(completion, answer):
    if len(completion) > 4:
        raise ValueError("too long")
    return 1.0
"""
pytestmark = pytest.mark.django_db


def test_new_rewards_are_stored_with_the_old_ones(team):
    run = make_scored_run(team, num_steps=1, num_prompts=1)

    rescoring = see_through(start(run, [RIGHT, SHORT]))

    assert (rescoring.state, rescoring.error) == ("done", "")
    found = read_columns(rescoring).completions
    # Right and short; short; right and long, of 12 characters 4 too long …
    assert found["old"].tolist() == [1.0, 0.0, 1.0, 0.0]
    assert found["new"][:2].tolist() == [1.5, 0.5]
    assert 1.0 <= found["new"][2] < 1.5
    assert found["old_rank"].tolist() == [1, 3, 1, 3]
    assert found["new_rank"].tolist() == [1, 3, 2, 4]
    mean, spread = found["new"].mean(), found["new"].std(ddof=1)
    expected = (found["new"] - mean) / (spread + 1e-4)
    assert found["new_advantage"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("prompt", "scores"),
    [("2+2?\nSo <answer>", [1, 0]), ("2+2?\nSo [end][assistant]<answer>", [0, 0])],
    ids=["continued", "of an older run"],
)
def test_what_a_row_begins_is_scored_with_its_completions(team, prompt, scores):
    chat = [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "So "},
    ]
    version = store_dataset(team, [Row(prompt=chat, answer="4")], name="Begun")
    data = {"rows": "-", "completion_prefix": "<answer>"}
    rule = {"name": "exact", "kind": "exact_answer"}
    texts = ("4</answer>", "5</answer>")
    parts = {"data": data}
    made = {"rules": [rule], "texts": texts, "version": version, "parts": parts}
    run = make_scored_run(team, num_steps=1, num_prompts=1, **made)

    run.groups.update(prompt=prompt)

    found = read_columns(see_through(start(run, [rule]))).completions

    assert found["new"].tolist() == scores


def test_an_environments_words_are_not_scored(team):
    run = make_scored_run(team, num_steps=1, num_prompts=1)
    turns = [
        {"author": "policy", "start": 0, "end": 11},  # it must be
        {"author": "environment", "start": 11, "end": 12},  # 0, which is right
    ]
    GroupCompletions.objects.update(turns=[[], [], turns, []])

    rescoring = see_through(start(run, [RIGHT]))

    found = read_columns(rescoring).completions
    assert found["old"].tolist() == [1.0, 0.0, 1.0, 0.0]
    assert found["new"].tolist() == [1.0, 0.0, 0.0, 0.0]


def test_nothing_stored_of_the_run_is_changed(team):
    run = make_scored_run(team)
    before = (
        list(GroupCompletions.objects.order_by("pk").values()),
        list(Group.objects.order_by("pk").values()),
    )
    config = dict(run.config)

    see_through(start(run, [SHORT]))

    assert before == (
        list(GroupCompletions.objects.order_by("pk").values()),
        list(Group.objects.order_by("pk").values()),
    )
    run.refresh_from_db()
    assert run.config == config


def test_its_own_recipe_changes_nothing(team):
    run = make_scored_run(team, rules=[RIGHT, SHORT])

    result = see_through(start(run)).result

    assert result["num_equal"] == result["num"] == 24
    assert result["num_moved"] == result["num_reordered"] == 0
    assert result["num_advantages_changed"] == 0
    assert result["pearson"] == pytest.approx(1.0)


def test_groups_gain_and_lose_their_signal(team):
    """Row 0 has equal lengths; all texts are wrong or right alike."""
    run = make_scored_run(
        team, num_steps=1, num_prompts=1, texts=["{right}", "it is {right}"]
    )
    lost = make_scored_run(
        team, name="b", num_steps=1, num_prompts=1, texts=["{right}", "{wrong}"]
    )

    gained = see_through(start(run, [SHORT])).result
    given_up = see_through(start(lost, [SHORT])).result

    place = SIGNALS.index
    assert gained["num_gained"] == 1
    assert gained["matrix"][place("all_right")][place("mixed")] == 1
    assert (given_up["num_lost"], given_up["num_gained"]) == (1, 0)
    assert given_up["matrix"][place("mixed")][place("all_right")] == 1


def test_a_rule_of_both_recipes_is_compared_by_itself(team):
    run = make_scored_run(team, num_steps=2, rules=[RIGHT, SHORT])
    longer = {**SHORT, "params": {"maximum": 40, "soft_edge": 12}}
    other = {**RIGHT, "name": "other"}

    rules = see_through(start(run, [longer, other])).result["rules"]

    short, new = rules
    # Of the four texts two are short in both.
    assert (short["num_both"], short["num_changed"]) == (16, 8)
    assert short["means"]["new"] == 1.0 > short["means"]["old"]
    assert (new["num_old"], new["num_new"], new["num_both"]) == (0, 16, 0)


def test_weights_are_those_of_the_stored_step(team):
    run = make_scored_run(team, num_steps=3, num_prompts=1, texts=["{right}"])
    fading = {
        **RIGHT,
        "weight": 1.0,
        "schedule": {"points": [{"step": 3, "weight": 3.0}]},
    }

    found = read_columns(see_through(start(run, [fading]))).completions

    assert found["new"].tolist() == [1.0, 2.0, 3.0]


def test_a_penalty_for_length_is_of_the_stored_tokens(team):
    parts = {
        "rollout": {"max_new_tokens": 20, "group_size": 4, "prompts_per_step": 2},
        "reward": {
            "recipe": {"rules": [RIGHT]},
            "overlong_buffer_tokens": 10,
            "overlong_penalty": 2.0,
        },
    }
    run = make_scored_run(team, num_steps=1, num_prompts=1, parts=parts)

    rescoring = see_through(start(run, [RIGHT]))

    # "it must be 0" has 12 tokens: 2 of 10 into the buffer.
    found = read_columns(rescoring).completions
    assert found["new"][2] == pytest.approx(1.0 - 2.0 * 0.2)
    assert [rule["name"] for rule in rescoring.result["rules"]] == ["right", "overlong"]


def test_process_credit_has_no_new_advantages(team):
    parts = {
        "advantage": {"credit": "process"},
        "reward": {"recipe": {"rules": [RIGHT]}, "step_recipe": {"rules": [SHORT]}},
    }
    run = make_scored_run(team, num_steps=1, parts=parts)

    rescoring = see_through(start(run, [SHORT]))

    assert "not stored" in rescoring.result["problem"]
    assert rescoring.result["num_advantages"] == 0
    assert np.isnan(read_columns(rescoring).completions["new_advantage"]).all()
    assert rescoring.result["num_both"] == 8


def test_scaling_by_the_mean_with_a_penalty_has_a_problem(team):
    parts = {"advantage": {"scale": "mean"}}
    run = make_scored_run(team, num_steps=1, parts=parts)
    penalty = {**SHORT, "weight": -1.0}

    rescoring = see_through(start(run, [RIGHT, penalty]))

    assert rescoring.state == "done"
    assert "at least 0" in rescoring.result["problem"]


def test_failed_scores_are_counted_and_listed(team):
    run = make_scored_run(team, num_steps=2, num_prompts=1)
    code = {"name": "code", "kind": "python_function", "params": {"source": FAILING}}

    rescoring = see_through(start(run, [RIGHT, code]))

    assert rescoring.result["num_failures"] == 4  # two completions of each step
    first = list_failures(rescoring)[0]
    assert (first.step, first.position, first.rule) == (1, 2, "code")
    assert "too long" in first.error
    # A sum is of the rules that have a score.
    assert rescoring.result["num_new"] == 8
    assert rescoring.result["rules"][1]["num_new"] == 4


def test_ties_share_a_rank():
    values = np.array([0.5, 1.0, 0.5, np.nan])

    assert ranks(values).tolist() == [2, 1, 2, 0]


def test_new_and_broken_ties_count_as_reordered():
    old = np.array([1.0, 1.0, 0.0, np.nan])

    assert count_reordered(old, np.array([2.0, 1.0, 0.0, 5.0])) == (3, 1)
    assert count_reordered(old, np.array([3.0, 3.0, 1.0, 5.0])) == (3, 0)
    assert count_reordered(old, np.array([0.0, 0.0, 1.0, 5.0])) == (3, 2)


def test_correlations_are_those_of_scipy():
    from scipy import stats

    generator = np.random.default_rng(0)
    one = generator.integers(0, 5, 200).astype(float)
    other = one + generator.normal(size=200)

    assert correlation(one, other) == pytest.approx(stats.pearsonr(one, other)[0])
    found = correlation(mean_ranks(one), mean_ranks(other))
    assert found == pytest.approx(stats.spearmanr(one, other)[0])
    assert correlation(one, np.ones(200)) is None
