"""What a launch form suggests fits the dataset that is chosen."""

import re
from html import unescape

from dashboard.accounts.models import Team
from dashboard.datasets.models import DatasetVersion, TokenLengths
from dashboard.datasets.row import Row
from dashboard.project.environment import ROOT
from dashboard.runs.launch.fit import (
    EVAL,
    LENGTH,
    STEP,
    FittedRows,
    fit_to_rows,
    warn_of_characters,
)
from dashboard.runs.launch.starts import default_start, start_of_run
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import store_dataset
from tests.dashboard.runs.launching import (
    make_config,
    make_recipe,
    make_run,
)
from tests.dashboard.runs.test_clone import _fields

DEFAULTS = default_start().texts
SHORT = {**DEFAULTS, LENGTH: "32", "data.chat_template": "none"}


def make_rows(team: Team, num_rows: int, *, chars: int = 5) -> DatasetVersion:
    rows = [Row(prompt=f"{n:0{chars}}", answer="1") for n in range(num_rows)]
    return store_dataset(team, rows, name=f"{num_rows} rows")


def fit(texts: dict[str, str], version: DatasetVersion) -> FittedRows:
    return fit_to_rows(texts, version, "model")


def test_a_fifth_of_few_rows_is_held_out(team):
    found = fit(DEFAULTS, make_rows(team, 53))

    assert found.texts[EVAL] == "10"
    (message,) = found.sentences
    assert re.findall(r"\d+", message) == ["10", "64", "53"]


def test_fitting_settings_do_not_change(team):
    found = fit(DEFAULTS, make_rows(team, 200))

    assert found == FittedRows(
        texts={path: DEFAULTS[path] for path in (EVAL, STEP, LENGTH)}
    )


def test_prompts_per_step_fit_the_training_rows(team):
    assert fit(DEFAULTS, make_rows(team, 12)).texts[STEP] == "10"


def test_the_prompt_limit_fits_prompt_and_chat_template(team):
    some, longer = make_rows(team, 3, chars=20), make_rows(team, 4, chars=61)
    auto = {**SHORT, "data.chat_template": "auto"}

    assert fit(SHORT, some).texts[LENGTH] == "32"
    assert fit(SHORT, longer).texts[LENGTH] == "61"
    assert fit(auto, longer).texts[LENGTH] == str(61 + 64)
    assert fit(SHORT, make_rows(team, 5, chars=5_000)).texts[LENGTH] == "512"


def test_counted_tokens_take_precedence_over_characters(team):
    version = make_rows(team, 3, chars=5_000)
    lengths = {"lengths": [[700, 2], [1_300, 1]], "every": 1}
    TokenLengths.objects.create(
        version=version,
        model="model",
        num_wanted=3,
        result=lengths,
    )

    found = fit(SHORT, version)

    assert found.texts[LENGTH] == "1300"
    assert "1,300 tokens" in found.sentences[-1]


def test_the_form_does_not_refuse_its_own_suggestion(alice_client, team):
    version = make_rows(team, 53)
    make_recipe(team)

    answer = alice_client.get(f"/alpha/runs/new?dataset={version.pk}")
    sent = alice_client.post("/alpha/runs/new", _fields(answer.text) | {"model": "a/b"})

    (message,) = answer.context["form"].fit.sentences
    assert message in unescape(answer.text)
    assert _fields(answer.text)[EVAL] == "10"
    assert sent.status_code == 302


def test_a_preset_does_not_set_a_limit_below_the_prompts(
    alice_client, team, tmp_path, settings
):
    settings.COHORT_DATA = tmp_path
    folder = tmp_path / "starter" / "countdown"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text("{}")
    (folder / "run.toml").write_text(
        '[data]\nmax_prompt_tokens = 32\nchat_template = "none"\n'
    )
    (folder / "starter.json").write_text("{}")
    version = make_rows(team, 53, chars=61)

    page = alice_client.get(
        f"/alpha/runs/new?preset=countdown&dataset={version.pk}"
    ).text

    assert _fields(page)[LENGTH] == "61"


def test_a_clone_keeps_what_its_run_had(alice_client, team):
    version = make_rows(team, 53)
    config = make_config(data={"rows": "rows.jsonl", "num_eval_rows": 40})
    run = make_run(team, "a", dataset=version, recipe=make_recipe(team), config=config)

    page = alice_client.get(f"/alpha/runs/new?clone={run.pk}").text

    assert _fields(page)[EVAL] == "40"
    assert start_of_run(run).texts[EVAL] == "40"


def test_a_dataset_brings_its_environment(alice_client, team):
    version = make_rows(team, 200)
    version.environment = {
        "kind": "tools",
        "tools": ["calculator"],
        "max_turns": 3,
        "max_tokens": 900,
    }
    version.save()
    make_recipe(team)

    found = fit(DEFAULTS | {"environment.call_seconds": "7"}, version)
    page = alice_client.get(f"/alpha/runs/new?dataset={version.pk}").text
    alice_client.post("/alpha/runs/new", _fields(page) | {"model": "a/b"})

    run = Run.objects.get()
    assert run.config["environment"].items() >= version.environment.items()
    assert found.texts["environment.kind"] == _fields(page)["environment.kind"]
    assert _fields(page)["environment.kind"] == "tools"
    assert found.texts["environment.tools"] == '["calculator"]'
    assert found.texts["environment.max_turns"] == "3"
    assert found.texts["environment.call_seconds"] == "10", "its default"
    assert len(found.sentences) == 1


def test_a_models_characters_are_sought_in_what_chats_say(team):
    model = str(ROOT / "trainer" / "starter" / "guess" / "model")
    game, words = (
        store_dataset(
            team, [Row(prompt=[{"role": "user", "content": text}])], name=text
        )
        for text in ("5 24 ?", "Guess it")
    )

    assert warn_of_characters(model, game) == ""
    assert "“G”" in warn_of_characters(model, words)
