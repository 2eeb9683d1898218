"""The command line, and what it does without torch."""

import sys

import pytest

from tests.environment import run_here
from trainer.__main__ import COMMANDS, main


def test_config_events_and_presets_load_no_torch():
    program = (
        "import sys, trainer.config, trainer.events, trainer.rewards.scoring\n"
        "from trainer.__main__ import main\n"
        "main(['presets'])\n"
        "assert 'torch' not in sys.modules, 'torch was loaded'\n"
    )

    done = run_here(sys.executable, "-c", program)

    assert done.returncode == 0, done.stderr


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["--help"])

    assert exit_.value.code == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)


def test_an_unknown_command_is_refused(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["fly"])

    assert exit_.value.code == 2
    assert "invalid choice: 'fly'" in capsys.readouterr().err
