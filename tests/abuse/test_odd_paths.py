"""Hostile paths stay inside the allowed folders."""

import io
import os
import zipfile
from pathlib import Path

import pytest
from django.conf import settings
from django.core.files.uploadedfile import SimpleUploadedFile

from dashboard.project.environment import read_environment
from dashboard.runs.launch.base_models import check_model
from dashboard.runs.launch.launching import _is_server
from dashboard.runs.queries import run_directory
from dashboard.transfers.import_files import begin_import, store_file, unpack

NO_MODELS = (
    "../secret", "..", "~/model", "~root", "./model", "\\\\host\\share\\model",
    "C:\\model", "a\0b", "model\0", "file:///etc", "http://host/model", "a/../../b",
    "a/b/c", "-rf", "/etc\0/", "/etc/passwd", "/proc/self/environ", "/dev/zero",
    "/" + "x" * 300, "/a" * 3_000,
)  # fmt: skip
NO_TOKENS = (
    "/etc/LAB", "../tokens/LAB", "{tokens}/../secret-key", "{tokens}/sub/LAB",
    "{tokens}/..", "~/LAB", "", "tokens/LAB", "LAB",
)  # fmt: skip


def test_paths_outside_model_folders_are_refused(
    monkeypatch,
):
    # As on one machine; elsewhere it is the worker that sees a folder, and refuses.
    monkeypatch.setattr(settings, "DATABASE_IS_EMBEDDED", True)

    assert [path for path in NO_MODELS if not check_model(path)] == []


def test_a_token_goes_only_where_an_operator_says(monkeypatch):
    one, other = "http://10.0.0.7:8700", "http://10.0.0.8:8700"
    monkeypatch.setenv("COHORT_SERVER_URL_LAB", f"{one}/, {other}")
    monkeypatch.setenv("COHORT_SERVER_URL_OURS", one)
    monkeypatch.setenv("COHORT_SERVER_TEAMS_OURS", "beta,gamma")
    monkeypatch.setattr(settings, "SERVERS", read_environment().servers)
    tokens = settings.COHORT_DATA / "tokens"
    for url in (one, f"{one}/", f"{other},{one}"):
        assert _is_server("alpha", f"{tokens}/LAB", url)
    assert _is_server("beta", f"{tokens}/OURS", one)

    refused = [
        (f"{tokens}/LAB", "http://10.0.0.9:8700"),
        (f"{tokens}/LAB", f"{one},http://10.0.0.9:8700"),
        (f"{tokens}/LAB", f"{one}/x"),
        (f"{tokens}/LAB", f"{one}@evil.example"),
        (f"{tokens}/LAB", ""),
        (f"{tokens}/LAB", None),
        (f"{tokens}/OURS", one),
        (f"{tokens}/OTHER", one),
        (f"{tokens}/../LAB", one),
        *((path.replace("{tokens}", str(tokens)), one) for path in NO_TOKENS),
    ]
    assert [each for each in refused if _is_server("alpha", *each)] == []


def test_file_names_of_a_run_contain_no_user_input():
    folder = run_directory(7).checkpoints

    assert os.path.commonpath([folder, settings.COHORT_DATA]) == str(
        settings.COHORT_DATA
    )
    assert folder.parts[-2] == "7"
    assert not Path(folder).is_symlink()


@pytest.mark.django_db
@pytest.mark.parametrize(
    "name", ["../../evil", "/tmp/evil", "C:\\evil", "a/../../../evil", "~/evil", "\x01"]
)
def test_zip_members_stay_in_their_import_folder(
    name, team, alice, tmp_path, monkeypatch
):
    monkeypatch.setattr(settings, "COHORT_DATA", tmp_path / "data")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(name, "{}")
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    run_import = begin_import(team, alice)
    store_file(run_import, SimpleUploadedFile(f"{name}.zip", packed.getvalue()))

    unpack(run_import)

    there = {path for path in tmp_path.rglob("*") if not path.is_dir()}
    assert there == {file.path for file in run_import.files.all()}
    assert {path.parent for path in there} == {run_import.folder}
    assert all(path.is_file() and not path.is_symlink() for path in there)
    assert "/etc/passwd" in {path.read_text() for path in there}
