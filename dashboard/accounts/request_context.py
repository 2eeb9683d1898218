"""Who acts and from where, for audit entries; a request or a task sets it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import PurePath

from django.http import HttpRequest, HttpResponseBase

from dashboard.web.middleware import Middleware

LONGEST = 80
# The first match counts: other browsers claim to be Chrome or Safari as well.
_BROWSERS = {
    "Edge": r"Edg(?:A|iOS)?/(\d+)",
    "Opera": r"OPR/(\d+)",
    "Firefox": r"(?:Firefox|FxiOS)/(\d+)",
    "Chrome": r"(?:Headless)?(?:Chrome|CriOS)/(\d+)",
    "Safari": r"Version/(\d+)[\d.]* .*Safari/",
}
_SYSTEMS = {
    "Windows": r"Windows NT",
    "Android": r"Android",
    "iOS": r"iPhone|iPad",
    "macOS": r"Mac OS X",
    "ChromeOS": r"CrOS",
    "Linux": r"Linux|X11",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestContext:
    """A browser's address and name, or the program that acted by itself.

    >>> RequestContext(address="192.0.2.7", agent="Firefox 128 on Linux")
    >>> RequestContext(program="training.reap")
    """

    address: str | None = None
    agent: str = ""
    program: str = ""


_current: ContextVar[RequestContext | None] = ContextVar(
    "request_context", default=None
)


def current_context() -> RequestContext:
    return _current.get() or RequestContext(program=_this_program())


def acting_as(program: str | None) -> None:
    """Set it until the next call, for workers that run one task after another."""
    _current.set(RequestContext(program=program) if program else None)


@contextmanager
def acting_in(context: RequestContext) -> Iterator[None]:
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


def context_of(request: HttpRequest) -> RequestContext:
    """Return who sends the request; behind a trusted proxy, the browser's address."""
    return RequestContext(
        address=_read_address(request.META.get("REMOTE_ADDR", "")),
        agent=shorten_agent(request.META.get("HTTP_USER_AGENT", "")),
    )


def shorten_agent(agent: str) -> str:
    """
    >>> shorten_agent("Mozilla/5.0 (X11; Linux x86_64; rv:128.0) … Firefox/128.0")
    "Firefox 128 on Linux"
    """
    browser = _first(_BROWSERS, agent)
    if browser is None:
        first = agent.split(maxsplit=1)[:1]
        return "".join(filter(str.isprintable, "".join(first)))[:LONGEST]
    name, version = browser
    system = _first(_SYSTEMS, agent)
    return f"{name} {version}" + (f" on {system[0]}" if system else "")


def _first(kinds: dict[str, str], agent: str) -> tuple[str, str] | None:
    for name, pattern in kinds.items():
        if match := re.search(pattern, agent[:500]):
            return name, (match.groups() or ("",))[0][:6]
    return None


def _read_address(text: str) -> str | None:
    """Read an IP address; None for any other value, such as that of a unix socket."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


def _this_program() -> str:
    """
    >>> _this_program()  # as an administrator's command
    "manage.py up"
    """
    name = PurePath(sys.argv[0]).name
    words = [name, *sys.argv[1:2]] if name == "manage.py" else [name]
    return " ".join(words)[:LONGEST]


class RequestContextMiddleware(Middleware):
    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        with acting_in(context_of(request)):
            return self.get_response(request)
