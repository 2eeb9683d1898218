"""The commands that measure steps, on a model that takes no time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import bench_generation, bench_step, comparison
from tests.bench.random_models import make_model
from tests.bench.rates import MachineRates

MACHINE = MachineRates(matrix=4e9, read=2e9, training=2e9, decoding=1e9, reading=1e9)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_model("tiny", tmp_path_factory.mktemp("models")))


def small(model: str, *further: str) -> list[str]:
    sizes = ["--prompts", "2", "--group", "2", "--new", "8", "--steps", "1"]
    return ["--model", model, *sizes, "--micro-batches", "1", *further]


def lines_of(text: str) -> list[list[str]]:
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


@pytest.mark.slow
def test_a_step_stands_beside_trls(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_step.main(small(model, "--beta", "0.04"))

    shown = capsys.readouterr().out
    header, _, row = lines_of(shown)[:3]
    assert "tests.bench.bench_step" in shown
    assert "torch 2." in shown
    assert header[3] == "ratio"
    assert "1 micro-batches" in row[1]
    assert float(row[3].split()[0]) > 0
    trl, ours = (int(cell.replace(",", "")) for cell in row[4:6])
    assert trl > ours > 100  # MiB; TRL's own modules alone are more than Cohort's
    parts = [line[1].split(" (")[0] for line in lines_of(shown)[5:]]
    assert parts[:4] == [
        f"Cohort: {part}" for part in ("sampling", "reference", "update", "whole step")
    ]
    assert parts[4:] == ["TRL: sampling", "TRL: whole step"]


@pytest.mark.soak
@pytest.mark.slow
def test_one_command_gives_the_memory_of_both(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_step.main(small(model, "--beta", "0", "--memory", "both"))

    (_, _, row) = lines_of(capsys.readouterr().out)
    trl, ours = (int(cell.replace(",", "")) for cell in row[1:3])
    assert float(row[3]) == pytest.approx(ours / trl, abs=0.01)


@pytest.mark.slow
def test_without_trl_cohort_is_measured_alone(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_step, "what_is_missing", lambda: "There is no trl.")
    monkeypatch.setattr(comparison, "rates_for", lambda _work, _lengths: MACHINE)
    monkeypatch.chdir(Path(model).parent)  # the Makefile's paths are relative too

    bench_step.main(small("model", "--beta", "0"))

    shown = capsys.readouterr()
    assert "There is no trl." in shown.err
    assert lines_of(shown.out)[2][1] == "–"


@pytest.mark.soak
@pytest.mark.slow
def test_growth_is_told_for_each_size(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_step.main(small(model, "--beta", "0", "--growth", "--sizes", "1x2", "2x3"))

    (_, _, first, second) = lines_of(capsys.readouterr().out)
    assert (first[1], second[1]) == ("2", "6")
    assert first[5] == "1.00 (1.00–1.00)"


@pytest.mark.slow
def test_sampling_stands_beside_generate(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_generation, "rates_for", lambda _work, _lengths: MACHINE)
    sizes = ["--prompts", "2", "--group", "2", "--new", "8", "--rounds", "1"]

    bench_generation.main(["--model", model, *sizes])

    (_, _, row) = lines_of(capsys.readouterr().out)
    assert float(row[3].split()[0]) > 0
    assert row[6].split()[0].endswith("%")
