"""The ceilings of statements, modules and columns that `make check` holds.

    python -m tests.ceilings

The numbers in `ceilings.toml` follow the code down. Anyone who adds deletes something
else, or raises a number with the reason in the commit.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CEILINGS = Path(__file__).with_suffix(".toml")
# A ceiling that is further above than this is lowered.
SLACK = 100
HAS_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def main() -> int:
    faults = list(list_faults())
    for fault in faults:
        sys.stdout.write(f"{fault}\n")
    return 1 if faults else 0


def list_faults() -> Iterator[str]:
    packages = tomllib.loads(CEILINGS.read_text())
    columns = packages.pop("templates")["columns"]
    for path in sorted((ROOT / "templates").rglob("*.html")):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if len(line) > columns:
                place = f"{path.relative_to(ROOT)}:{number}"
                yield f"{place}: {len(line)} columns of at most {columns}."
    for package, ceilings in packages.items():
        modules = [
            path
            for path in (ROOT / package).rglob("*.py")
            if "migrations" not in path.relative_to(ROOT).parts and path.stat().st_size
        ]
        counts = {
            "modules": len(modules),
            "statements": sum(count_statements(path.read_text()) for path in modules),
        }
        for kind, ceiling in ceilings.items():
            count = counts[kind]
            place = f"{CEILINGS.name}, {package}.{kind}: {count:,} of {ceiling:,}"
            if count > ceiling:
                yield f"{place}. Delete something, or raise the ceiling with a reason."
            elif kind == "statements" and count < ceiling - SLACK:
                yield f"{place}. Lower the ceiling."


def count_statements(code: str) -> int:
    """How many statements `code` has; docstrings are none."""
    nodes = list(ast.walk(ast.parse(code)))
    docstrings = [
        node
        for node in nodes
        if isinstance(node, HAS_DOCSTRING) and ast.get_docstring(node) is not None
    ]
    return sum(isinstance(node, ast.stmt) for node in nodes) - len(docstrings)


if __name__ == "__main__":
    sys.exit(main())
