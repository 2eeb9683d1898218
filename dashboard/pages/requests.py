"""What views read from a request, and how they answer with a message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponseRedirect
from django.shortcuts import redirect
from django_htmx.middleware import HtmxDetails

from dashboard.accounts.models import User
from dashboard.project.database import read_whole


class Request(HttpRequest):
    """The signed-in user: LoginRequiredMiddleware lets no other requests through."""

    user: User
    htmx: HtmxDetails


class Numbered(Protocol):
    number: int


V = TypeVar("V", bound=Numbered)


def read_id(text: str | None) -> int | None:
    """Read a row's ID; None for anything else."""
    return read_whole(text)


def read_number(text: str | None) -> int | None:
    """Read a row's position or a version's number; None for anything else."""
    return read_whole(text, digits=9)


def query_number(
    request: HttpRequest, name: str, default: int | None = None, *, digits: int = 9
) -> int | None:
    """A whole number of the query; ValueError for anything else."""
    text = request.GET.get(name, "")
    number = read_whole(text, digits=digits) if text else default
    if text and number is None:
        raise ValueError(f"{name} must be a whole number; got {text[:40]!r}.")
    return number


@contextmanager
def report_refusal(request: HttpRequest) -> Iterator[None]:
    """Show a service's ValueError as a message on the next page."""
    try:
        yield
    except ValueError as error:
        messages.error(request, str(error))


def redirect_with(
    request: HttpRequest, message: str, to: str, *args: int | str
) -> HttpResponseRedirect:
    """Redirect to a page, which shows the message."""
    messages.success(request, message)
    return redirect(to, *args)


def choose_version(versions: Sequence[V], number: str | None) -> V:
    """Find the requested version; by default the newest."""
    if not number:
        return versions[0]
    for version in versions:
        if str(version.number) == number:
            return version
    raise Http404("Version not found.")
