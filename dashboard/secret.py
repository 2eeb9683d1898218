"""The installation's secret key, made once and kept where only its user can read."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path


def load_secret_key(data: Path) -> str:
    path = data / "secret-key"
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return _make(path)


def _make(path: Path) -> str:
    """Two processes may start at once: whoever links its key first gives it to both."""
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
