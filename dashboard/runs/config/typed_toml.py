"""TOML that somebody typed, read within bounds and refused where nothing holds it."""

from __future__ import annotations

from typing import Any

from trainer.config import has_long_key, parse_toml_text

MAX_DEPTH = 20
# Longer whole numbers are not a setting's, and Python refuses to write them out.
MAX_NUMBER = 10**18
MAX_PARTS = 16  # of a key


def parse_toml(text: str) -> dict[str, Any]:
    """ValueError says where the text is wrong."""
    if has_long_key(text, max_parts=MAX_PARTS):
        raise ValueError(
            f"This is not TOML for a run: a key in it has more than {MAX_PARTS} parts "
            "with dots between them. Correct it."
        )
    try:
        return parse_toml_text(text)
    except ValueError as error:
        raise ValueError(f"This is not TOML: {error}.") from None


def refuse_unstorable(tree: Any, *, what: str, depth: int = 0) -> None:
    """ValueError, where it parses, but neither the database nor an answer holds it."""
    if depth > MAX_DEPTH:
        raise ValueError(f"{what} nest at most {MAX_DEPTH} deep; these nest deeper.")
    if isinstance(tree, int) and abs(tree) > MAX_NUMBER:
        raise ValueError("A number here is longer than any setting takes. Shorten it.")
    if isinstance(tree, str) and ("\x00" in tree or shown(tree) != tree):
        raise ValueError(
            f"“{shown(tree)[:60]}” holds a NUL or half a character. Remove it."
        )
    if isinstance(tree, dict):
        tree = [*tree, *tree.values()]
    if isinstance(tree, list):
        for part in tree:
            refuse_unstorable(part, what=what, depth=depth + 1)


def shown(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
