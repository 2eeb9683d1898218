"""A hub on loopback: its API, its files, and a store of large ones elsewhere."""

import hashlib
import json
from typing import Any

from tests.dashboard.datasets.fetching.site import (
    Handler,
    Page,
    Site,
    file,
    send,
    status,
)

MAIN, CONVERTED = "a" * 40, "c" * 40


def add_dataset(
    site: Site,
    name: str,
    files: dict[str, bytes],
    *,
    revision: str = "main",
    sha: str = MAIN,
    card: dict[str, Any] | None = None,
    large: tuple[str, ...] = (),
    token: str = "",
) -> None:
    """With a token, requests without it get a 401."""
    about = {"id": name, "sha": sha, "cardData": card or {}}
    entries = [entry_of(path, body, path in large) for path, body in files.items()]
    api = f"/api/datasets/{name}"
    quoted = revision.replace("/", "%2F")
    site.pages[f"{api}/revision/{quoted}"] = guarded(answer(about), token)
    site.pages[f"{api}/tree/{sha}"] = guarded(answer(entries), token)
    for path, body in files.items():
        where = f"/datasets/{name}/resolve/{sha}/{path}"
        site.pages[where] = guarded(file(body), token)


def add_model(site: Site, name: str, files: dict[str, bytes]) -> None:
    entries = [entry_of(path, body, False) for path, body in files.items()]
    api = f"/api/models/{name}"
    site.pages[f"{api}/revision/main"] = answer({"id": name, "sha": MAIN})
    site.pages[f"{api}/tree/{MAIN}"] = answer(entries)
    for path, body in files.items():
        site.pages[f"/{name}/resolve/{MAIN}/{path}"] = file(body)


def entry_of(path: str, body: bytes, is_large: bool) -> dict[str, Any]:
    blob = hashlib.sha1(b"blob %d\x00" % len(body) + body, usedforsecurity=False)
    entry: dict[str, Any] = {
        "type": "file",
        "path": path,
        "size": len(body),
        "oid": blob.hexdigest(),
    }
    if is_large:
        entry["lfs"] = {"oid": hashlib.sha256(body).hexdigest(), "size": len(body)}
    return entry


def answer(value: Any, **headers: Any) -> Page:
    body = json.dumps(value).encode()
    headers = {"Content_Type": "application/json", **headers}
    return lambda handler: send(handler, 200, body, **headers)


def guarded(page: Page, token: str) -> Page:
    def serve(handler: Handler) -> None:
        is_known = handler.headers.get("Authorization") == f"Bearer {token}"
        (page if is_known or not token else status(401))(handler)

    return serve
