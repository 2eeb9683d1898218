"""A run with a curriculum: what it draws when, and what a checkpoint holds of it."""

import json

import numpy as np
import pytest

from tests.trainer.run.test_forking import AHEAD, fork, steps_of, train
from tests.trainer.tiny import config_tree, only, read_events, write_rows

# Of 20 rows 4 a step; what was never sampled comes last.
FAMILIAR = {
    "curriculum": {
        "kind": "pools",
        "pool_weights": [1000, 1000, 1000],
        "unseen_weight": 0,
        "floor_weight": 1e-9,
    }
}


def metrics_of(out, name):
    events = only(read_events(out / "events.jsonl"), "step_finished")
    return [event["metrics"].get(name) for event in events]


@pytest.mark.parametrize(
    ("ahead", "unseen"), [({}, [1, 0]), (AHEAD, [1, 1, 0])], ids=["no-lag", "lag-1"]
)
def test_a_batch_is_drawn_by_the_steps_before_those_it_is_sampled_beside(
    ahead, unseen, trained
):
    out = trained(**FAMILIAR, **ahead)

    assert metrics_of(out, "curriculum/unseen") == unseen + [0] * (6 - len(unseen))
    groups = only(read_events(out / "events.jsonl"), "group_scored")
    rows = [{g["prompt_index"] for g in groups if g["step"] == n} for n in (1, 2, 3)]
    assert rows[0] & set.union(*rows[1:])


def test_a_step_tells_what_it_drew(trained):
    out = trained(**FAMILIAR)

    pools = [metrics_of(out, f"curriculum/{name}") for name in ("hard", "normal")]
    rest = [metrics_of(out, f"curriculum/{name}") for name in ("unseen", "easy")]
    assert [sum(shares) for shares in zip(*pools, *rest, strict=True)] == [1.0] * 6
    assert metrics_of(out, "curriculum/num_out") == [0.0] * 6
    assert None not in metrics_of(out, "curriculum/uniform_signal")
    assert set(metrics_of(trained(), "curriculum/unseen")) == {None}


def test_a_checkpoint_holds_the_evidence_on_each_prompt(trained):
    out = trained(**FAMILIAR)

    path = out / "checkpoints" / "step-000006-attempt-1" / "curriculum.npz"
    with np.load(path) as saved:
        assert len(saved["rows"]) == 20
        groups = only(read_events(out / "events.jsonl"), "group_scored")
        last = {group["prompt_index"]: group["step"] for group in groups}
        steps = dict(zip(saved["rows"].tolist(), saved["last_step"], strict=True))
        assert {row: step for row, step in steps.items() if step} == last


def test_a_fork_of_a_run_without_a_curriculum_begins_without_evidence(
    model_folder, rows_path, tmp_path, trained
):
    tree = config_tree(model_folder, rows_path, **FAMILIAR)

    child = fork(tmp_path / "child", tree, trained(), step=4)

    assert steps_of(child) == [5, 6]
    assert metrics_of(child, "curriculum/unseen") == [1.0, 0.0]


def test_a_fork_on_other_rows_begins_without_evidence(model_folder, tmp_path, trained):
    rows = write_rows(tmp_path / "rows.jsonl", 30)
    tree = config_tree(model_folder, rows, **FAMILIAR)

    child = fork(tmp_path / "child", tree, trained(**FAMILIAR), step=4)

    assert metrics_of(child, "curriculum/unseen") == [1.0, 0.0]


def test_a_run_starts_from_the_pass_rates_of_another(model_folder, rows_path, tmp_path):
    rates = [{"row": row, "num_right": 2, "num_scored": 4} for row in range(24)]
    tmp_path.joinpath("rates.jsonl").write_text("\n".join(map(json.dumps, rates)))
    start = FAMILIAR["curriculum"] | {"start_from": "rates.jsonl"}
    tree = config_tree(
        model_folder, rows_path, curriculum=start, optim={"num_steps": 1}
    )

    out = train(tmp_path, tree)

    assert metrics_of(out, "curriculum/normal") == [1.0]
