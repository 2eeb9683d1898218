"""Errors that a user's request causes, each with a code that stays the same."""

from __future__ import annotations


class UserError(ValueError):
    """A request that Cohort cannot carry out. Programs and tests read the code.

    >>> raise UserError("datasets.name_taken", "There is a dataset called “Sums”.")
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def code_of(error: BaseException) -> str:
    """Empty for an error without one."""
    code = getattr(error, "code", "")
    return code if isinstance(code, str) else ""
