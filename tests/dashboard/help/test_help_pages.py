import re

import pytest

from dashboard.completions.signals.figures import signal_charts
from dashboard.help.pages import FOLDER, all_pages, glossary, search
from dashboard.pages.help import explain
from dashboard.runs.config.fields import all_fields
from trainer.metric_names import METRICS

# Error pages for signed-in users need the database.
pytestmark = pytest.mark.django_db


def test_every_file_is_a_page_and_needs_no_account(client):
    assert all_pages().keys() == {path.stem for path in FOLDER.glob("*.md")}
    for name, page in all_pages().items():
        html = client.get(f"/help/{name}/").text

        assert f'<h1 class="page-title">{page.title}</h1>' in html
        for section in page.outline:
            assert f'<h2 id="{section.slug}">' in html
            assert f'<li><a href="#{section.slug}">' in html


def test_unknown_help_pages_are_not_found(client):
    assert client.get("/help/no-such-page/").status_code == 404


def test_links_lead_to_pages_and_to_no_file(client):
    addresses = [
        address
        for name in all_pages()
        for address in re.findall(r'href="([^"]*)"', client.get(f"/help/{name}/").text)
    ]

    assert any(address.startswith("/help/launch/#") for address in addresses)
    assert [address for address in addresses if ".md" in address] == []


def test_a_search_lists_titles_first():
    found = search("checkpoint")

    in_title = [
        "checkpoint" in f"{each.page.title} {each.section.title}".lower()
        for each in found
    ]
    assert 0 < in_title.count(True) < len(found)
    assert in_title == sorted(in_title, reverse=True)


def test_a_search_needs_all_words_by_prefix():
    assert search("advantage nonsensical") == []
    assert search("vantage") == []
    assert search("advant")
    assert search(" ") == []


def test_a_search_is_an_address(client):
    html = client.get("/help/", {"q": "presets"}).text

    assert 'value="presets"' in html
    assert 'href="/help/launch/#presets"' in html
    assert "<mark>preset" in html.lower()


def test_markup_in_a_search_is_text(client):
    html = client.get("/help/", {"q": '<script>alert("1")</script>'}).text

    assert "<script>alert" not in html
    assert "&lt;script&gt;" in html


def test_the_glossary_is_sorted_and_short():
    terms = list(glossary())

    assert terms == sorted(terms)
    assert "kl" in terms
    for term, (_, text) in glossary().items():
        assert str(text).count(". ") <= 1, term


def test_metrics_settings_and_terms_are_explained(client):
    entries = {
        "reward/mean": "/help/watch-a-run/#reward",
        "eval/math/pass@8": "/help/watch-a-run/#held-out-prompts",
        "optim.learning_rate": "/help/launch/",
        "Group": "/help/glossary/#g",
    }
    for term, address in entries.items():
        html = client.get(f"/help/about/{term}/?part").text

        assert html.count('class="explanation"') == 1, term
        assert address in html, term
        assert "<html" not in html, term
    page = client.get("/help/about/reward/mean/")
    assert "explanation" in page.text
    assert "<html" in page.text
    assert client.get("/help/about/no-such-term/").status_code == 404
    # Anyone may ask: as a regular expression this would take hours.
    assert client.get(f"/help/about/{'…' * 40}z/").status_code == 404
    assert client.get("/help/about/*/").status_code == 404


def test_a_family_is_explained_metric_by_metric():
    assert {one.name for one in explain("clip/frac_…")} == {
        *("clip/frac_high", "clip/frac_low", "clip/frac_dual"),
    }
    assert "eval/<set>/pass@<k>" in {one.name for one in explain("eval/math/…")}


def test_every_metric_and_setting_is_explained():
    names = [one.name for group in METRICS.values() for one in group]

    assert all(explain(name.replace("<", "").replace(">", "")) for name in names)
    assert all(explain(chart.term) for chart in signal_charts())
    for path in all_fields():
        (entry,) = explain(path)
        assert entry.text
