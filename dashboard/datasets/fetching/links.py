"""Sources of a dataset as people type them: a URL, or an id on the hub."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from socket import AI_NUMERICHOST
from typing import Any
from urllib.parse import unquote, urlsplit

from dashboard.datasets.fetching.http import hub_home, links_allowlist
from dashboard.project.errors import UserError
from trainer.internet import Refused, read_link, resolve

HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
_NAME = r"[A-Za-z0-9][\w.-]{0,95}"
_ID = re.compile(rf"({_NAME}/{_NAME})(?:@([^@\s]+))?", re.ASCII)
_REVISION = re.compile(r"\w[\w./-]{0,199}", re.ASCII)
_MAX_PART_CHARS = 500


@dataclass(frozen=True, kw_only=True)
class Link:
    """The URL of a file; its query may contain a signature."""

    url: str
    kind: str = field(default="link", init=False)

    @property
    def shown(self) -> str:
        return without_query(self.url)

    @property
    def filename(self) -> str:
        parts = urlsplit(self.url)
        name = unquote(PurePosixPath(parts.path).name)
        printable = "".join(char for char in name if char.isprintable())
        return printable.strip()[-200:] or parts.hostname or "file"


@dataclass(frozen=True, kw_only=True)
class HubLink:
    """A dataset of the hub; the part is a split or a file, where one was named.

    >>> HubLink(dataset="openai/gsm8k", part="main/train")
    """

    dataset: str
    revision: str = ""
    part: str = ""
    kind: str = field(default="hub", init=False)

    @property
    def shown(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.dataset}{revision}"

    @property
    def filename(self) -> str:
        return self.dataset.rpartition("/")[2]


def from_json(source: dict[str, Any]) -> Link | HubLink:
    """Read the source that an upload keeps."""
    if source["kind"] == "link":
        return Link(url=source["url"])
    names = ("dataset", "revision", "part")
    return HubLink(**{name: source[name] for name in names})


def read(text: str, *, revision: str = "", part: str = "") -> Link | HubLink:
    """ValueError, with what to do, where it is neither."""
    text, revision, part = text.strip(), revision.strip(), part.strip()
    hub = _hub_link(text)
    if hub is None:
        if revision or part:
            raise UserError(
                "datasets.not_a_hub_dataset",
                "A revision or split applies to Hub datasets only. Leave both empty "
                "for the URL of a file.",
            )
        target = read_link(text)
        try:
            allowlist = links_allowlist()
            # Check numeric addresses here. The worker resolves host names.
            with suppress(OSError):
                resolve(target, allowlist, flags=AI_NUMERICHOST)
        except Refused as error:
            raise UserError("datasets.host_not_allowed", str(error)) from None
        return Link(url=text.partition("#")[0])
    return _hub_checked(
        HubLink(
            dataset=hub.dataset,
            revision=revision or hub.revision,
            part=part or hub.part,
        )
    )


def without_query(url: str) -> str:
    """Remove what may be a secret from the URL, and say that something was left out."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path}" + ("?…" * bool(parts.query))


def _hub_link(text: str) -> HubLink | None:
    if "://" not in text:
        match = _ID.fullmatch(text)
        if match is None:
            raise UserError(
                "datasets.invalid_link",
                f"{text[:200]!r} is neither a URL nor a dataset ID. Enter https://… "
                "for a file, or owner/name for a Hugging Face dataset, such as "
                "openai/gsm8k.",
            )
        return HubLink(dataset=match[1], revision=match[2] or "")
    if text.startswith("hf://datasets/"):
        # hf://datasets/owner/name@revision/path/of/a/file
        owner, _, tail = text.removeprefix("hf://datasets/").partition("/")
        name, _, part = tail.partition("/")
        name, _, revision = name.partition("@")
        return HubLink(dataset=f"{owner}/{name}", revision=unquote(revision), part=part)
    target = read_link(text)
    is_hub = target.host in HUB_HOSTS or target.origin == hub_home().origin
    path = unquote(target.path.partition("?")[0]).strip("/")
    if not is_hub or not path.startswith("datasets/"):
        return None
    # The address of a page or of a file on the hub.
    owner, _, rest = path.removeprefix("datasets/").partition("/")
    name, _, rest = rest.partition("/")
    dataset = f"{owner}/{name}"
    if not _ID.fullmatch(dataset):
        return None
    page, _, rest = rest.partition("/")
    if page in ("resolve", "blob", "raw", "tree"):
        revision, _, file = rest.partition("/")
        if revision == "refs":  # such as refs/pr/1 and refs/convert/parquet
            kind, number, file = (*file.split("/", 2), "", "")[:3]
            revision = f"refs/{kind}/{number}"
        is_file = page != "tree"
        return HubLink(dataset=dataset, revision=revision, part=file if is_file else "")
    return HubLink(dataset=dataset, part=rest if page == "viewer" else "")


def _hub_checked(link: HubLink) -> HubLink:
    if not _ID.fullmatch(link.dataset) or ".." in link.dataset:
        raise UserError(
            "datasets.invalid_link",
            f"{link.dataset[:200]!r} is not a dataset ID. Enter owner/name, such as "
            "openai/gsm8k.",
        )
    if link.revision and (
        not _REVISION.fullmatch(link.revision) or ".." in link.revision
    ):
        raise UserError(
            "datasets.invalid_revision",
            f"{link.revision[:200]!r} is not a revision. Enter a branch, tag or "
            "commit, such as main.",
        )
    if len(link.part) > _MAX_PART_CHARS or not link.part.isprintable():
        raise UserError(
            "datasets.invalid_split",
            f"{link.part[:200]!r} is neither a split nor a file. Leave it empty to "
            "choose from a list.",
        )
    return link
