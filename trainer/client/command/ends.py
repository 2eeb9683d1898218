"""How `cohort` ends, for scripts; `cohort --help` has the same table."""

from __future__ import annotations

DONE = 0
REFUSED = 1  # by the server, or what was asked for cannot be done
MISUSED = 2
STOPPED = 3  # the watched run was stopped or cancelled
FAILED = 4  # the watched run failed
UNREACHABLE = 5
INTERRUPTED = 130
BROKEN_PIPE = 141

BY_STATE = {"finished": DONE, "stopped": STOPPED, "failed": FAILED}
TABLE = """\
ends with:
  0   done; the watched run finished
  1   the server said no
  2   the command cannot be understood, or a file is no good
  3   the watched run was stopped or cancelled
  4   the watched run failed
  5   the server could not be reached
  130 Ctrl-C
"""


class Ended(Exception):
    """All is said; the command ends with this code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code
