"""bandit finds nothing of medium or high severity, and each exception has a reason."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHIPPED = ("dashboard", "trainer", "manage.py")
pytestmark = pytest.mark.slow


def bandit(*targets: Path | str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bandit", "-q", "-ll", "-r", *map(str, targets)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_nothing_is_found():
    done = bandit(*SHIPPED)

    assert done.returncode == 0, done.stdout


def test_dangerous_code_is_found(tmp_path):
    (tmp_path / "odd.py").write_text("exec(input())\n")

    done = bandit(tmp_path)

    assert done.returncode == 1
    assert "B102" in done.stdout


def test_each_exception_names_its_rule_and_reason():
    lines = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for name in SHIPPED
        for path in [*(ROOT / name).rglob("*.py"), ROOT / name]
        if path.is_file()
        for line in path.read_text("utf-8").split("\n")
        if "# nosec" in line
    ]

    assert lines
    for line in lines:
        why = line.partition("# nosec")[2]
        assert re.match(r" B\d{3}(, B\d{3})* # (noqa: [A-Z0-9, ]+ +[-#] )?\w", why), (
            line
        )
