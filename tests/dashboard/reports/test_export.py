"""A report as a file: one page of HTML that needs nothing, and a PDF."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.test import Client
from fontTools.ttLib import TTFont
from pypdf import PdfReader

from dashboard.accounts.models import Team, User
from dashboard.apart import BrokeOff
from dashboard.reports import printing
from dashboard.reports.models import Report
from dashboard.reports.pdf import fonts
from dashboard.reports.pdf.items import Panel, Paper, Prose, Text
from dashboard.reports.pdf.process import draw_paper
from tests.dashboard.reports.stories import (
    make_measured_run,
    make_other_run,
    make_report,
    make_sampled_group,
)

pytestmark = pytest.mark.django_db
COLOURS = {f"series-{i}": "#0b62c4" for i in range(1, 11)}


@pytest.fixture
def report(team: Team, alice: User) -> Report:
    run, other = make_measured_run(team), make_other_run(team)
    make_sampled_group(run)
    text = f"""## What we saw

It **helps**: see русский, ελληνικά. Formula $x^2$.

| rule | share |
|------|------:|
| one  |   40 % |

```python
def advantage(r): return r
```

::chart runs={run.pk},{other.pk} metric=kl/mean pin
::group run={run.pk} step=40 prompt=3
::compare runs={run.pk},{other.pk} metric=reward/mean
::table runs={run.pk},{other.pk}
::chart runs=none"""
    return make_report(team, alice, text, "Length: “penalty”?")


def text_of(pdf: bytes) -> str:
    return "\n".join(page.extract_text() for page in PdfReader(io.BytesIO(pdf)).pages)


def draw(markdown: str, tmp_path: Path) -> str:
    paper = Paper(
        title="Title",
        facts="",
        parts=[Prose(markdown=markdown)],
        colours=COLOURS,
        cache=str(tmp_path),
    )
    return text_of(draw_paper(paper))


def test_the_html_file_holds_all_and_asks_for_nothing(
    bob_client: Client, report: Report
) -> None:
    answer = bob_client.get(f"/alpha/reports/{report.pk}/export.html")
    page = answer.text

    assert '"length-penalty.html"' in answer.headers["Content-Disposition"]
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    assert page.count("<polyline") == 8
    assert "content=\"default-src 'none'; style-src" in page
    for asks in ("href=", "src=", "action=", "srcset=", "@import", "url(", "<script"):
        assert asks not in page
    assert len(answer.content) < 200_000


def test_the_pdf_holds_what_the_page_says_and_draws_its_charts_as_lines(
    bob_client: Client, report: Report
) -> None:
    answer = bob_client.get(f"/alpha/reports/{report.pk}/export.pdf")

    assert answer.headers["Content-Type"] == "application/pdf"
    pages = PdfReader(io.BytesIO(answer.content)).pages
    text = "\n".join(page.extract_text() for page in pages)
    for words in (
        "Length: “penalty”?",
        "What we saw",
        "It helps: see русский, ελληνικά.",
        "one 40 %",
        "def advantage(r): return r",
        "kl/mean",
        "Pinned 20",
        "calm-otter-1: 0.059",
        "<think>3+1</think> 4",
        "+1.48",
        "rollout.group_size 4 8",
        "calm-otter-1 finished 60",
        "1 to 10",  # of the block that names no runs
    ):
        assert words in text, words
    assert not any(page.images for page in pages)
    drawn = b"".join(page.get_contents().get_data() for page in pages)  # type: ignore[union-attr]
    assert drawn.count(b" l") > 8 * 59  # of each curve, smoothed and as measured


def test_a_formula_is_drawn_and_one_that_is_not_known_stays_source(
    tmp_path: Path,
) -> None:
    text = draw(r"A $\frac{a}{b}$ and $\nosuch{a}$ and $$\sum_i x_i$$", tmp_path)

    assert "frac" not in text
    assert "sum" not in text
    assert r"\nosuch{a}" in text


def test_what_no_font_has_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fonts, "FOLDERS", ())

    text = draw("Two: 中文", tmp_path)

    assert "Two: ��" in text
    assert "U+4E2D, U+6587" in text


def test_a_font_of_the_system_is_taken_for_what_ours_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stix = fonts.own_fonts() / "STIXGeneral.ttf"
    monkeypatch.setattr(fonts, "FOLDERS", (str(tmp_path),))
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    (tmp_path / "other.ttf").write_bytes(stix.read_bytes())
    with TTFont(stix, lazy=True) as font:
        has = {chr(code) for code in font.getBestCmap()}
    lacking = min(c for c in has - fonts.own_characters() if c.isprintable())

    assert f"Here: {lacking}" in draw(f"Here: {lacking}", tmp_path)


def test_writing_from_right_to_left_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert "مرحبا بالعالم" in draw("مرحبا بالعالم", tmp_path)


def test_long_texts_go_on_over_pages(tmp_path: Path) -> None:
    long = Text(text="\n".join(f"line {i}" for i in range(300)), name="All", mono=True)
    panel = Panel(name="Group", words="Live", items=[long])
    rows = "\n".join(f"| row {i} | 1 |" for i in range(100))
    prose = Prose(markdown=f"| a | b |\n|---|---|\n{rows}\n\n{'x' * 5000}")
    paper = Paper(
        title="T", facts="", parts=[panel, prose], colours=COLOURS, cache=str(tmp_path)
    )

    text = text_of(draw_paper(paper))

    assert all(f"line {i}\n" in text for i in range(300))
    assert all(f"row {i} 1" in text for i in range(100))
    assert text.count("x") == 5000


@pytest.fixture
def short(team: Team, alice: User) -> Report:
    return make_report(team, alice, "Text")


def test_a_pdf_that_cannot_be_drawn_is_answered(
    bob_client: Client, short: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(*_: object) -> Iterator[bytes]:
        raise BrokeOff("it computed for 60 s without a result")
        yield b""

    monkeypatch.setattr(printing, "ask", break_off)

    answer = bob_client.get(f"/alpha/reports/{short.pk}/export.pdf")

    assert answer.status_code == 422
    assert "60 s" in answer.text


def test_who_comes_while_others_are_drawn_is_told(
    bob_client: Client, short: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "WAIT_SECONDS", 0)
    for _ in range(printing.AT_ONCE):
        assert printing._turns.acquire(blocking=False)
    try:
        answer = bob_client.get(f"/alpha/reports/{short.pk}/export.pdf")
    finally:
        for _ in range(printing.AT_ONCE):
            printing._turns.release()

    assert answer.status_code == 503


def test_there_is_no_other_file(bob_client: Client, short: Report) -> None:
    answer = bob_client.get(f"/alpha/reports/{short.pk}/export.docx")

    assert answer.status_code == 404
