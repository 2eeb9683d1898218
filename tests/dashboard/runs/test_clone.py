import re
from html import unescape

import pytest

from dashboard.runs.models import Run
from tests.dashboard.runs.launching import (
    make_config,
    make_dataset,
    make_recipe,
    make_run,
)


@pytest.fixture(scope="module")
def parent(shared_team, shared_alice) -> Run:
    config = make_config(
        model={"path": "org/other", "gradient_checkpointing": True},
        optim={"num_steps": 77, "learning_rate": 2.5e-5, "max_grad_norm": None},
        data={
            "rows": "rows.jsonl",
            "num_eval_rows": 16,
            "system_prompt": "\nBe <brief>.\n",
        },
        loss={"kl_coef": 0.04, "importance_correction": "token_mask"},
    )
    make_dataset(shared_team, "decoy")
    make_recipe(shared_team, "decoy")
    return make_run(
        shared_team,
        "amber-otter",
        dataset=make_dataset(shared_team),
        recipe=make_recipe(shared_team),
        owner=shared_alice,
        config=config,
    )


def _fields(page: str) -> dict[str, str]:
    """What a browser would send of this form."""
    form = page[page.index('<form id="launch-form"') :]
    found = {}
    for name, value in re.findall(r'<input[^>]* name="([^"]+)" value="([^"]*)"', form):
        found[name] = unescape(value)
    for name, checked in re.findall(
        r'<input[^>]*type="checkbox"[^>]* name="([^"]+)"[^>]*?( checked)?>', form
    ):
        if checked:
            found[name] = "on"
    for name, body in re.findall(
        r'<textarea[^>]* name="([^"]+)"[^>]*>\n(.*?)</textarea>', form, re.DOTALL
    ):
        found[name] = unescape(body).replace("\n", "\r\n")
    for name, body in re.findall(
        r'<select[^>]* name="([^"]+)"[^>]*>(.*?)</select>', form, re.DOTALL
    ):
        chosen = re.search(r'value="([^"]*)" selected', body)
        found[name] = unescape(chosen[1]) if chosen else ""
    return found


def test_a_clone_sent_as_it_is_has_the_same_config(alice_client, team, parent):
    page = alice_client.get(f"/{team.slug}/runs/new?clone={parent.pk}").text

    response = alice_client.post(f"/{team.slug}/runs/new", _fields(page))

    clone = Run.objects.latest("pk")
    assert response.status_code == 302
    assert clone.pk != parent.pk
    assert clone.config == parent.config
    assert clone.dataset_version == parent.dataset_version
    assert clone.recipe_version == parent.recipe_version
    assert clone.cloned_from == parent
    assert clone.name != parent.name


def test_the_form_says_what_it_was_cloned_from_and_marks_what_differs(
    alice_client, team, parent
):
    page = alice_client.get(f"/{team.slug}/runs/new?clone={parent.pk}").text

    assert "Cloned from" in page
    assert f'href="/{team.slug}/runs/{parent.pk}/">amber-otter</a>' in page
    assert f"from run #{parent.pk}, default 1e-6</span>" in page
    assert re.search(rf"Optimizer</span>.*1 from run #{parent.pk}<", page)


def test_a_config_of_an_older_release_is_cloned_as_far_as_it_goes(
    alice_client, team, parent
):
    parent.config["optim"]["was_renamed"] = 1
    del parent.config["evaluation"]
    parent.save()

    fields = _fields(alice_client.get(f"/{team.slug}/runs/new?clone={parent.pk}").text)

    assert fields["optim.num_steps"] == "77"
    assert fields["evaluation.every_steps"] == "20"


def test_another_teams_run_cannot_be_cloned(charlie_client, team, parent):
    assert charlie_client.get(f"/other/runs/new?clone={parent.pk}").status_code == 404


def test_an_invalid_clone_id_shows_the_default_form(alice_client, team):
    for clone in ("x", "", "9" * 20):
        response = alice_client.get(f"/{team.slug}/runs/new?clone={clone}")

        assert response.status_code == 200, clone
        assert "Cloned from" not in response.text, clone


def test_a_clone_lists_the_settings_that_its_address_changes(
    alice_client, team, parent
):
    address = f"/{team.slug}/runs/new?clone={parent.pk}"

    plain = alice_client.get(address).context["form"]
    query = "&loss.importance_cap=5.0&loss.kl_coef=0.04"
    changed = alice_client.get(address + query).context["form"]

    assert plain.changed == []
    assert [setting.path for setting in changed.changed] == ["loss.importance_cap"]


def test_a_clone_marks_the_setting_that_cannot_be_launched(alice_client, team, parent):
    run = make_run(
        team,
        "wide-heron",
        dataset=parent.dataset_version,
        recipe=parent.recipe_version,
        config=make_config(data={"rows": "rows.jsonl", "num_eval_rows": 5_000}),
    )

    page = alice_client.get(f"/{team.slug}/runs/new?clone={run.pk}").text

    [control] = re.findall(r'<input[^>]* name="data.num_eval_rows"[^>]*>', page)
    assert 'aria-invalid="true"' in control
    estimate = page[page.index('id="launch-summary"') :]
    assert "5,000" in estimate[: estimate.index("</aside>")]
