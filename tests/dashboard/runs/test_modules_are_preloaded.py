"""A page of many modules names them all: each that it does not is one more wait."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.test import Client

from dashboard.accounts.models import Team
from tests.dashboard.samples.factories import make_run

SCRIPTS = Path("static/js").resolve()
IMPORT = re.compile(r'^(?:import|export)\s[^;]*?"(\.[^"]+)";', re.MULTILINE)
MODULE = re.compile(r'<script type="module" src="/static/\w+/js/([^"]+)"')
PRELOADED = re.compile(r'<link rel="modulepreload" href="/static/\w+/js/([^"]+)"')


def imported_by(module: Path) -> set[Path]:
    """What it imports, and what that imports."""
    found: set[Path] = set()
    unread = [module]
    while unread:
        path = unread.pop()
        names = IMPORT.findall(path.read_text())
        fresh = {(path.parent / name).resolve() for name in names} - found
        found |= fresh
        unread += fresh
    return found


@pytest.mark.parametrize(
    ("tab", "num_modules"), [("", 20), ("metrics/", 20), ("logs/", 15)]
)
def test_a_page_names_each_of_its_modules(
    alice_client: Client, team: Team, tab: str, num_modules: int
) -> None:
    address = f"/alpha/runs/{make_run(team).id}/{tab}"
    check_modules(alice_client, address, num_modules)


def test_the_run_list_names_each_of_its_modules(
    alice_client: Client, team: Team
) -> None:
    make_run(team)
    check_modules(alice_client, "/alpha/runs/", 5)


def check_modules(alice_client: Client, address: str, num_modules: int) -> None:
    html = alice_client.get(address).content.decode()
    modules = {SCRIPTS / name for name in MODULE.findall(html)}
    preloaded = {SCRIPTS / name for name in PRELOADED.findall(html)}

    imported = set().union(*map(imported_by, modules))

    assert len(imported) > num_modules
    assert preloaded == imported - modules
