"""Large JSON answers, compressed."""

from __future__ import annotations

import gzip
import json
from typing import Any

from django.http import HttpRequest, HttpResponse


def pack_answer(found: Any) -> bytes:
    text = json.dumps(found, allow_nan=False, separators=(",", ":"))
    return gzip.compress(text.encode(), 5, mtime=0)


def send_packed(request: HttpRequest, packed: bytes) -> HttpResponse:
    """As it is to whoever unpacks it."""
    headers = {"Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        headers["Content-Encoding"] = "gzip"
    else:
        packed = gzip.decompress(packed)
    return HttpResponse(packed, content_type="application/json", headers=headers)
