"""What lies about where a judge works is neither run nor seen by it."""

from __future__ import annotations

import pytest

from tests.trainer.rewards.scores import score
from trainer.rewards import judge


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """A temporary folder in which another person of the machine may write."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    judge._end_all()
    yield tmp_path
    judge._end_all()


def test_a_module_that_lies_in_the_temporary_folder_is_not_run(scratch):
    trace = scratch / "was-run"
    planted = f"open({str(trace)!r}, 'w')\nraise SystemExit\n"
    (scratch / "sympy.py").write_text(planted)
    (scratch / "json.py").write_text(planted)

    scored = score("math_verify", "<answer>$1/2$</answer>", "0.5")

    assert not trace.exists()
    assert scored == 1.0
