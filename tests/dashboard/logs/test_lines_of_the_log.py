from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from dashboard.logs.facts import begin, bind, bound, current_facts
from dashboard.logs.lines import JsonLine, TextLine, process_name

ROOT = Path(__file__).parents[3]
KEY = "cohort_" + "k" * 43


def line_of(message: str, *args: object, error: Exception | None = None) -> str:
    exc_info = (type(error), error, error.__traceback__) if error else None
    record = logging.LogRecord(
        "dashboard.x", logging.ERROR, "x.py", 1, message, args, exc_info
    )
    return JsonLine().format(record)


def test_a_line_is_one_object_that_says_what_its_work_is_about() -> None:
    with bound(request_id="r-12345678", run=7, epoch=2, team=None):
        bind(step=40)
        line = json.loads(line_of("%s saved", "step-40"))

    assert line["time"].endswith("Z")
    assert line["level"] == "error"
    assert (line["logger"], line["message"]) == ("dashboard.x", "step-40 saved")
    assert line["pid"] > 0
    facts = {"request_id": "r-12345678", "run": 7, "epoch": 2, "step": 40}
    assert {key: line[key] for key in facts} == facts
    assert "team" not in line
    assert current_facts() == {}


def test_what_a_task_was_about_is_forgotten_with_it() -> None:
    with bound():
        begin(task="training.work", request_id="r-12345678")
        begin()

        assert current_facts() == {}


def test_an_exception_is_one_object_with_its_traceback() -> None:
    try:
        raise ValueError("line one\nline two")
    except ValueError as error:
        text = line_of("it broke", error=error)

    assert "\n" not in text
    trace = json.loads(text)["exception"]
    assert trace.startswith("Traceback (most recent call last):\n")
    assert trace.endswith("ValueError: line one\nline two")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("GET /sign-in/4f1cabcdef/ failed", "GET /sign-in/…/ failed"),
        (f"key {KEY} was refused", "key cohort_… was refused"),
        ("Authorization: Bearer abcdefghijkl", "Authorization: Bearer …"),
        ("redis://:secret@10.0.0.1/0", "redis://:…@10.0.0.1/0"),
        (
            "DETAIL:  Failing row contains (1, what a person wrote).",
            "DETAIL:  Failing row contains …",
        ),
        (
            'CONTEXT:  COPY samples_group, line 3, column prompt: "what she asked"',
            "CONTEXT:  COPY samples_group, line 3, column prompt: …",
        ),
        ("set COHORT_WEBHOOK_HOSTS to x", "set COHORT_WEBHOOK_HOSTS to x"),
    ],
)
def test_no_key_and_no_text_of_a_prompt_is_written(said: str, shown: str) -> None:
    try:
        raise RuntimeError(said)
    except RuntimeError as error:
        line = json.loads(line_of("%s", said, error=error))
    record = logging.LogRecord("x", logging.ERROR, "x.py", 1, "%s", (said,), None)

    assert line["message"] == shown
    assert line["exception"].endswith(f"RuntimeError: {shown}")
    assert TextLine().format(record).endswith(f"x: {shown}")


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["/v/uvicorn/__main__.py", "dashboard.asgi:application"], "web"),
        (["/v/celery/__main__.py", "--app", "a", "beat"], "beat"),
        (["celery", "worker", "--hostname", "training@%h"], "training worker"),
        (["manage.py", "up"], "manage.py up"),
    ],
)
def test_a_line_names_its_process(argv: list[str], name: str) -> None:
    assert process_name(argv) == name


def start(env: dict[str, str], code: str, **more: str) -> str:
    """What a process of Django's says before it ends by a fault."""
    ended = subprocess.run(
        [sys.executable, "-c", f"import django; django.setup(); {code}"],
        cwd=ROOT,
        env={**env, **more},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    return ended.stderr


def test_what_ends_a_process_is_one_object_too(app_environment: dict[str, str]) -> None:
    code = "raise RuntimeError('it ended')"

    said = start(app_environment, code, COHORT_LOG_FORMAT="json")

    line = json.loads(said)
    assert (line["level"], line["message"]) == ("critical", "RuntimeError: it ended")
    assert "Traceback" in line["exception"]


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("LOG_FORMAT", "xml", "COHORT_LOG_FORMAT must be one of text, json; got 'xml'"),
        ("LEAST_FREE_BYTES", "2G", "COHORT_LEAST_FREE_BYTES must be a whole number"),
        (
            "METRICS_TOKEN_FILE",
            "/nowhere",
            "METRICS_TOKEN_FILE: /nowhere cannot be read",
        ),
    ],
)
def test_a_setting_that_is_wrong_is_refused_in_words(
    app_environment: dict[str, str], name: str, value: str, sentence: str
) -> None:
    said = start(app_environment, "", **{f"COHORT_{name}": value})

    assert sentence in said
