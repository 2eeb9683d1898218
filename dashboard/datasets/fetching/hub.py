"""The hub's API: which commit a revision is, and which files it has."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urljoin

from dashboard.datasets.fetching.http import (
    NotFetched,
    RetryableError,
    Token,
    fetch,
    hub_home,
)
from trainer.internet import HostAllowlist, Target, read_link

MAX_ANSWER_BYTES = 16 * 2**20
MAX_FILES = 20_000
MAX_TRIES = 4
FIRST_PAUSE_SECONDS = 1.0
CONVERTED = "refs/convert/parquet"  # a branch of splits, which the hub makes itself

_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class HubFile:
    """
    >>> HubFile(path="main/test.parquet", num_bytes=419088, sha256="ab12…", blob="")
    """

    path: str
    num_bytes: int
    sha256: str  # of a large file
    blob: str  # git's own hash of a small one


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """A revision at this moment."""

    dataset: str  # as it is called now: a dataset may have been renamed
    sha: str
    card: dict[str, Any]  # what its README says at its top
    files: list[HubFile]
    is_cut: bool = False  # it has more files than are listed


class Hub:
    """The hub's datasets, or its models.

    `noun`: what a repository is, as in its errors.
    """

    def __init__(
        self,
        allowlist: HostAllowlist,
        token: Token | None,
        *,
        on_wait: Callable[[], None],
        noun: str = "dataset",
    ) -> None:
        self._home = hub_home()
        self._noun = noun
        self._allowlist = allowlist
        self._token = token
        self._on_wait = on_wait

    def find(self, dataset: str, revision: str) -> Commit:
        """NotFetched where there is no such dataset or revision."""
        where = f"/api/{self._noun}s/{dataset}/revision/{quote(revision, safe='')}"
        response, _ = self._with_retries(lambda: self._get(where, dataset, revision))
        if not isinstance(response, dict):
            raise self._no_api()
        sha, name = response.get("sha"), response.get("id", dataset)
        if not isinstance(sha, str) or not re.fullmatch(r"[0-9a-f]{40}", sha):
            raise self._no_api()
        if not isinstance(name, str) or not re.fullmatch(r"[\w./-]{3,200}", name):
            raise self._no_api()
        files = self._files(name, sha)
        card = response.get("cardData")
        return Commit(
            dataset=name,
            sha=sha,
            card=card if isinstance(card, dict) else {},
            files=files,
            is_cut=len(files) >= MAX_FILES,
        )

    def address_of(self, dataset: str, sha: str, path: str) -> Target:
        """Return where a file's bytes are, or a redirect to them."""
        folder = "" if self._noun == "model" else f"/{self._noun}s"
        where = f"{folder}/{dataset}/resolve/{sha}/{quote(path, safe='/')}"
        return self._target(where)

    def _files(self, dataset: str, sha: str) -> list[HubFile]:
        where = f"/api/{self._noun}s/{dataset}/tree/{sha}?recursive=true"
        files: list[HubFile] = []
        while where and len(files) < MAX_FILES:
            page = where
            entries, where = self._with_retries(lambda: self._get(page, dataset, sha))  # noqa: B023  # called at once
            if not isinstance(entries, list):
                raise self._no_api()
            for entry in entries:
                if not isinstance(entry, dict) or entry.get("type") != "file":
                    continue
                path, size, lfs = entry.get("path"), entry.get("size"), entry.get("lfs")
                if not isinstance(path, str) or not isinstance(size, int) or size < 0:
                    continue
                if not path.isprintable() or len(path) > 500 or ".." in path.split("/"):
                    continue
                large = lfs if isinstance(lfs, dict) else {}
                files.append(
                    HubFile(
                        path=path,
                        num_bytes=size,
                        sha256=_hash(large.get("oid"), 64),
                        blob="" if large else _hash(entry.get("oid"), 40),
                    )
                )
        return files[:MAX_FILES]

    def _get(self, where: str, dataset: str, revision: str) -> tuple[Any, str]:
        """Return the API's response, and the address of what follows."""
        try:
            response = fetch(
                self._target(where),
                self._allowlist,
                headers={"Accept": "application/json"},
                token=self._token,
                on_wait=self._on_wait,
            )
        except NotFetched as error:
            raise self.explained(error, dataset, revision) from None
        try:
            parts, num_bytes = [], 0
            while data := response.read(2**16):
                parts.append(data)
                num_bytes += len(data)
                if num_bytes > MAX_ANSWER_BYTES:
                    raise ValueError(num_bytes)
            next_path = ""
            if match := re.search(
                r'<([^<>]{1,2000})>\s*;\s*rel="next"', response.headers.get("Link", "")
            ):
                here = response.target
                base = f"{here.scheme}://{here.authority}{here.path}"
                next_page = read_link(urljoin(base, match[1]))
                if next_page.origin != self._home.origin:
                    raise ValueError(next_page.host)
                next_path = next_page.path.removeprefix(self._home.path)
            return json.loads(b"".join(parts)), next_path
        except (ValueError, RecursionError):
            raise self._no_api() from None
        finally:
            response.close()

    def _target(self, where: str) -> Target:
        home = self._home
        return Target(home.scheme, home.host, home.port, f"{home.path}{where}")

    def _with_retries(self, act: Callable[[], _Result]) -> _Result:
        for tried in range(1, MAX_TRIES + 1):
            try:
                return act()
            except RetryableError as error:
                if tried == MAX_TRIES:
                    raise NotFetched(f"{error}. Cohort tried {tried} times.") from None
                pause = FIRST_PAUSE_SECONDS * 2 ** (tried - 1)
                until = time.monotonic() + max(pause, error.wait_seconds)
                while time.monotonic() < until:
                    self._on_wait()
                    time.sleep(0.1)
        raise AssertionError("the last try returns or raises")

    def explained(self, error: NotFetched, dataset: str, revision: str) -> NotFetched:
        host = self._home.host
        if error.status in (401, 403):
            # Without a token the hub says so of what does not exist, too.
            remedy = (
                "The HF_TOKEN of the default worker has no access to it. Request "
                "access on its page."
                if self._token
                else f"For a private or gated {self._noun}, have an operator set "
                "HF_TOKEN in the environment of the default worker."
            )
            return NotFetched(
                f"{host} has no public {self._noun} {dataset} (status "
                f"{error.status}). "
                f"Check the ID. {remedy}",
                status=error.status,
            )
        if error.status == 404:
            return NotFetched(
                f"{host} has no {self._noun} {dataset} with revision {revision} "
                "(status 404). Check both. The URL of a file starts with https://.",
                status=404,
            )
        return error

    def _no_api(self) -> NotFetched:
        return NotFetched(
            f"{self._home.host} did not respond like the Hugging Face Hub API. Have an "
            "operator check HF_ENDPOINT."
        )


def _hash(value: Any, length: int) -> str:
    is_hash = isinstance(value, str) and re.fullmatch(r"[0-9a-f]+", value)
    return value if is_hash and len(value) == length else ""
