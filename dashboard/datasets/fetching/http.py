"""One GET through the host allowlist: redirects are checked, errors are sentences."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.client import HTTPException, HTTPMessage, HTTPResponse
from urllib.parse import quote, urljoin

from django.conf import settings

from dashboard.project.database import read_whole
from dashboard.project.errors import UserError
from trainer.internet import (
    Connection,
    HostAllowlist,
    Refused,
    Target,
    read_hosts,
    read_link,
    read_url,
    why_unreachable,
)

VARIABLE = "COHORT_DATASET_HOSTS"
MAX_REDIRECTS = 5
ANSWER_SECONDS = 30.0  # until its headers are here
IDLE_SECONDS = 30.0  # without a byte
# An overloaded server says these, or one that stands before it.
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504, 520, 522, 524}
_MAX_WAIT_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Token:
    """It goes to its home and nowhere else, redirects included."""

    text: str = field(repr=False)
    home: Target

    def is_for(self, target: Target) -> bool:
        here = (target.scheme, target.origin)
        return bool(self.text) and here == (self.home.scheme, self.home.origin)


def links_allowlist() -> HostAllowlist:
    """Raises Refused where the variable cannot be read."""
    return HostAllowlist(
        action="A dataset is fetched",
        variable=VARIABLE,
        schemes=("https", "http"),
        allowed=read_hosts(settings.DATASET_HOSTS, VARIABLE),
    )


def hub_allowlist() -> HostAllowlist:
    """Allow the hub's host; the operator named it, so it may be in the own network."""
    allowlist = links_allowlist()
    return replace(allowlist, allowed=allowlist.allowed | {hub_home().origin})


def hub_home() -> Target:
    """ValueError where HF_ENDPOINT is no URL."""
    try:
        return read_url(settings.HUB_ENDPOINT)
    except ValueError as error:
        raise UserError(
            "datasets.invalid_endpoint", f"HF_ENDPOINT is invalid. {error}"
        ) from None


def hub_token() -> Token | None:
    """ValueError, without a letter of it, where no header can carry it."""
    text = settings.HUB_TOKEN
    if not text:
        return None
    if not text.isascii() or not text.isprintable():
        raise UserError(
            "datasets.invalid_token",
            "HF_TOKEN has invalid characters. Have an operator set it in the "
            "environment of the default worker and restart the worker.",
        )
    return Token(text=text, home=hub_home())


class NotFetched(ValueError):
    """The download failed for good; the message says why and what to do."""

    code = "datasets.download_failed"

    def __init__(self, text: str, *, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class RetryableError(Exception):
    """The request may succeed if it is repeated."""

    def __init__(self, text: str, *, wait_seconds: float = 0.0) -> None:
        super().__init__(text)
        self.wait_seconds = wait_seconds


class Answer:
    """An answer whose body is yet to be read."""

    def __init__(
        self, target: Target, connection: Connection, response: HTTPResponse
    ) -> None:
        self.target = target
        self.status = response.status
        self.headers: HTTPMessage = response.headers
        self._connection = connection
        self._response = response

    def read(self, num_bytes: int) -> bytes:
        """Read some of what comes next; nothing at the end. Raises RetryableError."""
        self._connection.deadline = time.monotonic() + IDLE_SECONDS
        host = self.target.host
        try:
            data = self._response.read1(num_bytes)
        except TimeoutError:
            raise RetryableError(
                f"{host} sent nothing for {IDLE_SECONDS:g} s"
            ) from None
        except (OSError, HTTPException):
            raise RetryableError(f"Lost the connection to {host}") from None
        if not data and self._response.length:
            raise RetryableError(f"Lost the connection to {host}")
        return data

    def close(self) -> None:
        self._response.close()
        self._connection.close()


def fetch(
    target: Target,
    allowlist: HostAllowlist,
    *,
    headers: Mapping[str, str] | None = None,
    token: Token | None = None,
    on_wait: Callable[[], None],
) -> Answer:
    """Return the response at the end of all redirects. NotFetched or RetryableError."""
    for _ in range(MAX_REDIRECTS + 1):
        sent = dict(headers or {})
        if token and token.is_for(target):
            sent["Authorization"] = f"Bearer {token.text}"
        response = _request_once(target, allowlist, sent, on_wait)
        if response.status in (200, 206, 416):
            return response
        response.close()
        if response.status not in {301, 302, 303, 307, 308}:
            host, status = response.target.host, response.status
            if status in _TRANSIENT:
                raise RetryableError(
                    f"{host} is unavailable (status {status})",
                    wait_seconds=_wait_seconds(response.headers.get("Retry-After", "")),
                )
            if status in (401, 403):
                text = f"{host} denied access to this file (status {status})."
                remedy = "Enter a URL that needs no sign-in, or upload the file."
            elif status in (404, 410):
                text = f"{host} has no file at this URL (status {status})."
                remedy = "Check the URL."
            else:
                text = f"{host} responded with status {status} instead of a file."
                remedy = "Enter the direct URL of the file."
            raise NotFetched(f"{text} {remedy}", status=status)
        target = _next(response, allowlist)
    raise NotFetched(
        f"The URL has more than {MAX_REDIRECTS} redirects, the last to {target.host}. "
        "Enter the direct URL of the file."
    )


def _request_once(
    target: Target,
    allowlist: HostAllowlist,
    headers: dict[str, str],
    on_wait: Callable[[], None],
) -> Answer:
    host = target.host
    connection = Connection(target, allowlist, on_wait=on_wait)
    connection.deadline = time.monotonic() + ANSWER_SECONDS
    fixed = {
        # Ranges count the file's own bytes.
        "Accept-Encoding": "identity",
        "User-Agent": "cohort",
        "Connection": "close",
    }
    try:
        connection.request("GET", target.path, headers={**fixed, **headers})
        return Answer(target, connection, connection.getresponse())
    except Refused as error:
        raise NotFetched(str(error)) from None
    except socket.gaierror as error:
        raise RetryableError(
            f"Could not resolve {host} ({error.strerror}). Check the host name and the "
            "network of the default worker"
        ) from None
    except ssl.SSLCertVerificationError as error:
        connection.close()
        raise NotFetched(
            f"The TLS certificate of {host} is not trusted: {error.verify_message}."
        ) from None
    except TimeoutError:
        connection.close()
        raise RetryableError(
            f"{host} did not respond within {ANSWER_SECONDS:g} s"
        ) from None
    except OSError as error:
        connection.close()
        raise RetryableError(f"Cannot reach {host}: {why_unreachable(error)}") from None
    except HTTPException:
        connection.close()
        # The message must not quote the response.
        raise RetryableError(f"{host} did not respond like a web server") from None
    except BaseException:
        connection.close()
        raise


def _next(response: Answer, allowlist: HostAllowlist) -> Target:
    here = response.target
    location = response.headers.get("Location", "")
    to = urljoin(f"{here.scheme}://{here.authority}{here.path}", location)
    try:
        there = read_link(quote(to, safe="%/:=&?~#+!$,;'@()*[]"))
    except ValueError:
        raise NotFetched(
            f"{here.host} redirects to a URL that is neither http nor https. Enter the "
            "direct URL of the file."
        ) from None
    is_worse = here.scheme == "https" and there.scheme == "http"
    if is_worse and there.origin not in allowlist.allowed:
        raise NotFetched(
            f"{here.host} redirects from https to http at {there.host}, which is not "
            "secure. Enter the direct URL of the file."
        )
    return there


def _wait_seconds(value: str) -> float:
    return min(float(read_whole(value, digits=8) or 0), _MAX_WAIT_SECONDS)
