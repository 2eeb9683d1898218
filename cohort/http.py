"""Requests to a Cohort server, their errors, and the saved login.

Server URL and token come from the environment, else from ~/.config/cohort/login.json,
which only its owner can read.
"""

from __future__ import annotations

import gzip
import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 30.0
MAX_RESPONSE_BYTES = 64 * 2**20
CHUNK_BYTES = 2**16
BASE = "/api/v1"
MAX_KEY = 100  # characters, the server's limit
Value = str | bool | int | float | None
Progress = Callable[[int, int | None], None]  # bytes done, bytes in total


class Unreachable(Exception):
    """No response, or a temporary error: the same request may be sent again."""

    def __init__(self, message: str, *, after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.after_seconds = after_seconds


class Refused(Exception):
    """The server refused the request; repeating it gives the same error."""

    def __init__(self, status: int, message: str, problem: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.status = status
        self.problem = problem
        self.code = str(problem.get("code", ""))  # such as datasets.name_taken

    def reworded(self, words: Mapping[str, str]) -> Refused:
        """Return the same error, with API fields replaced by the caller's arguments."""
        message = str(self)
        for field, argument in words.items():
            message = message.replace(field, argument)
        return Refused(self.status, message, self.problem)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token must not reach another server."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Server:
    """A Cohort server's URL, and a token for it."""

    url: str  # "https://cohort.example.org"
    token: str

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        if parts.username is not None or parts.password is not None:
            raise ValueError(
                "The server URL contains a user name or password, which logs would "
                "show. Remove everything before the @."
            )
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"Invalid server URL {self.url!r}. Use http:// or https:// and the "
                "server's name."
            )
        if not (self.token.isascii() and self.token.isprintable()):
            raise ValueError(  # never show the token
                "Invalid token: it contains characters other than ASCII letters, "
                "digits, - and _. Copy it again from the page API tokens."
            )

    def __repr__(self) -> str:
        return f"Server({self.url!r})"  # never the token

    def get(self, path: str, **query: Value) -> Any:
        return self.send("GET", f"{path}{query_of(**query)}")

    def send_json(self, method: str, path: str, tree: Any, *, key: str = "") -> Any:
        """`key` is the Idempotency-Key: a repeated POST with it takes effect once."""
        headers = {"Content-Type": "application/json"}
        if key:
            headers |= headers_of(key)
        return self.send(method, path, json.dumps(tree).encode(), headers)

    def post_lines(self, path: str, lines: bytes) -> Any:
        headers = {"Content-Type": "application/x-ndjson", "Content-Encoding": "gzip"}
        return self.send("POST", path, gzip.compress(lines, compresslevel=1), headers)

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        base: str = BASE,
    ) -> Any:
        """Return the response's JSON. Raises only Unreachable or Refused."""
        with (
            self._translated_errors(),
            self._open(method, path, body, headers, timeout_seconds, base) as response,
        ):
            content = response.read(MAX_RESPONSE_BYTES)
            return json.loads(content) if content else None

    def chunks(self, path: str) -> Iterator[bytes]:
        """Chunks of a file. An incomplete download raises Unreachable."""
        headers = {"Accept": "*/*"}
        with self._translated_errors():
            response = self._open("GET", path, None, headers, TIMEOUT_SECONDS)
        with response:
            while True:
                with self._translated_errors():
                    chunk = response.read(CHUNK_BYTES)
                    if not chunk and response.length:
                        raise EOFError(f"{response.length:,} bytes are missing")
                if not chunk:
                    return
                yield chunk

    def _open(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str] | None,
        timeout_seconds: float,
        base: str = BASE,
    ) -> http.client.HTTPResponse:
        request = urllib.request.Request(  # noqa: S310 - __post_init__ checked the scheme
            f"{self.url.rstrip('/')}{base}{path}",
            data=body,
            method=method,
            headers={
                "Authorization": f"Bearer {self.token}",
                "Accept": "application/json",
                "User-Agent": "cohort-client/1",
                **(headers or {}),
            },
        )
        opener = urllib.request.build_opener(_NoRedirect)
        response: http.client.HTTPResponse = opener.open(
            request, timeout=timeout_seconds
        )
        return response

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Turn any error of a request into Unreachable or Refused."""
        try:
            yield
        except urllib.error.HTTPError as error:
            with error:
                raise _error_of(error) from None
        except urllib.error.URLError as error:
            raise Unreachable(f"Failed to reach {self.url}: {error.reason}") from None
        except json.JSONDecodeError:
            raise Unreachable(
                f"{self.url} sent a response that is not JSON. Check that it is the "
                "URL of a Cohort server."
            ) from None
        except (OSError, ValueError, EOFError) as error:
            raise Unreachable(f"Request to {self.url} failed: {error}") from None
        except Exception as error:  # noqa: BLE001 - http.client raises a dozen kinds
            raise Unreachable(f"Request to {self.url} failed: {error!r}") from None


def query_of(**query: Value) -> str:
    """Return a query string, without values that are None or empty.

    >>> query_of(step=0, cursor="", limit=None)
    '?step=0'
    """
    pairs = {name: value for name, value in query.items() if value not in (None, "")}
    return f"?{urllib.parse.urlencode(pairs)}" if pairs else ""


def headers_of(key: str) -> dict[str, str]:
    """Headers that make a repeated POST take effect once. ValueError: invalid key."""
    if not (0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
        raise ValueError(
            f"Invalid key {key[:MAX_KEY]!r}. Use 1 to {MAX_KEY} printable ASCII "
            "characters."
        )
    return {"Idempotency-Key": key}


def _error_of(error: urllib.error.HTTPError) -> Exception:
    try:
        problem = json.loads(error.read(2**20))
    except (OSError, ValueError, RecursionError, http.client.HTTPException):
        problem = {}
    if not isinstance(problem, dict):
        problem = {}
    text = str(problem.get("detail") or problem.get("title") or error.reason)
    if 300 <= error.code < 400:
        target = error.headers.get("Location", "")
        text = f"The server redirects to {target[:200]!r}. Log in at that URL."
    message = f"{text} (HTTP {error.code})"
    if error.code >= 500 or error.code in (408, 425, 429):
        value = error.headers.get("Retry-After", "")
        is_number = value.isascii() and value.isdigit()
        seconds = min(float(value), 3_600.0) if is_number else None
        return Unreachable(message, after_seconds=seconds)
    return Refused(error.code, message, problem)


# Login

URL, TOKEN = "COHORT_URL", "COHORT_TOKEN"


def login_path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "cohort" / "login.json"


def find_server(url: str = "", token: str = "") -> Server:
    """Return the arguments, else the environment, else the saved login.

    ValueError: no login, or none for this server.
    """
    url, token = url or os.environ.get(URL, ""), token or os.environ.get(TOKEN, "")
    if url and token:
        return Server(url, token)
    saved = _read_login()
    if url and url.rstrip("/") != saved.url.rstrip("/"):
        raise ValueError(  # a token must not reach another server
            f"No token for {url}: the saved login is for {saved.url}. Run `cohort "
            f"login {url}`, or set {TOKEN} too."
        )
    return Server(saved.url, token or saved.token)


def _read_login() -> Server:
    path = login_path()
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        return Server(saved["url"], saved["token"])
    except FileNotFoundError:
        raise ValueError(
            f"Not logged in. Run `cohort login URL`, or set {URL} and {TOKEN}."
        ) from None
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"Cannot read {path}: {error}. Run `cohort login URL` again."
        ) from None


def save_login(server: Server) -> Path:
    """Written to a private file and renamed, so that others can never read it."""
    path = login_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".login-{os.getpid()}.json")
    draft.unlink(missing_ok=True)
    number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(number, "w", encoding="utf-8") as file:
        json.dump({"url": server.url, "token": server.token}, file)
    draft.replace(path)
    return path
