"""Held-out sets of their own files, beside the one split off the rows."""

import pytest

from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
    write_rows,
)


def test_each_set_is_evaluated_under_its_name(model_folder, rows_path, tmp_path):
    write_rows(tmp_path / "more.jsonl", 3)
    tree = config_tree(
        model_folder,
        rows_path,
        optim={"num_steps": 2},
        evaluation={"every_steps": 1, "sets": {"more": "more.jsonl"}},
    )

    done = run_trainer("run", write_config(tmp_path, tree), "--out", tmp_path / "out")

    assert done.returncode == 0, done.stderr
    reported = only(read_events(tmp_path / "out" / "events.jsonl"), "evaluated")
    assert [(e["step"], e["name"], e["num_prompts"]) for e in reported] == [
        (step, name, count)
        for step in (0, 1, 2)
        for name, count in (("heldout", 4), ("more", 3))
    ]
    assert all(f"eval/{e['name']}/mean" in e["metrics"] for e in reported)


def test_a_set_can_stand_in_for_held_out_rows(model_folder, rows_path, tmp_path):
    write_rows(tmp_path / "only.jsonl", 2)
    tree = config_tree(
        model_folder,
        rows_path,
        data={"num_eval_rows": 0},
        optim={"num_steps": 1},
        evaluation={"every_steps": 1, "sets": {"only": "only.jsonl"}},
    )

    run_trainer("run", write_config(tmp_path, tree), "--out", tmp_path / "out")

    reported = only(read_events(tmp_path / "out" / "events.jsonl"), "evaluated")
    assert {e["name"] for e in reported} == {"only"}


@pytest.mark.slow
def test_a_phase_may_be_evaluated_on_a_set_of_its_own(
    model_folder, rows_path, tmp_path
):
    write_rows(tmp_path / "late.jsonl", 2)
    tree = config_tree(
        model_folder, rows_path, optim={"num_steps": 2}, evaluation={"every_steps": 1}
    )
    late = {"evaluation": {"sets": {"late": "late.jsonl"}}}
    tree["phases"] = [
        {"name": "one", "num_steps": 1},
        {"name": "two", "num_steps": 1, "changes": late},
    ]

    run_trainer("run", write_config(tmp_path, tree), "--out", tmp_path / "out")

    reported = only(read_events(tmp_path / "out" / "events.jsonl"), "evaluated")
    assert [e["step"] for e in reported if e["name"] == "late"] == [2]


def test_a_missing_file_is_named_before_the_first_step(
    model_folder, rows_path, tmp_path
):
    tree = config_tree(
        model_folder, rows_path, evaluation={"sets": {"more": "none.jsonl"}}
    )

    done = run_trainer("run", write_config(tmp_path, tree), "--out", tmp_path / "out")

    assert done.returncode == 1
    (event,) = read_events(tmp_path / "out" / "events.jsonl")
    assert "none.jsonl" in event["error"]


@pytest.mark.parametrize("name", ["heldout", "a/b", "", "x" * 41])
def test_names_that_are_invalid_in_metrics_are_refused(
    name, model_folder, rows_path, tmp_path
):
    tree = config_tree(model_folder, rows_path, evaluation={"sets": {name: "a.jsonl"}})

    done = run_trainer("run", write_config(tmp_path, tree), "--out", tmp_path / "out")

    assert done.returncode == 2
    assert "evaluation.sets" in done.stderr
