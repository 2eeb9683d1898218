"""A client that gives pages without the line breaks of their templates."""

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
OPENING_EDGE = re.compile(rf"<(?:{BLOCK}|button|a)\b[^>]*>")
CLOSING_EDGE = re.compile(rf"</(?:{BLOCK}|button|a)\b|>")
SPACE = re.compile(r"\s+")


class PageClient(Client):
    """Tests look for markup that a template may break into lines."""

    def request(self, **request: Any) -> Any:
        response = super().request(**request)
        content_type = response.headers.get("Content-Type", "")
        if not response.streaming and content_type.startswith("text/html"):
            response.content = join_lines(response.content.decode()).encode()
        return response

    def read(self, address: str, query: dict[str, Any] | None = None) -> str:
        """The text of a page that is there."""
        response = self.get(address, query)
        assert response.status_code == 200, (address, response.status_code)
        text: str = response.content.decode()
        return text


def join_lines(page: str) -> str:
    """Remove line breaks with their indentation, except where they are content."""
    parts = VERBATIM.split(page)
    parts[::2] = [SPACE.sub(_join, part) for part in parts[::2]]
    return "".join(parts)


def words(response: Any) -> str:
    """The text of a page, each space one."""
    return " ".join(re.sub(r"<[^>]+>", " ", response.content.decode()).split())


def _join(space: re.Match[str]) -> str:
    if "\n" not in space[0]:
        return space[0]
    text, start, end = space.string, *space.span()
    tag = text.rfind("<", 0, start)
    if tag >= 0 and OPENING_EDGE.fullmatch(text, tag, start):
        return ""
    if CLOSING_EDGE.match(text, end):
        return ""
    return " " if space[0].endswith(" ") else space[0]
