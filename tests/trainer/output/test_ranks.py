"""What the log tells of each process of a run."""

import socket

import pytest

from tests.trainer import faults
from tests.trainer.several import run_two
from tests.trainer.tiny import config_tree, only, read_events, write_config


@pytest.mark.parametrize("samples_ahead", [False, True])
def test_the_work_of_a_slow_rank_stands_out_though_all_steps_take_as_long(
    samples_ahead, model_folder, rows_path, tmp_path
):
    tree = config_tree(
        model_folder,
        rows_path,
        rollout={"one_step_off": samples_ahead},
        loss={"importance_correction": "token_truncate"},
        optim={"num_steps": 3},
        evaluation={"every_steps": 0},
    )
    config = write_config(tmp_path, tree)

    codes, output = run_two(config, before=faults.sampling_is_slow)

    assert codes == [0, 0], output
    events = read_events(tmp_path / "two" / "events.jsonl")
    measured = only(events, "ranks_measured")
    assert [event["step"] for event in measured] == [1, 2, 3]
    for event in measured:
        fast, slow = event["ranks"]
        assert (fast["node"], fast["device"]) == (socket.gethostname(), "cpu")
        assert 0 < fast["memory_bytes"] < fast["memory_total_bytes"]
        assert slow["seconds"]["step"] == pytest.approx(
            fast["seconds"]["step"], rel=0.5
        )
    # The last step of a run that samples ahead samples nothing.
    for event in measured[1:2]:
        fast, slow = (rank["seconds"] for rank in event["ranks"])
        assert slow["generate"] > fast["generate"] + 0.2
        if not samples_ahead:  # else training beside it may take as long
            assert slow["work"] > fast["work"] + 0.15
            assert fast["wait"] > slow["wait"] + 0.15
