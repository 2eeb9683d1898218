"""Scripts and styles are sent once to a browser, and packed."""

import gzip
import os
import re
import shutil
import urllib.request
from pathlib import Path

import pytest
from django.templatetags.static import static

from dashboard.project.environment import ROOT, version_of_assets
from dashboard.web.downloads import pack_assets

PLOTLY = "vendor/plotly/plotly-cartesian.min.js"


@pytest.fixture
def root(tmp_path) -> Path:
    (tmp_path / "static" / "js").mkdir(parents=True)
    (tmp_path / "static" / "js" / "keys.js").write_text("export const KEYS = 1;")
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / ".package-lock.json").write_text("{}")
    return tmp_path


def test_the_version_is_that_of_the_files_wherever_they_lie(root, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "copy"
    shutil.copytree(root, elsewhere)

    assert version_of_assets(elsewhere) == version_of_assets(root)


def test_a_file_of_ours_makes_another_version(root):
    for changed in ["static/js/keys.js", "static/js/new.js"]:
        before = version_of_assets(root)
        (root / changed).write_text("export const KEYS = 2;")

        assert version_of_assets(root) != before, changed


def test_so_does_a_file_that_was_renamed(root):
    before = version_of_assets(root)
    (root / "static/js/keys.js").rename(root / "static/js/locks.js")

    assert version_of_assets(root) != before


def test_so_do_other_packages(root):
    before = version_of_assets(root)
    (root / "node_modules" / ".package-lock.json").write_text('{"plotly": 5}')

    assert version_of_assets(root) != before


def test_so_do_other_styles_of_a_package(root):
    before = version_of_assets(root)
    folder = root / "node_modules/@tabler/core/dist/css"
    folder.mkdir(parents=True)
    (folder / "tabler.used.css").write_text(".btn {}")

    assert version_of_assets(root) != before


def test_a_process_without_pages_starts_without_them(tmp_path):
    assert version_of_assets(tmp_path)


def ask(url: str, **headers: str) -> tuple[bytes, dict[str, str]]:
    requested = urllib.request.Request(url, headers=headers)  # noqa: S310 - loopback
    with urllib.request.urlopen(requested, timeout=30) as answer:  # noqa: S310 - as above
        return answer.read(), dict(answer.headers)


def test_plotly_is_sent_compressed_if_accepted(live_app):
    plain, reported_plain = ask(live_app + static(PLOTLY))
    packed, reported = ask(live_app + static(PLOTLY), **{"Accept-Encoding": "gzip"})

    assert "content-encoding" not in reported_plain
    assert reported["content-encoding"] == "gzip"
    assert gzip.decompress(packed) == plain
    assert len(packed) < len(plain) / 2


@pytest.mark.parametrize("name", ["js/shell.js", "css/app.css", "icon.svg"])
def test_our_files_are_sent_compressed(live_app, name):
    packed, reported = ask(live_app + static(name), **{"Accept-Encoding": "gzip"})

    assert reported["content-encoding"] == "gzip"
    assert gzip.decompress(packed) == (ROOT / "static" / name).read_bytes()


def test_the_selected_styles_have_every_class_that_templates_name():
    """`make setup` selects them again where one is missing."""
    folder = ROOT / "node_modules/@tabler/core/dist/css"
    whole, selected = (
        set(re.findall(r"\.([a-z][\w-]*)", (folder / name).read_text()))
        for name in ("tabler.min.css", "tabler.used.css")
    )
    named = {
        word
        for path in (ROOT / "templates").rglob("*.html")
        for words in re.findall(r'class="([^"]*)"', path.read_text())
        for word in words.split()
    }

    assert len(named & whole) > 50
    assert named & whole <= selected
    assert len(selected) < len(whole) / 5


def test_only_changed_files_are_packed_again(root):
    source = root / "static/js/keys.js"
    packed = root / "static/js/keys.js.gz"
    before = version_of_assets(root)
    pack_assets(root / "static")
    first = packed.stat()

    pack_assets(root / "static")
    assert packed.stat().st_ino == first.st_ino
    assert version_of_assets(root) == before

    source.write_text("export const KEYS = 2;")
    os.utime(source, ns=(1, first.st_mtime_ns - 10**9))
    pack_assets(root / "static")
    assert gzip.decompress(packed.read_bytes()) == source.read_bytes()
    assert sorted(path.name for path in root.iterdir()) == ["node_modules", "static"]


def test_a_file_is_kept_for_ever_under_an_address_with_its_version(live_app):
    address = static("js/shell.js")

    _, reported = ask(live_app + address)

    assert address == f"/static/{version_of_assets(ROOT)}/js/shell.js"
    assert "immutable" in reported["cache-control"]
