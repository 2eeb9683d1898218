"""Something befalls one of several processes, and the others are not left waiting."""

import json

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer import faults
from tests.trainer.parallel.test_distributed import alone, assert_same_story, tree_of
from tests.trainer.several import run_several, run_two
from tests.trainer.tiny import only, read_events, write_config

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "fault",
    [
        faults.memory_runs_out_going_forward,
        faults.memory_runs_out_going_backward,
        faults.memory_runs_out_in_the_reference,
    ],
)
def test_all_do_the_step_again_with_less_at_once(
    fault, model_folder, rows_path, tmp_path
):
    tree = tree_of(
        model_folder,
        rows_path,
        loss={"kl_coef": 0.05},
        optim={"num_steps": 3, "micro_batch_tokens": 144, "updates_per_batch": 2},
    )
    config = write_config(tmp_path, tree)

    codes, output = run_two(config, before=fault)

    assert codes == [0, 0], output
    assert_same_story(tmp_path / "two", alone(config, "one"))
    events = read_events(tmp_path / "two" / "events.jsonl")
    warnings = [w for w in only(events, "warned") if w["code"] == "out_of_memory"]
    assert [(w["step"], w["value"]) for w in warnings] == [(1, 72.0)]


def test_all_choose_by_the_process_with_the_least_memory(
    model_folder, rows_path, tmp_path
):
    optim = {"num_steps": 2, "micro_batch_tokens": "auto"}
    config = write_config(tmp_path, tree_of(model_folder, rows_path, optim=optim))

    codes, output = run_two(config, before=faults.memory_runs_out_measuring)

    assert codes == [0, 0], output
    assert_same_story(tmp_path / "two", alone(config, "one"))
    saved = tmp_path / "two" / "checkpoints" / "step-000002-attempt-1"
    memory = json.loads((saved / "controllers.json").read_bytes())["memory"]
    # 0.2 GB in 2,096 tokens, and 0.9 · 6 GB
    assert memory["chosen"] == {"tokens": 44 * 1_024, "checkpointing": True}
    assert memory["limit"] is None


def test_the_log_reports_another_process_that_samples_less_at_once(
    model_folder, rows_path, tmp_path
):
    config = write_config(tmp_path, tree_of(model_folder, rows_path))

    codes, output = run_two(config, before=faults.memory_runs_out_sampling)

    assert codes == [0, 0], output
    events = read_events(tmp_path / "two" / "events.jsonl")
    (warned,) = [w for w in only(events, "warned") if w["code"] == "out_of_memory"]
    assert (warned["step"], warned["value"]) == (1, 4.0)
    assert "in process 1" in warned["message"]


def test_processes_with_different_rows_do_not_train(model_folder, rows_path, tmp_path):
    config = write_config(tmp_path, tree_of(model_folder, rows_path))

    codes, output = run_two(config, before=faults.it_has_other_rows)

    assert codes == [1, 1], output
    (failed,) = read_events(tmp_path / "two" / "events.jsonl")
    assert "another rows" in failed["error"]


def test_the_log_names_the_process_that_had_no_memory_at_all(
    model_folder, rows_path, tmp_path
):
    config = write_config(tmp_path, tree_of(model_folder, rows_path))

    codes, output = run_two(config, before=faults.there_is_no_memory)

    assert codes == [1, 1], output
    failed = read_events(tmp_path / "two" / "events.jsonl")[-1]
    assert failed["type"] == "run_failed"
    assert failed["error"].startswith("Process 1 of 2")
    assert "in _refuse" in failed["details"]


def test_the_log_names_the_process_whose_sampling_ahead_failed(
    model_folder, rows_path, tmp_path
):
    tree = tree_of(
        model_folder,
        rows_path,
        rollout={"one_step_off": True},
        loss={"importance_correction": "token_truncate"},
    )
    config = write_config(tmp_path, tree)

    codes, output = run_two(
        config, before=faults.sampling_ahead_fails, patience_seconds=90
    )

    assert codes == [1, 1], output
    failed = read_events(tmp_path / "two" / "events.jsonl")[-1]
    assert failed["error"].startswith("Process 1 of 2")
    assert failed["error"].endswith("sampler fell over.")


def test_a_process_that_is_stuck_is_not_waited_for_longer_than_asked(
    model_folder, rows_path, tmp_path
):
    tree = tree_of(model_folder, rows_path, distributed={"timeout_seconds": 10})
    config = write_config(tmp_path, tree)

    codes, output = run_two(config, before=faults.it_is_stuck, patience_seconds=90)

    assert codes == [1, 1], output
    failed = read_events(tmp_path / "two" / "events.jsonl")[-1]
    assert failed["type"] == "run_failed"
    assert "does not respond" in failed["error"]


def test_a_process_that_is_stuck_ends_with_one_that_failed_and_names_it(
    model_folder, rows_path, tmp_path
):
    config = write_config(tmp_path, tree_of(model_folder, rows_path))

    codes, output = run_two(
        config, before=faults.it_fails_while_the_first_is_stuck, patience_seconds=60
    )

    assert codes == [1, 1], output
    failed = read_events(tmp_path / "two" / "events.jsonl")[-1]
    assert failed["type"] == "run_failed"
    assert failed["error"].startswith("Process 1 of 2")
    assert "ArithmeticError" in failed["error"]
    assert "in _break" in failed["details"]


def test_the_others_receive_why_the_first_one_failed(model_folder, rows_path, tmp_path):
    config = write_config(tmp_path, tree_of(model_folder, rows_path))

    codes, output = run_two(config, before=faults.the_first_one_fails)

    assert codes == [1, 1], output
    assert "Process 0 of 2 failed" in output
    assert "ArithmeticError" in output
    assert "was killed" not in output


def test_a_loss_without_a_number_in_one_is_skipped_and_undone_in_all(
    model_folder, rows_path, tmp_path
):
    tree = tree_of(
        model_folder,
        rows_path,
        optim={"num_steps": 6, "max_nonfinite": 2, "micro_batch_tokens": 100_000},
    )
    config = write_config(tmp_path, tree)

    codes, output = run_two(config, before=faults.losses_become_infinite)

    assert codes == [0, 0], output
    events = read_events(tmp_path / "two" / "events.jsonl")
    values = [(w["code"], w["step"]) for w in only(events, "warned")]
    assert ("update_skipped", 3) in values
    assert ("rolled_back", 4) in values
    weights = [
        load_file(tmp_path / f"two/checkpoints/{name}/model/model.safetensors")
        for name in ("step-000002-attempt-1", "step-000004-attempt-1")
    ]
    assert all(torch.equal(weights[0][name], w) for name, w in weights[1].items())


def test_a_full_disk_under_the_log_pauses_all_behind_the_same_step(
    model_folder, rows_path, tmp_path
):
    config = write_config(tmp_path, tree_of(model_folder, rows_path))
    run = ("run", config, "--out", tmp_path / "two")

    codes, output = run_several(
        2, *run, output=tmp_path / "log", before=faults.the_disk_is_full_from_step_2
    )

    assert codes == [4, 4], output
    events = read_events(tmp_path / "two" / "events.jsonl")
    assert events[-1]["step"] == 1

    codes, output = run_several(2, *run, "--resume", output=tmp_path / "again")

    assert codes == [0, 0], output
    events = read_events(tmp_path / "two" / "events.jsonl")
    assert events[-1]["type"] == "run_finished"
