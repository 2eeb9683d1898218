"""Of an installation: the version of its scripts and styles, and its secret key."""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import suppress
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


def load_secret_key(data: Path) -> str:
    """Made once, in a file that only its user can read."""
    path = data / "secret-key"
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return _make(path)


def _make(path: Path) -> str:
    """Two processes may start at once: both use the key that is linked first."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mine = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with os.fdopen(
        os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w"
    ) as f:
        f.write(secrets.token_urlsafe(50))
    with suppress(FileExistsError):  # another process was first
        os.link(mine, path)
    mine.unlink()
    return path.read_text().strip()
