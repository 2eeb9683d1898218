"""Log lines as text or JSON, with the fields of the work they belong to, redacted.

Within a request, a task or an attempt of a run these fields are added to each line:
request_id, task, team, run, attempt, step. People appear by number only.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from pathlib import PurePath
from types import MappingProxyType, TracebackType
from typing import Any, cast

from django.http import HttpRequest

from trainer.console import FACTS, JsonLines

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# Tokens in addresses.
TOKEN = re.compile(r"(/(?:public|sign-in|invitation|confirm-email|reset/key)/)[^/\s?]+")
# Keys of programs, and passwords in addresses of servers.
KEYS = re.compile(
    r"(\b[Bb]earer\s+(?=[\w~+/.=-]{8})|\bcohort_(?=[\w-]{40}))[\w~+/.=-]+"
)
PASSWORD = re.compile(r"(\b[a-z][a-z0-9+]*://[^\s:/@]*:)[^\s@/]+@")
# PostgreSQL shows the row that it refuses, which may be a prompt or a completion, with
# its newlines. What it goes on with has two spaces; a prompt may well say "\nHINT: ".
END = (
    r"\n(?:HINT|QUERY|CONTEXT|LOCATION):  |\nTraceback \(most recent call last\):"
    r"|\n\nThe above exception was the direct|\n\nDuring handling of the above|\Z"
)
ROW = re.compile(
    r"(Failing row contains |COPY \w+, line \d+[^:\n]{0,200}: |JSON data, line \d+: )"
    rf".*?(?={END})",
    re.DOTALL,
)
VALUE = re.compile(
    r"(Key \([^\n]{0,500}?\)=\().*?"
    r"(?=\) (?:already exists|is (?:not present in|still referenced from)"
    rf" table \"[^\"\n]*\")\.(?:{END})|{END})",
    re.DOTALL,
)

logger = logging.getLogger("dashboard")
Facts = MappingProxyType[str, Any]
NOTHING: Facts = MappingProxyType({})
_facts: ContextVar[Facts] = ContextVar("facts", default=NOTHING)
_request: ContextVar[HttpRequest | None] = ContextVar("request", default=None)


def current_facts() -> dict[str, Any]:
    """Read those of the request when a line is written: its route is found late."""
    request = _request.get()
    return {**(_facts_of(request) if request else {}), **_facts.get()}


def current_request_id() -> str | None:
    return cast("str | None", _facts.get().get("request_id"))


def bind(**facts: Any) -> None:
    """Bind facts until the end of the request, task or `bound` that we are within."""
    _facts.set(MappingProxyType({**_facts.get(), **_known(facts)}))


@contextmanager
def bound(**facts: Any) -> Iterator[None]:
    token = _facts.set(MappingProxyType({**_facts.get(), **_known(facts)}))
    try:
        yield
    finally:
        _facts.reset(token)


def begin(**facts: Any) -> None:
    """Clear the context, for workers that run one task after another."""
    _facts.set(MappingProxyType(_known(facts)))


def begin_request(request: HttpRequest) -> Token[HttpRequest | None]:
    return _request.set(request)


def end_request(token: Token[HttpRequest | None]) -> None:
    _request.reset(token)


def trainer_variables() -> dict[str, str]:
    """Return the facts that a trainer gets in its environment."""
    facts = current_facts()
    return {key: str(facts[name]) for name, key in FACTS.items() if name in facts}


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value not in (None, "")}


def _facts_of(request: HttpRequest) -> dict[str, Any]:
    facts: dict[str, Any] = {"method": request.method}
    match = request.resolver_match
    if match is not None:
        run = str(match.kwargs.get("run_id", ""))
        # "²" is a digit too, and a bigint has at most 19.
        is_id = run.isascii() and run.isdigit() and len(run) < 19
        facts |= {
            "route": match.view_name,
            "team": team_of(request),
            "run": int(run) if is_id else None,
        }
    return _known({**facts, "user": user_of(request)})


def team_of(request: HttpRequest) -> str | None:
    """Return the team's slug: of an API token's team, or from the address, which anyone
    may write.
    """
    if access := getattr(request, "api_access", None):
        return str(access.team.slug)
    match = request.resolver_match
    return match.kwargs.get("team") if match else None


def user_of(request: HttpRequest) -> int | None:
    """Only if it was already loaded: a log line costs no query."""
    access = getattr(request, "api_access", None)  # of a program, with its token
    user = access.user if access else getattr(request, "_cached_user", None)
    return getattr(user, "pk", None)


def redact(text: str) -> str:
    """Remove credentials, and what models and people wrote.

    >>> redact("GET /sign-in/4f1c/ failed")
    "GET /sign-in/…/ failed"
    """
    for pattern in (TOKEN, KEYS, ROW, VALUE):
        text = pattern.sub(r"\1…", text)
    return PASSWORD.sub(r"\1…@", text)


class TextLine(logging.Formatter):
    def __init__(self) -> None:
        super().__init__(TEXT)

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


class JsonLine(JsonLines):
    """With the fields of `current_facts`."""

    def __init__(self) -> None:
        super().__init__(process=process_name(sys.argv), read_facts=current_facts)

    def as_fields(self, record: logging.LogRecord) -> dict[str, object]:
        fields = super().as_fields(record)
        texts = {n: redact(v) for n, v in fields.items() if isinstance(v, str)}
        return {**fields, **texts}


def process_name(argv: list[str]) -> str:
    """
    >>> process_name(["celery", "worker", "--hostname", "training@%h"])
    "training worker"
    """
    path = PurePath(argv[0])
    name = path.parent.name if path.name == "__main__.py" else path.name
    if name == "uvicorn":
        return "web"
    if name == "celery" and "beat" in argv:
        return "beat"
    if name == "celery" and "worker" in argv:
        host = argv[argv.index("--hostname") + 1] if "--hostname" in argv else ""
        return f"{host.partition('@')[0]} worker".strip()
    return " ".join([name, *argv[1:2]]) if name == "manage.py" else name


def log_uncaught() -> None:
    """Log what ends a process or a thread as one line too, as are Python's warnings."""
    logging.captureWarnings(capture=True)

    def report(
        kind: type[BaseException],
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or issubclass(kind, KeyboardInterrupt):
            return
        logger.critical("%s: %s", kind.__name__, error, exc_info=(kind, error, trace))

    def report_thread(hook_args: Any) -> None:
        if hook_args.exc_type is not SystemExit:
            report(hook_args.exc_type, hook_args.exc_value, hook_args.exc_traceback)

    sys.excepthook = report
    threading.excepthook = report_thread
