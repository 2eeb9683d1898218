"""The help pages: Markdown files in this folder, as HTML and searchable.

They are also read on GitHub, so links and anchors follow GitHub's rules.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from django.templatetags.static import static
from django.urls import reverse
from django.utils.safestring import SafeString
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.anchors import anchors_plugin

from dashboard.completions.rendering import open_cell
from dashboard.project.environment import ROOT

FOLDER = Path(__file__).parent
GROUPS = {
    "Start": ("first-run",),
    "Data and rewards": (
        "datasets",
        "dataset-checks",
        "rewards",
        "test-rewards",
        "reward-functions",
        "reward-code",
        "judges",
    ),
    "Train": (
        "launch",
        "environments",
        "methods",
        "distillation",
        "curriculum",
        "reproductions",
        "rollout-engines",
        "gpus-and-scale",
        "runs-on-a-cluster",
        "ray-clusters",
        "watch-a-run",
        "control-a-run",
        "checkpoints",
        "cost",
        "alerts",
        "webhooks",
    ),
    "Inspect": (
        "inspect-samples",
        "questions",
        "token-values",
        "prompts",
        "signal-charts",
        "reward-audit",
        "sampler-mismatch",
        "rescore",
    ),
    "Compare": (
        "find-runs",
        "compare-runs",
        "sweeps",
        "reports",
        "import-and-export",
    ),
    "Teams and API": (
        "teams-and-access",
        "api-and-client",
        "notebooks",
        "assistants",
        "other-trainers",
        "own-loop",
    ),
    "Operate": (
        "deploy-and-operate",
        "monitoring",
        "backups",
        "upgrades",
        "storage",
    ),
    "Reference": ("settings", "architectures", "glossary"),
}
MARKS = re.compile(r"^<!--.*-->$", re.MULTILINE)  # around generated tables
ANCHOR = '<span aria-hidden="true">#</span><span class="visually-hidden">link</span>'
LONG_CELL = 24  # characters; a table with longer ones is a list on a phone
EXCERPT = 160  # characters around the first word found
MAX_QUERY = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """The text below a heading, up to the next one."""

    title: str
    slug: str  # of the page's own title: ""
    level: int
    text: str  # without markup, for the search


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    name: str
    sections: tuple[Section, ...]
    html: SafeString  # without its title

    @property
    def title(self) -> str:
        return self.sections[0].title

    @property
    def summary(self) -> str:
        """The first sentence, without the words with which all of them begin."""
        sentence = re.split(r"(?<=\.)\s", self.sections[0].text, maxsplit=1)[0]
        text = re.sub(r"^This page ((helps you to|explains) )?", "", sentence)
        return text[:1].upper() + text[1:].replace(" and to ", " and ")

    @property
    def outline(self) -> list[Section]:
        return [section for section in self.sections if section.level == 2]


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    page: Page
    section: Section
    excerpt: list[tuple[str, bool]]  # pieces of text, and whether they match


@cache
def all_pages() -> dict[str, Page]:
    return {name: _read(name) for group in GROUPS.values() for name in group}


@cache
def glossary() -> dict[str, tuple[str, SafeString]]:
    """Return each term and its definition, by the term in lower case."""
    lines = (FOLDER / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^- \*\*(.+?)\*\*: (.+)$", lines, re.MULTILINE)
    return {
        term.lower(): (
            term,
            render_document(parse_document(text[0].upper() + text[1:]), folder=FOLDER),
        )
        for term, text in terms
    }


def grouped_pages() -> list[tuple[str, list[Page]]]:
    pages = all_pages()
    return [(title, [pages[name] for name in names]) for title, names in GROUPS.items()]


def _read(name: str) -> Page:
    tokens = parse_document((FOLDER / f"{name}.md").read_text(encoding="utf-8"))
    sections = tuple(_sections(tokens))
    html = render_document(tokens[3:], folder=FOLDER)
    return Page(name=name, sections=sections, html=html)


def parse_document(text: str) -> list[Token]:
    """Parse a Markdown file of the repository; headings get the anchors GitHub gives
    them.
    """
    return _markdown().parse(MARKS.sub("", text))


def render_document(tokens: Sequence[Token], *, folder: Path) -> SafeString:
    """Render as HTML, with links of a file in this folder as addresses."""
    for token in tokens:
        if token.type == "inline":
            token.children = list(_resolve(token.children or [], folder))
    parser = _markdown()
    # Tables scroll in a frame; on phones each cell shows its column name.
    fitted: list[Token] = []
    head: list[str] = []
    column, title = 0, ""
    table = Token("table_open", "table", 1)
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "heading_open":
            title = _text_of(following)
        elif token.type == "table_open":
            table, head = token, []
            table.attrSet("class", "table")
            frame = Token("frame_open", "div", 1, block=True)
            frame.attrs = {"class": "table-scroll", "tabindex": "0", "role": "group"}
            frame.attrs["aria-label"] = f"Table: {title}"
            fitted.append(frame)
        elif token.type == "tr_open":
            column = 0
        elif token.type in ("th_open", "td_open"):
            text = _text_of(following)
            if token.type == "th_open":
                head.append(text)
            else:
                token.attrSet("data-column", head[column])
                if column and len(text) > LONG_CELL:
                    table.attrSet("class", "table table-listed")
            column += 1
        elif token.type in ("fence", "code_block"):
            token.attrSet("tabindex", "0")  # long lines scroll
        fitted.append(token)
        if token.type == "table_close":
            fitted.append(Token("frame_close", "div", -1, block=True))
    html: str = parser.renderer.render(fitted, parser.options, {})
    return SafeString(html)  # nosec B703 # our own files, with HTML disabled


@cache
def _markdown() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.use(anchors_plugin, max_level=4, permalink=True, permalinkSymbol=ANCHOR)
    for name in ("th_open", "td_open"):
        parser.add_render_rule(name, open_cell)
    return parser


def _resolve(tokens: Sequence[Token], folder: Path) -> Iterator[Token]:
    """Addresses of pages and pictures; another file has none, so its path is shown."""
    path, text = "", ""  # of a link to such a file
    for token in tokens:
        if token.type == "link_open":
            href = str(token.attrGet("href"))
            address = _address_of(href, folder)
            if address is None:
                path, text = _path_of(href, folder), ""
                continue
            token.attrSet("href", address)
        elif token.type == "link_close" and path:
            if text != path:
                yield Token("text", "", 0, content=" (")
                yield Token("code_inline", "code", 0, content=path)
                yield Token("text", "", 0, content=")")
            path = ""
            continue
        elif token.type == "image":
            picture = _path_of(str(token.attrGet("src")), folder)
            token.attrSet("src", static(picture.removeprefix("static/")))
            token.attrSet("loading", "lazy")
            # PNG's first chunk; nothing moves when the picture comes.
            header = (ROOT / picture).read_bytes()[:24]
            for name, size in zip(
                ("width", "height"), struct.unpack(">II", header[16:]), strict=True
            ):
                token.attrSet(name, str(size))
        text += token.content
        yield token


def _address_of(href: str, folder: Path) -> str | None:
    """
    >>> _address_of("launch.md#presets", FOLDER)
    "/help/launch/#presets"
    """
    url = urlsplit(href)
    if url.scheme or not url.path:
        return href
    path = Path(_path_of(href, folder))
    if ROOT / path.parent != FOLDER or not (ROOT / path).is_file():
        return None
    address = reverse("help_topic", args=[path.stem])
    return f"{address}#{url.fragment}" if url.fragment else address


def _path_of(href: str, folder: Path) -> str:
    return str((folder / urlsplit(href).path).resolve().relative_to(ROOT))


def _sections(tokens: Sequence[Token]) -> Iterator[Section]:
    title, slug, level = "", "", 1
    texts: list[str] = []
    around = ""
    for token in tokens:
        if token.type == "heading_open":
            if title:
                yield _section(title, slug, level, texts)
            level, texts = int(token.tag[1]), []
            slug = "" if level == 1 else str(token.attrGet("id"))
        elif token.type == "inline" and around == "heading_open":
            title = _text_of(token)
        elif token.type in ("inline", "fence", "code_block") and around != "th_open":
            texts.append(_text_of(token))
        around = token.type
    yield _section(title, slug, level, texts)


def _section(title: str, slug: str, level: int, texts: Sequence[str]) -> Section:
    text = re.sub(r"\s+", " ", " ".join(texts)).strip()
    return Section(title=title, slug=slug, level=level, text=text)


def _text_of(token: Token | None) -> str:
    if token is None:
        return ""
    parts = [
        " " if child.type in ("softbreak", "hardbreak") else child.content
        for child in token.children or []
        if child.type != "html_block"  # an anchor
    ]
    return "".join(parts).strip() if token.children else token.content


def search(query: str) -> list[SearchResult]:
    """Sections that have all the words, or words that begin so; titles first."""
    words = [re.escape(word) for word in query[:MAX_QUERY].split()]
    if not words:
        return []
    patterns = [re.compile(rf"(?<![^\W_]){word}", re.IGNORECASE) for word in words]
    ranked = []
    sections = [
        (page, section) for page in all_pages().values() for section in page.sections
    ]
    for place, (page, section) in enumerate(sections):
        whole = f"{page.title} {section.title}"
        has = [
            all(pattern.search(text) for pattern in patterns)
            for text in (section.title, whole, f"{whole} {section.text}")
        ]
        if has[2] and any(
            p.search(f"{section.title} {section.text}") for p in patterns
        ):
            ranked.append((has.index(True), place, page, section))
    any_word = re.compile(
        "|".join(pattern.pattern for pattern in patterns), re.IGNORECASE
    )
    return [
        SearchResult(
            page=page, section=section, excerpt=_excerpt(section.text, any_word)
        )
        for _, _, page, section in sorted(ranked, key=lambda entry: entry[:2])
    ]


def _excerpt(text: str, pattern: re.Pattern[str]) -> list[tuple[str, bool]]:
    first = pattern.search(text)
    middle = first.start() if first else 0
    begin = max(0, middle - EXCERPT // 3)
    begin = text.find(" ", begin) + 1 if begin else 0
    end = begin + EXCERPT
    end = len(text) if end >= len(text) else text.rfind(" ", begin, end)
    excerpt = text[begin:end]
    pieces: list[tuple[str, bool]] = [("… ", False)] if begin else []
    at = 0
    for match in pattern.finditer(excerpt):
        pieces += [(excerpt[at : match.start()], False), (match[0], True)]
        at = match.end()
    pieces.append((excerpt[at:] + (" …" if end < len(text) else ""), False))
    return [piece for piece in pieces if piece[0]]
