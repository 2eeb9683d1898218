"""Which tests `make test` leaves to `make test-costly`, so that it takes five minutes.

`make test-costs` runs all, on a machine with nothing else to do, and writes the list:
the costliest tests, until the others take QUICK_SECONDS of one process.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

LISTED = Path(__file__).parent / "costly.txt"
QUICK_SECONDS = 360.0  # half of it on two cores; loading the tests is the rest
# What `make test` shows at any cost: a run in the browser, an exact resume, and that no
# one reads or changes what is another's.
KEPT = (
    "tests/browser/test_watching_a_run.py",
    "tests/dashboard/api/test_every_operation_is_guarded.py",
    "tests/dashboard/test_every_route_is_guarded.py",
    "tests/trainer/run/test_resume.py",
)
_seconds: Counter[str] = Counter()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--only",
        choices=("quick", "costly"),
        help="leave out tests/costly.txt, or run it",
    )
    parser.addoption(
        "--write-costs", action="store_true", help="write tests/costly.txt"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Load no file without a costly test where these alone are run."""
    if config.getoption("--only") != "costly" or collection_path.suffix != ".py":
        return None
    files = {config.rootpath / line.split("::")[0] for line in _listed()}
    return None if collection_path in files else True


@pytest.hookimpl(tryfirst=True)  # before -m and -k leave any out
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    only = config.getoption("--only")
    if only is None:
        return
    costly = _listed()
    # Which cases a test has, such as levels of the sandbox, depends on the machine.
    loaded = {_function(item.nodeid) for item in items}
    files = {name.split("::")[0] for name in loaded}
    gone = {name for name in map(_function, costly) if name.split("::")[0] in files}
    if only == "costly" and gone - loaded:
        raise pytest.UsageError(f"tests/costly.txt names no test: {gone - loaded}")
    parts: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        parts[(item.nodeid in costly) == (only == "costly")].append(item)
    config.hook.pytest_deselected(items=parts[False])
    items[:] = parts[True]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Only the controller has the reports of all processes."""
    if not session.config.getoption("--write-costs") or not _seconds:
        return
    if hasattr(session.config, "workerinput"):
        return
    costly, left = [], sum(_seconds.values())
    for name, seconds in _seconds.most_common():
        if left <= QUICK_SECONDS:
            break
        if not name.startswith(KEPT):
            costly.append(name)
            left -= seconds
    LISTED.write_text("".join(f"{name}\n" for name in sorted(costly)))


def _function(name: str) -> str:
    return name.split("[")[0]


def _listed() -> set[str]:
    return set(LISTED.read_text().splitlines()) if LISTED.exists() else set()
