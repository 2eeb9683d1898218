"""Regular expressions with linear-time matching (RE2), so that no text can hang one."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import re2

# RE2's time is the pattern's instructions times the text's length: this many take a
# second over 50,000 characters. A class of letters takes 1,200, `.{1,500}` 4,500.
MAX_INSTRUCTIONS = 20_000


@lru_cache(maxsize=256)
def compile_pattern(pattern: str, *, ignore_case: bool = False) -> Any:
    """Return a compiled RE2 pattern; ValueError with the remedy when it is not one."""
    options = re2.Options()
    # Left on, RE2 writes each bad pattern to standard error.
    options.log_errors = False
    options.case_sensitive = not ignore_case
    # With RE2's own 8 MiB, a{0,1000}a{0,1000}b falls back to another way to match that
    # takes a second over 30,000 letters; with 16 it is 0.07 s.
    options.max_mem = 16 * 2**20
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = (
            reason.decode("utf-8", "replace") if isinstance(reason, bytes) else reason
        )
        raise ValueError(
            f'The pattern "{pattern}" is not valid: {text}. Patterns use RE2 syntax: '
            "no look-around, no back-references, at most 1000 repeats."
        ) from error
    except UnicodeEncodeError as error:
        raise ValueError(
            "The pattern contains half of a surrogate pair, which is not a character. "
            "Remove it."
        ) from error


def refuse_bad_pattern(pattern: str) -> str:
    """Return a pydantic validator: the pattern as it is, when it compiles."""
    size = compile_pattern(pattern).programsize
    if size > MAX_INSTRUCTIONS:
        raise ValueError(
            f'The pattern "{pattern}" compiles to {size:,} instructions; the limit is '
            f"{MAX_INSTRUCTIONS:,}. Use smaller or fewer repeats."
        )
    return pattern
