"""SIGKILL at each point of a checkpoint's save leaves a valid, exact checkpoint."""

import hashlib
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from dashboard.supervision.checkpoints import newest_verified
from tests.faults.forks import write_run
from tests.faults.tiny import config_tree, read_log, series

pytestmark = pytest.mark.faults
NUM_STEPS = 5
KILLED_AT = 4
POINTS = re.findall(
    r'^    "(.+?)": ', Path(__file__).with_name("trainer_mishaps.py").read_text(), re.M
)
# One point per part of a save; the others with --soak.
OFTEN = {
    "weights half", "manifest missing", "before rename", "after rename",
    "half of the pruning",
}  # fmt: skip
# The new checkpoint is renamed, and the run continues from it.
WHOLE = POINTS[POINTS.index("after rename") :]


def tree_of(model: Path) -> dict[str, Any]:
    """Saved after steps 2 and 4 and at the end; only the last one is kept."""
    tree = config_tree(model, num_steps=NUM_STEPS)
    return tree | {
        "checkpoint": {"every_steps": 2, "keep_last": 1},
        "evaluation": {"every_steps": 0},
        "loss": {"kl_coef": 0.05},
    }


@pytest.fixture(scope="module")
def undisturbed(trainers, tiny_model, tmp_path_factory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("whole"), tree_of(tiny_model))
    assert trainers.run(folder) == 0, (folder / "trainer.log").read_text()
    return folder / "out"


def contents(out: Path, *, attempt: int) -> dict[str, str]:
    """SHA-256 of what the run's last checkpoint holds, except its attempt."""
    folder = out / "checkpoints" / f"step-{NUM_STEPS:06d}-attempt-{attempt}"
    names = ("model/model.safetensors", "optimizer.safetensors", "controllers.json")
    return {n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in names}


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=[] if point in OFTEN else pytest.mark.soak)
        for point in POINTS
    ],
)
def test_a_run_killed_in_a_save_continues_bit_for_bit(
    point, trainers, tiny_model, undisturbed, tmp_path
):
    folder = write_run(tmp_path / "run", tree_of(tiny_model))
    mishap = ["it_dies_in_a_save", KILLED_AT, point]

    status = trainers.run(folder, mishap=mishap)

    assert status == -signal.SIGKILL, (folder / "trainer.log").read_text()
    refused: list[str] = []
    found = newest_verified(
        folder / "out" / "checkpoints",
        is_ours=lambda _: True,
        on_refused=refused.append,
        on_progress=lambda: None,
    )
    assert found is not None
    assert found.step == (4 if point in WHOLE else 2)

    assert trainers.run(folder, "--resume") == 0, (folder / "trainer.log").read_text()

    out = folder / "out"
    resumed = read_log(out / "events.jsonl")
    assert (resumed[0]["type"], resumed[0]["step"]) == ("run_resumed", found.step)
    assert contents(out, attempt=2) == contents(undisturbed, attempt=1)
    expected = series(read_log(undisturbed / "events.jsonl"))
    first = series(read_log(out / "events-1.jsonl"))
    assert {s: _bare(m) for s, m in (first | series(resumed)).items()} == {
        s: _bare(m) for s, m in expected.items()
    }
    left = {path.name for path in (out / "checkpoints").iterdir()}
    assert left == {f"step-{NUM_STEPS:06d}-attempt-2"}


def _bare(metrics: dict[str, float | None]) -> dict[str, float | None]:
    """Without totals, which start again with a new log."""
    return {n: v for n, v in metrics.items() if not n.startswith("total/")}
