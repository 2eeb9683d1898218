"""Settings that the form has no field for: phases, steps' reward, held-out sets."""

import re
from html import unescape
from typing import Any

import pytest
from django.test import Client

from dashboard.accounts.models import Team
from dashboard.project.errors import UserError
from dashboard.runs.config.toml import EXAMPLE, read_phases, write_phases
from dashboard.runs.models import Run
from tests.dashboard.runs.launching import (
    NUMERIC,
    make_config,
    make_dataset,
    make_recipe,
    make_run,
)
from tests.dashboard.runs.test_clone import _fields

PHASES = [
    {
        "name": "warm",
        "num_steps": 40,
        "changes": {"loss": {"clip_high": 0.28, "dual_clip": None}},
    },
    {"name": "rest", "num_steps": 60, "changes": {}},
]


@pytest.fixture
def filled(team) -> dict[str, Any]:
    return {
        "name": "brave-otter",
        "model": "",
        "model_other": "org/model",
        "dataset": make_dataset(team, completion="").pk,
        "recipe": make_recipe(team).pk,
    }


def _beside(page: str, control: str) -> list[str]:
    block = re.search(rf'<div id="about-{control}">(.*?)</div>', page, re.DOTALL)
    assert block
    return re.findall(r'class="field-error">(.*?)</p>', unescape(block[1]))


PROMPTS, TOKEN = "field-rollout-prompts_per_step", "field-reference-token_file"


def _post(client: Client, team: Team, form: dict[str, Any]) -> tuple[int, str]:
    response = client.post(f"/{team.slug}/runs/new", form)
    return response.status_code, response.text


def test_phases_are_read_from_toml_and_json():
    for text in (
        '[[phases]]\nname = "a"\nnum_steps = 3',
        '[{"name": "a", "num_steps": 3}]',
        ' {"phases": [{"name": "a", "num_steps": 3}]} ',
    ):
        assert read_phases(text) == [{"name": "a", "num_steps": 3}]


WITHOUT_NULL = {
    "name": "warm",
    "num_steps": 40,
    "changes": {
        "loss": {"clip_high": 0.28},
        "evaluation": {"sets": {"hard": "hard.jsonl"}},
        "reward": {"step_recipe": {"rules": [{"name": "a" * 90, "weight": 1.5}]}},
    },
}


def test_phases_are_written_and_read_again():
    assert "changes" not in write_phases([PHASES[1]])
    assert write_phases([PHASES[1], PHASES[1]]).count("[[phases]]") == 2
    for phases in (PHASES, PHASES[:1], [WITHOUT_NULL], []):
        assert read_phases(write_phases(phases)) == phases


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("# " + "x" * 70_000, "phases.too_long"),
        ("[[phases]]\n" * 101, "phases.too_many"),
        ('[{"name": "a\\u0000"}]', "settings.bad_character"),
        (
            '[{"name": "a", "changes": {"reward": {"\\ud800": 1}}}]',
            "settings.bad_character",
        ),
        ('{"\\ud800": 1}', "phases.unknown_key"),
        ("[" + '{"a":' * 30 + "1" + "}" * 30 + "]", "settings.too_deep"),
        ("[[phases]]\nnum_steps = 0x" + "f" * 5_000, "settings.number_too_large"),
    ],
)
def test_unstorable_phases_are_refused(text, code):
    with pytest.raises(UserError) as refused:
        read_phases(text)

    assert refused.value.code == code
    assert len(str(refused.value).encode()) < 300


def test_the_example_launches(alice_client, team, filled):
    form = filled | {"phases": EXAMPLE, "optim.num_steps": "200"}

    status, page = _post(alice_client, team, form)

    assert status == 302, _beside(page, "phases")
    phases = Run.objects.get().config["phases"]
    assert [(p["name"], p["num_steps"]) for p in phases] == [("sft", 50), ("grpo", 150)]


A = '[[phases]]\nname = "a"\n'
WRONG = {
    "[[phases]": "TOML",
    "[{": "JSON",
    "[" * 60_000: "TOML",
    "seed = 3": "“seed”",
    "phases = 3": "list",
    '{"phases": [3]}': "Phase 1",
    A: "Phase 1, num_steps",
    A + 'num_steps = "x"': "Phase 1, num_steps: ",
    '[[phases]]\nname = "A b"\nnum_steps = 100': "“A b”",
    A + "num_steps = 100\nclip_low = 0.1": "under changes",
    A + "num_steps = 7": "optim.num_steps is 100",
    A + "num_steps = 100\nchanges.loss.clip_low = 7": 'Phase "a", loss.clip_low: ',
    A + 'num_steps = 100\nchanges.model.path = "x"': 'change "model"',
    "\x00": "NUL",
}


def test_errors_of_phases_are_shown_at_their_field(alice_client, team, filled):
    for text, named in WRONG.items():
        answer = alice_client.post(
            f"/{team.slug}/runs/new/summary", filled | {"phases": text}
        )

        messages = answer.context["form"].problems.by_field["phases"]
        assert any(named in one for one in messages), text[:40]
    status, page = _post(alice_client, team, filled | {"phases": text})
    assert (status, _beside(page, "phases")) == (422, messages)
    assert not Run.objects.exists()


def test_phases_cannot_make_a_worker_read_or_send_a_file(alice_client, team, filled):
    phase = '[[phases]]\nname = "a"\nnum_steps = 100\n'
    sets = phase + 'changes.evaluation.sets = { x = "/etc/passwd" }'
    server = '{ kind = "server", url = "http://x", token_file = "/etc/passwd" }'
    token = f"{phase}changes.reference = {server}"

    for text in (sets, token):
        status, page = _post(alice_client, team, filled | {"phases": text})
        assert status == 422
        assert _beside(page, "phases")
    status, page = _post(
        alice_client,
        team,
        filled
        | {
            "reference.kind": "server",
            "reference.url": "http://127.0.0.1:8600",
            "reference.token_file": "/etc/passwd",
        },
    )

    assert status == 422
    assert len(_beside(page, TOKEN)) == 1


def test_a_form_setting_has_one_error_for_all_phases(alice_client, team, filled):
    form = filled | {
        "phases": '[{"name": "a", "num_steps": 40}, {"name": "b", "num_steps": 60}]',
        "rollout.prompts_per_step": "137",
        "reference.kind": "server",
        "reference.url": "http://127.0.0.1:8600",
        "reference.token_file": "/etc/passwd",
    }

    _, page = _post(alice_client, team, form)

    assert len(_beside(page, TOKEN)) == 1
    assert len(_beside(page, PROMPTS)) == 1
    assert _beside(page, "phases") == []


def test_a_phase_setting_has_an_error_with_the_phase_name(alice_client, team, filled):
    server = 'kind = "server", url = "http://x", token_file = "/etc/passwd"'
    phases = f"""
        [[phases]]
        name = "small"
        num_steps = 40

        [[phases]]
        name = "wide"
        num_steps = 60
        changes.rollout.prompts_per_step = 137
        changes.reference = {{ {server} }}
    """

    _, page = _post(alice_client, team, filled | {"phases": phases})

    prompts, token = _beside(page, "phases")
    assert prompts.startswith('Phase "wide": ')
    assert "137" in prompts
    assert token.startswith('Phase "wide": ')
    assert _beside(page, PROMPTS) == []
    assert _beside(page, TOKEN) == []


def test_a_setting_changed_by_every_phase_has_no_error(alice_client, team, filled):
    phase = '[[phases]]\nname = "a"\nnum_steps = 100\n'
    form = filled | {
        "phases": phase + "changes.rollout.prompts_per_step = 8",
        "rollout.prompts_per_step": "137",
    }

    status, _ = _post(alice_client, team, form)

    assert status == 302


def test_a_phase_that_reads_the_missing_column_is_named(alice_client, team, filled):
    bare = make_dataset(team, "bare")
    form = filled | {"dataset": bare.pk, "phases": EXAMPLE, "optim.num_steps": "200"}

    _, page = _post(alice_client, team, form)

    (message,) = _beside(page, "field-data-completion_column")
    assert message.startswith('Phase "sft": ')
    assert _beside(page, "phases") == []


def test_completions_from_the_dataset_need_their_column(alice_client, team, filled):
    bare = make_dataset(team, "bare", source="web")
    form = filled | {
        "dataset": bare.pk,
        "rollout.source": "dataset",
        "rollout.group_size": "1",
        "advantage.credit": "ones",
    }

    status, page = _post(alice_client, team, form)

    assert status == 422
    (message,) = _beside(page, "field-data-completion_column")
    assert "bare v1" in message
    assert "“completion”" in message


def test_completions_may_come_from_inside_a_column(alice_client, team, filled):
    nested = make_dataset(team, "nested", source="web")
    nested.mapping = {**nested.mapping, "columns": ["reply"]}
    nested.save()
    form = filled | {
        "dataset": nested.pk,
        "rollout.source": "dataset",
        "rollout.group_size": "1",
        "advantage.credit": "ones",
    }

    statuses = [
        _post(alice_client, team, form | {"data.completion_column": path})[0]
        for path in ("replies.text", "reply.text")
    ]

    assert statuses == [422, 302]


@pytest.fixture
def parent(team) -> Run:
    """A run with everything that the form has no field for."""
    config = make_config(
        phases=PHASES,
        optim={"num_steps": 100},
        advantage={"credit": "process"},
        reward={
            "recipe": NUMERIC,
            "step_recipe": {"rules": [{"name": "step", "kind": "numeric_answer"}]},
            "overlong_buffer_tokens": 32,
        },
        evaluation={"sets": {"hard": "hard.jsonl"}},
    )
    return make_run(
        team,
        "amber-otter",
        dataset=make_dataset(team),
        recipe=make_recipe(team),
        config=config,
    )


def test_a_clone_keeps_what_the_form_has_no_field_for(alice_client, team, parent):
    page = alice_client.get(f"/{team.slug}/runs/new?clone={parent.pk}").text

    status, _ = _post(alice_client, team, _fields(page))

    assert status == 302
    assert Run.objects.latest("pk").config == parent.config


def test_the_clone_form_shows_what_it_keeps(alice_client, team, parent):
    page = unescape(alice_client.get(f"/{team.slug}/runs/new?clone={parent.pk}").text)

    assert _fields(page)["step_recipe"] == "start"
    assert re.search(rf"Kept from run #{parent.pk}: <span[^>]*>hard</span>", page)


def test_evaluation_files_can_be_removed(alice_client, team, parent):
    fields = _fields(alice_client.get(f"/{team.slug}/runs/new?clone={parent.pk}").text)
    del fields["keeps_eval_sets"]

    status, _ = _post(alice_client, team, fields)

    assert status == 302
    assert Run.objects.latest("pk").config["evaluation"]["sets"] == {}


def test_the_config_page_shows_them(alice_client, team, parent):
    page = unescape(alice_client.get(f"/{team.slug}/runs/{parent.pk}/config/").text)

    assert 'data-phase="warm"' in page
    assert '{"hard": "hard.jsonl"}' in page
    assert "step_recipe" in page


def test_steps_are_scored_by_a_recipe_of_the_team(alice_client, team, filled):
    steps = make_recipe(team, "steps")
    form = filled | {"advantage.credit": "process", "step_recipe": steps.pk}

    without, page = _post(alice_client, team, form | {"step_recipe": ""})
    status, _ = _post(alice_client, team, form)

    assert without == 422
    assert len(_beside(page, "step-recipe")) == 1
    assert status == 302
    config = Run.objects.get().config
    assert config["reward"]["step_recipe"]["rules"][0]["kind"] == "numeric_answer"


def test_another_teams_recipe_scores_no_steps(alice_client, team, charlie, filled):
    theirs = make_recipe(Team.objects.get(slug="other"), "theirs")

    status, _ = _post(alice_client, team, filled | {"step_recipe": theirs.pk})

    assert status == 302
    assert Run.objects.get().config["reward"]["step_recipe"] is None
