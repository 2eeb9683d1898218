from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib import messages
from django.db import close_old_connections
from django.http import Http404, HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_GET

from dashboard.accounts.access import get_team
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.queries import get_any_dataset, versions_with_use
from dashboard.datasets.row_exports import (
    TYPES,
    WRITERS,
    RowsMissing,
    check_rows,
    filename,
    joined,
)
from dashboard.datasets.views.detail import chosen


class Streamed(StreamingHttpResponse):
    """Sent while it is being made. Under ASGI Django would make all of it first.

    What fails before the first piece is answered as any fault is. What fails later
    breaks the connection off, so that nobody takes a part for the whole.
    """

    def __init__(self, pieces: Iterable[bytes], **given: Any) -> None:
        super().__init__(_Begun(pieces), **given)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = iter(self)
        while (piece := await sync_to_async(_next)(pieces)) is not None:
            yield piece


class _Begun:
    """Pieces of which the first is there."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces
        self._rest = iter(pieces)
        try:
            self._first = next(self._rest, b"")
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[bytes]:
        first, self._first = self._first, b""
        if first:
            yield first
        yield from self._rest

    def close(self) -> None:
        for each in (self._rest, self._pieces):
            if hasattr(each, "close"):
                each.close()


def _next(pieces: Iterator[bytes]) -> bytes | None:
    try:
        return next(pieces, None)
    finally:
        # Whoever reads slowly, or not at all, would keep one of the few that there are.
        close_old_connections()


@require_GET
def dataset_download(
    request: HttpRequest, team: str, dataset_id: int
) -> HttpResponseBase:
    """One of the trash too: whoever deletes it may want to keep a copy."""
    dataset = get_any_dataset(get_team(request, team), dataset_id)
    version = chosen(versions_with_use(dataset), request.GET.get("version"))
    version.dataset = dataset  # which is at hand
    suffix = request.GET.get("format") or "jsonl"
    if suffix not in WRITERS:
        raise Http404("No such format.")
    try:
        check_rows(version)
    except RowsMissing as error:
        messages.error(request, str(error))
        return redirect("dataset", team, dataset.pk)
    return send_rows(version, suffix)


def send_rows(version: DatasetVersion, suffix: str) -> HttpResponseBase:
    """As a file of this format, of rows that are known to be there."""
    name = content_disposition_header(True, filename(version, suffix))
    return Streamed(
        joined(WRITERS[suffix](version)),
        content_type=f"{TYPES[suffix]}; charset=utf-8",
        headers={"Content-Disposition": name},
    )
