"""Fetches: a worker brings a file or a split of the hub here, as an upload.

The files of a split are joined, their hashes checked, and the file must be readable.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from django.db import transaction
from django.db.models import Sum
from django.utils import timezone

from dashboard.accounts.models import Team, User
from dashboard.datasets.fetching.choices import Choice, find_choices
from dashboard.datasets.fetching.download import (
    DISK_CHECK_BYTES,
    Download,
    DownloadOptions,
    RemoteFile,
    Report,
)
from dashboard.datasets.fetching.http import (
    NotFetched,
    hub_allowlist,
    hub_home,
    hub_token,
    links_allowlist,
)
from dashboard.datasets.fetching.hub import Hub, HubFile
from dashboard.datasets.fetching.links import (
    HubLink,
    Link,
    from_json,
    without_query,
)
from dashboard.datasets.imports import peek, recognise, remove_files, start_fetch
from dashboard.datasets.limits import (
    MAX_TEAM_BYTES,
    MAX_UNPACKED_BYTES,
    MAX_UPLOAD_BYTES,
    check_disk_space,
)
from dashboard.datasets.models import Dataset, ImportJob, Upload
from dashboard.datasets.parsing.parquet import PROCESS
from dashboard.datasets.uploads import check_share
from dashboard.jobs.models import OPEN
from dashboard.project.subprocesses import ChildFailed, call
from trainer.internet import Refused, read_link


@transaction.atomic
def begin_fetch(
    *, team: Team, user: User, link: Link | HubLink, dataset: Dataset | None
) -> ImportJob:
    """Start a job that fetches it; ValueError if there is no room for another file."""
    # Two clicks at once would otherwise begin two.
    Team.objects.select_for_update(no_key=True).get(pk=team.pk)
    source = asdict(link)
    same = team.uploads.filter(
        created_by=user, dataset=dataset, is_whole=False, source__contains=source
    )
    live = ImportJob.objects.filter(upload__in=same, job__state__in=OPEN)
    if job := live.first():
        return job
    check_share(team, 0)
    check_disk_space(0, purpose=link.filename)
    upload = Upload.objects.create(
        team=team,
        dataset=dataset,
        filename=link.filename,
        stored_name=uuid.uuid4().hex,
        num_bytes=0,
        is_whole=False,
        source=source,
        created_by=user,
    )
    return start_fetch(upload=upload, filename=link.shown, user=user)[0]


def retry_fetch(upload: Upload, user: User) -> ImportJob:
    shown = from_json(upload.source).shown
    chosen = upload.source.get("chosen")
    filename = f"{shown} {chosen['name']}" if chosen else shown
    return start_fetch(upload=upload, filename=filename, user=user)[0]


def host_of(upload: Upload) -> str:
    link = from_json(upload.source)
    if isinstance(link, Link):
        return urlsplit(link.url).hostname or ""  # once whole, its query is left out
    try:
        return hub_home().host
    except ValueError:  # which the worker tells of
        return "the Hub"


def choices_of(upload: Upload) -> list[Choice]:
    """Return what the hub has of the dataset, where one is yet to be chosen."""
    if upload.is_whole or upload.source.get("chosen"):
        return []
    return [Choice.from_json(choice) for choice in upload.source.get("choices", [])]


def choose(upload: Upload, choice: Choice, user: User) -> ImportJob:
    _save(upload, chosen=choice.as_json(), choices=[])
    return retry_fetch(upload, user)


def fetch_upload(upload: Upload, report: Report) -> None:
    """Bring the file here, or what there is to choose from. NotFetched, or OSError."""
    if upload.is_whole:
        return
    try:
        link = from_json(upload.source)
        if isinstance(link, Link):
            _fetch_link(upload, link, report)
        else:
            _fetch_from_hub(upload, link, report)
    except Refused as error:
        raise NotFetched(str(error)) from None


def _fetch_link(upload: Upload, link: Link, report: Report) -> None:
    seen = upload.source.get("seen", {})

    def note(num_bytes: int, total: int, remark: str) -> None:
        if not total and num_bytes - upload.num_bytes >= DISK_CHECK_BYTES:
            _save(upload, num_bytes=num_bytes)  # so that the team's share counts it
        report(num_bytes, total, remark)

    options = DownloadOptions(
        allowlist=links_allowlist(), token=None, report=note, limit=_limit(upload)
    )

    def remember(remote: RemoteFile) -> None:
        properties = {"validator": remote.validator, "num_bytes": remote.num_bytes}
        _save(upload, num_bytes=remote.num_bytes, seen=properties)

    part = _part(upload, 0)
    Download(
        read_link(link.url), part, options, known=RemoteFile(**seen), remember=remember
    ).run()
    lineage = {"kind": "link", "url": without_query(link.url)}
    finish_upload(upload, [part], lineage, report)


def _fetch_from_hub(upload: Upload, link: HubLink, report: Report) -> None:
    def on_wait() -> None:
        report(0, 0, "")

    hub = Hub(hub_allowlist(), hub_token(), on_wait=on_wait)
    chosen = upload.source.get("chosen")
    choice = Choice.from_json(chosen) if chosen else None
    if choice is None:
        on_wait()
        contents = find_choices(hub, link)
        _save(upload, dataset=contents.dataset, **contents.as_json())
        if contents.picked is None:
            return
        choice = contents.picked
    dataset = upload.source["dataset"]
    limit = _limit(upload)
    if choice.num_bytes > limit:
        raise NotFetched(
            f"{choice.name} has {choice.num_bytes:,} bytes; the limit is {limit:,}. "
            "Choose one of its files, or discard unfinished uploads."
        )
    _save(upload, num_bytes=choice.num_bytes, filename=_filename(dataset, choice))
    options = DownloadOptions(
        allowlist=hub_allowlist(),
        token=hub_token(),
        report=report,
        limit=limit,
    )
    parts = _fetch_parts(upload, hub, choice, options)
    lineage = {
        "kind": "hub",
        "dataset": dataset,
        "revision": choice.revision,
        "commit": choice.sha,
        "part": choice.name,
        "files": [file.path for file in choice.files],
    }
    finish_upload(upload, parts, lineage, report)


def _fetch_parts(
    upload: Upload, hub: Hub, choice: Choice, options: DownloadOptions
) -> list[Path]:
    parts = [_part(upload, number) for number in range(len(choice.files))]
    try:
        fetch_files(
            hub,
            upload.source["dataset"],
            choice.sha,
            dict(zip(parts, choice.files, strict=True)),
            options,
        )
    except NotFetched as error:
        if error.status in (401, 403):  # a gated dataset's list is public
            dataset = upload.source["dataset"]
            raise hub.explained(error, dataset, choice.revision) from None
        raise
    return parts


def fetch_files(
    hub: Hub,
    repository: str,
    sha: str,
    files: Mapping[Path, HubFile],
    options: DownloadOptions,
) -> None:
    """Bring files of a commit to these paths, and check their contents. NotFetched."""
    num_received, num_all = 0, sum(file.num_bytes for file in files.values())

    def on_wait() -> None:
        options.report(num_received, num_all, "")

    for path, file in files.items():
        Download(
            hub.address_of(repository, sha, file.path),
            path,
            options,
            known=RemoteFile(num_bytes=file.num_bytes, is_fixed=True),
            num_before=num_received,
            num_all=num_all,
        ).run()
        num_received += file.num_bytes
        check_content(path, file, on_wait)


def _limit(upload: Upload) -> int:
    """Return what the team's other waiting files leave of its share."""
    others = upload.team.uploads.exclude(pk=upload.pk)
    num_bytes = others.aggregate(held=Sum("num_bytes"))["held"] or 0
    return max(0, min(MAX_UPLOAD_BYTES, MAX_TEAM_BYTES - num_bytes))


def _part(upload: Upload, number: int) -> Path:
    return upload.path.with_name(f"{upload.stored_name}.part{number}")


def _filename(dataset: str, choice: Choice) -> str:
    """Build the filename, from which the name of the dataset is guessed."""
    name = dataset.rpartition("/")[2]
    path = PurePosixPath(choice.files[0].path)
    if not choice.is_split:
        return f"{name}-{path.name}"[-200:]
    split = choice.name.removeprefix("default/").replace("/", "-")
    return f"{name}-{split}{''.join(path.suffixes[-2:])}"[-200:]


def _save(
    upload: Upload, *, num_bytes: int | None = None, filename: str = "", **known: Any
) -> None:
    upload.source = {**upload.source, **known}
    upload.num_bytes = upload.num_bytes if num_bytes is None else num_bytes
    upload.filename = filename or upload.filename
    Upload.objects.filter(pk=upload.pk).update(
        source=upload.source, num_bytes=upload.num_bytes, filename=upload.filename
    )


BUFFER_BYTES = 2**20


def finish_upload(
    upload: Upload, parts: list[Path], lineage: dict[str, Any], report: Report
) -> None:
    """Mark the upload as whole; delete files that are of no use. ValueError.

    Its errors must not quote the content, which may be confidential.
    """
    num_bytes = sum(part.stat().st_size for part in parts)

    def on_wait() -> None:
        report(num_bytes, num_bytes, "Downloaded. Checking the file.")

    try:
        on_wait()
        _join(parts, upload.path, on_wait=on_wait)
        with upload.path.open("rb") as file:
            start = file.read(1_024)
        if not start:
            raise NotFetched("The file is empty. Enter the URL of a file with rows.")
        if start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<"):
            raise NotFetched(
                "The server sent a web page or an XML document instead of a file. "
                "Enter the direct URL of the file."
            )
        recognise(upload)
        preview = peek(upload, in_job=True)
        if not preview.records:
            refusal = preview.refusals.groups[0].first[0]
            raise NotFetched(
                f"The file was read as {upload.kind}, but none of its first "
                f"{preview.refusals.count:,} rows is valid. "
                f"{refusal.place.capitalize()}: {refusal.problem} Enter the URL of "
                "another file."
            )
    except ValueError:
        remove_files(upload)
        raise
    upload.num_bytes = upload.path.stat().st_size
    upload.is_whole = True
    upload.source = {
        **lineage,
        "fetched_at": timezone.now().isoformat(timespec="seconds"),
        "sha256": _digest(upload.path, hashlib.sha256(), on_wait),
    }
    # Update only: the upload may have been deleted with its dataset.
    names = ("format", "packing", "remark", "num_bytes", "is_whole", "source")
    fields = {name: getattr(upload, name) for name in names}
    if not Upload.objects.filter(pk=upload.pk).update(**fields):
        raise NotFetched(
            "The dataset for this download was deleted. Download the file again for "
            "another dataset."
        )


def check_content(part: Path, file: HubFile, on_wait: Callable[[], None]) -> None:
    """ValueError where the bytes are not those that the hub lists."""
    if file.sha256:
        actual, expected = _digest(part, hashlib.sha256(), on_wait), file.sha256
    elif file.blob:
        head = b"blob %d\x00" % part.stat().st_size
        actual = _digest(part, hashlib.sha1(head, usedforsecurity=False), on_wait)
        expected = file.blob
    else:
        return
    if actual != expected:
        part.unlink()
        raise NotFetched(
            f"Checksum mismatch for {file.path}: the file has {actual[:12]}…, but the "
            f"Hub lists {expected[:12]}…. Try again."
        )


def _join(parts: list[Path], whole: Path, *, on_wait: Callable[[], None]) -> None:
    """Join the parts, then delete them. Raises NotFetched."""
    if len(parts) == 1:
        parts[0].replace(whole)
        return
    draft = whole.with_name(f"{whole.name}.joined")
    try:
        with parts[0].open("rb") as file:
            is_parquet = file.read(4) == b"PAR1"
        (_join_parquet if is_parquet else _join_lines)(parts, draft, on_wait)
        draft.replace(whole)
    finally:
        draft.unlink(missing_ok=True)
    for part in parts:
        part.unlink(missing_ok=True)


def _join_lines(parts: list[Path], draft: Path, on_wait: Callable[[], None]) -> None:
    with draft.open("wb") as joined:
        for part in parts:
            on_wait()
            with part.open("rb") as file:
                shutil.copyfileobj(file, joined, BUFFER_BYTES)
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":
                        joined.write(b"\n")


def _join_parquet(parts: list[Path], draft: Path, on_wait: Callable[[], None]) -> None:
    try:
        for problem in call(PROCESS, "join", parts, draft, MAX_UNPACKED_BYTES):
            if problem:
                raise NotFetched(problem)
            on_wait()
    except ChildFailed as error:
        raise NotFetched(
            f"Cannot join the files of this split into one Parquet file: {error}. "
            "Import its files one at a time."
        ) from None


def _digest(path: Path, digest: Any, on_wait: Callable[[], None]) -> str:
    with path.open("rb") as file:
        while data := file.read(BUFFER_BYTES):
            on_wait()
            digest.update(data)
    return str(digest.hexdigest())
