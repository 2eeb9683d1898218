"""Which tests `make test` leaves to `make test-costly`, so that it takes five minutes.

`make test-costs` runs all, on a machine with nothing else to do, and writes the list:
the costliest tests, until the others take QUICK_SECONDS of one process. `make check`
looks that each listed test is there:

    python -m tests.costs
"""

import ast
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LISTED = ROOT / "tests" / "costly.txt"
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
    return None if collection_path in _functions_by_file() else True


@pytest.hookimpl(tryfirst=True)  # before -m and -k leave any out
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    only = config.getoption("--only")
    if only is None:
        return
    costly = _listed()
    parts: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        parts[(item.nodeid in costly) == (only == "costly")].append(item)
    config.hook.pytest_deselected(items=parts[False])
    items[:] = parts[True]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] += report.duration


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Only the controller has the reports of all processes."""
    if not session.config.getoption("--write-costs") or exitstatus != 0:
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


@cache
def _listed() -> set[str]:
    return set(LISTED.read_text().splitlines()) if LISTED.exists() else set()


@cache
def _functions_by_file() -> dict[Path, set[str]]:
    """Of the list; which cases a function has, depends on the machine."""
    functions: dict[Path, set[str]] = {}
    for name in _listed():
        file, *_, function = name.split("[")[0].split("::")
        functions.setdefault(ROOT / file, set()).add(function)
    return functions


def main() -> int:
    """Name what the list has and the tests have not."""
    gone = []
    for path, functions in sorted(_functions_by_file().items()):
        tree = ast.parse(path.read_text() if path.exists() else "")
        missing = functions - {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        gone += [f"{path.relative_to(ROOT)}::{name}" for name in sorted(missing)]
    for name in gone:
        sys.stdout.write(f"{LISTED.name} names a test that is not there: {name}\n")
    return 1 if gone else 0


if __name__ == "__main__":
    sys.exit(main())
