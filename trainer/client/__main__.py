"""`cohort`: the API from a terminal, and what reporters left to be sent."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Sequence

from trainer.client import verl
from trainer.client.api.requests import ended
from trainer.client.command.output import (
    BROKEN_PIPE,
    DONE,
    INTERRUPTED,
    MISUSED,
    REFUSED,
    UNREACHABLE,
    Ended,
    Remarks,
    remark,
)
from trainer.client.command.parser import make_parser
from trainer.client.http import Refused, Unreachable

MAX_TOLD = 20  # fields or rows that are wrong
MAX_SHOWN = 200  # characters of what was given


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(handlers=[Remarks()])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # one that takes ASCII alone
    if given[:1] == ["verl"]:
        return verl.main(given[1:])
    parsed = make_parser().parse_args(given)
    try:
        parsed.do(parsed)
    except Ended as end:
        return end.code
    except Refused as error:
        _tell(error)
        return REFUSED
    except Unreachable as error:
        remark(f"{ended(str(error))} Is it running, and is its address right?")
        return UNREACHABLE
    except UnicodeEncodeError as error:
        remark(f"What is asked for must be UTF-8; got {_start(error.object)!r}.")
        return MISUSED
    except ValueError as error:
        remark(str(error))
        return MISUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Who read what is printed has left; nor is anything to be said at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        remark(f"{_start(str(error.filename or 'A file'))}: {error.strerror or error}.")
        return MISUSED
    return DONE


def _start(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _tell(error: Refused) -> None:
    """What the server says, and of each field or row what is wrong with it."""
    remark(str(error))
    if error.status == 401:
        remark("`cohort login URL` keeps another token.")
    for each in list(error.problem.get("errors", ()))[:MAX_TOLD]:
        message = str(each.get("message", ""))
        if message and message not in str(error):
            remark(f"  {each.get('field', '')}: {message}")


if __name__ == "__main__":
    raise SystemExit(main())
