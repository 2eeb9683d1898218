"""Out of memory and NaN losses, in separate trainer processes."""

from pathlib import Path
from typing import Any

import pytest

from tests.faults.forks import write_run
from tests.faults.tiny import config_tree, read_log, series

pytestmark = pytest.mark.faults
NUM_STEPS = 9


def tree_of(model: Path) -> dict[str, Any]:
    tree = config_tree(model, num_steps=NUM_STEPS)
    tree["optim"] |= {"micro_batch_tokens": 100_000}
    return tree | {
        "loss": {"kl_coef": 0.05},
        "checkpoint": {"every_steps": 2, "keep_last": 10},
        "evaluation": {"every_steps": 0},
    }


@pytest.fixture(scope="module")
def undisturbed(trainers, tiny_model, tmp_path_factory) -> list[dict[str, Any]]:
    folder = write_run(tmp_path_factory.mktemp("whole"), tree_of(tiny_model))
    assert trainers.run(folder) == 0, (folder / "trainer.log").read_text()
    return read_log(folder / "out" / "events.jsonl")


def warnings(events: list[dict[str, Any]], code: str) -> list[dict[str, Any]]:
    return [e for e in events if e["type"] == "warned" and e["code"] == code]


def test_out_of_memory_halves_the_micro_batch_and_keeps_the_batch(
    trainers, tiny_model, undisturbed, tmp_path
):
    folder = write_run(tmp_path, tree_of(tiny_model))

    status = trainers.run(folder, mishap=["memory_is_scarce"])

    assert status == 0, (folder / "trainer.log").read_text()
    events = read_log(folder / "out" / "events.jsonl")
    halved = [warning["value"] for warning in warnings(events, "out_of_memory")]
    assert len(halved) > 1
    assert halved == sorted(set(halved), reverse=True)
    assert set(halved) <= {100_000 // 2**n for n in range(1, 17)}
    expected, found = series(undisturbed), series(events)
    assert list(found) == list(range(1, NUM_STEPS + 1))
    for step, metrics in expected.items():
        assert found[step] == pytest.approx(metrics, rel=1e-3, abs=1e-5, nan_ok=True)


def test_a_nan_loss_is_skipped_and_counted(trainers, tiny_model, tmp_path):
    folder = write_run(tmp_path, tree_of(tiny_model))

    status = trainers.run(folder, mishap=["losses_are_no_number", 3])

    assert status == 0, (folder / "trainer.log").read_text()
    events = read_log(folder / "out" / "events.jsonl")
    assert [w["step"] for w in warnings(events, "update_skipped")] == [3]
    metrics_by_step = series(events)
    assert list(metrics_by_step) == list(range(1, NUM_STEPS + 1))
    assert [
        step for step in metrics_by_step if "loss" not in metrics_by_step[step]
    ] == [3]
    assert {metrics["lr"] for metrics in metrics_by_step.values()} == {1e-3}


def test_three_nan_losses_in_a_row_roll_back_at_half_the_learning_rate(
    trainers, tiny_model, tmp_path
):
    folder = write_run(tmp_path, tree_of(tiny_model))

    status = trainers.run(folder, mishap=["losses_are_no_number", 4, 5, 6])

    assert status == 0, (folder / "trainer.log").read_text()
    events = read_log(folder / "out" / "events.jsonl")
    assert [w["step"] for w in warnings(events, "update_skipped")] == [4, 5, 6]
    (went_back,) = warnings(events, "rolled_back")
    assert "step-000004-attempt-1" in went_back["message"]
    rates = [metrics["lr"] for metrics in series(events).values()]
    assert rates == [1e-3] * 6 + [5e-4] * 3


def test_a_second_rollback_fails_the_run_and_keeps_the_batch(
    trainers, tiny_model, tmp_path
):
    folder = write_run(tmp_path, tree_of(tiny_model))

    status = trainers.run(folder, mishap=["losses_are_no_number", 2, 3, 4, 6, 7, 8])

    out = folder / "out"
    assert status == 1
    failed = read_log(out / "events.jsonl")[-1]
    assert failed["type"] == "run_failed"
    assert "second time" in failed["error"]
    kept = {path.name for path in (out / "failed-batch").iterdir()}
    assert kept == {"batch.json", "tensors.safetensors"}
