"""No package of the locks has a known weakness.

pip-audit asks PyPI's list of advisories. Where that cannot be asked, or does not know a
package, the test says what was not checked; it is never green without an answer.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted(path.name for path in ROOT.glob("requirements*.lock"))
pytestmark = pytest.mark.slow


def pinned(lock: str) -> set[str]:
    lines = (ROOT / lock).read_text(encoding="utf-8").splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def audit(pins: Path) -> list[dict[str, Any]]:
    """What pip-audit says of each package; NotChecked, in its words, where of none."""
    options = ["--disable-pip", "--no-deps", "--format", "json", "--timeout", "10"]
    options += ["--progress-spinner", "off", "-r", str(pins)]
    done = subprocess.run(
        [sys.executable, "-m", "pip_audit", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    start = done.stdout.find("{")
    if start < 0:
        raise NotChecked(done.stderr.strip()[-300:])
    found: list[dict[str, Any]] = json.loads(done.stdout[start:])["dependencies"]
    return found


class NotChecked(Exception):
    """Nobody could be asked."""


def judge(packages: list[dict[str, Any]]) -> str:
    """What was not checked, in words. AssertionError where something is weak."""
    weak = {
        f"{package['name']} {package['version']}": [
            f"{one['id']}, mended in {', '.join(one['fix_versions']) or 'no version'}"
            for one in package["vulns"]
        ]
        for package in packages
        if package.get("vulns")
    }
    assert not weak, weak
    assert packages, "the lock names no package"
    unknown = [package["name"] for package in packages if "skip_reason" in package]
    if not unknown:
        return ""
    shown = ", ".join(unknown[:5])
    return f"{len(unknown)} of {len(packages)} packages, {shown} … are not listed"


def test_no_locked_package_has_a_known_vulnerability(tmp_path: Path) -> None:
    """Of all locks: most packages are in each of them, and are asked of once."""
    assert len(LOCKS) == 4
    pins = sorted(set().union(*map(pinned, LOCKS)))
    (tmp_path / "pins.txt").write_text("\n".join(pins) + "\n", encoding="utf-8")
    try:
        missing = judge(audit(tmp_path / "pins.txt"))
    except NotChecked as error:
        missing = str(error)

    if missing:
        pytest.skip(f"NOT CHECKED for known weaknesses: {missing}")
