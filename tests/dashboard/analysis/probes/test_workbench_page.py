"""The workbench shows completions of three sources, and what a recipe gives them."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.analysis.probes.models import Probe, ProbeGroup
from dashboard.datasets.models import DatasetVersion
from dashboard.rewards.models import RecipeVersion
from dashboard.runs.models import Run
from tests.dashboard.analysis.probes.factories import (
    RECIPE,
    completion,
    finish,
    make_probe,
    make_version,
    measured,
)
from tests.dashboard.rewards.editor import fields
from tests.dashboard.samples.factories import make_group, make_recipe, make_run

PAGE = "/alpha/rewards/workbench"
BENCH = {"HX-Request": "true", "HX-Target": "bench"}
NUMERIC = (("numeric_answer", {}),)


@pytest.fixture
def version(team: Team) -> DatasetVersion:
    return make_version(team)


@pytest.fixture
def run(team: Team, version: DatasetVersion) -> Run:
    run = make_run(team, dataset_version=version)
    for step in (1, 2):
        for prompt in range(3):
            texts = [str(2 * prompt), "no", "7", "9"]
            make_group(run, step=step, prompt_index=prompt, texts=texts)
    return run


def shown(answer: Any) -> list[tuple[int | None, int]]:
    groups = answer.context["bench"].groups
    return [(group.step, group.row.position) for group in groups]


def test_pasted_completions_are_scored_and_compared(
    alice_client: Client, version: DatasetVersion
) -> None:
    data = fields(*NUMERIC, **{"completion-2": "4\n---\nno"})

    answer = alice_client.post(PAGE, data, headers=BENCH)

    group = answer.context["bench"].groups[2]
    assert [one.total for one in group.tried] == [1.0, 0.0]
    # mean 0.5, standard deviation 0.7071
    assert [one.advantage for one in group.tried] == pytest.approx(
        [0.5 / (0.5**0.5 + 1e-4), -0.5 / (0.5**0.5 + 1e-4)]
    )
    assert all(one.trial.seconds > 0 for one in group.tried)


def test_what_reward_code_prints_is_shown(
    alice_client: Client, version: DatasetVersion
) -> None:
    source = "def reward(completion):\n    print('I saw', completion)\n    return 1"
    code = ("python_function", {"params-source": source})

    answer = alice_client.post(
        PAGE, fields(code, **{"completion-2": "4"}), headers=BENCH
    )

    assert answer.context["bench"].groups[2].tried[0].total == 1
    assert "I saw 4" in answer.content.decode()


def test_another_advantage_is_the_engines_too(
    alice_client: Client, version: DatasetVersion
) -> None:
    chosen = {
        "baseline": "leave_one_out",
        "scale": "none",
        "completion-2": "4\n---\nno",
    }

    answer = alice_client.post(PAGE, fields(*NUMERIC, **chosen), headers=BENCH)

    tried = answer.context["bench"].groups[2].tried
    assert [one.advantage for one in tried] == pytest.approx([1.0, -1.0])
    assert "baseline=leave_one_out&" in answer["HX-Replace-Url"]


def test_a_runs_last_step_is_shown_with_its_own_rows(
    alice_client: Client, run: Run
) -> None:
    answer = alice_client.get(PAGE, {"run": run.pk})

    assert shown(answer) == [(2, 0), (2, 1), (2, 2)]
    assert 'value="run" selected' in answer.content.decode()
    # The recipe is the run's, where none is named.
    assert [rule.name for rule in answer.context["draft"].rules] == ["answer", "format"]
    first = answer.context["bench"].groups[0].tried
    assert [one.text for one in first] == ["0", "no", "7", "9"]


def test_steps_and_rows_narrow_a_run(alice_client: Client, run: Run) -> None:
    answer = alice_client.get(PAGE, {"run": run.pk, "steps": "1-2", "rows": "1"})

    assert shown(answer) == [(1, 1), (2, 1)]


def test_the_number_of_shown_groups_is_given(alice_client: Client, team: Team) -> None:
    run = make_run(team, dataset_version=make_version(team, count=20))
    for prompt in range(15):
        make_group(run, prompt_index=prompt)

    answer = alice_client.get(PAGE, {"run": run.pk})

    assert "12 of 15 groups shown" in answer.content.decode()


def test_a_probes_completions_are_shown(
    alice_client: Client, team: Team, version: DatasetVersion
) -> None:
    probe = make_probe(team, version)
    finish(num_done=1)
    ProbeGroup.objects.create(
        probe=probe,
        position=3,
        completions=[
            completion("6", 1.0),
            completion("six", 0.0, end_reason="length"),
        ],
    )

    answer = alice_client.get(PAGE, {"probe": probe.pk})

    tried = answer.context["bench"].groups[0].tried
    assert [one.total for one in tried] == [1.0, 0.0]
    assert "truncated" in answer.text


def test_an_open_probe_shows_its_progress(
    alice_client: Client, team: Team, version: DatasetVersion
) -> None:
    probe = make_probe(team, version)

    page = alice_client.get(PAGE, {"probe": probe.pk}).content.decode()

    assert f"/alpha/probes/{probe.pk}/progress?short=1" in page


def test_a_change_swaps_scores_but_not_fields(
    alice_client: Client, version: DatasetVersion
) -> None:
    data = fields(*NUMERIC, **{"completion-0": "0"})

    page = alice_client.post(f"{PAGE}/scores", data).content.decode()

    assert 'id="scores-0" hx-swap-oob' in page
    assert "<strong>1</strong>" in page
    assert "<textarea" not in page
    assert "<select" not in page


def test_warnings_name_their_rows(
    alice_client: Client, version: DatasetVersion
) -> None:
    data = fields(*NUMERIC, **{f"completion-{n}": "x\n---\ny" for n in range(3)})

    answer = alice_client.post(f"{PAGE}/scores", data)

    kinds = [finding.kind for finding in answer.context["findings"]]
    assert kinds == ["constant", "flat"]
    page = answer.content.decode()
    assert "0 to all 6" in page
    assert "rows=0,1,2" in page


def test_the_datasets_rows_are_checked(alice_client: Client, team: Team) -> None:
    version = make_version(team, count=3)
    version.rows.filter(position=1).update(answer="about two")

    page = alice_client.post(f"{PAGE}/rows", fields(*NUMERIC)).content.decode()

    assert "1 of all 3" in page
    assert "rows=1" in page


def test_the_launch_form_shows_the_same_findings(
    alice_client: Client, team: Team
) -> None:
    version = make_version(team, count=3)
    version.rows.filter(position=1).update(answer="about two")
    recipe = make_recipe(team, rules=RECIPE["rules"])

    page = alice_client.get(
        "/alpha/rewards/findings", {"recipe": recipe.pk, "dataset": version.pk}
    ).content.decode()

    assert "1 of all 3" in page
    assert f"recipe={recipe.recipe_id}" in page


def test_the_address_reproduces_the_view(alice_client: Client, run: Run) -> None:
    query = {"run": run.pk, "steps": "1-2", "rows": "1,2", "scale": "none"}
    first = alice_client.get(PAGE, query)

    again = alice_client.get(first.context["address"])

    assert shown(again) == shown(first) == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert again.context["chosen"]["scale"] == "none"


def test_a_named_recipe_is_edited_and_saved_as_its_next_version(
    alice_client: Client, team: Team, version: DatasetVersion
) -> None:
    saved = make_recipe(team, rules=RECIPE["rules"])
    data = fields(
        ("numeric_answer", {"weight": "2"}),
        recipe=str(saved.recipe_id),
        rows="0,2",
        action="save",
    )

    answer = alice_client.post(PAGE, data)

    assert answer.status_code == 302
    assert f"recipe={saved.recipe_id}" in answer.url
    assert "rows=0%2C2" in answer.url
    newest = RecipeVersion.objects.order_by("number").last()
    assert newest is not None
    assert (newest.number, newest.spec["rules"][0]["weight"]) == (2, 2.0)


def test_the_editor_opens_with_its_unsaved_rules(
    alice_client: Client, team: Team, version: DatasetVersion
) -> None:
    saved = make_recipe(team, rules=RECIPE["rules"])
    edit = alice_client.get(f"/alpha/rewards/{saved.recipe_id}/edit").content.decode()
    address = f"{PAGE}?recipe={saved.recipe_id}"
    assert f'formaction="{address}"' in edit
    data = fields(("numeric_answer", {"weight": "7"}), action="show")

    answer = alice_client.post(address, data)

    assert answer.context["recipe"] == saved.recipe
    assert answer.context["draft"].recipe.rules[0].weight == 7


def test_a_new_recipe_needs_a_name(
    alice_client: Client, version: DatasetVersion
) -> None:
    data = fields(*NUMERIC, name="", action="save")

    answer = alice_client.post(PAGE, data)

    assert answer.status_code == 422
    assert not RecipeVersion.objects.exists()
    assert alice_client.post(PAGE, {**data, "name": "Sums"}).status_code == 302
    assert RecipeVersion.objects.get().recipe.name == "Sums"


def test_rules_are_added_as_in_the_editor(
    alice_client: Client, version: DatasetVersion
) -> None:
    data = fields(*NUMERIC, action="add", add_kind="length")
    headers = {"HX-Request": "true", "HX-Target": "editor"}

    page = alice_client.post(PAGE, data, headers=headers).content.decode()

    assert 'rules-1-kind" value="length"' in page
    assert "<html" not in page


def test_sampling_queues_a_probe_of_the_rows_shown(
    alice_client: Client, version: DatasetVersion
) -> None:
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

    answer = alice_client.post(PAGE, data, headers=BENCH)

    probe = Probe.objects.get()
    assert (probe.positions, probe.num_samples, probe.is_sample) == ([1, 4], 3, True)
    assert probe.config["model"]["path"] == "org/model"
    assert probe.config["rollout"]["max_new_tokens"] == 20
    assert probe.config["reward"]["recipe"]["rules"][0]["kind"] == "numeric_answer"
    assert f"probe={probe.pk}" in answer["HX-Replace-Url"]


def test_a_probe_draws_rows_and_has_a_page(
    alice_client: Client, version: DatasetVersion
) -> None:
    data = fields(
        *NUMERIC,
        **{
            "action": "probe",
            "sample-model_other": "org/model",
            "sample-samples": "4",
            "sample-prompts": "5",
        },
    )

    answer = alice_client.post(PAGE, data, headers=BENCH)

    probe = Probe.objects.get()
    assert (len(probe.positions), probe.is_sample) == (5, False)
    assert answer["HX-Redirect"] == f"/alpha/probes/{probe.pk}/"


def test_a_viewer_starts_and_saves_nothing(
    bob_client: Client, version: DatasetVersion
) -> None:
    for action in ("sample", "probe", "save", "stop"):
        data = fields(*NUMERIC, action=action, name="Sums")

        assert bob_client.post(PAGE, data).status_code == 403, action
    assert not Probe.objects.exists()
    assert not RecipeVersion.objects.exists()


def test_an_invalid_choice_is_a_field_error(alice_client: Client, run: Run) -> None:
    for field, text in (
        ("rows", "x"),
        ("rows", "99999999999"),
        ("steps", "1-"),
        ("run", "999"),
    ):
        query = {"run": str(run.pk), "source": "run", field: text}

        answer = alice_client.get(PAGE, query)

        assert answer.status_code == 200
        assert list(answer.context["choice"].errors) == [field]


def test_a_team_without_a_dataset_gets_a_hint(alice_client: Client) -> None:
    page = alice_client.get(PAGE)

    assert page.status_code == 200
    assert "no dataset" in page.text


def test_objects_of_another_team_are_not_found(
    charlie_client: Client, run: Run, version: DatasetVersion
) -> None:
    page = charlie_client.get(
        "/other/rewards/workbench", {"run": run.pk, "dataset": version.pk}
    ).content.decode()

    assert "1+1?" not in page
    assert charlie_client.get("/other/rewards/workbench?recipe=1").status_code == 404


def test_model_output_is_escaped(
    alice_client: Client, team: Team, version: DatasetVersion
) -> None:
    probe = make_probe(team, version)
    evil = "</pre><script>alert(1)</script>"
    ProbeGroup.objects.create(
        probe=probe, position=1, completions=[completion(evil, 0.0)]
    )

    page = alice_client.get(PAGE, {"probe": probe.pk}).content.decode()

    assert "<script>alert" not in page


@pytest.fixture
def finished(team: Team, version: DatasetVersion) -> Probe:
    probe = make_probe(team, version)
    finish(num_done=2, metrics=measured())
    return probe


def test_a_probes_page_gives_a_verdict_and_its_numbers(
    alice_client: Client, finished: Probe
) -> None:
    page = alice_client.get(f"/alpha/probes/{finished.pk}/").content.decode()

    assert "80% of groups" in page
    assert "95 %: 0.65 to 0.9" in page
    assert "1 − Σ C(n_v, G) / C(n, G)" in page
    assert "2 s" in page
    assert "hx-trigger" not in page.split('id="probe-body"')[1].split("</main>")[0]


def test_a_failed_probe_shows_its_error(alice_client: Client, finished: Probe) -> None:
    finish(state="failed", metrics={}, error="too long")

    page = alice_client.get(f"/alpha/probes/{finished.pk}/").content.decode()

    assert "too long" in page
    assert "Verdict" not in page


def test_an_ended_probe_shows_its_completions(
    alice_client: Client, finished: Probe
) -> None:
    address = f"/alpha/probes/{finished.pk}/progress?short=1"

    page = alice_client.get(address).content.decode()

    assert 'hx-target="#bench"' in page
    finish(state="queued")
    assert 'hx-trigger="every 1s"' in alice_client.get(address).content.decode()


def test_probes_are_listed_with_their_verdicts(
    alice_client: Client, finished: Probe
) -> None:
    page = alice_client.get("/alpha/probes/").content.decode()

    assert f"/alpha/probes/{finished.pk}/" in page
    assert "can learn" in page


def test_a_probe_is_stopped(
    alice_client: Client, team: Team, version: DatasetVersion
) -> None:
    probe = make_probe(team, version)

    answer = alice_client.post(f"/alpha/probes/{probe.pk}/stop")

    assert answer.status_code == 302
    probe.refresh_from_db()
    assert probe.state == "cancelled"


def test_a_launch_form_is_probed_unsaved(
    alice_client: Client, team: Team, version: DatasetVersion
) -> None:
    recipe = make_recipe(team, rules=RECIPE["rules"])
    page = alice_client.get("/alpha/runs/new")
    form = page.context["form"]
    data = {
        **form.texts,
        "name": "first",
        "model": "",
        "model_other": "org/model",
        "dataset": str(version.pk),
        "recipe": str(recipe.pk),
        "rollout.prompts_per_step": "4",
        "data.num_eval_rows": "0",
    }

    answer = alice_client.post("/alpha/runs/new/probe", data)

    probe = Probe.objects.get()
    assert answer.url == f"/alpha/probes/{probe.pk}/"
    assert probe.recipe_version == recipe
    assert probe.config["rollout"]["prompts_per_step"] == 4
    assert (len(probe.positions), probe.num_samples) == (6, 8)  # all rows; G
    assert not Run.objects.exists()


def test_an_invalid_launch_form_starts_no_probe(alice_client: Client) -> None:
    answer = alice_client.post("/alpha/runs/new/probe", {"name": "x"})

    assert answer.status_code == 422
    assert not Probe.objects.exists()
