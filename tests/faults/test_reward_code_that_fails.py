"""Reward code that crashes, hangs, floods and takes all memory, in a real sandbox."""

from typing import Any

import pytest

from dashboard.runs.models import RunState
from tests.faults.attempts import run_attempt
from tests.faults.forks import write_run
from tests.faults.tiny import config_tree, read_log

pytestmark = pytest.mark.faults
NUM_STEPS = 12

# One prompt of eight, so that an eighth of the scores fails.
SOMETIMES = """
import os, zlib

def reward(prompt, completion):
    if prompt.startswith("0 +"):
        kind = zlib.crc32(completion.encode()) % 4
        if kind == 0:
            os.abort()
        if kind == 1:
            while True:
                pass
        if kind == 2:
            print("x" * 1_000_000)
            while True:  # where replies are written
                os.write(4, b"x" * 65536)
        return len(bytearray(4 << 30))
    return 1.0 if "1" in completion else 0.0
"""
ALWAYS = """
def reward(completion):
    raise RuntimeError("grader")
"""


def recipe(source: str) -> dict[str, Any]:
    params = {"source": source, "timeout_seconds": 0.5, "memory_mb": 128}
    rule = {"name": "mine", "kind": "python_function", "weight": 1.0, "params": params}
    return {"recipe": {"rules": [rule]}}


def test_a_failed_reward_has_no_score_and_the_run_continues(
    trainers, tiny_model, tmp_path
):
    tree = config_tree(tiny_model, num_steps=NUM_STEPS)
    tree["data"]["num_eval_rows"] = 0
    tree["rollout"] |= {"prompts_per_step": 8, "group_size": 2}
    tree |= {"reward": recipe(SOMETIMES), "evaluation": {"every_steps": 0}}
    folder = write_run(tmp_path, tree)

    status = trainers.run(folder)

    assert status == 0, (folder / "trainer.log").read_text()
    events = read_log(folder / "out" / "events.jsonl")
    groups = [event for event in events if event["type"] == "group_scored"]
    assert len(groups) == 8 * NUM_STEPS
    errors: set[str] = set()
    for group in groups:
        is_bad = group["prompt"].startswith("0 +")
        for completion in group["completions"]:
            assert (completion["reward"] is None) == is_bad
            errors |= set(completion["errors"].values())
    message = "\n".join(sorted(errors))
    assert "SIGABRT" in message
    assert "0.5 s" in message  # of wall or of CPU time
    assert "too much output" in message
    assert "memory limit" in message


def test_a_run_pauses_if_more_than_a_fifth_of_scores_fail(launch_tiny):
    run = launch_tiny(num_steps=4, reward=recipe(ALWAYS))

    paused = run_attempt(run)

    assert paused.state == RunState.PAUSED, paused.fail_reason
    for text in ("100%", "reward.max_error_share", "20%", "grader"):
        assert text in paused.pause_reason
