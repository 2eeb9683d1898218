"""Warnings about a recipe that scores give."""

from typing import Any

import pytest

from dashboard.accounts.models import Team
from dashboard.datasets.models import DatasetRow, DatasetVersion
from dashboard.datasets.row import Row
from dashboard.rewards.checks import (
    BaselineScore,
    RecipeWarning,
    ScoredGroup,
    Tags,
    baseline_completions,
    check_rows,
    choice_letters,
    find_constant_rules,
    find_flat_groups,
    find_high_baselines,
    find_in_groups,
    find_rules_that_agree,
    find_unread_references,
    tags_of,
)
from dashboard.rewards.trial import Trial
from tests.dashboard.completions.factories import store_dataset
from trainer.rewards.scoring import Score
from trainer.rewards.spec import Recipe

TAGS = Tags("think", "answer")


def group(position: int, *rules: dict[str, float | None]) -> ScoredGroup:
    def total(given: dict[str, float | None]) -> float | None:
        values = [value for value in given.values() if value is not None]
        return sum(values) if values else None

    scores = tuple(Score(total(given), given, {}) for given in rules)
    return ScoredGroup(position, scores)


def kinds(findings: list[RecipeWarning]) -> list[str]:
    return [finding.kind for finding in findings]


def test_a_constant_rule_is_found():
    groups = [
        group(3, {"a": 0.5, "b": 0.0}, {"a": 0.5, "b": 1.0}),
        group(7, {"a": 0.5, "b": 0.0}, {"a": 0.5, "b": None}),
    ]

    (found,) = find_constant_rules(groups)

    assert "0.5 to all 4" in found.sentence
    assert found.positions == (3, 7)


def test_a_constant_rule_needs_four_completions():
    assert find_constant_rules([group(0, {"a": 1.0}, {"a": 1.0}, {"a": 1.0})]) == []


def test_a_rule_with_too_few_scores_is_not_called_constant():
    scores = [{"a": 1.0}, {"a": 1.0}, {"a": None}, {"a": None}]

    assert find_constant_rules([group(0, *scores)]) == []


def test_rules_that_always_agree_are_found():
    scores = [{"a": x, "b": x, "c": 1 - x} for x in (0.0, 1.0, 1.0, 0.0)]

    (found,) = find_rules_that_agree([group(0, *scores)])

    assert "Rules a and b" in found.sentence


@pytest.mark.parametrize("values", [(1.0, 1.0, 1.0, 1.0), (0.0, 1.0, 1.0)])
def test_rules_that_agree_on_too_little_are_not(values):
    scores = [{"a": x, "b": x} for x in values]

    assert find_rules_that_agree([group(0, *scores)]) == []


def test_groups_without_a_difference_are_found():
    flat, mixed = group(1, {"a": 1.0}, {"a": 1.0}), group(2, {"a": 0.0}, {"a": 1.0})
    single = group(3, {"a": 1.0})

    (some,) = find_flat_groups([flat, mixed, single])
    (every,) = find_flat_groups([flat, group(4, {"a": 0.0}, {"a": 0.0})])

    assert "1 of 2 groups" in some.sentence
    assert some.positions == (1,)
    assert every.positions == (1, 4)
    assert find_flat_groups([mixed, single]) == []


def test_good_groups_have_no_warnings():
    scores = [{"a": 0.0, "b": 0.3}, {"a": 1.0, "b": 0.1}, {"a": 0.0, "b": 0.9}]

    assert find_in_groups([group(0, *scores), group(1, *scores)]) == []


def test_the_number_of_checked_references_is_shown():
    fine, unread = (
        Trial(Score(1.0, {"a": 1.0}, {})),
        Trial(Score(None, {}, {"a": "“x”."})),
    )
    checked = [
        (DatasetRow(position=at), unread if at in (4, 9) else fine) for at in range(40)
    ]

    (part,) = find_unread_references(checked, num_rows=4_000)
    (whole,) = find_unread_references(checked, num_rows=40)

    assert "2 of 40" in part.sentence
    assert "4,000" in part.sentence
    assert "2 of 40 rows" in whole.sentence
    assert part.positions == (4, 9)


def test_a_baseline_with_half_of_the_highest_reward_is_high():
    for mean, bounds, is_found in (
        (0.2, (0.0, 1.2), False),
        (0.6, (0.0, 1.2), True),
        (0.0, (-1.0, 1.0), False),  # an empty completion that avoids a penalty
        (0.5, (-1.0, 1.0), True),
        (-0.2, (-1.0, 0.0), True),  # penalties alone
        (1.0, (1.0, 1.0), False),
        (0.4, (0.4, 1.4), False),
    ):
        baseline = BaselineScore(label="nothing", mean=mean, positions=(), num_rows=5)

        found = find_high_baselines([baseline], bounds=bounds, num_rows=5)

        assert kinds(found) == ["trivial"] * is_found, (mean, bounds)


def test_a_baseline_of_few_rows_is_not_reported():
    one, many = (
        BaselineScore(label="nothing", mean=1.2, positions=(), num_rows=num)
        for num in (1, 20)
    )

    found = find_high_baselines(
        [one, many], bounds=(0.0, 2.2), num_rows=62, least_rows=20
    )

    assert kinds(found) == ["trivial"]
    assert found[0].short.endswith("1.2 of 2.2")


def test_baseline_completions_of_a_row():
    made = baseline_completions(
        prompt="2+2?", answers=["4", "7", "7"], tags=TAGS, seed=1
    )

    texts = {each.label: each.texts for each in made}
    assert texts["an empty completion"] == ("",)
    assert ("2+2?",) in texts.values()
    every = {text for several in texts.values() for text in several}
    assert "<think></think><answer></answer>" in every
    assert {"7", "\\boxed{7}", "#### 7"} < every
    assert "always answering “7”" in texts
    assert "always answering A" not in texts


def test_each_letter_of_a_multiple_choice_is_tried():
    made = baseline_completions(
        prompt="?", answers=["A", "C", "b", "A", "C"], tags=TAGS, seed=1
    )

    labels = [each.label for each in made if "“" not in each.label]
    assert labels[3:6] == [f"always answering {letter}" for letter in "ABC"]


def test_other_answers_are_no_multiple_choice():
    for answers in ([], ["A"] * 9, ["A", "B", "12"], ["1", "2"]):
        assert choice_letters(answers) == []


def test_the_recipes_own_tags_are_used():
    rules = [
        {"name": "a", "kind": "format_tags", "params": {"think_tag": "reasoning"}},
    ]

    assert tags_of(Recipe.model_validate({"rules": rules})) == Tags(
        "reasoning", "answer"
    )


def version_of(team: Team, *answers: str | list[str]) -> DatasetVersion:
    rows = [
        Row(prompt=f"Say sorry, {n} times or more.", answer=answer)
        for n, answer in enumerate(answers)
    ]
    return store_dataset(team, rows, name="Rows")


def warned(version: DatasetVersion, kind: str, **params: Any) -> list[str]:
    rule = {"name": "it", "kind": kind, "params": params}
    found = check_rows(Recipe.model_validate({"rules": [rule]}), version)
    return [each.sentence for each in found if each.kind == "trivial"]


NUMBERS = ("311", "4777", "50021", "4777")
NEVER_GUESSED = ("311", "4777", "50021", "682", "79993")


def test_each_kind_of_baseline_completion_is_warned_of(team):
    version = version_of(team, *NUMBERS)
    for kind, params, label in (
        ("length", {"maximum": 10}, "An empty"),
        ("contains", {"phrases": ["sorry"]}, "A copy"),
        ("format_tags", {}, "Empty tags"),
        ("tag_count", {"names": "answer"}, "Empty tags"),
        ("numeric_answer", {}, "“4777”"),
        ("numeric_answer", {"source": "boxed"}, "“4777”"),
        ("regex", {"pattern": "[0-9]"}, "A random number"),
    ):
        sentences = warned(version, kind, **params)

        assert sum(label in each for each in sentences) == 1, (kind, sentences)


def test_a_letter_that_is_often_right_is_warned_of(team):
    version = version_of(team, "A", "B", "B", "B")

    sentences = warned(version, "multiple_choice")

    assert any("answering B would earn 0.75" in each for each in sentences)
    assert not any("answering A" in each for each in sentences)


def test_a_guess_may_be_any_of_a_rows_answers(team):
    version = version_of(team, ["C", "B"], "B", ["B", "A"], "D")

    sentences = warned(version, "multiple_choice")

    assert any("answering B would earn 0.75" in each for each in sentences)


def test_a_recipe_that_requires_the_answer_has_no_warning(team):
    assert warned(version_of(team, *NEVER_GUESSED), "numeric_answer") == []


def test_rules_of_episodes_are_not_tried_on_rows_with_an_environment(team):
    recipe = Recipe.model_validate(
        {"rules": [{"name": "it", "kind": "environment", "params": {}}]}
    )
    plain = version_of(team, "3")
    game = store_dataset(
        team, [Row(prompt="5 24 ?")], name="Game", environment={"kind": "guess"}
    )

    assert "reference" in kinds(check_rows(recipe, plain))
    assert "reference" not in kinds(check_rows(recipe, game))
