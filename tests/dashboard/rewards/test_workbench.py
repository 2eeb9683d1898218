"""Trying a recipe shows what training would score."""

from __future__ import annotations

import pytest
from django.test import Client

from dashboard.accounts.models import Team, User
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.row import Row
from dashboard.datasets.services import create_dataset_version
from dashboard.rewards.models import RewardRecipe
from dashboard.rewards.workbench import (
    as_sample,
    pick_rows,
    split_completions,
    try_recipe,
    warn_unscorable,
)
from tests.dashboard.rewards.editor import fields
from trainer.rewards.scoring import score_completion
from trainer.rewards.spec import Recipe

TRY = "/alpha/rewards/try"
RULES = (
    ("numeric_answer", {}),
    ("format_tags", {"weight": "0.5"}),
    ("length", {"weight": "-0.25", "params-maximum": "40"}),
)
COMPLETIONS = [
    "<think>two twos</think><answer>4</answer>",
    "4",
    "four, surely, and I say so at some length",
    "<think>\U0001f600 é </think>\n<answer>٤</answer>",
]


@pytest.fixture
def version(team: Team) -> DatasetVersion:
    rows = [
        Row(prompt=f"{i}+{i}?", answer=str(2 * i), columns={"target": i})
        for i in range(12)
    ]
    return create_dataset_version(
        team=team, name="Sums", rows=rows, mapping={}, source={}, user=None
    )


def data(version: DatasetVersion, **others: str) -> dict[str, str]:
    shown = {"try-version": str(version.pk), "try-offset": "0", "try-seed": ""}
    return fields(*RULES, **{**shown, **others})


def test_a_recipe_for_a_dataset_shows_its_rows(
    alice_client: Client, team: Team, version: DatasetVersion
):
    newer = create_dataset_version(
        team=team,
        name="Newer",
        rows=[Row(prompt="Why?", answer="so")],
        mapping={},
        source={},
        user=None,
    )

    for query, shown in ((f"?dataset={version.pk}", version), ("", newer)):
        page = alice_client.get(f"/alpha/rewards/new{query}")

        rows = [bench.row for bench in page.context["benches"]]
        assert {row.version_id for row in rows} == {shown.pk}
        assert page.context["try_form"]["version"].value() == shown.pk


def test_rows_without_completions_have_no_scores_of_a_group_function(
    alice_client: Client, version: DatasetVersion
):
    source = "def f(completions, **kwargs):\n    return [1.0 for _ in completions]"
    posted = fields(("python_function", {"params-source": source}))
    posted |= {"try-version": str(version.pk), "try-offset": "0", "try-seed": ""}

    answer = alice_client.post(TRY, {**posted, "completion-2": "4\n---\n5"})

    tried = {bench.row.position: bench.tried for bench in answer.context["benches"]}
    assert [one.score.total for one in tried.pop(2)] == [1.0, 1.0]
    assert list(tried.values()) == [[]] * 4


def test_metrics_of_a_verl_function_stand_with_its_completion(
    alice_client: Client, version: DatasetVersion
):
    source = (
        "def compute_score(data_source, solution_str, ground_truth):\n"
        "    return {'score': 0.5, 'acc': solution_str == ground_truth, 'size': 7.25}"
    )
    posted = data(version, **{"completion-2": "4\n---\n5"})
    rule = fields(("python_function", {"params-source": source}))
    kept = {key: text for key, text in posted.items() if not key.startswith("rules-")}

    answer = alice_client.post(TRY, kept | rule)

    tried = answer.context["benches"][2].tried
    assert [one.metrics for one in tried] == [
        {"python_function/acc": acc, "python_function/size": 7.25} for acc in (1.0, 0.0)
    ]
    assert answer.content.decode().count("7.25") == 2


def test_scores_equal_those_of_the_engine(
    alice_client: Client, version: DatasetVersion
):
    answer = alice_client.post(
        TRY, data(version, **{"completion-2": "\n---\n".join(COMPLETIONS)})
    )

    bench = answer.context["benches"][2]
    recipe = answer.context["draft"].recipe
    expected = [score_completion(recipe, as_sample(bench.row, c)) for c in COMPLETIONS]
    assert [one.score for one in bench.tried] == expected
    assert [one.completion for one in bench.tried] == COMPLETIONS
    # 1 × right + 0.5 × in tags − 0.25 × 0, since it has 41 characters.
    assert bench.tried[0].score.total == 1.5
    assert "<strong>1.5</strong>" in answer.content.decode()


def test_any_answer_of_a_row_with_tools_is_right(alice_client: Client, team: Team):
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    chat = [
        {"role": "user", "content": "1+2?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    rows = [Row(prompt=chat, answer=["3", "III <3"], columns={"x": {"y": [1, 2]}})]
    version = create_dataset_version(
        team=team, name="Tools", rows=rows, mapping={}, source={}, user=None
    )

    answer = alice_client.post(
        TRY, data(version, **{"completion-0": "It is 3\n---\nIt is 4"})
    )

    (bench,) = answer.context["benches"]
    rules = [tried.score.rules["numeric_answer"] for tried in bench.tried]
    assert rules == [1.0, 0.0]
    sample = as_sample(bench.row, "")
    assert (sample.answer, sample.messages) == (["3", "III <3"], chat)
    page = answer.content.decode()
    assert "<bdi>3 or III &lt;3</bdi>" in page
    assert "<strong>add</strong>" in page


def test_advantages_compare_within_the_row(
    alice_client: Client, version: DatasetVersion
):
    answer = alice_client.post(
        TRY, data(version, **{"completion-2": "4\n---\nno", "completion-3": "6"})
    )

    two, one = answer.context["benches"][2:4]
    # Totals 0.75 and -0.25: mean 0.25, standard deviation 0.7071.
    assert two.tried[0].advantage == pytest.approx(0.5 / (0.5**0.5 + 1e-4))
    assert two.tried[1].advantage == pytest.approx(-0.5 / (0.5**0.5 + 1e-4))
    assert one.tried[0].advantage is None


def test_trying_stores_nothing(alice_client: Client, version: DatasetVersion):
    alice_client.post(TRY, data(version, **{"completion-0": "0"}))

    assert RewardRecipe.objects.count() == 0


def test_a_viewer_may_try(bob_client: Client, version: DatasetVersion):
    answer = bob_client.post(TRY, data(version, **{"completion-0": "0"}))

    assert answer.context["benches"][0].tried[0].score.rules["numeric_answer"] == 1


def test_another_team_gets_404(
    charlie_client: Client, alice_client: Client, version: DatasetVersion
):
    assert charlie_client.post(TRY, data(version)).status_code == 404

    answer = charlie_client.post("/other/rewards/try", data(version))

    assert "0+0?" not in answer.content.decode()


def test_rows_start_at_the_offset(alice_client: Client, version: DatasetVersion):
    def positions(**others: str) -> list[int]:
        answer = alice_client.post(TRY, data(version, **others))
        return [bench.row.position for bench in answer.context["benches"]]

    assert positions() == [0, 1, 2, 3, 4]
    assert positions(**{"try-offset": "9"}) == [9, 10, 11]
    assert positions(**{"try-offset": "99"}) == []
    drawn = positions(**{"try-seed": "7"})
    assert drawn == positions(**{"try-seed": "7"})
    assert len(set(drawn)) == 5
    assert drawn != [0, 1, 2, 3, 4]


def test_a_wrong_choice_of_rows_is_answered(
    alice_client: Client, version: DatasetVersion
):
    for field, text in (
        ("try-offset", "-1"),
        ("try-offset", "x"),
        ("try-seed", "1.5"),
        ("try-version", "0"),
    ):
        answer = alice_client.post(TRY, data(version, **{field: text}))

        assert answer.status_code == 200
        assert "field-error" in answer.text, field


def test_a_rule_that_lacks_its_column_warns(
    alice_client: Client, version: DatasetVersion
):
    shown = {"try-version": str(version.pk), "try-offset": "0"}

    answer = alice_client.post(TRY, fields(("countdown", {}), **shown))

    page = answer.content.decode()
    assert "&quot;numbers&quot;" in page


def test_warnings_follow_the_rules(alice_client: Client, version: DatasetVersion):
    shown = {"try-version": str(version.pk), "try-offset": "0", "action": "warn"}

    warned = alice_client.post(TRY, fields(("countdown", {}), **shown))
    fixed = alice_client.post(TRY, fields(("length", {}), **shown))

    assert list(warned.context["try_warnings"]) == ["countdown"]
    assert fixed.context["try_warnings"] == {}
    assert "completion-0" not in fixed.text


def test_an_error_is_shown_and_is_not_0(alice_client: Client, version: DatasetVersion):
    rules = [*RULES, ("countdown", {})]
    shown = {"try-version": str(version.pk), "try-offset": "0", "completion-1": "2"}

    answer = alice_client.post(TRY, fields(*rules, **shown))

    (one,) = answer.context["benches"][1].tried
    assert one.score.rules["countdown"] is None
    assert "score-error" in answer.content.decode()


def test_a_recipe_that_is_not_complete_scores_nothing(
    alice_client: Client, version: DatasetVersion
):
    shown = {"try-version": str(version.pk), "try-offset": "0", "completion-1": "2"}

    answer = alice_client.post(TRY, fields(("length", {"weight": "x"}), **shown))

    page = answer.content.decode()
    assert "incomplete" in page
    assert answer.context["benches"][1].text == "2"
    assert answer.context["benches"][1].tried == []


def test_a_completion_that_is_too_long_is_answered(
    alice_client: Client, version: DatasetVersion
):
    answer = alice_client.post(TRY, data(version, **{"completion-0": "x" * 50_001}))

    assert "50,001 characters" in answer.content.decode()


def test_too_many_completions_are_answered(
    alice_client: Client, version: DatasetVersion
):
    answer = alice_client.post(TRY, data(version, **{"completion-0": "x\n---\n" * 65}))

    assert "64 completions" in answer.content.decode()


def test_completions_after_the_timeout_have_no_score(
    version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("dashboard.rewards.workbench.MAX_SECONDS", -1.0)
    recipe = Recipe.model_validate({"rules": [{"name": "a", "kind": "length"}]})

    (bench,) = try_recipe(recipe, list(version.rows.all()[:1]), {0: "a\n---\nb"})

    assert [one.score for one in bench.tried] == [None, None]


def test_pasted_completions_are_escaped(alice_client: Client, version: DatasetVersion):
    pasted = "</textarea><script>alert(1)</script>"

    answer = alice_client.post(TRY, data(version, **{"completion-0": pasted}))

    assert "<script>alert" not in answer.content.decode()


def test_the_workbench_without_a_dataset_is_empty(alice_client: Client):
    page = alice_client.get("/alpha/rewards/new").content.decode()

    assert 'name="completion-0"' not in page


def test_three_dashes_part_completions():
    parted: dict[str, list[str]] = {
        "": [],
        "  \n ": [],
        "a": ["a"],
        "a\n\nb": ["a\n\nb"],
        "a\n---\nb": ["a", "b"],
        "a\r\n---\r\nb\r\n": ["a", "b"],
        "a\n---  \n\n---\nb": ["a", "b"],
        "a --- b\n----\nc": ["a --- b\n----\nc"],
        "\na\n---\n b ": ["a", " b "],
    }

    assert {text: split_completions(text) for text in parted} == parted


def test_completions_of_a_row_are_compared(
    alice_client: Client, version: DatasetVersion
):
    typed = {"completion-2": "4\n---\nso 4\n---\n5", "completion-3": "6"}
    shown = {"try-version": str(version.pk), "try-offset": "0", "try-seed": ""}

    answer = alice_client.post(
        TRY, fields(("majority", {}), ("length", {}), **shown, **typed)
    )

    two, one = answer.context["benches"][2:4]
    scores = [tried.score.rules["majority"] for tried in two.tried]
    assert scores == [1.0, 1.0, 0.0]
    assert one.tried[0].score.rules["majority"] is None
    assert answer.context["try_warnings"] == {}


# An answer that takes math-verify minutes to read.
ENDLESS = "<answer>" + "1 " * 5_000 + "</answer>"


@pytest.mark.django_db
def test_forty_rules_that_each_wait_a_minute_end_within_seconds(
    team: Team, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboard.rewards.workbench.MAX_SECONDS", 0.3)
    version = create_dataset_version(
        team=team,
        name="endless",
        rows=[Row(prompt=f"{n}?", answer="42") for n in range(5)],
        mapping={},
        source={},
        user=alice,
    )
    params = {"timeout_seconds": 60}
    rules = [
        {"name": f"r{n}", "kind": "math_verify", "params": params} for n in range(40)
    ]
    recipe = Recipe.model_validate({"rules": rules})
    rows = pick_rows(version, offset=0, seed=None)
    warn_unscorable(recipe, rows[:1])  # the judge is started

    benches = try_recipe(recipe, rows, dict.fromkeys(range(5), ENDLESS))
    warn_unscorable(recipe, rows)

    (tried,) = benches[0].tried
    assert tried.score is not None
    assert "timed out" in tried.score.errors["r39"]
