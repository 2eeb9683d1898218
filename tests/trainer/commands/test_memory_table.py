"""The table of what a run needs, and the command that prints it."""

import importlib
import sys

from tests.environment import run_here
from tests.trainer.llama_sizes import config_of
from tests.trainer.tiny import (
    config_tree,
    run_trainer,
    write_config,
    write_rows,
)
from trainer.commands.memory_table import table
from trainer.sizes.memory import MemoryEstimate


def test_the_command_prints_a_table(tmp_path, model_folder, rows_path, capsys):
    tree = config_tree(model_folder, rows_path)

    done = run_trainer("memory", write_config(tmp_path, tree))

    assert done.returncode == 0
    out = capsys.readouterr().out
    for part in ("weights", "optimizer", "activations", "kv cache", "a PPO critic"):
        assert part in out
    assert "KiB" in out


def test_a_large_set_of_its_own_file_is_sampled_too(
    tmp_path, model_folder, rows_path, capsys
):
    def reported(sets: dict[str, str]) -> str:
        evaluation = {"every_steps": 1, "samples_per_prompt": 4, "sets": sets}
        tree = config_tree(model_folder, rows_path, evaluation=evaluation)
        assert run_trainer("memory", write_config(tmp_path, tree)).returncode == 0
        return capsys.readouterr().out

    write_rows(tmp_path / "many.jsonl", 100)

    assert reported({"many": "many.jsonl"}) != reported({})


def test_a_set_that_is_not_here_is_reported(tmp_path, model_folder, rows_path):
    tree = config_tree(model_folder, rows_path, evaluation={"sets": {"a": "a.jsonl"}})

    done = run_trainer("memory", write_config(tmp_path, tree))

    assert done.returncode == 2
    assert "a.jsonl" in done.stderr


def test_the_tables_units_are_right():
    found = MemoryEstimate(
        first_step=1,
        weights=3 * 2**30,
        master_weights=0,
        optimizer=1_536 * 2**10,
        reference=0,
        engine=0,
        snapshot=0,
        gradients=1_023,
        activations=0,
        logits=0,
        kv_cache=0,
        sampling=0,
        sleeping_engine=0,
        ppo_critic=0,
    )

    lines = [line.split() for line in table(config_of(), found).splitlines()]

    assert ["weights", "3.0", "GiB"] in lines
    assert ["optimizer", "1.5", "MiB"] in lines
    assert ["gradients", "1023", "B"] in lines


def test_a_model_that_is_not_here_is_reported(tmp_path, rows_path):
    tree = config_tree(tmp_path / "no-model", rows_path)

    done = run_trainer("memory", write_config(tmp_path, tree))

    assert done.returncode == 2
    assert "no-model/config.json" in done.stderr


def test_it_loads_no_torch():
    importlib.import_module("trainer.commands.memory_table")
    script = (
        "import sys, trainer.commands.memory_table\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'torch was loaded'"
    )

    done = run_here(sys.executable, "-c", script)

    assert done.returncode == 0, done.stderr
