import gc
import sys
from pathlib import Path

import pytest

from tests.environment import run_here
from trainer.host import load_module

LOOKS = "import gc\nLOOKED = gc.isenabled()\n"


@pytest.fixture
def modules(tmp_path, monkeypatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_garbage_is_not_looked_for_meanwhile_and_is_again_afterwards(modules):
    (modules / "loaded_so.py").write_text(LOOKS)

    module = load_module("loaded_so")

    assert not module.LOOKED
    assert gc.isenabled()


def test_it_is_looked_for_again_after_a_module_that_fails(modules):
    (modules / "fails_so.py").write_text("raise RuntimeError('as it is loaded')\n")

    with pytest.raises(RuntimeError, match="loaded"):
        load_module("fails_so")

    assert gc.isenabled()


def test_loading_a_loaded_module_freezes_nothing(modules):
    (modules / "loaded_once.py").write_text(LOOKS)
    load_module("loaded_once")
    before = gc.get_freeze_count()
    kept = [[number] for number in range(10_000)]

    load_module("loaded_once")

    assert len(kept) == 10_000
    assert gc.get_freeze_count() <= before


def test_a_trainer_sets_aside_what_it_loads():
    message = (
        "import trainer.host as l; l.load_module('trainer.parallel.launch'); import gc"
    )

    done = run_here(
        sys.executable, "-c", f"{message}; print(gc.get_freeze_count())", check=True
    )

    assert int(done.stdout) > 10_000
