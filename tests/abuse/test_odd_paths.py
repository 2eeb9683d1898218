"""A path that somebody types leads nowhere but where it may."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from django.conf import settings

from dashboard.runs.directory import run_directory
from dashboard.runs.launch.checks import _is_token, tokens_folder
from dashboard.runs.launch.model_choices import check_model


@pytest.mark.parametrize(
    "path",
    [
        "../secret", "..", "~/model", "~root", "./model", "\\\\host\\share\\model",
        "C:\\model", "a\0b", "model\0", "file:///etc", "http://host/model", "a/../../b",
        "a/b/c", "-rf", "/etc\0/", "/etc/passwd", "/proc/self/environ", "/dev/zero",
    ],
)  # fmt: skip
def test_what_is_no_models_folder_is_refused(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on one machine; elsewhere it is the worker that sees a folder, and refuses.
    monkeypatch.setattr(settings, "DATABASE_IS_EMBEDDED", True)

    assert check_model(path)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd", "../tokens/x", "{tokens}/../secret-key", "{tokens}/sub/x",
        "{tokens}/..", "~/x", "", "tokens/x",
    ],
)  # fmt: skip
def test_a_token_is_a_file_of_its_folder_alone(path: str) -> None:
    assert not _is_token(path.replace("{tokens}", str(tokens_folder())))


def test_files_of_a_run_bear_no_name_that_anybody_typed() -> None:
    folder = run_directory(7).checkpoints

    assert os.path.commonpath([folder, settings.COHORT_DATA]) == str(
        settings.COHORT_DATA
    )
    assert folder.parts[-2] == "7"
    assert not Path(folder).is_symlink()
