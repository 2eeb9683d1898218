import io
import json
import logging
import sys
import time
from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction
from django.test import Client

from dashboard.datasets.models import Dataset
from dashboard.observability.logging import (
    JsonLine,
    TextLine,
    begin,
    bind,
    bound,
    current_facts,
    process_name,
    redact,
)
from dashboard.project.environment import read_environment
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import make_run
from tests.environment import run_here

KEY = "cohort_" + "k" * 43


def line_of(message: str, *args: object, error: Exception | None = None) -> str:
    exc_info = (type(error), error, error.__traceback__) if error else None
    record = logging.LogRecord(
        "dashboard.x", logging.ERROR, "x.py", 1, message, args, exc_info
    )
    return JsonLine().format(record)


def test_a_line_is_one_object_with_its_context():
    with bound(request_id="r-12345678", run=7, attempt=2, team=None):
        bind(step=40)
        line = json.loads(line_of("%s saved", "step-40"))

    assert line["time"].endswith("Z")
    assert line["level"] == "error"
    assert (line["logger"], line["message"]) == ("dashboard.x", "step-40 saved")
    assert line["pid"] > 0
    facts = {"request_id": "r-12345678", "run": 7, "attempt": 2, "step": 40}
    assert {key: line[key] for key in facts} == facts
    assert "team" not in line
    assert current_facts() == {}


def test_the_context_ends_with_the_task():
    with bound():
        begin(task="training.work", request_id="r-12345678")
        begin()

        assert current_facts() == {}


def test_an_exception_is_one_object_with_its_traceback():
    try:
        raise ValueError("one\ntwo")
    except ValueError as error:
        text = line_of("it broke", error=error)

    assert "\n" not in text
    trace = json.loads(text)["exception"]
    assert trace.startswith("Traceback ")
    assert trace.endswith("ValueError: one\ntwo")


WRITTEN = [
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
    (
        "DETAIL:  Failing row contains (1, 2 + 2\n\nHINT: 4, 3).\nHINT:  Ask.",
        "DETAIL:  Failing row contains …\nHINT:  Ask.",
    ),
    (
        'CONTEXT:  COPY a, line 3, column b: "what\nshe"\nQUERY:  SELECT 1',
        "CONTEXT:  COPY a, line 3, column b: …\nQUERY:  SELECT 1",
    ),
    (
        "DETAIL:  Key (email)=(a) already exists.\nb@c) already exists.",
        "DETAIL:  Key (email)=(…) already exists.",
    ),
    (
        'DETAIL:  Key (a, lower(b))=(1, c\nd) is not present in table "e".',
        'DETAIL:  Key (a, lower(b))=(…) is not present in table "e".',
    ),
    ("Key (a)=(b, of which no more is known", "Key (a)=(…"),
    ("set COHORT_WEBHOOK_HOSTS to x", "set COHORT_WEBHOOK_HOSTS to x"),
]


def test_no_key_and_no_text_of_a_prompt_is_written():
    for said, shown in WRITTEN:
        line = json.loads(line_of("%s", said, error=RuntimeError(said)))
        record = logging.LogRecord("x", logging.ERROR, "x.py", 1, "%s", (said,), None)

        assert line["message"] == shown
        assert line["exception"].endswith(f"RuntimeError: {shown}")
        assert TextLine().format(record).endswith(f"x: {shown}")


@pytest.mark.django_db
@pytest.mark.parametrize(("run_id", "run"), [("7", 7), ("²", None), ("9" * 19, None)])
def test_a_request_is_logged_with_any_run_parameter(monkeypatch, run_id, run):
    monkeypatch.setattr("dashboard.observability.requests.SLOW_SECONDS", 0)
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonLine())
    logger = logging.getLogger("dashboard.observability.requests")
    logger.addHandler(handler)
    try:
        Client().get(f"/api/v1/runs/{run_id}", headers={"host": "localhost"})
    finally:
        logger.removeHandler(handler)

    line = json.loads(written.getvalue())
    assert line["message"].split()[:4:3] == ["GET", "401"]
    assert line.get("run") == run


def test_client_errors_are_not_logged_as_errors(caplog):
    answer = Client().get("/sign-in/", headers={"host": "evil.example"})

    assert answer.status_code == 400
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []


@pytest.mark.django_db
def test_a_rejected_form_logs_the_reason(caplog):
    client = Client(enforce_csrf_checks=True)

    client.post("/sign-in/", headers={"origin": "https://evil.example"})

    assert "https://evil.example" in caplog.text


@pytest.mark.django_db
def test_both_lines_of_a_refused_row_are_hidden(team):
    run = make_run(team)
    changes = {"finished_at": run.created_at - timedelta(days=1), "name": "a\nsecret"}

    with pytest.raises(IntegrityError) as raised, transaction.atomic():
        Run.objects.filter(pk=run.pk).update(**changes)

    assert "secret" in str(raised.value)
    trace = json.loads(line_of("it broke", error=raised.value))["exception"]
    assert "secret" not in trace
    assert trace.count("Failing row contains …") == 2
    assert trace.count("Traceback ") == 2


@pytest.mark.django_db
def test_an_existing_name_is_not_logged(team):
    name = "one\nsecret"
    Dataset.objects.create(team=team, name=name)

    with pytest.raises(IntegrityError) as raised, transaction.atomic():
        Dataset.objects.create(team=team, name=name)

    assert "secret" in str(raised.value)
    trace = json.loads(line_of("it broke", error=raised.value))["exception"]
    assert "secret" not in trace
    assert trace.endswith("=(…) already exists.")


@pytest.mark.parametrize(
    "said", ["COPY a, line 1", "Key (a)=(", "Key (", "Failing row contains \n\n"]
)
def test_a_long_text_is_quietened_soon(said):
    began = time.process_time()

    redact(said * 30_000)

    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["/v/uvicorn/__main__.py", "dashboard.asgi:application"], "web"),
        (["/v/celery/__main__.py", "--app", "a", "beat"], "beat"),
        (["celery", "worker", "--hostname", "training@%h"], "training worker"),
        (["manage.py", "up"], "manage.py up"),
    ],
)
def test_a_line_names_its_process(argv, name):
    assert process_name(argv) == name


def test_a_fatal_exception_is_one_object(app_environment):
    code = "import django; django.setup(); raise RuntimeError('it ended')"

    ended = run_here(
        sys.executable, "-c", code, env=app_environment | {"COHORT_LOG_FORMAT": "json"}
    )

    assert ended.returncode == 1
    line = json.loads(ended.stderr)
    assert (line["level"], line["message"]) == ("critical", "RuntimeError: it ended")
    assert "Traceback" in line["exception"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("COHORT_LOG_FORMAT", "xml"),
        ("COHORT_LEAST_FREE_BYTES", "2G"),
        ("COHORT_METRICS_TOKEN_FILE", "/nowhere"),
    ],
)
def test_a_setting_that_is_wrong_is_refused_by_its_name_and_value(
    monkeypatch, name, value
):
    monkeypatch.setenv(name, value)

    with pytest.raises(ValueError, match=f"{name}.*{value}"):
        read_environment()
