"""Requests to a judge: keys, allowed addresses and failures.

COHORT_JUDGE_KEY_<NAME>: a key, which recipes use by its name; or, with the suffix
_FILE, the path of a file with the key. COHORT_JUDGE_URL_<NAME>: the base URL of this
key; it is sent nowhere else, so that no recipe can steal it. COHORT_JUDGE_HOSTS:
non-public hosts with their ports that are allowed, separated by commas, such as
localhost:8000.

They are read from the environment of the process that calls the judge: the training
worker's, which the trainer inherits, and the web server's for trials on pages.
"""

from __future__ import annotations

import json
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPResponse, IncompleteRead
from pathlib import Path
from threading import Lock
from typing import Any

from trainer.internet import (
    Connection,
    HostAllowlist,
    Refused,
    Target,
    read_hosts,
    read_url,
    why_unreachable,
)
from trainer.rewards.rule import replace_surrogates

KEY_NAME = r"^([A-Z][A-Z0-9_]{0,39})?$"
_KEY, _URL = "COHORT_JUDGE_KEY_", "COHORT_JUDGE_URL_"
_HOSTS = "COHORT_JUDGE_HOSTS"


def judges_allowlist() -> HostAllowlist:
    """Public addresses, and the hosts that the environment allows.

    Raises:
        Refused: the variable cannot be read.
    """
    allowed = read_hosts(os.environ.get(_HOSTS, ""), _HOSTS)
    return HostAllowlist(action="A judge is called", variable=_HOSTS, allowed=allowed)


def find_key(name: str, target: Target) -> str | None:
    """Return the key of a name, for requests to a target; None for the empty name.

    Raises:
        Refused: there is none, or it is for another address.
    """
    if not name:
        return None
    key = os.environ.get(_KEY + name, "").strip() or _read_file(f"{_KEY}{name}_FILE")
    if not key:
        raise Refused(
            f"The judge key {name} is not set. Set {_KEY}{name} in the environment of "
            "this process, and restart it."
        )
    if not key.isascii() or not key.isprintable():
        raise Refused(
            f"{_KEY}{name} contains characters that are not valid in a key. "
            "Set it again."
        )
    home = os.environ.get(_URL + name, "").strip()
    if not home:
        raise Refused(
            f"The key {name} has no base URL. Set {_URL}{name} to the base URL that "
            "it is for."
        )
    if not _is_below(target, _read(home, _URL + name)):
        raise Refused(
            f"The key {name} is not for "
            f"{target.scheme}://{target.host}:{target.port}{target.path}. It is sent "
            f"only to the URL in {_URL}{name}."
        )
    return key


def _read_file(variable: str) -> str:
    path = os.environ.get(variable, "")
    if not path:
        return ""
    try:
        return Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{variable}: {path} cannot be read: {error}") from None


def _is_below(target: Target, home: Target) -> bool:
    if (target.scheme, target.origin) != (home.scheme, home.origin):
        return False
    # "/a/../b" may mean "/b" to a server; no base URL needs it
    parts = target.path.split("/")
    if "." in parts or ".." in parts or "%" in target.path:
        return False
    return f"{target.path}/".startswith(f"{home.path}/")


def _read(url: str, variable: str) -> Target:
    try:
        return read_url(url)
    except ValueError as error:
        raise Refused(f"{variable} cannot be read. {error}") from None


_MAX_BYTES = 2 * 2**20
_MAX_IDLE = 64
_QUOTED = 200
_USAGE = ("total_tokens", "prompt_tokens", "completion_tokens")
TOKENS = ("input_tokens", "cached_tokens", "output_tokens")
USAGE = ("calls", "calls_without_usage", "from_file", *TOKENS)
# An overloaded server says these, or one that stands before it.
_PASSING = {408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529}


@dataclass(frozen=True)
class Reply:
    """The text that a model replied, and the tokens that it took with the question.

    Tokens of the question and of the reply, and those of the question that the endpoint
    had in its cache, are known only where the endpoint tells.
    """

    text: str
    num_tokens: int
    is_cut: bool  # at the most tokens that were allowed
    num_tokens_in: int | None = None
    num_tokens_out: int | None = None
    num_tokens_cached: int | None = None
    is_reused: bool = False  # another question was charged for it

    @property
    def usage(self) -> dict[str, int]:
        """The calls and tokens of `USAGE` that it adds; those it leaves out are
        unknown.
        """
        if self.is_reused:
            return {"from_file": 1}
        if self.num_tokens_in is None or self.num_tokens_out is None:
            return {"calls": 1, "calls_without_usage": 1}
        cached = self.num_tokens_cached
        return {
            "calls": 1,
            "input_tokens": self.num_tokens_in - (cached or 0),
            "output_tokens": self.num_tokens_out,
            **({} if cached is None else {"cached_tokens": cached}),
        }


class NoReply(Exception):
    """The endpoint gave no reply; the text says what it gave instead.

    `may_pass`: asked again, it may. `wait_seconds` is how long it wants to be left in
    peace.
    """

    def __init__(
        self, text: str, *, may_pass: bool, wait_seconds: float | None = None
    ) -> None:
        super().__init__(text)
        self.may_pass = may_pass
        self.wait_seconds = wait_seconds


class Client:
    """Asks one endpoint, over connections that are kept. Any thread may ask."""

    def __init__(
        self, target: Target, *, key: str | None, allowlist: HostAllowlist
    ) -> None:
        self._target = target
        self._key = key
        self._allowlist = allowlist
        self._lock = Lock()
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._is_closed = False

    def ask(self, body: Mapping[str, Any], *, timeout_seconds: float) -> Reply:
        """Ask for a chat completion.

        Raises:
            NoReply: there is none, in this time.
            Refused: the address is not one to be asked.
        """
        deadline = time.monotonic() + timeout_seconds
        data = json.dumps(body).encode()
        status, headers, text = self._exchange(data, deadline, timeout_seconds)
        if status != 200:
            raise self._explain(status, headers, text)
        return _read_reply(text, about_tokens=(len(data) + len(text)) // 4)

    def close(self) -> None:
        """End what is being asked, too."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            for connection in self._busy:
                connection.abort()
        for connection in idle:
            connection.close()

    def _exchange(
        self, data: bytes, deadline: float, timeout_seconds: float
    ) -> tuple[int, Mapping[str, str], bytes]:
        host = self._target.host
        while True:
            connection, is_used = self._take()
            connection.deadline = deadline
            try:
                return self._send(connection, data)
            except TimeoutError:
                connection.close()
                raise NoReply(
                    f"{host} timed out after {round(timeout_seconds, 2):g} s",
                    may_pass=True,
                ) from None
            except ssl.SSLCertVerificationError as error:
                connection.close()
                raise NoReply(
                    f"the certificate of {host} is not trusted: {error.verify_message}",
                    may_pass=False,
                ) from None
            except (OSError, HTTPException) as error:
                connection.close()
                # A server may close a kept connection at any time, as this one did.
                if is_used:
                    continue
                raise NoReply(
                    f"cannot reach {host}: {why_unreachable(error)}",
                    may_pass=True,
                ) from None
            except BaseException:
                connection.close()
                raise
            finally:
                with self._lock:
                    self._busy.discard(connection)

    def _send(
        self, connection: Connection, data: bytes
    ) -> tuple[int, Mapping[str, str], bytes]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        path = f"{self._target.path}/chat/completions"
        connection.request("POST", path, body=data, headers=headers)
        response = connection.getresponse()
        text = _read_all(response, self._target.host)
        if self._key is not None:  # which no reply is to carry into a log
            text = text.replace(self._key.encode(), b"...")
        if response.will_close:
            connection.close()
        else:
            self._give_back(connection)
        return response.status, dict(response.headers.items()), text

    def _take(self) -> tuple[Connection, bool]:
        with self._lock:
            if self._is_closed:
                raise NoReply("the run has ended", may_pass=False)
            is_used = bool(self._idle)
            connection = (
                self._idle.pop()
                if is_used
                else Connection(self._target, self._allowlist)
            )
            self._busy.add(connection)
            return connection, is_used

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            if len(self._idle) < _MAX_IDLE and not self._is_closed:
                self._idle.append(connection)
                return
        connection.close()

    def _explain(self, status: int, headers: Mapping[str, str], text: bytes) -> NoReply:
        host = self._target.host
        if 300 <= status < 400:
            return NoReply(
                f"{host} redirects (status {status}). Redirects are not followed; "
                "give the final address",
                may_pass=False,
            )
        if status in (401, 403):
            # What it says may hold a part of the key.
            return NoReply(f"{host} rejected the key (status {status})", may_pass=False)
        message = _error_message(text)
        return NoReply(
            f"{host} returned status {status}" + (f": {message}" if message else ""),
            may_pass=status in _PASSING,
            wait_seconds=_wait_seconds(headers),
        )


def _read_all(response: HTTPResponse, host: str) -> bytes:
    text = response.read(_MAX_BYTES + 1)
    if len(text) > _MAX_BYTES:
        raise NoReply(
            f"the reply of {host} is larger than {_MAX_BYTES // 2**20} MiB",
            may_pass=False,
        )
    if response.length:
        raise IncompleteRead(text)
    return text


def _read_reply(text: bytes, *, about_tokens: int) -> Reply:
    """Return the first choice of a chat completion; where its usage is not told, about
    it.
    """
    try:
        reply = json.loads(text)
        choice = reply["choices"][0]
        written = choice["message"]["content"] or ""
        is_cut = choice.get("finish_reason") == "length"
        usage = _object(reply, "usage")
        num_tokens, num_in, num_out = (
            number if type(number) is int and number > 0 else None
            for number in map(usage.get, _USAGE)
        )
        details = _object(usage, "prompt_tokens_details")
        cached = details.get("cached_tokens", usage.get("cached_tokens"))
        if type(cached) is not int or not 0 <= cached <= (num_in or 0):
            cached = None
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        raise NoReply(
            f"the reply is not a chat completion but {text[:80]!r}", may_pass=True
        ) from None
    if not isinstance(written, str):
        raise NoReply(
            f"the message content is not text but {written!r:.80}", may_pass=True
        )
    return Reply(
        text=written,
        num_tokens=num_tokens or about_tokens,
        is_cut=is_cut,
        num_tokens_in=num_in,
        num_tokens_out=num_out,
        num_tokens_cached=cached,
    )


def _object(body: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a part of a reply; {} if it is missing, or no object."""
    part = body.get(name)
    return part if isinstance(part, dict) else {}


def _error_message(text: bytes) -> str:
    """Return what an endpoint says of a failure, on one line; nothing when it is no
    JSON.
    """
    try:
        body = json.loads(text)
        error = body.get("error", body.get("message", body.get("detail", "")))
        message = error.get("message", "") if isinstance(error, dict) else error
    except (ValueError, RecursionError, AttributeError):
        return ""
    quoted = replace_surrogates(" ".join(str(message).split()))
    return quoted if len(quoted) <= _QUOTED else quoted[: _QUOTED - 1] + "…"


def _wait_seconds(headers: Mapping[str, str]) -> float | None:
    """Retry-After, in seconds or as a date (RFC 9110, section 10.2.3)."""
    values = {name.lower(): value.strip() for name, value in headers.items()}
    value = values.get("retry-after", "")
    try:
        if value.replace(".", "", 1).isdigit() and value.isascii():
            return float(value)
        until = parsedate_to_datetime(value)
    except (ValueError, TypeError, OverflowError):
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())
