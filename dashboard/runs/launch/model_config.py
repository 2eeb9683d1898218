"""What a model's folder says of it; a hub's model says nothing before it is here."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

LARGEST = 1_000_000  # bytes; the largest published ones have some thousands


def read_model_config(folder: Path) -> dict[str, Any] | None:
    """The tree of its config.json, where this machine can read one."""
    return _read_tree(folder / "config.json")


def has_chat_template(folder: Path) -> bool:
    """In a file of its own, as transformers writes it now, or as before."""
    own = folder / "chat_template.jinja"
    return os.path.isfile(own) or bool(
        (_read_tree(folder / "tokenizer_config.json") or {}).get("chat_template")
    )


def read_characters(folder: Path) -> frozenset[str] | None:
    """All that a tokenizer of single characters and numbers has tokens for.

    None where it is another one, or this machine cannot read it.
    """
    model = (_read_tree(folder / "tokenizer.json") or {}).get("model")
    if not isinstance(model, dict) or model.get("type") != "WordLevel":
        return None
    words = [str(word) for word in model.get("vocab", ())]
    named = [
        word for word in words if not (word.startswith("<") and word.endswith(">"))
    ]
    if not all(len(word) == 1 or word.isdecimal() for word in named):
        return None
    return frozenset("".join(named))


def _read_tree(file: Path) -> dict[str, Any] | None:
    try:
        # A pipe would be waited for, and some of /proc's files too.
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as f:
            is_plain = stat.S_ISREG(os.fstat(f.fileno()).st_mode)
            data = f.read(LARGEST + 1) if is_plain else b""
        if len(data) > LARGEST:
            return None
        tree = json.loads(data)
    except (OSError, ValueError, RecursionError):
        return None
    return tree if isinstance(tree, dict) else None
