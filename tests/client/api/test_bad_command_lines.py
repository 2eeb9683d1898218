"""Invalid command lines of `cohort` fail with a message and create nothing."""

import io
import os
import time

import pytest

from cohort.__main__ import main
from cohort.output import MISUSED, REFUSED
from dashboard.datasets.models import Dataset, Upload
from dashboard.runs.models import Run
from tests.inputs.test_command_lines import BROKEN, CONTENTS, LONG, PLACES, file_of

DEEP = "[" * 100_000
HUGE = "9" * 5_000
CONTROL = "a\nb\x1b[2J"

# Refused without a request.
INVALID = [
    [],
    [""],
    [BROKEN],
    ["fly"],
    ["login"],
    ["login", ""],
    ["login", LONG],
    ["login", BROKEN],
    ["login", "ftp://cohort.example.org"],
    ["login", "http://["],
    ["login", "https://a:b@cohort.example.org"],
    ["datasets"],
    ["datasets", "list", "--limit", "-1"],
    ["datasets", "list", "--limit", HUGE],
    ["datasets", "push"],
    ["datasets", "push", "rows.jsonl", "--to", "a", "--name", "b"],
    ["datasets", "push", "rows.jsonl", "--leave-out", "²"],
    ["runs", "show", "x"],
    ["runs", "show", "-1"],
    ["runs", "show", HUGE],
    ["runs", "show", ""],
    ["runs", "show", BROKEN],
    ["runs", "list", "--query", BROKEN],
    ["runs", "list", "--sort", BROKEN],
    ["runs", "watch", "1", "--every", "0"],
    ["runs", "watch", "1", "--every", "nan"],
    ["runs", "watch", "1", "--every", "inf"],
    ["runs", "watch", "1", "--from-step", "x"],
    ["runs", "launch", "--preset", "trl", "--clone", "1"],
    ["runs", "launch", "--set", "x"],
    ["runs", "launch", "--set", "=1"],
    ["groups", "show", "1"],
    ["groups", "show", "1", "x"],
    ["groups", "show", "1", "1", "-1"],
    ["completions"],
    ["completions", "x"],
    ["completions", "1", "--limit", "-1"],
    ["completions", "1", "--fly", "1"],
    ["push", "1"],
    ["push", "1", "sums"],
    ["push", "1", "/sums"],
    ["push", "1", BROKEN, "--dry-run"],
    ["completion"],
    ["completion", "tcsh"],
    ["import"],
    ["import", "wandb"],
    ["import", "wandb", "sums"],
    ["import", "wandb", "a/b/c/d"],
    ["export", "1"],
    ["export", "1", "--to", "mlflow"],
    ["sync"],
    ["sync", ""],
    ["sync", "/nowhere"],
    ["sync", "/dev/null"],
    ["sync", LONG],
    ["sync", BROKEN],
    ["verl"],
    ["verl", "--fly"],
]
# Refused by the client or the server.
REFUSABLE = [
    ["datasets", "push", "ROWS", "--name", LONG],
    ["datasets", "push", "ROWS", "--name", BROKEN],
    ["datasets", "push", "ROWS", "--to", ""],
    ["datasets", "push", "ROWS", "--to", "nothing"],
    ["datasets", "push", "ROWS", "--to", HUGE],
    ["datasets", "push", "ROWS", "--to", BROKEN],
    ["datasets", "push", "ROWS", "--prompt", "none"],
    ["datasets", "push", "ROWS", "--column", BROKEN],
    ["datasets", "push", "ROWS", "--key", BROKEN],
    ["datasets", "push", "ROWS", "--key", CONTROL],
    ["runs", "show", "999999999999999999"],
    ["runs", "list", "--query", "state ="],
    ["runs", "list", "--query", "(" * 1_000],
    ["runs", "launch"],
    ["runs", "launch", "--preset", BROKEN],
    ["runs", "launch", "--preset", "trl", "--set", f"seed={DEEP}"],
    ["runs", "launch", "--preset", "trl", "--set", "seed=nan"],
    ["runs", "launch", "--preset", "trl", "--set", "a..b=1"],
    ["runs", "launch", "--preset", "trl", "--set", f"{BROKEN}=1"],
    ["runs", "launch", "--preset", "trl", "--held-out", "="],
    ["runs", "launch", "--preset", "trl", "--dataset", f"a@{HUGE}"],
    ["runs", "launch", "--preset", "trl", "--recipe", "nothing"],
    ["runs", "launch", "--fork", "../.."],
    ["runs", "launch", "--clone", "999999999"],
    ["runs", "export", "999999999", "a.csv"],
    ["runs", "export", "RUN", "a.xyz"],
    ["runs", "export", "RUN", "/nowhere/a.csv"],
    ["runs", "export", "RUN", "ROWS"],
    ["runs", "export", "RUN", "a.csv", "--what", "x"],
    ["runs", "export", "RUN", f"{LONG}.csv"],
    ["runs", "export", "RUN", "/dev/full", "--what", "metrics", "--force"],
    ["groups", "show", "RUN", "9999999999"],
    ["completions", "999999999"],
    ["completions", "RUN", "--text", LONG],
    ["completions", "RUN", "--text", BROKEN],
    ["completions", "RUN", "--min-reward", "x"],
    ["completions", "RUN", "--sort", "-"],
    ["push", "999999999", "alice/sums", "--dry-run"],
    ["push", "RUN", "alice/sums", "--first-step", "2", "--last-step", "1", "--dry-run"],
]


@pytest.fixture
def unreachable_server(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("COHORT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("COHORT_TOKEN", "x" * 40)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr("sys.stdin", io.StringIO("a-token\n"))


def run(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> tuple[int | str | None, str]:
    """Exit code and standard error; at most 30 s and never a traceback."""
    began = time.monotonic()
    try:
        code: int | str | None = main(arguments)
    except SystemExit as end:
        code = end.code
    assert time.monotonic() - began < 30
    return code, capsys.readouterr().err


def test_an_invalid_command_line_is_refused_without_a_request(
    unreachable_server, capsys
):
    wrong = {}
    for arguments in INVALID:
        code, message = run(arguments, capsys)
        # The server's address appears only after a request to it.
        if code != MISUSED or not message.strip() or "127.0.0.1:9" in message:
            wrong[" ".join(arguments)[:60]] = (code, message[:300])

    assert wrong == {}


def test_an_invalid_file_is_named(unreachable_server, tmp_path, capsys):
    """Files that can be sent are validated by the server."""
    wrong = {}
    for number, kind in enumerate([*PLACES, *CONTENTS]):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = file_of(kind, folder, "given.toml")
        is_sent = kind in CONTENTS and kind not in ("empty", "not UTF-8", "any bytes")
        commands = []
        if kind in PLACES or kind == "empty":
            commands.append(["datasets", "push", str(path)])
        if kind != "empty" and (not is_sent or kind == "too long"):
            commands.append(["runs", "launch", "--toml", str(path)])
        for command in commands:
            code, message = run(command, capsys)
            is_one_line = len(message.splitlines()) == 1
            if code != MISUSED or not is_one_line or str(path)[:150] not in message:
                wrong[kind] = (command, code, message[:300])

    assert wrong == {}


@pytest.mark.django_db(transaction=True)
def test_a_refused_command_prints_an_error_and_creates_nothing(
    live_app, token, rows, team, monkeypatch, capsys
):
    from tests.dashboard.completions.factories import make_run

    monkeypatch.setenv("COHORT_URL", live_app)
    monkeypatch.setenv("COHORT_TOKEN", token)
    monkeypatch.chdir(rows.parent)
    made = make_run(team)
    datasets = [*Dataset.objects.all()]
    file = rows.rename(rows.with_name("pairs.jsonl"))
    names = {"ROWS": str(file), "RUN": str(made.pk)}
    wrong = {}
    for arguments in REFUSABLE:
        code, message = run([names.get(word, word) for word in arguments], capsys)
        line = " ".join(arguments)[:60]
        if code not in (MISUSED, REFUSED) or not message.strip():
            wrong[line] = (code, message[:300])

    assert wrong == {}, "\n".join(f"{k}: {v}" for k, v in wrong.items())
    assert [*Dataset.objects.all()] == datasets
    assert not Upload.objects.exists()
    assert list(Run.objects.all()) == [made]
    assert os.listdir(file.parent) == [file.name]
