"""Presets are complete, valid and shown as a configuration that can be run."""

import tomllib
from typing import Any

import pytest

from trainer.__main__ import main
from trainer.config import RunConfig, load_config
from trainer.presets.listing import comparison_table, describe
from trainer.presets.preset import PARTS, load_preset, preset_names, write_preset

SYSTEMS = [
    "cispo",
    "dapo",
    "deepseek-v32",
    "deepseekmath-outcome",
    "deepseekmath-process",
    "distillation",
    "dppo",
    "dr-grpo",
    "grpo-zero",
    "gspo",
    "icepop",
    "lm-book",
    "lora-without-regret",
    "luspo",
    "nano-aha-moment",
    "online-rft",
    "open-r1",
    "opo",
    "opsd",
    "rlox",
    "sapo",
    "sdpo",
    "simple-grpo",
    "trl",
    "verl",
]
FORMS = [(name, scaled) for name in SYSTEMS for scaled in (False, True)]


def config_of(name: str, *, scaled: bool = False, **changes: Any) -> RunConfig:
    return load_preset(name).config(
        model="m", rows="rows.jsonl", scaled=scaled, changes=changes
    )


def test_every_system_has_its_preset():
    assert preset_names() == SYSTEMS


def test_an_unknown_preset_is_answered_with_those_there_are():
    with pytest.raises(ValueError, match='"trk"'):
        load_preset("trk")


def test_a_preset_says_where_it_was_read_and_what_to_mind():
    for name in SYSTEMS:
        preset = load_preset(name)

        assert preset.title
        assert preset.summary.endswith(".")
        assert preset.source
        assert preset.notes
        assert all(
            note[-1] in ".:" or "--as-published" in note for note in preset.notes
        )


def test_both_forms_are_valid_runs():
    for name, scaled in FORMS:
        config = config_of(name, scaled=scaled)

        assert config.model.path == "m"
        assert config.data.rows == "rows.jsonl"
        for part, values in load_preset(name).effective(scaled=scaled).items():
            assert values.items() <= config.model_dump()[part].items(), part


def test_a_scaled_form_keeps_the_algorithm_and_takes_the_starters_task():
    for name in SYSTEMS:
        full, scaled = config_of(name), config_of(name, scaled=True)

        assert full.advantage == scaled.advantage
        length = {"constant_length": None}
        assert full.loss.model_copy(update=length) == scaled.loss.model_copy(
            update=length
        )
        assert full.reference.kind == scaled.reference.kind
        for setting in ("max_grad_norm", "updates_per_batch", "optimizer"):
            assert getattr(full.optim, setting) == getattr(scaled.optim, setting)
        assert (full.optim.minibatches == 1) == (scaled.optim.minibatches == 1)
        assert full.rollout.temperature == scaled.rollout.temperature
        assert full.logprob_temperature == scaled.logprob_temperature
        assert full.rollout.dynamic_sampling == scaled.rollout.dynamic_sampling

        assert scaled.rollout.max_new_tokens == 96
        assert scaled.completions_per_step <= 128
        assert "countdown" in {rule.kind for rule in scaled.reward.recipe.rules}
        assert scaled.data.chat_template == "none"
        assert scaled.data.system_prompt is None
        assert scaled.data.prompt_template is None


def test_changes_are_put_over_the_presets_own():
    config = config_of("verl", loss={"dual_clip": None}, optim={"minibatches": 2})

    assert config.loss.dual_clip is None
    assert config.loss.kl_clamp == 10.0
    assert config.optim.minibatches == 2


def test_changes_that_contradict_are_refused():
    with pytest.raises(ValueError, match="needs a reference model"):
        config_of("verl", reference={"kind": "none"})


def test_a_shown_preset_loads_as_a_config(tmp_path):
    for name, scaled in FORMS:
        text = write_preset(
            load_preset(name), scaled=scaled, model="m", rows="rows.jsonl"
        )
        path = tmp_path / "run.toml"
        path.write_text(text, encoding="utf-8")

        assert load_config(path) == config_of(name, scaled=scaled)


def test_a_setting_that_differs_from_the_default_has_the_default_behind_it():
    for name in SYSTEMS:
        shown = write_preset(load_preset(name))
        part, marked = "", set()
        for line in shown.splitlines():
            if line.startswith("["):
                part = line.strip("[]")
            elif "  # Cohort: " in line:
                marked.add(f"{part}.{line.partition(' ')[0]}")

        different = {
            f"{part}.{setting}"
            for part, values in load_preset(name).effective().items()
            for setting, value in values.items()
            if setting not in ("recipe", "step_recipe")
            and value != PARTS[part].model_fields[setting].default
        }
        assert {mark for mark in marked if not mark.startswith(".")} == different


def test_a_seed_is_shown_with_the_default():
    assert "seed = 42  # Cohort: 0\n" in write_preset(load_preset("lm-book"))


def test_settings_without_default_are_commented_out(capsys):
    assert main(["show", "verl"]) == 0

    shown = capsys.readouterr().out
    assert '# path = "…"' in shown
    assert "path" not in tomllib.loads(shown)["model"]


def test_model_and_rows_can_be_put_in_at_once(tmp_path, monkeypatch, capsys):
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)

    assert main(["show", "rlox", "--model", "model", "--rows", "rows.jsonl"]) == 0

    shown = tomllib.loads(capsys.readouterr().out)
    assert shown["model"]["path"] == str(tmp_path / "model")
    assert shown["data"]["rows"] == str(tmp_path / "rows.jsonl")


def test_a_hub_id_stays_as_it_is(capsys):
    main(["show", "rlox", "--model", "Qwen/Qwen2.5-0.5B", "--rows", "r"])

    shown = tomllib.loads(capsys.readouterr().out)
    assert shown["model"]["path"] == "Qwen/Qwen2.5-0.5B"


def test_the_list_names_every_preset(capsys):
    assert main(["presets"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == SYSTEMS


def test_every_preset_can_score(tmp_path, capsys):
    for name in SYSTEMS:
        rows = tmp_path / "rows.jsonl"
        rows.write_text(
            '{"completion": "so 7", "answer": "7", "numbers": [3, 4], "target": 7}\n'
        )

        assert main(["score", "--preset", name, "--rows", str(rows)]) == 0

        assert capsys.readouterr().out.count('"total"') == 1


def test_the_table_has_every_preset_and_point(capsys):
    assert main(["presets", "--table"]) == 0

    table = capsys.readouterr().out
    assert table == comparison_table()
    lines = table.splitlines()
    assert all(line.count("|") == len(SYSTEMS) + 2 for line in lines)
    points = describe(load_preset(SYSTEMS[0]).config(model="any", rows="any"))
    assert len(lines) == len(points) + 2
    assert all(f"`{name}`" in lines[0] for name in SYSTEMS)


def test_the_table_tells_methods_by_what_they_change():
    points = {name: describe(config_of(name)) for name in SYSTEMS}

    ratio, correction = "Ratio and clip", "Sampler correction"
    assert points["sapo"][ratio] == "sapo, τ 1 and 1.05"
    assert points["dppo"][ratio] == "dppo_tv −0.15, +0.15, to the sampler"
    assert points["icepop"][correction] == "token_mask ≤ 5, ≥ 0.5"
    assert points["deepseek-v32"][correction] == "mean fall ≤ 0.5 if A < 0"
    assert points["deepseek-v32"]["KL"] == "0.001 × k3 × ratio in the loss"
    assert points["dr-grpo"]["Loss aggregation"] == "sum ÷ (completions × 3,000)"
    assert points["trl"][correction] == "none"


def test_a_reward_of_our_own_has_no_published_grader(tmp_path, capsys):
    arguments = ["score", "--preset", "dapo", "--as-published", "--rows", "none"]

    assert main(arguments) == 2

    assert "published grader" in capsys.readouterr().err
