"""A run that has failed ends, though something still samples for it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.environment import child_environment, run_here
from tests.trainer.rollout.test_one_step_off import tree_of
from tests.trainer.tiny import ROOT, read_events, write_config

pytestmark = pytest.mark.slow  # trainers of their own

# Sampling for the second step never ends, and the first step's update fails.
STUCK = """
import sys, threading
import trainer.stopping, trainer.grpo
from trainer.__main__ import main
from trainer.rollout.episodes import EngineSource

trainer.stopping._GRACE_SECONDS = 0.2
complete, begun = EngineSource.complete, threading.Event()

def sample(self, prompts, step, **named):
    if step == 2:
        begun.set()
        threading.Event().wait()
    return complete(self, prompts, step, **named)

def fail(*_, **__):
    assert begun.wait(60)
    raise ValueError("The update fell over.")

EngineSource.complete, trainer.grpo.run_update = sample, fail
trainer.stopping.exit_process(main(sys.argv[1:]))
"""


def test_a_failed_run_does_not_wait_for_what_it_samples(
    model_folder, rows_path, tmp_path
):
    config = write_config(tmp_path, tree_of(model_folder, rows_path))

    done = run_here(
        *(sys.executable, "-c"),
        STUCK,
        "run",
        config,
        "--out",
        tmp_path / "out",
        env=child_environment(),
        timeout=120,
    )

    assert done.returncode == 1, done.stderr
    assert done.stderr.endswith("fell over.\n")
    assert "from step 0" in done.stdout
    last = read_events(tmp_path / "out" / "events.jsonl")[-1]
    assert last["type"] == "run_failed"
    assert last["error"].endswith("fell over.")


def test_a_full_output_does_not_end_a_run(model_folder, rows_path, tmp_path):
    """The disk of its output is full: the exit code and the log tell all the same."""
    config = write_config(tmp_path, tree_of(model_folder, rows_path))
    command = [sys.executable, "-m", "trainer", "run", config]

    with Path("/dev/full").open("w") as full:
        codes = [
            subprocess.run(
                [*command, "--out", tmp_path / "out"],
                cwd=ROOT,
                stdout=full,
                stderr=full,
                timeout=120,
                check=False,
            ).returncode
            for _ in ("a new folder", "the same again")
        ]

    assert codes == [0, 2]
    last = read_events(tmp_path / "out" / "events.jsonl")[-1]
    assert last["type"] == "run_finished"
