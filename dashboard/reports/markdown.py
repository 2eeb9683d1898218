"""A report's text as HTML: what members write is trusted no more than a model's."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from django.utils.safestring import SafeString
from markdown_it import MarkdownIt
from markdown_it.token import Token

from dashboard.samples.rendering import make_markdown


def render_prose(text: str, *, without_hosts: Collection[str] = ()) -> SafeString:
    """Links to these hosts become their text: who reads it could not follow them."""
    made = _markdown()
    tokens = made.parse(text)
    for token in tokens:
        if token.children:
            token.children = list(_without_links(token.children, without_hosts))
    html: str = made.renderer.render(tokens, made.options, {})
    return SafeString(html)  # nosec B703 # the renderer escapes; see samples.rendering


@lru_cache(maxsize=1)
def _markdown() -> MarkdownIt:
    made = make_markdown()
    made.add_render_rule("heading_open", _open_heading)
    made.add_render_rule("heading_close", _close_heading)
    return made


def heading_level(token: Token) -> int:
    """The author's, but for the first: the page's own heading is its title."""
    return max(int(token.tag[1]), 2)


def _open_heading(_: Any, tokens: Sequence[Token], at: int, *__: Any) -> str:
    return f"<h{heading_level(tokens[at])}>"


def _close_heading(_: Any, tokens: Sequence[Token], at: int, *__: Any) -> str:
    return f"</h{heading_level(tokens[at])}>\n"


def _without_links(tokens: Sequence[Token], hosts: Collection[str]) -> list[Token]:
    kept, is_left_out = [], False
    for token in tokens:
        if token.type == "link_open":
            is_left_out = urlsplit(str(token.attrGet("href"))).netloc in hosts
        if token.type in ("link_open", "link_close") and is_left_out:
            continue
        kept.append(token)
    return kept
