"""A client that gives pages without the line breaks of their templates."""

from __future__ import annotations

import re
from typing import Any

from django.test import Client

VERBATIM = re.compile(
    r"(<(?:pre|textarea|script)\b.*?</(?:pre|textarea|script)>)", re.DOTALL
)
BLOCK = (
    "article|aside|body|caption|d[dlt]|details|div|fieldset|figcaption|figure|footer|form"
    "|h[1-6r]|head|header|html|legend|li|link|main|meta|nav|ol|optgroup|option|p|section"
    "|select|summary|svg|table|tbody|td|tfoot|th|thead|title|tr|ul"
)
# Where a browser shows no space: at the inner edges of blocks and buttons.
AFTER_EDGE = re.compile(rf"(<(?:{BLOCK}|button|a)\b[^>]*>)\s*\n\s*")
BEFORE_EDGE = re.compile(rf"\s*\n\s*(</(?:{BLOCK}|button|a)\b|>)")
BREAK = re.compile(r"\s*\n\s* ")


class PageClient(Client):
    """Tests look for markup that a template may break into lines."""

    def request(self, **request: Any) -> Any:
        response = super().request(**request)
        content_type = response.headers.get("Content-Type", "")
        if not response.streaming and content_type.startswith("text/html"):
            response.content = join_lines(response.content.decode()).encode()
        return response


def join_lines(page: str) -> str:
    """Remove line breaks with their indentation, except where they are content."""
    parts = VERBATIM.split(page)
    for place in range(0, len(parts), 2):
        text = BEFORE_EDGE.sub(r"\1", AFTER_EDGE.sub(r"\1", parts[place]))
        parts[place] = BREAK.sub(" ", text)
    return "".join(parts)
