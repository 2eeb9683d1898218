"""Requests to a Cohort server, what it says when it refuses one, and the login.

Where the server is and which token opens it says the environment, else a file of one's
own: ~/.config/cohort/login.json, which only its owner can read.
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
MAX_ANSWER_BYTES = 64 * 2**20
PIECE_BYTES = 2**16
MAX_KEY = 100  # characters, as the server has it
Value = str | bool | int | float | None
Progress = Callable[[int, int | None], None]  # bytes done, of how many


class Unreachable(Exception):
    """No answer came, or one that asks to come again: the same may be sent later."""

    def __init__(self, message: str, *, after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.after_seconds = after_seconds


class Refused(Exception):
    """The server answered no; sent again it would answer the same."""

    def __init__(self, status: int, message: str, problem: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.status = status
        self.problem = problem
        self.code = str(problem.get("code", ""))  # such as datasets.name_taken

    def reworded(self, words: Mapping[str, str]) -> Refused:
        """With the fields of the API that it names as the asker's own words."""
        said = str(self)
        for field, own in words.items():
            said = said.replace(field, own)
        return Refused(self.status, said, self.problem)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token is for the address that it was given for."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Server:
    """Where Cohort is, and the token that opens it."""

    url: str  # "https://cohort.example.org"
    token: str

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        if parts.username is not None or parts.password is not None:
            raise ValueError(
                "The server's address contains a name or password, which anyone who "
                "sees the address could use. Remove everything before the @."
            )
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                "A server's address begins with http:// or https:// and the server's "
                f"name; got {self.url!r}."
            )
        if not (self.token.isascii() and self.token.isprintable()):
            raise ValueError(  # not with the token
                "A token consists of ASCII letters, digits, - and _; this one has "
                "other characters. Copy it again from the page API and tokens."
            )

    def __repr__(self) -> str:
        return f"Server({self.url!r})"  # never the token

    def get(self, path: str, **query: Value) -> Any:
        return self.send("GET", f"{path}{query_of(**query)}")

    def send_json(self, method: str, path: str, tree: Any, *, key: str = "") -> Any:
        """`key`: a POST that is sent again with the same one is done once."""
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
    ) -> Any:
        """The answer's JSON. Raises Unreachable or Refused, and nothing else."""
        with (
            self._asking(),
            self._open(method, path, body, headers, timeout_seconds) as answer,
        ):
            read = answer.read(MAX_ANSWER_BYTES)
            return json.loads(read) if read else None

    def pieces(self, path: str) -> Iterator[bytes]:
        """A file as it comes. One that breaks off raises Unreachable."""
        headers = {"Accept": "*/*"}
        with self._asking():
            answer = self._open("GET", path, None, headers, TIMEOUT_SECONDS)
        with answer:
            while True:
                with self._asking():
                    piece = answer.read(PIECE_BYTES)
                    if not piece and answer.length:
                        raise EOFError(f"{answer.length:,} bytes of it are missing")
                if not piece:
                    return
                yield piece

    def _open(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str] | None,
        timeout_seconds: float,
    ) -> http.client.HTTPResponse:
        request = urllib.request.Request(  # noqa: S310 - __post_init__ saw the scheme
            f"{self.url.rstrip('/')}/api/v1{path}",
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
        opened: http.client.HTTPResponse = opener.open(request, timeout=timeout_seconds)
        return opened

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Whatever goes wrong meanwhile is Unreachable or Refused."""
        try:
            yield
        except urllib.error.HTTPError as error:
            with error:
                raise _answer(error) from None
        except urllib.error.URLError as error:
            raise Unreachable(f"{self.url} did not answer: {error.reason}") from None
        except json.JSONDecodeError:
            raise Unreachable(
                f"{self.url} sent an answer that is not JSON. Is it Cohort's address?"
            ) from None
        except (OSError, ValueError, EOFError) as error:
            raise Unreachable(f"{self.url} did not answer: {error}") from None
        except Exception as error:  # noqa: BLE001 - http.client has a dozen of its own
            raise Unreachable(f"{self.url} did not answer: {error!r}") from None


def query_of(**query: Value) -> str:
    """Without what is None or empty.

    >>> query_of(step=0, cursor="", limit=None)
    '?step=0'
    """
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"?{urllib.parse.urlencode(given)}" if given else ""


def headers_of(key: str) -> dict[str, str]:
    """Of what is done once however often it is sent. ValueError: it is no key."""
    if not (0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
        raise ValueError(
            f"A key has at most {MAX_KEY} characters, all of them printable ASCII; "
            f"got {key[:MAX_KEY]!r}."
        )
    return {"Idempotency-Key": key}


def _answer(error: urllib.error.HTTPError) -> Exception:
    try:
        problem = json.loads(error.read(2**20))
    except (OSError, ValueError, RecursionError, http.client.HTTPException):
        problem = {}
    if not isinstance(problem, dict):
        problem = {}
    text = str(problem.get("detail") or problem.get("title") or error.reason)
    if 300 <= error.code < 400:
        to = error.headers.get("Location", "")
        text = f"The server redirects to {to[:200]!r}. Log in at that address."
    message = f"{text} (HTTP {error.code})"
    if error.code >= 500 or error.code in (408, 425, 429):
        return Unreachable(message, after_seconds=_after(error))
    return Refused(error.code, message, problem)


def _after(error: urllib.error.HTTPError) -> float | None:
    given = error.headers.get("Retry-After", "")
    is_number = given.isascii() and given.isdigit()
    return min(float(given), 3_600.0) if is_number else None


# Login

URL, TOKEN = "COHORT_URL", "COHORT_TOKEN"


def login_path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "cohort" / "login.json"


def find_server(url: str = "", token: str = "") -> Server:
    """What is not given is of the environment, else of the file.

    ValueError says how to log in.
    """
    url, token = url or os.environ.get(URL, ""), token or os.environ.get(TOKEN, "")
    if url and token:
        return Server(url, token)
    kept = _read_login()
    if url and url.rstrip("/") != kept.url.rstrip("/"):
        raise ValueError(  # a token is for the address that it was given for
            f"There is no token for {url}: the login is for {kept.url}. Run `cohort "
            f"login {url}`, or set {TOKEN} too."
        )
    return Server(kept.url, token or kept.token)


def _read_login() -> Server:
    path = login_path()
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return Server(kept["url"], kept["token"])
    except FileNotFoundError:
        raise ValueError(
            f"There is no login. Run `cohort login URL`, or set {URL} and {TOKEN}."
        ) from None
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}). Run `cohort login URL` again."
        ) from None


def keep_login(server: Server) -> Path:
    """Written beside and moved there, so it is never readable by others."""
    path = login_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".login-{os.getpid()}.json")
    draft.unlink(missing_ok=True)
    number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(number, "w", encoding="utf-8") as file:
        json.dump({"url": server.url, "token": server.token}, file)
    draft.replace(path)
    return path
