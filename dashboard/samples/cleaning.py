"""Text from a model as PostgreSQL can keep it."""

from __future__ import annotations

from typing import Any


def clean_text(text: str) -> str:
    """NUL becomes ␀ and a lone surrogate �: text and jsonb refuse both."""
    if "\0" in text:
        text = text.replace("\0", "␀")
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def clean_json(value: Any) -> Any:
    """The same for every text in a JSON value."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(key): clean_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clean_json(item) for item in value]
    return value
