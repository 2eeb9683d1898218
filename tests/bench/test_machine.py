"""What stands above every table."""

from __future__ import annotations

import sys

import pytest
import torch

from tests.bench.machine import cpu_name, heading, num_cores, spread, versions


def test_a_heading_names_command_machine_and_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_step.py", "--model", "a folder"])

    shown = heading("tests.bench.bench_step")

    assert "`python -m tests.bench.bench_step --model 'a folder'`" in shown
    assert f"{cpu_name()}, {num_cores()} core" in shown
    assert f"torch {torch.__version__.split('+')[0]}" in shown


def test_a_package_that_is_not_there_is_named_so() -> None:
    assert versions(["no-such-package"]).endswith(", no no-such-package")


def test_a_spread_is_the_median_with_its_range() -> None:
    assert spread([3.0, 1.0, 2.0], ".1f") == "2.0 (1.0–3.0)"
    assert spread([], ".1f") == "–"
