"""Parts of pages that are rendered once, while what they show stays the same."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable
from typing import Any

from django.http import HttpRequest
from django.middleware.csrf import get_token
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from dashboard.project.cache import ByteCache

MAX_BYTES = 64 * 2**20  # in each web process
# Stands for the reader's token in kept forms. No text of a model can contain it.
TOKEN = secrets.token_hex(16)

_fragments: ByteCache[bytes] = ByteCache(MAX_BYTES, size=len)


def render_once(
    request: HttpRequest,
    template: str,
    key: Hashable,
    describe: Callable[[], dict[str, Any]],
) -> SafeString:
    """Render a template, or return what it was for this key and address; key None:
    render it.

    The key names all that the text depends on, with the reader's rights; the text
    contains nothing of the reader but the token of its forms.
    """

    def render(_: object) -> dict[tuple[str, str, Hashable], bytes]:
        html = render_to_string(template, describe() | {"csrf_token": TOKEN}, request)
        return {place: html.encode()}

    place = (template, request.get_full_path(), key)
    kept = render(place) if key is None else _fragments.get([place], render)
    html = kept[place].decode().replace(TOKEN, get_token(request))
    return SafeString(html)  # nosec B703 # a template rendered it
