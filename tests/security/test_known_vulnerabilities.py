"""No locked package has a known vulnerability.

pip-audit queries PyPI's advisories. If they are unreachable or lack a package, the test
is skipped with what was not checked; it never passes without a result.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted(path.name for path in ROOT.glob("requirements*.lock"))
GPU = "requirements-gpu.lock"
pytestmark = pytest.mark.slow


def pinned(lock: str) -> set[str]:
    lines = (ROOT / lock).read_text(encoding="utf-8").splitlines()
    return {line.removesuffix(" \\") for line in lines if line[:1].isalpha()}


def audit(pins: Path) -> list[dict[str, Any]]:
    """pip-audit's result for each package. NotChecked: no result, with its error."""
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
    """The advisories could not be queried."""


def judge(packages: list[dict[str, Any]]) -> str:
    """What was not checked. AssertionError: a package has a vulnerability."""
    vulnerable = {
        f"{package['name']} {package['version']}": [
            f"{vuln['id']}, fixed in {', '.join(vuln['fix_versions']) or 'no version'}"
            for vuln in package["vulns"]
        ]
        for package in packages
        if package.get("vulns")
    }
    assert not vulnerable, vulnerable
    assert packages, "the lock names no package"
    unknown = [package["name"] for package in packages if "skip_reason" in package]
    if not unknown:
        return ""
    shown = ", ".join(unknown[:5])
    return f"{len(unknown)} of {len(packages)} packages, {shown} … are unknown"


def test_no_locked_package_has_a_known_vulnerability(tmp_path):
    """Of locks together, since most packages are in each of them.

    vLLM for GPUs needs other versions of some, and pip-audit takes one of each.
    """
    assert len(LOCKS) == 6
    found: list[dict[str, Any]] = []
    try:
        for locks in ({GPU}, {*LOCKS} - {GPU}):
            pins = sorted(set().union(*map(pinned, locks)))
            (tmp_path / "pins.txt").write_text("\n".join(pins) + "\n")
            found += audit(tmp_path / "pins.txt")
        missing = judge(found)
    except NotChecked as error:
        missing = str(error)

    if missing:
        pytest.skip(f"NOT CHECKED for known vulnerabilities: {missing}")
