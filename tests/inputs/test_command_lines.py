"""A command line, or a file it names, that means nothing is refused in few words."""

import io
import json
import os
import threading
from itertools import product
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

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
    """A file, or another object, of that kind."""
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


MEANINGLESS = [
    [],
    [""],
    [BROKEN],
    ["fly"],
    ["run"],
    ["run", "a.toml"],
    ["run", "a.toml", "--out", "b", "--attempt", "x"],
    ["run", "a.toml", "--out", "b", "--resume", "--resume-from", "c"],
    ["show", ""],
    ["show", "../trl"],
    ["show", LONG],
    ["score", "--rows", "a"],
    ["score", "--preset", "none", "--rows", "a"],
    ["score", "--preset", "trl", "--recipe", "a", "--rows", "a"],
    ["score", "--preset", "trl", "--rows", "a", "--step", "9" * 5_000],
    ["presets", "--chart"],
]
IMPOSSIBLE = [
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
]


def run(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> tuple[int | str | None, list[str]]:
    """Exit code and the lines of standard error."""
    try:
        code: int | str | None = main(arguments)
    except SystemExit as end:
        code = end.code
    return code, capsys.readouterr().err.splitlines()


def test_an_invalid_configuration_file_is_named_with_its_error(tmp_path, capsys):
    wrong = []
    for kind, suffix in product([*PLACES, *CONTENTS], [".toml", ".json"]):
        folder = tmp_path / f"{kind}{suffix}"
        folder.mkdir()
        path = file_of(kind, folder, f"run{suffix}")
        for given in (["run", str(path), "--out", str(folder)], ["memory", str(path)]):
            code, lines = run(given, capsys)
            names_it = bool(lines) and lines[0].startswith((str(path), path.name))
            is_short = max(len(line) - len(str(path)) for line in lines) < 300
            if not (code == 2 and names_it and is_short and len(lines) <= 3):
                wrong.append((given[0], kind, suffix, code, lines))

    assert wrong == []


def test_an_invalid_recipe_or_rows_file_is_refused_in_one_line(tmp_path, capsys):
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps(RULES))
    wrong = []
    for kind in (*PLACES, *CONTENTS):
        folder = tmp_path / kind
        folder.mkdir()
        path = file_of(kind, folder)
        as_recipe = ["score", "--recipe", str(path), "--rows", str(recipe)]
        as_rows = ["score", "--recipe", str(recipe), "--rows", str(path)]
        found = [run(given, capsys) for given in (as_recipe, as_rows)]
        of_rows = (0, 0) if kind == "empty" else (2, 1)
        if [(code, len(lines)) for code, lines in found] != [(2, 1), of_rows]:
            wrong.append((kind, found))

    assert wrong == []


def test_invalid_arguments_are_refused(capsys):
    wrong = []
    for arguments in MEANINGLESS:
        code, lines = run(arguments, capsys)
        if code != 2 or not lines or "Traceback" in "".join(lines):
            wrong.append((arguments, code, lines))

    assert wrong == []


def test_reads_from_a_device_are_bounded(tmp_path):
    with pytest.raises(ValueError, match="1,048,576"):
        read_config(Path("/dev/zero"))


@pytest.mark.django_db
def test_manage_py_refuses_invalid_arguments(alice):
    wrong = []
    for name, *rest in IMPOSSIBLE:
        given = ["--user", *rest] if name == "sign_in_link" else rest
        message = ""
        try:
            call_command(name, *given, stdout=io.StringIO(), stderr=io.StringIO())
        except CommandError as refused:
            message = str(refused).strip()
        if not message or "\n" in message:
            wrong.append((name, rest, message))

    assert wrong == []


@pytest.mark.skipif(os.name != "posix", reason="a pipe with a name")
def test_a_configuration_may_come_through_a_pipe(tmp_path):
    pipe = tmp_path / "run.json"
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_bytes, args=(b"[]",), daemon=True).start()

    with pytest.raises(ValueError, match=r"run\.json"):
        read_config(pipe)
