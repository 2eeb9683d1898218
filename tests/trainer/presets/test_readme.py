"""What the engine's README claims of presets and settings stays true."""

from __future__ import annotations

import re

import pytest

from tests.trainer.tiny import ROOT
from trainer.__main__ import COMMANDS, main
from trainer.presets.preset import PARTS, preset_names
from trainer.presets.table import POINTS, comparison_table

README = (ROOT / "trainer" / "README.md").read_text(encoding="utf-8")
TESTED_PARTS = (
    "rollout",
    "reward",
    "advantage",
    "loss",
    "reference",
    "optim",
    "distributed",
)


def option_rows() -> list[tuple[list[str], list[str]]]:
    """Settings and test files of each row of the last table."""
    rows = []
    for line in README.partition("## Where each setting is tested")[2].splitlines():
        cells = [re.findall(r"`([^`]+)`", cell) for cell in line.split("|")]
        if len(cells) == 4 and cells[1]:
            rows.append((cells[1], cells[2]))
    return rows


def test_the_table_of_presets_is_the_presets_own() -> None:
    inside = README.partition("<!-- presets -->\n")[2].partition("<!-- /presets -->")[0]

    assert inside == comparison_table(), (
        "Put the output of `python -m trainer presets --table` between the marks."
    )


def test_the_table_has_every_preset_and_point() -> None:
    lines = comparison_table().splitlines()

    assert all(line.count("|") == len(preset_names()) + 2 for line in lines)
    assert len(lines) == len(POINTS) + 2
    assert all(f"`{name}`" in lines[0] for name in preset_names())


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets", "--table"]) == 0

    assert capsys.readouterr().out == comparison_table()


def test_every_command_is_named() -> None:
    named = set(re.findall(r"python -m trainer ([a-z-]+)", README))

    assert named <= set(COMMANDS)
    assert set(COMMANDS) - named <= {"starter-llm"}


def test_every_setting_of_the_algorithm_has_its_tests() -> None:
    listed = [setting for settings, _ in option_rows() for setting in settings]

    assert sorted(listed) == sorted(
        f"{part}.{name}" for part in TESTED_PARTS for name in PARTS[part].model_fields
    )


@pytest.mark.parametrize(("settings", "files"), option_rows())
def test_the_named_tests_speak_of_the_setting(
    settings: list[str], files: list[str]
) -> None:
    texts = [(ROOT / "tests" / "trainer" / name).read_text() for name in files]

    for setting in settings:
        word = re.compile(rf"\b{setting.partition('.')[2]}\b")
        assert any(word.search(text) for text in texts), f"{files} never say {setting}"


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / "trainer" / target).exists(), target
