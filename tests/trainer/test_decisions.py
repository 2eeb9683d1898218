"""Figures that a decision rests on are those that its simulation gives."""

from __future__ import annotations

from tests.bench.several_gpus import bytes_of_a_token, table, table_apart
from tests.trainer.tiny import ROOT

DECISION = ROOT / "trainer" / "decisions" / "0001-what-moves-between-processes.md"


def test_the_table_of_several_gpus_is_the_simulations_own() -> None:
    for own in (table(), table_apart()):
        assert own in DECISION.read_text(encoding="utf-8"), (
            "Put the output of `python -m tests.bench.several_gpus` into the decision."
        )


def test_a_tokens_size_is_the_one_told() -> None:
    assert f"about {bytes_of_a_token():.0f} bytes a token" in DECISION.read_text(
        encoding="utf-8"
    )
