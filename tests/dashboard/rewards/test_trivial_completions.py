"""A recipe that pays for nothing is warned of, whichever nothing it is."""

from __future__ import annotations

from typing import Any

from dashboard.accounts.models import Team
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.row import Row
from dashboard.datasets.services import create_dataset_version
from dashboard.rewards.row_check import check_rows
from trainer.rewards.spec import Recipe


def version_of(team: Team, *answers: str) -> DatasetVersion:
    rows = [
        Row(prompt=f"Say sorry, {n} times or more.", answer=answer)
        for n, answer in enumerate(answers)
    ]
    return create_dataset_version(
        team=team, name="Rows", rows=rows, mapping={}, source={}, user=None
    )


def warned(version: DatasetVersion, kind: str, **params: Any) -> list[str]:
    rule = {"name": "it", "kind": kind, "params": params}
    found = check_rows(Recipe.model_validate({"rules": [rule]}), version)
    return [each.sentence for each in found if each.kind == "trivial"]


NUMBERS = ("311", "4777", "50021", "4777")
NEVER_GUESSED = ("311", "4777", "50021", "682", "79993")


def test_each_kind_of_nothing_is_warned_of(team: Team) -> None:
    version = version_of(team, *NUMBERS)
    for kind, params, label in (
        ("length", {"maximum": 10}, "An empty"),
        ("contains", {"phrases": ["sorry"]}, "The prompt"),
        ("format_tags", {}, "Only tags"),
        ("tag_count", {"names": "answer"}, "Only tags"),
        ("numeric_answer", {}, "“4777”"),
        ("numeric_answer", {"source": "boxed"}, "“4777”"),
        ("regex", {"pattern": "[0-9]"}, "A random number"),
    ):
        sentences = warned(version, kind, **params)

        assert sum(label in each for each in sentences) == 1, (kind, sentences)


def test_a_letter_that_is_often_right_is_warned_of(team: Team) -> None:
    version = version_of(team, "A", "B", "B", "B")

    sentences = warned(version, "multiple_choice")

    assert any("letter B is given 0.75" in each for each in sentences)
    assert not any("letter A" in each for each in sentences)


def test_a_recipe_that_asks_for_the_answer_is_not_warned_of(team: Team) -> None:
    assert warned(version_of(team, *NEVER_GUESSED), "numeric_answer") == []
