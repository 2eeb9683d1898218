"""The documents of the repository: links, lengths, generated tables."""

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from markdown_it.token import Token

from dashboard.help.pages import FOLDER, parse_document
from dashboard.pages.help import BLOCK, TABLES, fill_tables

ROOT = Path(__file__).parents[2]
WORDS = {
    "README.md": 1_100,
    "CONTRIBUTING.md": 1_000,
    "trainer/README.md": 1_200,
    "docker/README.md": 1_200,
    "dashboard/operations/RUNBOOK.md": 1_500,
    "tests/bench/RESULTS.md": 3_000,
    **{str(path.relative_to(ROOT)): 900 for path in FOLDER.glob("*.md")},
}
LINES = {"CHANGELOG.md": 60}
RECORD_LINES = 10  # of a decision
# {% url 'help_topic' 'alerts' %}#rules, and the same in two steps.
HELP_LINK = re.compile(
    r"""\{% url ['"]help(?:_topic['"] ['"]([\w-]+))?['"] """
    r"""(?:%\}(?:#([\w-]+))?|as help_url %\}.*?help_url\|add:"#([\w-]+)")""",
    re.DOTALL,
)


def tracked(pattern: str) -> list[Path]:
    """Files that Git knows or would take."""
    listed = ["git", "ls-files", "-co", "--exclude-standard", "--", pattern]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = (ROOT / name for name in done.stdout.split())
    return [
        path for path in paths if path.is_file() and "node_modules" not in str(path)
    ]


@cache
def tokens_of(path: Path) -> list[Token]:
    return parse_document(path.read_text(encoding="utf-8"))


@cache
def anchors_of(path: Path) -> frozenset[str]:
    if not path.is_file():
        return frozenset()
    return frozenset(str(t.attrGet("id")) for t in tokens_of(path) if t.attrGet("id"))


def addresses_in(path: Path) -> Iterator[str]:
    for token in tokens_of(path):
        for child in token.children or []:
            if child.type in ("link_open", "image"):
                yield str(child.attrGet("href") or child.attrGet("src"))


def test_links_resolve():
    broken = [
        (str(path.relative_to(ROOT)), address)
        for path in tracked("*.md")
        for address in addresses_in(path)
        if not leads_somewhere(path, address)
    ]

    assert broken == []


def leads_somewhere(path: Path, address: str) -> bool:
    url = urlsplit(address)
    if url.scheme:
        return True
    target = (path.parent / url.path).resolve() if url.path else path
    if not url.fragment:
        return target.exists()
    return target.suffix == ".md" and url.fragment in anchors_of(target)


def test_links_of_pages_to_help_resolve():
    links = {
        (found[1] or "", found[2] or found[3] or "")
        for path in tracked("templates/*.html")
        for found in HELP_LINK.finditer(path.read_text(encoding="utf-8"))
    }
    broken = [
        (name, anchor)
        for name, anchor in links - {("", "")}
        if not leads_somewhere(
            FOLDER / "any.md", f"{name}.md#{anchor}" if anchor else f"{name}.md"
        )
    ]

    assert broken == []
    assert ("inspect-samples", "reward-log") in links


def test_documents_keep_their_length():
    longer = {}
    for name, most in WORDS.items():
        text = BLOCK.sub("", (ROOT / name).read_text(encoding="utf-8"))
        if len(text.split()) > most:
            longer[name] = len(text.split())
    for name, most in LINES.items():
        if (num := len((ROOT / name).read_text("utf-8").splitlines())) > most:
            longer[name] = num
    for path in tracked("*/DECISIONS.md"):
        for record in path.read_text("utf-8").split("\n## ")[1:]:
            if (num := len(record.strip().splitlines())) > RECORD_LINES:
                longer[record[:40]] = num

    assert longer == {}


def test_generated_tables_are_current():
    texts = [path.read_text("utf-8") for path in FOLDER.glob("*.md")]

    assert [text[:40] for text in texts if fill_tables(text) != text] == []
    assert {found[2] for text in texts for found in BLOCK.finditer(text)} == set(TABLES)
