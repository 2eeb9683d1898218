"""The editor shows samples of four sources, and the scores that the rules give them."""

import re
from typing import Any

import pytest

from dashboard.analysis.probes import bench
from dashboard.analysis.probes.models import Probe, ProbeGroup
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.row import Row
from dashboard.rewards import trial
from dashboard.rewards.models import RecipeVersion, RewardRecipe
from dashboard.rewards.trial import as_sample, ask_models, split_completions
from dashboard.runs.models import Run
from tests.dashboard.analysis.probes.factories import (
    RECIPE,
    completion,
    finish,
    make_probe,
    make_version,
)
from tests.dashboard.completions.factories import (
    make_group,
    make_recipe,
    make_run,
    store_dataset,
)
from tests.dashboard.rewards.editor import fields
from tests.trainer.rewards.scores import score_completion
from trainer.rewards.rules import RULES
from trainer.rewards.spec import Recipe

NEW = "/alpha/rewards/new"
SCORES = "/alpha/rewards/scores"
ROWS = "/alpha/rewards/rows"
SAMPLES = {"HX-Request": "true", "HX-Target": "samples"}
NUMERIC = (("numeric_answer", {}),)
COMPLETIONS = [
    "<think>two twos</think><answer>4</answer>",
    "4",
    "four, surely, and I say so at some length",
    "<think>\U0001f600 é </think>\n<answer>٤</answer>",
]


@pytest.fixture
def version(team) -> DatasetVersion:
    return make_version(team)


@pytest.fixture
def run(team, version) -> Run:
    run = make_run(team, dataset_version=version, last_step=2)
    for step in (1, 2):
        for prompt in range(3):
            texts = [str(2 * prompt), "no", "7", "9"]
            make_group(run, step=step, prompt_index=prompt, texts=texts)
    return run


def shown(answer: Any) -> list[tuple[int | None, int]]:
    groups = answer.context["bench"].groups
    return [(group.step, group.row.position) for group in groups]


def tried(answer: Any, position: int) -> list[bench.Tried]:
    found: list[bench.Tried] = answer.context["bench"].groups[position].tried
    return found


def test_scores_equal_those_of_the_engine(alice_client, version):
    rules = (
        *NUMERIC,
        ("format_tags", {"weight": "0.5"}),
        ("length", {"weight": "-0.25", "params-maximum": "40"}),
    )
    data = fields(*rules, **{"completion-2": "\n---\n".join(COMPLETIONS)})

    answer = alice_client.post(SCORES, data)

    recipe = answer.context["draft"].recipe
    row = answer.context["bench"].groups[2].row
    expected = [score_completion(recipe, as_sample(row, c)) for c in COMPLETIONS]
    assert [one.trial.score for one in tried(answer, 2)] == expected  # type: ignore[union-attr]  # scored
    # 1 × right + 0.5 × in tags − 0.25 × 0, since it has 41 characters.
    assert tried(answer, 2)[0].total == 1.5
    assert "<strong>1.5</strong>" in answer.text


def test_completions_of_a_row_are_compared(alice_client, version):
    data = fields(
        *NUMERIC,
        ("majority", {}),
        **{"completion-2": "4\n---\nso 4\n---\n5", "completion-3": "6"},
    )

    answer = alice_client.post(SCORES, data)

    two, one = tried(answer, 2), tried(answer, 3)
    assert [each.cells[1][0] for each in two] == [1.0, 1.0, 0.0]
    # Totals 2, 2 and 0: mean 4/3, standard deviation 2/√3.
    assert [each.advantage for each in two] == pytest.approx(
        [0.57735, 0.57735, -1.1547], abs=1e-3
    )
    assert one[0].cells[1][0] is None


def test_a_group_function_is_not_called_without_completions(alice_client, version):
    source = "def f(completions, **kwargs):\n    return [1.0 for _ in completions]"
    rule = ("python_function", {"params-source": source})

    answer = alice_client.post(SCORES, fields(rule, **{"completion-2": "4\n---\n5"}))

    groups = answer.context["bench"].groups
    assert [len(group.tried) for group in groups] == [0, 0, 2, 0]
    assert [one.total for one in tried(answer, 2)] == [1.0, 1.0]


def test_output_and_metrics_of_a_function_stand_with_its_completion(
    alice_client, version
):
    source = (
        "def compute_score(data_source, solution_str, ground_truth):\n"
        "    print('<b>I saw', solution_str)\n"
        "    return {'score': 0.5, 'acc': solution_str == ground_truth, 'size': 7.25}"
    )
    rule = ("python_function", {"params-source": source})

    answer = alice_client.post(SCORES, fields(rule, **{"completion-2": "4\n---\n5"}))

    assert [one.metrics for one in tried(answer, 2)] == [
        {"compute_score/acc": acc, "compute_score/size": 7.25} for acc in (1.0, 0.0)
    ]
    assert answer.text.count("7.25") == 2
    assert "&lt;b&gt;I saw 4" in answer.text


def test_half_a_character_in_a_functions_error_is_shown_as_another(
    alice_client, version
):
    source = "def reward(completion):\n    raise ValueError('from ' + chr(0xD83D))"
    rule = ("python_function", {"params-source": source})

    answer = alice_client.post(SCORES, fields(rule, **{"completion-2": "4"}))

    assert answer.status_code == 200
    assert "from \ufffd" in answer.text


def test_any_answer_of_a_row_with_tools_is_right(alice_client, team):
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    chat = [
        {"role": "user", "content": "1+2?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    rows = [Row(prompt=chat, answer=["3", "III <3"], columns={"x": {"y": [1, 2]}})]
    store_dataset(team, rows, name="Tools")
    data = fields(*NUMERIC, **{"completion-0": "It is 3\n---\nIt is 4"})

    answer = alice_client.post(NEW, data, headers=SAMPLES)

    scored = alice_client.post(SCORES, data)
    assert [one.total for one in tried(scored, 0)] == [1.0, 0.0]
    assert "3 or III &lt;3" in answer.text
    assert "<strong>add</strong>" in answer.text


def test_another_advantage_is_the_engines_too(alice_client, version):
    chosen = {
        "baseline": "leave_one_out",
        "scale": "none",
        "completion-2": "4\n---\nno",
    }
    data = fields(*NUMERIC, **chosen)

    answer = alice_client.post(SCORES, data)

    assert [one.advantage for one in tried(answer, 2)] == pytest.approx([1.0, -1.0])
    page = alice_client.post(NEW, data, headers=SAMPLES)
    assert "baseline=leave_one_out&" in page["HX-Replace-Url"]


def test_a_reward_opens_with_the_newest_run_that_used_it(alice_client, team, run):
    make_run(team, "newer", recipe_version=make_recipe(team, "other"), last_step=1)
    make_version(team, name="Newer")

    answer = alice_client.get(f"/alpha/rewards/{run.recipe_version.recipe_id}/edit")  # type: ignore[union-attr]  # it has one

    assert answer.context["chosen"]["run"] == run
    assert shown(answer) == [(2, 0), (2, 1), (2, 2)]
    assert not answer.context["bench"].is_scored  # the page asks once it is there


def test_a_reward_without_a_run_opens_with_a_dataset_that_its_rules_read(
    alice_client, team
):
    row = Row(prompt="?", answer="4", columns={"numbers": [1, 3], "target": 4})
    fitting = store_dataset(team, [row], name="Countdown")
    make_version(team, name="Newer")
    rules = [{"name": "c", "kind": "countdown", "weight": 1.0, "params": {}}]
    recipe = make_recipe(team, rules=rules)
    tests = [{"name": "t", "kind": "code_tests", "weight": 1.0, "params": {}}]
    unread = make_recipe(team, "tests", rules=tests)

    page = alice_client.get(f"/alpha/rewards/{recipe.recipe_id}/edit")
    other = alice_client.get(f"/alpha/rewards/{unread.recipe_id}/edit")

    assert page.context["chosen"]["source"] == "pasted"
    assert page.context["chosen"]["dataset"] == fitting
    # Nothing can be read: the rule's own example.
    assert other.context["chosen"]["source"] == "own"
    own = other.context["bench"].groups[0].own
    example = RULES["code_tests"].example_pass.sample
    assert (own["prompt"], "tests" in own["columns"]) == (example.prompt, True)


def test_a_row_of_ones_own_is_scored_as_typed(alice_client):
    typed = {
        "source": "own",
        "own-prompt": "Make 9.",
        "own-answer": "",
        "own-columns": '{"numbers": [4, 5], "target": 9}',
        "completion-0": "<answer>4+5</answer>\n---\n<answer>4*5</answer>",
    }
    for columns, totals in (
        (typed["own-columns"], [1.0, 0.0]),
        ('{"numbers": [4', [None, None]),
        ("[1]", [None, None]),
    ):
        data = fields(("countdown", {}), **typed | {"own-columns": columns})

        answer = alice_client.post(SCORES, data)

        assert [one.total for one in tried(answer, 0)] == totals
        assert bool(answer.context["bench"].groups[0].errors) == (totals[0] is None)


def test_a_run_brings_its_own_rows_and_rules(alice_client, run):
    answer = alice_client.get(NEW, {"run": run.pk})

    assert shown(answer) == [(2, 0), (2, 1), (2, 2)]
    assert 'value="run" selected' in answer.text
    assert [rule.name for rule in answer.context["draft"].rules] == ["answer", "format"]
    assert [one.text for one in tried(answer, 0)] == ["0", "no", "7", "9"]


def test_scores_are_of_the_shown_step_while_the_run_trains_on(alice_client, run):
    page = alice_client.get(NEW, {"run": run.pk}).text
    step = re.search(r'name="shown_step" value="(\d+)"', page)
    assert step
    data = fields(*NUMERIC, source="run", run=str(run.pk), shown_step=step[1])
    make_group(run, step=3, prompt_index=0, texts=["0", "1", "2", "3"])

    scored = alice_client.post(SCORES, data)
    shown_again = alice_client.post(NEW, data, headers=SAMPLES)

    assert shown(scored) == [(2, 0), (2, 1), (2, 2)]
    assert [one.total for one in tried(scored, 0)] == [1.0, 0.0, 0.0, 0.0]
    assert 'id="scores-2-0" hx-swap-oob' in scored.text
    assert shown(shown_again) == [(3, 0)]


def test_steps_and_rows_narrow_a_run(alice_client, run):
    answer = alice_client.get(NEW, {"run": run.pk, "steps": "1-2", "rows": "1"})

    assert shown(answer) == [(1, 1), (2, 1)]


def test_the_number_of_shown_groups_is_given(alice_client, team):
    run = make_run(team, dataset_version=make_version(team, count=20))
    for prompt in range(15):
        make_group(run, prompt_index=prompt)

    answer = alice_client.get(NEW, {"run": run.pk})

    assert len(shown(answer)) == 12
    assert "12 of 15" in answer.text


def test_a_tests_completions_are_shown(alice_client, team, version):
    probe = make_probe(team, version)
    finish(num_done=1)
    ProbeGroup.objects.create(
        probe=probe,
        position=3,
        completions=[
            completion("6", 1.0),
            completion("</pre><script>alert(1)", 0.0, end_reason="length"),
        ],
    )

    answer = alice_client.get(NEW, {"probe": probe.pk})

    assert [one.is_truncated for one in tried(answer, 0)] == [False, True]
    assert "<script>alert" not in answer.text
    data = fields(*NUMERIC, source="probe", probe=str(probe.pk))
    scored = alice_client.post(SCORES, data)
    assert [one.total for one in tried(scored, 0)] == [1.0, 0.0]


def test_an_open_test_shows_its_progress(alice_client, team, version):
    probe = make_probe(team, version)

    page = alice_client.get(NEW, {"probe": probe.pk}).text

    assert f"/alpha/probes/{probe.pk}/progress?short=1" in page


def test_a_change_swaps_scores_but_not_fields(alice_client, version):
    data = fields(*NUMERIC, **{"completion-0": "0"})

    page = alice_client.post(SCORES, data).text

    assert 'id="scores-0" hx-swap-oob' in page
    assert "<strong>1</strong>" in page
    assert "<textarea" not in page
    assert "<select" not in page


def test_a_rule_without_a_score_is_marked_with_its_reason(alice_client, version):
    data = fields(*NUMERIC, ("countdown", {}), **{"completion-1": "2\n---\n3"})

    answer = alice_client.post(SCORES, data)

    score, error = tried(answer, 1)[0].cells[1]
    assert score is None
    assert '"numbers"' in error
    ((_, first), (_, second)) = answer.context["rules_failed"]
    assert first is None
    assert second == (2, error)
    assert answer.text.count("rule-chip") == 1
    assert answer.text.count('class="cell-error ') == 2


def test_completions_without_a_reward_are_not_counted_as_scored(alice_client, version):
    data = fields(("countdown", {}), **{"completion-1": "2\n---\n3"})

    bench = alice_client.post(SCORES, data).context["bench"]

    assert (bench.num_scored, bench.num_completions) == (0, 2)


def test_scores_that_no_process_was_free_for_are_asked_for_again(
    alice_client, version, monkeypatch
):
    data = fields(*NUMERIC, **{"completion-0": "0"})

    def refuse(**_: object) -> None:
        raise trial.Busy(0)

    with monkeypatch.context() as patched:
        patched.setattr(trial, "slot", refuse)
        cut_short = alice_client.post(SCORES, data)
    again = alice_client.post(SCORES, data)

    for answer, num_scored in ((cut_short, 0), (again, 1)):
        assert answer.context["bench"].num_scored == num_scored
        assert (f'hx-post="{SCORES}"' in answer.text) == (num_scored == 0)


def test_warnings_name_their_rows(alice_client, version):
    data = fields(*NUMERIC, **{f"completion-{n}": "x\n---\ny" for n in range(3)})

    answer = alice_client.post(SCORES, data)

    findings = answer.context["findings"]
    assert [finding.kind for finding in findings] == ["constant", "flat"]
    assert "6" in findings[0].short
    assert '"rows": "0,1,2"' in answer.text


def test_the_datasets_rows_are_checked(alice_client, team):
    version = make_version(team, count=3)
    version.rows.filter(position=1).update(answer="about two")

    answer = alice_client.post(ROWS, fields(*NUMERIC))
    own = alice_client.post(ROWS, fields(*NUMERIC, source="own"))

    assert "1 of 3" in answer.text
    assert '"rows": "1"' in answer.text
    assert own.context["findings"] == []


def test_the_launch_form_shows_the_same_findings(alice_client, team):
    version = make_version(team, count=3)
    version.rows.filter(position=1).update(answer="about two")
    recipe = make_recipe(team, rules=RECIPE["rules"])

    page = alice_client.get(
        "/alpha/rewards/findings", {"recipe": recipe.pk, "dataset": version.pk}
    ).text

    assert "1 of 3" in page
    assert f"/alpha/rewards/{recipe.recipe_id}/edit?version=1" in page


def test_the_address_reproduces_the_view(alice_client, run):
    query = {"run": run.pk, "steps": "1-2", "rows": "1,2", "scale": "none"}
    first = alice_client.get(NEW, query)

    again = alice_client.get(first.context["address"])

    assert shown(again) == shown(first) == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert again.context["chosen"]["scale"] == "none"


def test_sampling_queues_a_test_of_the_rows_shown(alice_client, version):
    data = fields(
        *NUMERIC,
        **{
            "rows": "1,4",
            "action": "sample",
            "sample-model_other": "org/model",
            "sample-samples": "3",
            "sample-prompts": "32",
            "sample-max_new_tokens": "20",
        },
    )

    answer = alice_client.post(NEW, data, headers=SAMPLES)

    probe = Probe.objects.get()
    assert (probe.positions, probe.num_samples, probe.is_sample) == ([1, 4], 3, True)
    assert probe.config["model"]["path"] == "org/model"
    assert probe.config["rollout"]["max_new_tokens"] == 20
    assert probe.config["reward"]["recipe"]["rules"][0]["kind"] == "numeric_answer"
    assert f"probe={probe.pk}" in answer["HX-Replace-Url"]


def test_a_test_draws_rows_and_has_a_page(alice_client, version):
    data = fields(
        *NUMERIC,
        **{
            "action": "probe",
            "sample-model_other": "org/model",
            "sample-samples": "4",
            "sample-prompts": "5",
        },
    )

    answer = alice_client.post(NEW, data, headers=SAMPLES)

    probe = Probe.objects.get()
    assert (len(probe.positions), probe.is_sample) == (5, False)
    assert answer["HX-Redirect"] == f"/alpha/probes/{probe.pk}/"


def test_a_viewer_scores_and_starts_and_saves_nothing(bob_client, version):
    for action in ("sample", "probe", "save", "stop"):
        data = fields(*NUMERIC, action=action, name="Sums")

        assert bob_client.post(NEW, data).status_code == 403, action
    assert not Probe.objects.exists()
    assert not RewardRecipe.objects.exists()
    scored = bob_client.post(SCORES, fields(*NUMERIC, **{"completion-0": "0"}))
    assert tried(scored, 0)[0].total == 1
    assert not RecipeVersion.objects.exists()


def test_an_invalid_choice_is_a_field_error(alice_client, run):
    for field, text in (
        ("rows", "x"),
        ("rows", "99999999999"),
        ("steps", "1-"),
        ("run", "999"),
    ):
        query = {"run": str(run.pk), "source": "run", field: text}

        answer = alice_client.get(NEW, query)

        assert answer.status_code == 200
        assert list(answer.context["choice"].errors) == [field]


def test_objects_of_another_team_are_not_found(charlie_client, run, version):
    query = {"run": run.pk, "dataset": version.pk}

    page = charlie_client.get("/other/rewards/new", query)

    assert "1+1?" not in page.text
    data = fields(*NUMERIC, dataset=str(version.pk), **{"completion-0": "0"})
    assert charlie_client.post(SCORES, data).status_code == 404
    assert "1+1?" not in charlie_client.post("/other/rewards/scores", data).text
    recipe = run.recipe_version.recipe_id  # type: ignore[union-attr]  # it has one
    assert charlie_client.get(f"/other/rewards/{recipe}/edit").status_code == 404


def test_an_incomplete_reward_scores_nothing(alice_client, version):
    data = fields(("length", {"weight": "x"}), **{"completion-1": "2"})

    answer = alice_client.post(SCORES, data)

    assert [one.trial for one in tried(answer, 1)] == [None]
    assert answer.context["bounds"] is None


def test_long_and_many_completions_are_answered(alice_client, version):
    typed = {"completion-0": "x" * 50_001, "completion-1": "x\n---\n" * 40}

    answer = alice_client.post(SCORES, fields(*NUMERIC, **typed))

    long, many = answer.context["bench"].groups[:2]
    assert (len(long.errors), long.tried) == (1, [])
    assert (len(many.tried), many.num_found) == (32, 40)


def test_pasted_completions_are_escaped(alice_client, version):
    pasted = "</textarea><script>alert(1)</script>"

    answer = alice_client.post(NEW, fields(*NUMERIC, **{"completion-0": pasted}))

    assert tried(answer, 0)[0].total is not None  # a page without scripts is scored
    assert "<script>alert" not in answer.text


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


# An answer that takes math-verify minutes to read.
ENDLESS = "<answer>" + "1 " * 5_000 + "</answer>"


def test_forty_rules_that_each_wait_a_minute_end_within_seconds(version):
    """Also where models are asked, which is in the web process."""
    params = {"timeout_seconds": 60}
    rules = [
        {"name": f"r{n}", "kind": "math_verify", "params": params} for n in range(40)
    ]
    recipe = Recipe.model_validate({"rules": rules})
    samples = [as_sample(row, ENDLESS) for row in version.rows.order_by("position")]
    ask_models(recipe, [[as_sample(version.rows.all()[0], "1")]], seconds=20)  # starts

    first, *others = ask_models(recipe, [[each] for each in samples], seconds=0.3)

    assert first[0].score is not None
    assert "timed out" in first[0].score.errors["r39"]
    assert [trial.score for (trial,) in others] == [None] * 5
