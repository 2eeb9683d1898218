"""What is wrong with a command line, or a file it names, is said in a sentence."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from dashboard.accounts.models import User
from trainer.__main__ import main
from trainer.config import read_config

LONG = "x" * 5_000
BROKEN = "\udcff"  # as Python has an argument that is not UTF-8
RULES = {"rules": [{"name": "short", "kind": "length"}]}
CONTENTS = {
    "empty": b"",
    "not UTF-8": b'a = "\xff\xfe"',
    "NULs": b"\0" * 50,
    "half an object": b'{"a":',
    "a list": b"[]",
    "a number": b"5",
    "a list in a list, and so on": b"[" * 200_000,
    "an object in an object, and so on": b'{"a":' * 100_000,
    "a TOML list in a list, and so on": b"a = " + b"[" * 100_000,
    "a key of 50,000 parts": b".".join([b"a"] * 50_000) + b" = 1",
    "a number of 5,000 digits": b'{"seed": ' + b"9" * 5_000 + b"}",
    "a TOML number of 5,000 digits": b"seed = " + b"9" * 5_000,
    "any bytes": bytes(range(256)) * 4,
    "half a character": b'{"data": {"rows": "\\ud800"}}',
    "too long": b" " * (33 * 2**20),
}


def file_of(kind: str, folder: Path, name: str = "given") -> Path:
    """A file of that kind, or whatever else has its name."""
    path = folder / name
    if kind in CONTENTS:
        path.write_bytes(CONTENTS[kind])
    elif kind == "a folder":
        path.mkdir()
    elif kind == "a link to itself":
        path.symlink_to(path)
    elif kind == "beneath a file":
        path.touch()
        path /= f"more{path.suffix}"
    elif kind == "a name without an end":
        path = folder / f"{LONG}{path.suffix}"
    elif kind == "a device without an end":
        path.symlink_to("/dev/zero")
    elif kind == "memory":
        path.symlink_to("/proc/self/mem")
    return path


PLACES = (
    "missing", "a folder", "a link to itself", "beneath a file",
    "a name without an end", "a device without an end", "memory",
)  # fmt: skip


def run(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> tuple[int | str | None, str]:
    """Exit status and what was said; in at most two seconds of a core."""
    began, computed = time.monotonic(), time.process_time()
    try:
        code: int | str | None = main(arguments)
    except SystemExit as end:
        code = end.code
    assert time.process_time() - computed < 2
    assert time.monotonic() - began < 30
    return code, capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".toml", ".json"])
@pytest.mark.parametrize("kind", [*PLACES, *CONTENTS])
def test_a_file_that_is_no_configuration_is_named_with_what_is_wrong(
    kind: str, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_of(kind, tmp_path, f"run{suffix}")

    for command in (["run", str(path), "--out", str(tmp_path)], ["memory", str(path)]):
        code, said = run(command, capsys)

        assert code == 2
        assert said.startswith((str(path), path.name))
        lengths = [len(line) - len(str(path)) for line in said.splitlines()]
        assert max(lengths) < 300, said[:1_000]
        assert len(said.splitlines()) <= 3


@pytest.mark.parametrize("kind", [*PLACES, *CONTENTS])
def test_a_file_that_is_no_recipe_or_no_rows_is_refused(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps(RULES))
    path = file_of(kind, tmp_path)

    code, said = run(["score", "--recipe", str(path), "--rows", str(recipe)], capsys)
    assert (code, len(said.splitlines())) == (2, 1), said[:1_000]

    code, said = run(["score", "--recipe", str(recipe), "--rows", str(path)], capsys)
    if kind == "empty":
        assert (code, said) == (0, "")
    else:
        assert (code, len(said.splitlines())) == (2, 1), said[:1_000]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        [""],
        [BROKEN],
        ["fly"],
        ["run"],
        ["run", "a.toml"],
        ["run", "a.toml", "--out", "b", "--epoch", "x"],
        ["run", "a.toml", "--out", "b", "--resume", "--resume-from", "c"],
        ["show", ""],
        ["show", "../trl"],
        ["show", LONG],
        ["score", "--rows", "a"],
        ["score", "--preset", "none", "--rows", "a"],
        ["score", "--preset", "trl", "--recipe", "a", "--rows", "a"],
        ["score", "--preset", "trl", "--rows", "a", "--step", "9" * 5_000],
        ["presets", "--chart"],
    ],
    ids=lambda arguments: " ".join(arguments)[:40].encode("ascii", "replace").decode(),
)
def test_arguments_that_mean_nothing_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = run(arguments, capsys)

    assert code == 2
    assert said
    assert "Traceback" not in said


def test_what_is_read_of_a_device_is_bounded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="more than 1,048,576 bytes"):
        read_config(Path("/dev/zero"))


@pytest.fixture
def people(alice: User) -> User:
    return alice


@pytest.mark.django_db
@pytest.mark.parametrize(
    "arguments",
    [
        *(
            [name, who, *more]
            for name, *more in (
                ["operator"],
                ["deactivate"],
                ["erase_person"],
                ["export_person", "x"],
                ["quota"],
                ["sign_in_link"],
            )
            for who in ("nobody", "", LONG, BROKEN, "a\nb")
        ),
        ["quota", "alpha", "--storage", "much"],
        ["quota", "alpha", "--storage", "9" * 40 + "TB"],
        ["quota", "alpha", "--storage", "9" * 5_000],
        ["quota", "alpha", "--runs", "-1"],
        ["quota", "alpha", "--runs", "9" * 5_000],
        ["quota", "alpha", "--runs", "²"],
        ["fill_rollups", "--run", "9" * 30],
        ["fill_rollups", "--run", "-1"],
        ["fill_rollups", "--run", "x"],
        ["backup"],
        ["backup", "/dev/full/x.tar"],
        ["backup", f"/tmp/{LONG}.tar"],
        ["backup", "--into", "/dev/null"],
        ["backup", "--into", "/tmp", "--keep", "0"],
        ["backup", "--into", "/tmp", "--every", "x"],
        ["restore"],
        ["restore", "/nowhere.tar"],
        ["restore", "/dev/null"],
        ["restore", "/dev/zero"],
        ["restore", "/tmp"],
        ["restore", f"/tmp/{LONG}.tar"],
        ["restore", f"/tmp/{BROKEN}.tar"],
    ],
    ids=lambda arguments: " ".join(arguments)[:50].encode("ascii", "replace").decode(),
)
def test_a_command_of_manage_py_refuses_what_it_cannot_do(
    arguments: list[str], people: User
) -> None:
    name, *rest = arguments
    if name == "sign_in_link":
        rest = ["--user", *rest]

    with pytest.raises(CommandError) as refused:
        call_command(name, *rest, stdout=io.StringIO(), stderr=io.StringIO())

    said = str(refused.value)
    assert said
    assert "\n" not in said.strip()


@pytest.mark.skipif(os.name != "posix", reason="a pipe with a name")
def test_a_configuration_may_come_through_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "run.json"
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_bytes, args=(b"[]",), daemon=True).start()

    with pytest.raises(ValueError, match=r"run\.json, all: Input should be"):
        read_config(pipe)
