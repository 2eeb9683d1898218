"""A run in phases: each goes on from the last one's weights in its own way."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
)
from trainer.config import RunConfig, learning_rate
from trainer.run.phases import data_order

PHASES = [
    {
        "name": "imitate",
        "num_steps": 3,
        "changes": {
            "rollout": {"source": "dataset", "group_size": 1},
            "advantage": {"credit": "ones"},
            "loss": {"surrogate": "reinforce", "kl_coef": 0.0},
        },
    },
    {
        "name": "select",
        "num_steps": 3,
        "changes": {
            "rollout": {"source": "start"},
            "advantage": {"credit": "indicator"},
            "loss": {"surrogate": "reinforce", "kl_coef": 0.0},
        },
    },
    {"name": "reinforce", "num_steps": 4, "changes": {"optim": {"warmup_steps": 2}}},
]


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("phases") / "rows.jsonl"
    with path.open("w") as file:
        for n in range(24):
            row = {
                "prompt": f"{7 * n}+{n}=",
                "answer": str(8 * n),
                "columns": {"completion": f"{8 * n}"},
            }
            file.write(json.dumps(row) + "\n")
    return path


@pytest.fixture(scope="module")
def tree(model_folder, rows) -> dict[str, Any]:
    tree = config_tree(
        model_folder,
        rows,
        loss={"kl_coef": 0.05},
        optim={"num_steps": 10, "schedule": "linear"},
        checkpoint={"every_steps": 2, "keep_last": 20},
        evaluation={"every_steps": 4},
    )
    return tree | {"phases": PHASES}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tree) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    done = run_trainer("run", write_config(folder, tree), "--out", folder / "out")
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_each_phase_is_announced_before_its_first_step(finished):
    events = read_events(finished / "events.jsonl")
    values = [e for e in events if e["type"] in ("phase_started", "step_finished")]

    order = [(e["type"], e.get("name"), e["step"]) for e in values]

    assert order[0] == ("phase_started", "imitate", 1)
    assert order[4] == ("phase_started", "select", 4)
    assert order[8] == ("phase_started", "reinforce", 7)
    spans = [(e["first_step"], e["last_step"]) for e in only(events, "phase_started")]
    assert spans == [(1, 3), (4, 6), (7, 10)]
    assert [e["step"] for e in only(events, "step_finished")] == list(range(1, 11))


def test_a_run_without_phases_announces_none(tmp_path, tree):
    plain = {k: v for k, v in tree.items() if k != "phases"}
    plain["optim"] = plain["optim"] | {"num_steps": 1}

    run_trainer("run", write_config(tmp_path, plain), "--out", tmp_path / "out")

    assert only(read_events(tmp_path / "out" / "events.jsonl"), "phase_started") == []


def test_each_phase_has_a_schedule_of_its_own(finished, tree):
    events = only(read_events(finished / "events.jsonl"), "step_finished")
    config = RunConfig.model_validate(tree)

    rates = [event["metrics"]["lr"] for event in events]

    expected = [
        learning_rate(step, phase.config.optim)
        for phase in config.phase_configs
        for step in range(1, phase.config.optim.num_steps + 1)
    ]
    assert rates == pytest.approx(expected)
    assert rates[6] < rates[7] < rates[8]  # only the last phase warms up


def test_every_phase_ends_with_a_checkpoint_and_an_evaluation(finished):
    events = read_events(finished / "events.jsonl")

    saved = [e["step"] for e in only(events, "checkpoint_saved")]
    evaluated = [e["step"] for e in only(events, "evaluated")]

    assert saved == [2, 3, 4, 6, 8, 10]
    assert evaluated == [0, 3, 4, 6, 8, 10]


def test_a_later_phases_reference_is_the_model_it_began_with(finished):
    events = only(read_events(finished / "events.jsonl"), "step_finished")

    kl = [event["metrics"].get("kl/mean") for event in events]

    assert kl[:6] == [None] * 6
    assert kl[6] == pytest.approx(0.0, abs=1e-9)
    assert kl[9] > 1e-5


def test_a_later_phase_samples_from_the_model_it_began_with(
    finished, rows, tree, tmp_path
):
    """The same steps, as a run of its own that starts from the checkpoint."""
    events = read_events(finished / "events.jsonl")
    model = finished / "checkpoints" / "step-000003-attempt-1" / "model"
    slow = tree | {
        "model": tree["model"] | {"path": str(model)},
        "phases": [
            PHASES[0]
            | {"changes": PHASES[1]["changes"] | {"optim": {"learning_rate": 1e-9}}},
            PHASES[1]
            | {"changes": PHASES[1]["changes"] | {"optim": {"learning_rate": 1e-9}}},
        ],
    }
    slow["optim"] = slow["optim"] | {"num_steps": 6}

    done = run_trainer("run", write_config(tmp_path, slow), "--out", tmp_path / "out")

    assert done.returncode == 0, done.stderr
    theirs = read_events(tmp_path / "out" / "events.jsonl")
    for step in (4, 5, 6):
        assert texts(events, step) == texts(theirs, step)


def texts(events: list[dict[str, Any]], step: int) -> list[str]:
    groups = [g for g in only(events, "group_scored") if g["step"] == step]
    return [c["text"] for group in groups for c in group["completions"]]


def test_each_phase_goes_through_the_rows_in_an_order_of_its_own(tree):
    phases = RunConfig.model_validate(tree).phase_configs

    orders = [data_order(phase, num_rows=20).places(1) for phase in phases]

    assert len({tuple(order) for order in orders}) == 3
    alone = RunConfig.model_validate(
        {k: v for k, v in tree.items() if k != "phases"}
    ).phase_configs[0]
    assert data_order(alone, num_rows=20).places(1) == orders[0]


def test_each_phase_begins_with_new_moments(finished):
    steps = {
        step: load_file(
            finished
            / "checkpoints"
            / f"step-{step:06d}-attempt-1"
            / "optimizer.safetensors"
        )["0.step"]
        for step in (3, 4, 6, 8)
    }

    counted = {step: int(count.item()) for step, count in steps.items()}
    assert counted == {3: 3, 4: 1, 6: 3, 8: 2}


def test_a_phase_with_more_prompts_than_rows_is_refused_at_the_start(tree, tmp_path):
    greedy = {"rollout": {"prompts_per_step": 21}}
    broken = tree | {"phases": [*PHASES[:2], PHASES[2] | {"changes": greedy}]}

    done = run_trainer("run", write_config(tmp_path, broken), "--out", tmp_path / "out")

    assert done.returncode == 1
    events = read_events(tmp_path / "out" / "events.jsonl")
    assert [e["type"] for e in events] == ["run_failed"]
    assert "20 rows" in events[0]["error"]


def test_rows_that_a_later_phase_cannot_learn_from_are_refused_at_the_start(
    model_folder, rows_path, tmp_path
):
    tree = config_tree(model_folder, rows_path, optim={"num_steps": 4})
    tree["phases"] = [
        {"name": "reinforce", "num_steps": 1},
        PHASES[0],
    ]

    done = run_trainer("run", write_config(tmp_path, tree), "--out", tmp_path / "out")

    assert done.returncode == 1
    (event,) = read_events(tmp_path / "out" / "events.jsonl")
    assert 'column "completion"' in event["error"]


def test_a_server_that_a_later_phase_cannot_ask_is_refused_at_the_start(tree, tmp_path):
    server = {"kind": "server", "url": "http://127.0.0.1:1", "token_file": "missing"}
    changes = {"reference": server}
    broken = tree | {"phases": [*PHASES[:2], PHASES[2] | {"changes": changes}]}

    done = run_trainer("run", write_config(tmp_path, broken), "--out", tmp_path / "out")

    assert done.returncode == 1
    (event,) = read_events(tmp_path / "out" / "events.jsonl")
    assert "token file missing" in event["error"]
