"""What each line of the log says of the work that it belongs to.

Known within a request, a task or a run's life, and told by nobody: request_id, task,
team, run, epoch, step. Of people only their number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import MappingProxyType
from typing import Any, cast

from django.http import HttpRequest

from trainer.console import FACTS

Facts = MappingProxyType[str, Any]
NOTHING: Facts = MappingProxyType({})
_facts: ContextVar[Facts] = ContextVar("facts", default=NOTHING)
_request: ContextVar[HttpRequest | None] = ContextVar("request", default=None)


def current_facts() -> dict[str, Any]:
    """Those of the request are read when a line is written: its route is found late."""
    request = _request.get()
    return {**(_facts_of(request) if request else {}), **_facts.get()}


def current_request_id() -> str | None:
    return cast("str | None", _facts.get().get("request_id"))


def bind(**facts: Any) -> None:
    """Until the end of the request, task or `bound` that we are within."""
    _facts.set(MappingProxyType({**_facts.get(), **_known(facts)}))


@contextmanager
def bound(**facts: Any) -> Iterator[None]:
    token = _facts.set(MappingProxyType({**_facts.get(), **_known(facts)}))
    try:
        yield
    finally:
        _facts.reset(token)


def begin(**facts: Any) -> None:
    """Forget what was, as a worker does whose tasks follow one another."""
    _facts.set(MappingProxyType(_known(facts)))


def begin_request(request: HttpRequest) -> Token[HttpRequest | None]:
    return _request.set(request)


def end_request(token: Token[HttpRequest | None]) -> None:
    _request.reset(token)


def trainer_variables() -> dict[str, str]:
    """What a trainer that we start is told of them."""
    facts = current_facts()
    return {key: str(facts[name]) for name, key in FACTS.items() if name in facts}


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value not in (None, "")}


def _facts_of(request: HttpRequest) -> dict[str, Any]:
    found: dict[str, Any] = {"method": request.method}
    match = request.resolver_match
    if match is not None:
        run = str(match.kwargs.get("run_id", ""))
        found |= {
            "route": match.view_name,
            "team": team_of(request),
            "run": int(run) if _is_id(run) else None,
        }
    return _known({**found, "user": user_of(request)})


def team_of(request: HttpRequest) -> str | None:
    """Its slug: of a program's token, or in the address, where anybody may write it."""
    if access := getattr(request, "api_access", None):
        return str(access.team.slug)
    match = request.resolver_match
    return match.kwargs.get("team") if match else None


def _is_id(text: str) -> bool:
    """Not "²", which is a digit too, nor a number that no bigint can be."""
    return text.isascii() and text.isdigit() and len(text) < 19


def user_of(request: HttpRequest) -> int | None:
    """Only when somebody asked already: a line of the log costs no query."""
    access = getattr(request, "api_access", None)  # of a program, with its token
    user = access.user if access else getattr(request, "_cached_user", None)
    return getattr(user, "pk", None)
