"""Scripts and styles: where they lie, and an address that changes with them."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path


def version_of_assets(root: Path) -> str:
    """The same wherever the same files lie, and another one once any has changed.

    Vendors' packages are known by npm's list of what it installed, and Swagger UI by
    the version of django-ninja. A process that serves no pages may lack the files.
    """
    listed = root / "node_modules" / ".package-lock.json"
    own = sorted(path for path in (root / "static").rglob("*") if path.is_file())
    digest = hashlib.sha256(version("django-ninja").encode())
    for path in [*own, *([listed] if listed.exists() else [])]:
        content = hashlib.sha256(path.read_bytes()).digest()
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + content)
    return digest.hexdigest()[:12]
