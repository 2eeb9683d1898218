"""`cohort` as a subprocess, against a real web process."""

import json
import os
import signal

import pytest
from django.utils import timezone

from cohort.commands import COLUMNS
from tests.client.api.processes import Cohort
from tests.client.api.test_client_api import COUNTDOWN
from tests.dashboard.completions.factories import (
    make_checkpoint,
    make_recipe,
    make_run,
)
from tests.dashboard.supervision.logs import LogBuilder
from tests.dashboard.supervision.sending import send


@pytest.fixture
def cohort(live_app, token, tmp_path) -> Cohort:
    return Cohort(live_app, token, tmp_path)


def test_a_file_is_pushed_and_a_run_on_it_is_launched_and_cancelled(cohort, team, rows):
    recipe = make_recipe(team, rules=[COUNTDOWN]).recipe.name

    pushed = cohort("datasets", "push", rows, "--name", "adding")
    taken = cohort("datasets", "push", rows, "--name", "adding")
    listed = cohort("--json", "datasets", "list")
    command = ["runs", "launch", "--preset", "dr-grpo", "--model", "models/tiny"]
    command += ["--recipe", recipe, "--set", "optim.num_steps=7", "--json"]
    warned = cohort(*command)
    make_recipe(team, name="other")
    unnamed = cohort("runs", "launch", "--preset", "dr-grpo")
    run = cohort.json(*command, "--yes", "--name", "mine")[0]
    cancelled = cohort("runs", "cancel", run["id"])
    watched = cohort("runs", "watch", f"{cohort.url}/alpha/runs/{run['id']}/config/")
    again = cohort("runs", "cancel", run["id"])
    resumed = cohort("runs", "resume", run["id"])
    extended = cohort("runs", "extend", run["id"])

    assert pushed.stdout.startswith("adding@1 has 40 ")
    assert taken.returncode == 1
    assert "--to " in taken.stderr
    assert json.loads(listed.stdout)["name"] == "adding"
    assert (warned.returncode, warned.stdout) == (1, "")
    assert warned.stderr.count("--yes") == len(warned.stderr.splitlines()) == 1
    assert unnamed.returncode == 1
    assert "--recipe NAME" in unnamed.stderr
    assert (run["name"], run["num_steps"]) == ("mine", 7)
    assert cancelled.returncode == 0
    assert watched.returncode == 3
    assert "step 0 of 7" in watched.stdout
    assert (again.returncode, again.stdout) == (1, "")
    assert "stopped" in again.stderr
    assert (resumed.returncode, extended.returncode) == (1, 1)
    assert "Extend" in resumed.stderr
    assert "no checkpoint" in extended.stderr
    processes = [pushed, taken, warned, unnamed, cancelled, watched, again]
    assert not any(cohort.token in p.stdout + p.stderr for p in processes)


def test_checkpoints_are_listed_and_named(cohort, team):
    run = make_run(team)
    make_checkpoint(run, step=4)
    make_checkpoint(run, step=8, deleted_at=timezone.now())

    table = cohort("checkpoints", "list", run.pk).stdout.splitlines()
    listed = cohort.json("checkpoints", "list", run.pk)
    lost = cohort("checkpoints", "get", run.pk, "best")

    assert [line.split()[0] for line in table[1:]] == [c["name"] for c in listed]
    assert [c["step"] for c in listed] == [8, 4]
    assert lost.returncode == 2
    assert "best" in lost.stderr


def test_a_run_is_watched_shown_and_exported(cohort, open_external, tmp_path):
    shown = open_external()
    log = LogBuilder().stepped(1)
    send(shown, log)

    with cohort.start(
        "runs", "watch", shown.pk, "--json", "--every", "0.1"
    ) as watching:
        assert watching.stdout
        lines = map(json.loads, watching.stdout)
        first = [next(lines), next(lines)]
        send(shown, log.stepped(2).failed("Out of memory."), first=4)
        rest = list(lines)
    table = cohort("groups", "show", shown.pk, 2)
    group = cohort.json("groups", "show", shown.pk, 2, 1)[0]
    read = cohort("groups", "show", shown.pk, 2, 1)
    exported = cohort("runs", "export", shown.pk, tmp_path / "all.jsonl")
    piped = cohort("runs", "export", shown.pk, "-", "--what", "metrics.jsonl")
    runs = cohort("runs", "list")

    assert watching.returncode == 4
    assert [one["event"] for one in first] == ["state", "step"]
    assert [one["state"] for one in rest if one["event"] == "state"] == ["failed"]
    assert first[1]["values"]["loss"] == -0.1
    assert [one["step"] for one in rest if one["event"] == "step"] == [2]
    assert "1  mixed    0.5  0.7  prompt 1" in table.stdout
    assert [one["text"] for one in group["completions"]] == ["yes", "no"]
    assert "Completion 2  reward 1  advantage 0.5" in read.stdout
    assert exported.returncode == 0
    assert (tmp_path / "all.jsonl").read_text() == piped.stdout
    assert [json.loads(one)["step"] for one in piped.stdout.splitlines()] == [1, 2]
    assert runs.stdout.splitlines()[0].split() == list(COLUMNS)
    assert "failed" in runs.stdout.splitlines()[1]


def test_an_error_names_the_invalid_value(cohort, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"question": "1", "answer": "1"}\n{"question": \n')

    no_run = cohort("runs", "watch", 999)
    no_file = cohort("datasets", "push", tmp_path / "none.jsonl")
    bad_file = cohort("datasets", "push", bad)
    misspelt = cohort("runs", "show", "seven")
    no_token = Cohort(cohort.url, "cohort_wrong", tmp_path)("runs", "list")

    codes = [one.returncode for one in (no_run, no_file, bad_file, misspelt)]
    assert codes == [1, 2, 1, 2]
    assert "999" in no_run.stderr
    assert "none.jsonl" in no_file.stderr
    assert "Line 2" in bad_file.stderr
    assert "--leave-out 1" in bad_file.stderr
    assert "'seven'" in misspelt.stderr
    assert no_token.returncode == 1
    assert "cohort login" in no_token.stderr
    processes = [no_run, no_file, bad_file, misspelt, no_token]
    assert not any("Traceback" in p.stderr for p in processes)
    assert not any("cohort_wrong" in p.stderr for p in processes)
    assert [p.stdout for p in processes] == [""] * 5


def test_ctrl_c_and_a_closed_pipe_end_a_command_without_a_traceback(
    cohort, open_external
):
    shown = open_external()
    send(shown, LogBuilder().stepped(1))

    with cohort.start("runs", "watch", shown.pk) as watching:
        assert watching.stdout
        assert watching.stdout.readline() == f"run {shown.pk} running\n"
        assert watching.stdout.readline().startswith("step 1/20  reward 0.1")
        watching.send_signal(signal.SIGINT)
        out, err = watching.communicate(timeout=60)
    reading, writing = os.pipe()
    os.close(reading)
    left = cohort.start("runs", "list", stdout=writing)
    os.close(writing)
    left_err = left.communicate(timeout=60)[1]

    assert watching.returncode == 130
    assert out == ""
    assert f"run {shown.pk}" in err
    assert (left.returncode, left_err) == (141, "")
