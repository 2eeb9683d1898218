"""The units say what the containers do, and systemd takes them as they are."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dashboard.live.consumer import MAX_SOCKETS
from dashboard.project.environment import SECRETS
from tests.contracts.production import (
    ROOT,
    SERVICES,
    UNITS,
    compose,
    container_command,
    grace_seconds,
    read_unit,
    unit_command,
    unit_of,
)
from tests.environment import run_here

KNOWS_SUBGROUPS = 254  # systemd
PYTHON = "/opt/cohort/.venv/bin/python"
# Where the two differ, and why: addresses, and how systemd names things.
SAME = {"%H": "%h", "127.0.0.1": "0.0.0.0", "--pidfile=": "--pidfile "}  # noqa: S104


def test_a_unit_runs_what_the_container_does():
    for service in SERVICES:
        python, flag, *rest = unit_command(service)
        message = " ".join(rest)
        for ours, theirs in SAME.items():
            message = message.replace(ours, theirs)
        message = message.replace("training-%i@", "training@")

        assert (python, flag) == (PYTHON, "-m"), service
        assert message == " ".join(container_command(service)), service


def test_a_unit_has_as_long_to_stop():
    for service in SERVICES:
        if service != "beat":
            reported = unit_of(service)["Service"]["TimeoutStopSec"]
            assert int(reported) == grace_seconds(service), service
        assert unit_of(service)["Service"]["Restart"] == "always", service


def test_pages_may_have_more_files_than_a_person_may_open_sockets():
    assert int(unit_of("web")["Service"]["LimitNOFILE"]) >= 200 * MAX_SOCKETS


def test_secrets_are_files_of_the_environment():
    lines = (UNITS / "environment").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if not line.startswith("#"))

    for name in ("COHORT_SECRET_KEY", "DATABASE_PASSWORD"):
        assert name in SECRETS
        assert name not in given
        assert given[f"{name}_FILE"].startswith("/etc/cohort/")
    assert "@" in given["DATABASE_URL"]
    assert ":" not in given["DATABASE_URL"].split("//")[1].split("@")[0]


def test_backups_are_kept_as_the_containers_are():
    backup = read_unit(UNITS / "cohort-backup.service")["Service"]["ExecStart"]
    timer = read_unit(UNITS / "cohort-backup.timer")["Timer"]

    assert backup.endswith("manage.py backup --into /var/backups/cohort --keep 14")
    assert "${COHORT_BACKUPS_KEPT:-14}" in compose()["backup"]["command"]
    assert timer["Persistent"] == "yes"


def test_a_worker_is_handed_a_group_that_it_does_not_stand_in():
    """The kernel gives limits to the groups of one without processes of its own."""
    for service in ["default-worker", "training-worker"]:
        unit = unit_of(service)["Service"]

        assert unit["Delegate"].split() == ["memory", "pids"], service
        assert unit["DelegateSubgroup"] == "main", service


@pytest.fixture
def units(tmp_path) -> Path:
    """The units with what they run at the place where it is here."""
    folder = tmp_path / "units"
    shutil.copytree(UNITS, folder)
    template = folder / "cohort-training-worker@.service"
    shutil.copy(template, folder / "cohort-training-worker@0.service")
    for path in (*folder.glob("*.service"), *folder.glob("*/*.conf")):
        text = path.read_text().replace(PYTHON, sys.executable)
        text = text.replace("/opt/cohort", str(ROOT))
        if systemd_version() < KNOWS_SUBGROUPS:  # it passes over the line, and says so
            text = text.replace("DelegateSubgroup=main\n", "")
        path.write_text(text)
    return folder


def systemd_version() -> int:
    program = shutil.which("systemd-analyze")
    if program is None:
        return KNOWS_SUBGROUPS
    process = run_here(program, "--version", check=True)
    return int(process.stdout.split()[1])


def analyze(units: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("NOT CHECKED: this machine has no systemd-analyze")
    return subprocess.run(
        [program, *arguments],
        cwd=units,
        # A colon at the end: the machine's own units, too.
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{units}:"},
        capture_output=True,
        text=True,
        check=False,
    )


def services_in(units: Path) -> list[str]:
    return sorted(f"./{path.name}" for path in units.glob("cohort-*.service"))


def test_systemd_reads_every_unit(units):
    names = [*services_in(units), "./cohort.target", "./cohort-backup.timer"]

    done = analyze(units, "verify", *names)

    assert (done.returncode, done.stderr) == (0, "")


def test_every_service_is_confined(units):
    """systemd's own measure of what a service could still do, from 0 to 10."""
    for name in services_in(units):
        if name.endswith("@.service"):
            continue  # a template; its instance is there
        done = analyze(units, "security", "--offline=true", "--threshold=35", name)
        assert done.returncode == 0, f"{name}: {done.stdout[-200:]}"
