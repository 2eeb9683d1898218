"""Errors that a user's request causes, each with a code that stays the same."""

from __future__ import annotations

from typing import TypeVar

from django.http import Http404

T = TypeVar("T")


class UserError(ValueError):
    """A request that Cohort cannot carry out. Programs and tests read the code.

    >>> raise UserError("datasets.name_taken", "There is a dataset called “Sums”.")
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def or_404(row: T | None, missing: str) -> T:
    """Return the row; 404 with a sentence if there is none."""
    if row is None:
        raise Http404(missing)
    return row


def code_of(error: BaseException) -> str:
    """Empty for an error without one."""
    code = getattr(error, "code", "")
    return code if isinstance(code, str) else ""
