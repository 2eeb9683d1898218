"""Telling the languages of texts with py3langid; runs in the judge's process."""

from __future__ import annotations

from typing import Any

from py3langid.langid import MODEL_FILE, LanguageIdentifier

_IDENTIFIER = LanguageIdentifier.from_model_file(MODEL_FILE)


def grade_language(question: dict[str, Any]) -> dict[str, Any]:
    """`{"texts"}` → `{"languages"}`: the code of each text's, such as en."""
    return {
        "languages": [str(_IDENTIFIER.classify(text)[0]) for text in question["texts"]]
    }
