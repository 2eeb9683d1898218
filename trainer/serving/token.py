"""The secret that a model server and its trainers share."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

_SHORTEST = 16


def read_token(path: Path) -> str:
    """The token in a file.

    Raises:
        ValueError: there is none, or it is no token.
    """
    try:
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise ValueError(
            f"The token file {path} cannot be read: {error.strerror}."
        ) from None
    except UnicodeDecodeError:
        raise ValueError(_complaint(path)) from None
    if len(token) < _SHORTEST or not all("!" <= letter <= "~" for letter in token):
        raise ValueError(_complaint(path))
    return token


def read_or_make_token(path: Path) -> str:
    """The token in a file, which is made, for its owner alone, where there is none."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(path)
    except OSError as error:
        raise ValueError(
            f"The token file {path} cannot be written: {error.strerror}."
        ) from None
    token = secrets.token_urlsafe(32)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(token + "\n")
    return token


def _complaint(path: Path) -> str:
    return (
        f"The token file {path} must hold one word of at least {_SHORTEST} plain "
        "letters, digits or signs. Delete it and start the server, which "
        "makes a new one."
    )
