"""Completions as Markdown: readable, and harmless whatever they hold."""

import re
import time

import pytest

from dashboard.completions import rendering
from dashboard.completions.rendering import MAX_CHARS, render_text, render_texts

TAGS = re.compile(r"<(/?[a-zA-Z]\w*)")
HARMLESS = frozenset(
    """
    p br strong em s code pre ol ul li table thead tbody tr th td a hr
    blockquote math mrow mfrac mi mn mo mtext msub msup msubsup munderover
    menclose mtable mtr mtd mspace mover munder msqrt mroot mstyle mpadded
    mphantom
    """.split()  # noqa: SIM905 - a list of them would be a screen long
)


def render(text: str) -> str:
    return str(render_text(text).html)


def test_a_text_is_rendered():
    meant = {
        "**so**": "<p><strong>so</strong></p>",
        "one\ntwo": "<p>one<br />\ntwo</p>",
        "# So": '<p class="rendered-heading">So</p>',
        "3*4*5 and a*(b)*c": "<p>3*4*5 and a*(b)*c</p>",
        "it costs $5 and $6": "<p>it costs $5 and $6</p>",
        "<answer>4</answer>": "<p>&lt;answer&gt;4&lt;/answer&gt;</p>",
        "$a & b$": '<p><code class="rendered-formula">a &amp; b</code></p>',
        "[a]: https://x.org 'b'\n": "<p>[a]: https://x.org 'b'</p>",
        r"$\frac{$": '<p><code class="rendered-formula">\\frac{</code></p>',
    }

    assert {text: render(text).strip() for text in meant} == meant


def test_formulas_in_each_of_their_brackets_are_mathml():
    inline = (r"$x^2$", r"\(x^2\)", r"$$x^2$$", r"so \[x^2\] and")
    for text in (*inline, "\\[\nx^2\n\\]", "$$\nx^2\n$$"):
        assert "<msup><mi>x</mi><mn>2</mn></msup>" in render(text), text


def test_aligned_lines_are_a_table():
    html = render("$$\\begin{aligned}a&=b\\\\c&=d\\end{aligned}$$")

    assert html.count("<mtr>") == 2


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "![x](https://example.org/pixel.png)",
        "[x](javascript:alert(1))",
        "[x](JaVaScRiPt:alert(1)) [y](data:text/html,x) [z](vbscript:x) [w](//x.org)",
        r"$\text{<script>alert(1)</script>}$",
        r"$\text{&lt;script&gt;alert(1)&lt;/script&gt;}$",
        r"$\href{javascript:alert(1)}{x}$",
        r"$\style{background:url(x)}{x} \class{y}{x} \color{red} x$",
        r"$\mbox{<img src=x onerror=alert(1)>}$",
        "```html\n<script>\n```",
        '```"><script>\ncode\n```',
        '[x](https://example.org/"onmouseover="alert(1))',
    ],
)
def test_nothing_in_a_text_acts(text):
    html = render(text)

    assert set(TAGS.findall(html)) <= {*HARMLESS, *(f"/{tag}" for tag in HARMLESS)}
    for attribute in re.findall(r"<[^>]*?\s([\w-]+)=", html):
        assert not attribute.startswith("on")
        assert attribute not in {"style", "src"}
    for address in re.findall(r'href="([^"]*)"', html):
        assert address.startswith("https://example.org/")


def test_cells_are_aligned_without_styles():
    html = render("|a|b|\n|-|-:|\n|1|2|")

    assert '<th align="right">b</th>' in html
    assert '<td align="right">2</td>' in html
    assert "style" not in html


def test_the_size_of_a_page_is_bounded_by_its_text():
    text = "[a]: https://x.org/" + "z" * 9_000 + "\n\n" + "[a]" * 3_000

    assert len(render(text)) < 100 * len(text)


def test_a_link_to_the_web_tells_it_nothing():
    html = render("[x](https://example.org/a)")

    assert 'href="https://example.org/a" rel="nofollow noopener noreferrer"' in html


def test_a_truncated_text_shows_its_lengths():
    rendered = render_text("a" * (MAX_CHARS + 5))

    assert (rendered.num_chars, rendered.num_left) == (MAX_CHARS, 5)
    assert render_text("a" * MAX_CHARS).num_left == 0


def test_texts_after_the_timeout_are_not_rendered(monkeypatch):
    monkeypatch.setattr(rendering, "PAGE_SECONDS", 0.05)
    monkeypatch.setattr(
        rendering, "render_text", lambda text: time.sleep(0.06) or render_text(text)
    )

    first, second = render_texts(["a", "b"])

    assert first is not None
    assert second is None


@pytest.mark.parametrize(
    "piece",
    [
        "[",
        "*a **b ",
        "> ",
        "$",
        r"\(",
        r"\[x",
        "`",
        "- ",
        "*_",
        "$$\n",
        "|-",
        "![[",
        "{",
    ],
)
def test_no_text_exceeds_the_timeout(piece):
    begin = time.process_time()

    render(piece * (MAX_CHARS // len(piece)))

    assert time.process_time() - begin < 10  # a page has 2 s for all of its texts
