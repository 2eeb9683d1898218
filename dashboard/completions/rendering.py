"""Renders completions: Markdown, code and formulas.

Model output is untrusted: HTML stays text, nothing is loaded, and only http(s) links
are links.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import unescape
from xml.etree.ElementTree import Element, tostring

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from latex2mathml.converter import convert_to_element
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from mdit_py_plugins.amsmath import amsmath_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin

MAX_CHARS = 20_000
MAX_FORMULA_CHARS = 2_000
PAGE_SECONDS = 2.0  # some texts take time quadratic in their length
WEB = ("http://", "https://")
HEADING = '<p class="rendered-heading">'  # not part of the page's outline
BLOCKS_OF_MATH = ("math_block", "math_block_label", "amsmath")
BRACKETS = {"(": (r"\)", "math_inline"), "[": (r"\]", "math_inline_double")}
MATHML = frozenset(
    """
    math menclose merror mfenced mfrac mi mmultiscripts mn mo mover mpadded
    mphantom mprescripts mroot mrow ms mspace msqrt mstyle msub msubsup msup
    mtable mtd mtext mtr munder munderover none
    """.split()  # noqa: SIM905 - a list of them would be a screen long
)
ATTRIBUTES = frozenset(
    """
    accent accentunder columnalign columnlines columnspacing depth display
    displaystyle fence form height largeop linethickness lspace mathvariant
    maxsize minsize movablelimits notation rowlines rowspacing rspace
    scriptlevel separator stretchy symmetric width xmlns
    """.split()  # noqa: SIM905 - a list of them would be a screen long
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    html: SafeString
    num_chars: int  # rendered characters
    num_left: int  # the others


def render_texts(texts: Sequence[str]) -> list[Rendered | None]:
    """Render each as HTML; None after the page's timeout."""
    deadline = time.monotonic() + PAGE_SECONDS
    return [
        render_text(text) if time.monotonic() < deadline else None for text in texts
    ]


def render_text(text: str) -> Rendered:
    html = _markdown().render(text[:MAX_CHARS])
    return Rendered(
        html=mark_safe(html),  # nosec B308, B703 # noqa: S308 - every rule below escapes
        num_chars=min(len(text), MAX_CHARS),
        num_left=max(0, len(text) - MAX_CHARS),
    )


@lru_cache(maxsize=1)
def _markdown() -> MarkdownIt:
    made = make_markdown()
    made.add_render_rule("heading_open", lambda *_: HEADING)
    made.add_render_rule("heading_close", lambda *_: "</p>\n")
    return made


def make_markdown() -> MarkdownIt:
    """Markdown and formulas without active or loaded content."""
    made = MarkdownIt("commonmark", {"html": False, "breaks": True})
    made.enable(["table", "strikethrough"])
    # Images stay text. Repeated references to a definition could multiply the length.
    made.disable(["image", "reference"])
    made.validateLink = lambda url: url.lower().startswith(WEB)  # type: ignore[method-assign]
    made.inline.ruler.before("emphasis", "product", _leave_product)
    made.inline.ruler.before("escape", "bracketed", _take_bracketed)
    made.use(dollarmath_plugin, allow_digits=False, double_inline=True)
    made.use(amsmath_plugin)
    made.add_render_rule(
        "math_inline", lambda _, tokens, at, *__: _formula(tokens[at], "inline")
    )
    made.add_render_rule(
        "math_inline_double", lambda _, tokens, at, *__: _formula(tokens[at], "block")
    )
    for name in BLOCKS_OF_MATH:
        made.add_render_rule(
            name, lambda _, tokens, at, *__: f"<p>{_formula(tokens[at], 'block')}</p>\n"
        )
    made.add_render_rule("link_open", _open_link)
    for name in ("th_open", "td_open"):
        made.add_render_rule(name, open_cell)
    return made


def _take_bracketed(state: StateInline, silent: bool) -> bool:
    r"""\( … \) inline, \[ … \] as a block."""
    opening = state.src[state.pos : state.pos + 2]
    if opening[:1] != "\\" or opening[1:] not in BRACKETS:
        return False
    closing, kind = BRACKETS[opening[1:]]
    end = state.src.find(closing, state.pos + 2)
    if end < 0:
        return False
    if not silent:
        state.push(kind, "math", 0).content = state.src[state.pos + 2 : end]
    state.pos = end + len(closing)
    return True


def _leave_product(state: StateInline, silent: bool) -> bool:
    """Leave the * of 3*4*5, which is not emphasis."""
    at, text = state.pos, state.src
    if text[at] != "*" or not 0 < at < len(text) - 1:
        return False
    before, after = text[at - 1], text[at + 1]
    if not (before.isalnum() or before in ")]") or not (
        after.isalnum() or after in "(["
    ):
        return False
    if not silent:
        state.pending += "*"
    state.pos += 1
    return True


def _open_link(
    renderer: RendererHTML,
    tokens: Sequence[Token],
    at: int,
    options: OptionsDict,
    env: EnvType,
) -> str:
    tokens[at].attrSet("rel", "nofollow noopener noreferrer")
    return renderer.renderToken(tokens, at, options, env)


def open_cell(
    renderer: RendererHTML,
    tokens: Sequence[Token],
    at: int,
    options: OptionsDict,
    env: EnvType,
) -> str:
    # The Content-Security-Policy blocks styles.
    style = str(tokens[at].attrs.pop("style", ""))
    if style:
        tokens[at].attrSet("align", style.removeprefix("text-align:"))
    return renderer.renderToken(tokens, at, options, env)


def _formula(token: Token, display: str) -> str:
    """MathML, or the formula's source if it cannot be converted."""
    source = token.content.strip()
    if len(source) <= MAX_FORMULA_CHARS:
        try:
            # The library only supports align*.
            made = convert_to_element(
                source.replace("{aligned}", "{align*}"), display=display
            )
        except Exception:  # noqa: BLE001 - it raises arbitrary exceptions
            made = None
        if made is not None and _clean(made):
            return tostring(made, encoding="unicode")
    return f'<code class="rendered-formula">{escape(source)}</code>'


def _clean(formula: Element) -> bool:
    """Keep presentation attributes; False: unknown elements."""
    for part in formula.iter():
        if part.tag not in MATHML:
            return False
        part.attrib = {k: v for k, v in part.attrib.items() if k in ATTRIBUTES}
        # The library writes symbols as entities, which tostring would escape.
        part.text = part.text and unescape(part.text)
        if part.text == "&" or (part.text or "").startswith("\\"):
            return False
    return True
