"""What the documents tell an operator to type is understood."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

from tests.contracts.production import ROOT, UNITS, compose

DOCUMENTS = (
    "README.md", "CONTRIBUTING.md", "docker/README.md", "dashboard/upkeep/RUNBOOK.md"
)  # fmt: skip
# A command ends with its line, its code span, its comment, or where another begins.
END = r"(?=\s#|`|\n|\)|&&|;|\|| \$\()"
MANAGE = re.compile(rf'manage\.py ([a-z_]+(?:"[^"\n]*"|[^`"\n])*?){END}')
UP = re.compile(rf"docker compose( [^`\n]*?) (?:up|build)\b([^`\n]*?){END}")
RUN = re.compile(r"docker compose( [^`\n]*?) (?:run --rm|exec) ([a-z-]+)")
RESTART = re.compile(rf"systemctl (?:restart|start|stop|enable --now) ([^`\n]*?){END}")


def found(pattern: re.Pattern[str]) -> list[tuple[str, ...]]:
    texts = [(ROOT / name).read_text() for name in DOCUMENTS]
    return sorted({match.groups() for t in texts for match in pattern.finditer(t)})


@pytest.mark.parametrize("told", [one[0] for one in found(MANAGE)])
def test_a_command_of_manage_py_has_these_arguments(told: str) -> None:
    name, *arguments = shlex.split(told)
    arguments = [argument.replace("…", "1") for argument in arguments]
    parser = load_command_class(get_commands()[name], name).create_parser(
        "manage.py", name
    )

    try:
        parser.parse_args(arguments)
    except Exception as error:
        raise AssertionError(f"{told}: {error}") from error


@pytest.mark.parametrize(("files", "rest"), found(UP))
def test_compose_knows_the_files_and_services_that_are_named(
    files: str, rest: str
) -> None:
    words = shlex.split(files)
    named = [word for flag, word in pairwise(words) if flag == "-f"]
    services = {word for word in rest.split() if word.isalpha() or "-" in word[1:]}
    services -= {word for word in services if word.startswith("-")}

    assert all((ROOT / name).is_file() for name in named)
    assert services <= set(compose())


@pytest.mark.parametrize(("files", "service"), found(RUN))
def test_compose_knows_the_service_that_runs_a_command(
    files: str, service: str
) -> None:
    named = [word for flag, word in pairwise(shlex.split(files)) if flag == "-f"]

    assert service in compose(*(Path(name).name for name in named))


@pytest.mark.parametrize(
    ("name", "heading"),
    [
        ("docker/README.md", "Updating"),
        ("dashboard/upkeep/RUNBOOK.md", "An upgrade"),
        ("dashboard/upkeep/RUNBOOK.md", "An upgrade went wrong"),
    ],
)
def test_the_database_is_brought_up_to_date_beside_the_old_containers(
    name: str, heading: str
) -> None:
    """`up` stops containers that change before it starts what they wait for."""
    text = (ROOT / name).read_text()
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]

    steps = re.findall(
        r"docker compose [^`\n]*? (build|run --rm migrate|up)\b", section
    )

    assert steps[:3] == ["build", "run --rm migrate", "up"]
    assert "up --build" not in section


@pytest.mark.parametrize("units", [one[0] for one in found(RESTART)])
def test_systemd_knows_the_units_that_are_named(units: str) -> None:
    for unit in shlex.split(units):
        stem = re.sub(r"@.*", "@", unit)
        names = {f"{stem}{end}" for end in ("", ".service", ".target")}
        assert any(Path(UNITS / name).exists() for name in names), unit


@pytest.mark.parametrize("name", ["docker/README.md", "dashboard/upkeep/RUNBOOK.md"])
def test_an_upgrade_brings_the_units_along(name: str) -> None:
    """systemd reads copies, which would stay those of the old release."""
    lines = (ROOT / name).read_text().splitlines()
    restarts = [i for i, line in enumerate(lines) if "restart cohort-migrate" in line]

    assert restarts
    for i in restarts:
        assert "cohort/docker/systemd/cohort* /etc/systemd/system/" in lines[i - 1]
        assert "&& systemctl daemon-reload" in lines[i - 1]


def test_a_command_has_the_units_environment_and_tells_nobody() -> None:
    """As arguments of `env` its secrets would stand in the list of processes."""
    lines = [
        line for name in DOCUMENTS for line in (ROOT / name).read_text().splitlines()
    ]
    told = [line for line in lines if "systemd-run" in line]
    drop_in = (UNITS / "cohort-.service.d" / "confined.conf").read_text()
    parts = dict(
        re.findall(r"^(User|WorkingDirectory|EnvironmentFile)=(.+)$", drop_in, re.M)
    )

    assert len(told) >= 3
    for line in told:
        assert f"--uid={parts['User']} " in line
        assert f"--working-directory={parts['WorkingDirectory']} " in line
        assert f"-p EnvironmentFile={parts['EnvironmentFile']} " in line
        assert f"{parts['WorkingDirectory']}/.venv/bin/python manage.py " in line
    assert not [line for line in lines if "/etc/cohort/environment)" in line]


def test_there_are_such_commands() -> None:
    assert min(len(found(MANAGE)), len(found(UP)), len(found(RESTART))) >= 2
