"""`cohort completion`: its candidates, and its scripts in real shells."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cohort import completion
from cohort.__main__ import main, make_parser
from cohort.http import Server, save_login
from tests.client.api.scripted import Scripted, run_tree
from tests.environment import python_path

RUNS = [(12, "calm: otter", "running"), (9, "$(id)\t'x", "failed")]
SETUP = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        'eval "$(cohort completion bash)"',
    ),
    "zsh": (
        ["zsh", "-f", "-i"],
        'autoload -U compinit; compinit -u; eval "$(cohort completion zsh)"',
    ),
    "fish": (["fish", "--no-config", "-i"], "cohort completion fish | source"),
}


def page_of_runs() -> tuple[int, dict[str, str], Any]:
    items = [run_tree() | {"id": i, "name": n, "state": s} for i, n, s in RUNS]
    return 200, {}, {"items": items, "next_cursor": None}


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "cohort"


def candidates(*words: str) -> list[str]:
    return [value for value, _ in completion.list_candidates(make_parser(), words)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["compl"], ["completions", "completion"]),
        (["runs", "st"], ["stop"]),
        (["--json", "runs", "la"], ["launch"]),
        (["completion", "z"], ["zsh"]),
        (["runs", "launch", "--to"], ["--toml"]),
        (["runs", "launch", "--set", "a=1", "--ye"], ["--yes"]),
        (["datasets", "push", "--last-reply", "p"], ["prefill"]),
        (["datasets", "push", ""], []),  # a file
        (["runs", "launch", "--toml", ""], []),
        (["fly", ""], []),
    ],
)
def test_candidates_come_from_the_parser(words, expected):
    assert candidates(*words) == expected


def test_runs_are_asked_for_once_a_minute(cache, monkeypatch, capsys):
    with Scripted(page_of_runs(), page_of_runs(), (503, {}, b"")) as server:
        save_login(Server(server.url, "t"))
        assert candidates("runs", "show", "") == ["12", "9"]
        assert candidates("runs", "launch", "--clone", "1") == ["12"]
        assert main(["complete", "--", "push", "9"]) == 0
        assert capsys.readouterr().out == "9\t$(id) 'x, failed\n"
        assert len(server.requests) == 1

        [file] = cache.iterdir()
        os.utime(file, (0, 0))
        assert candidates("runs", "show", "") == ["12", "9"]
        os.utime(file, (0, 0))
        assert candidates("runs", "show", "") == []
        assert candidates("runs", "show", "") == []  # does not wait again
        assert len(server.requests) == 3


def test_without_a_login_no_runs_are_offered(cache):
    assert candidates("runs", "show", "") == []
    assert not cache.exists()


@pytest.mark.parametrize("shell", SETUP)
def test_its_script_completes_in_a_shell(shell, tmp_path):
    if not (shutil.which(shell) and shutil.which("setsid")):
        pytest.skip(f"{shell} or setsid is not installed")
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    command = f'{sys.executable} -m cohort "$@"'
    # What is completed is not done.
    (bin_ / "cohort").write_text(
        f'#!/bin/sh\ncase "$1" in compl*) exec {command};; esac\necho "RAN:$*:"\n'
    )
    (bin_ / "cohort").chmod(0o755)
    (tmp_path / "rows.jsonl").touch()
    with Scripted(page_of_runs()) as server:
        environment = {
            "PATH": f"{bin_}:{os.environ['PATH']}",
            "PYTHONPATH": python_path(),
            "HOME": str(tmp_path),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "COHORT_URL": server.url,
            "COHORT_TOKEN": "t",
            "TERM": "dumb" if shell == "bash" else "vt100",
            "PS1": "$ ",
        }
        program, setup = SETUP[shell]
        with Typed(program, environment, tmp_path) as typed:
            typed.enter(setup)
            assert typed.line("cohort runs sh\t1\t") == "runs show 12"
            assert typed.line("cohort runs launch --prese\tx") == (
                "runs launch --preset x"
            )
            assert typed.line("cohort datasets push row\t") == (
                "datasets push rows.jsonl"
            )
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (37, "12\n9\n"),  # menu-complete
        (42, "12\n9\n"),  # insert-completions
        (63, "12  calm: otter, running\n9  $(id) 'x, failed\n"),  # a list
    ],
)
def test_names_of_runs_are_listed_and_never_inserted(kind, expected, tmp_path):
    (tmp_path / "cohort").write_text(
        "#!/bin/sh\n"
        "printf '12\\tcalm: otter, running\\n'\n"
        'echo "9\t\\$(id) \'x, failed"\n'
    )
    (tmp_path / "cohort").chmod(0o755)
    lines = [
        completion.SCRIPTS["bash"],
        f"COMP_WORDS=(cohort runs show '') COMP_CWORD=3 COMP_TYPE={kind}",
        "_cohort cohort",
        'printf "%s\\n" "${COMPREPLY[@]}"',
    ]

    shown = subprocess.run(
        [str(shutil.which("bash")), "-c", "\n".join(lines)],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert shown.stdout == expected


class Typed:
    """A shell on a terminal, and what is typed into it."""

    def __init__(self, command: list[str], environment: Any, folder: Path) -> None:
        self._terminal, its_end = pty.openpty()
        self._shell = subprocess.Popen(
            # fish needs a terminal that controls it.
            [str(shutil.which("setsid")), "--ctty", *command],
            env=environment,
            cwd=folder,
            stdin=its_end,
            stdout=its_end,
            stderr=its_end,
        )
        os.close(its_end)
        self._output = b""

    def enter(self, keys: str) -> None:
        os.write(self._terminal, f"{keys}\n".encode())

    def line(self, keys: str) -> str:
        """Return the arguments that `cohort` ran with."""
        self.enter(keys)
        began = time.monotonic()
        while self._output.count(b"RAN:") < 1 or b":" not in self._rest():
            ready, _, _ = select.select([self._terminal], [], [], 1.0)
            if ready:
                self._output += os.read(self._terminal, 4096)
            assert time.monotonic() - began < 60, self._output
        arguments, _, self._output = self._rest().partition(b":")
        return arguments.decode()

    def _rest(self) -> bytes:
        return self._output.partition(b"RAN:")[2]

    def __enter__(self) -> Typed:
        return self

    def __exit__(self, *_: object) -> None:
        self._shell.kill()
        self._shell.wait()
        os.close(self._terminal)
