"""A page of many modules names them all: each that it does not is one more wait."""

import re
from pathlib import Path

from tests.dashboard.completions.factories import make_run

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


def test_a_page_names_each_of_its_modules(alice_client, team):
    run = f"/alpha/runs/{make_run(team).id}/"

    for address in (run, f"{run}metrics/", f"{run}logs/", "/alpha/runs/"):
        html = alice_client.get(address).text
        modules = {SCRIPTS / name for name in MODULE.findall(html)}
        preloaded = {SCRIPTS / name for name in PRELOADED.findall(html)}

        imported = set().union(*map(imported_by, modules))

        assert len(imported) > 5, address
        assert preloaded == imported - modules, address
