"""Forms are UTF-8, as every page of ours is.

A form may name any charset that Python knows, some of which are none of texts: "hex".
"""

from __future__ import annotations

import codecs
from collections.abc import Awaitable

from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponseBase

from dashboard.both_worlds import BothWorlds

FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
TEXTS = ("utf-8", "ascii")


def check_charset(request: HttpRequest) -> None:
    """BadRequest for a form of another charset; that of other bodies says nothing."""
    if request.content_type in FORMS and (name := _odd_charset(request)):
        raise BadRequest(
            f"The form's charset {name[:40]!r} is not supported. Send it as UTF-8."
        )


def _odd_charset(request: HttpRequest) -> str:
    name = (request.content_params or {}).get("charset", "utf-8")
    try:
        return "" if codecs.lookup(name).name in TEXTS else name
    except LookupError:
        return name


class CharsetMiddleware(BothWorlds):
    """Behind the others, whose headers its refusals have too."""

    def __call__(
        self, request: HttpRequest
    ) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if _odd_charset(request):
            request.encoding = "utf-8"  # the page that refuses it reads the form too
            # The API says it as a problem: api/entrance.py.
            if not request.path_info.startswith("/api/"):
                check_charset(request)
        return self.get_response(request)
