"""What really arrives at Sentry and at a collector: a receiver of ours on loopback."""

import gzip
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)

from dashboard.observability.tracing import scrub
from tests.environment import run_here

SECRET = "what-she-asked-the-model"
PROCESS = """
import django; django.setup()
import logging, sentry_sdk
from django.test import Client
from opentelemetry import trace
from dashboard.celery import app
from dashboard.observability.logging import bound
from dashboard.observability.tracing import begin_reporting

@app.task(name="a.task")
def work(prompt):
    raise RuntimeError("Failing row contains (what-she-asked-the-model).")

with bound(request_id="r-of-a-test"):
    Client().get("/healthz", headers={"host": "localhost"})
    with bound(run=7, user=3):
        logging.getLogger("x").error("GET /sign-in/what-she-asked-the-model/ failed")
        work.apply(args=["what-she-asked-the-model"])
sentry_sdk.flush(5)
trace.get_tracer_provider().force_flush()
"""


class Receiver:
    def __init__(self) -> None:
        self.bodies: list[tuple[str, bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.bodies.append((self.path, body))
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.server_port}"

    def events(self) -> list[dict[str, Any]]:
        """Of Sentry's envelopes: lines of JSON, a header before each item."""
        found = []
        for path, body in self.bodies:
            if path.endswith("/envelope/"):
                lines = [json.loads(line) for line in body.split(b"\n") if line]
                kinds = zip(lines[1::2], lines[2::2], strict=False)
                found += [item for head, item in kinds if head["type"] == "event"]
        return found

    def spans(self) -> list[Any]:
        found = []
        for path, body in self.bodies:
            if path == "/v1/traces":
                sent = ExportTraceServiceRequest.FromString(body)
                for resource in sent.resource_spans:
                    for scope in resource.scope_spans:
                        found += scope.spans
        return found


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


def run(env: dict[str, str], code: str = PROCESS) -> str:
    ended = run_here(sys.executable, "-c", code, env=env)
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


@pytest.mark.slow
def test_errors_and_spans_contain_no_user_text(app_environment, receiver):
    env = {
        **app_environment,
        "COHORT_SENTRY_DSN": f"http://key@{receiver.address}/7",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{receiver.address}",
    }

    run(env)

    events = receiver.events()
    [logged] = [event for event in events if event.get("logger") == "x"]
    assert logged["tags"]["request_id"] == "r-of-a-test"
    assert logged["tags"]["run"] == "7"
    assert logged["user"] == {"id": "3"}
    kinds = [e["exception"]["values"][0]["type"] for e in events if "exception" in e]
    assert "RuntimeError" in kinds
    spans = {span.name: span for span in receiver.spans()}
    attributes = {a.key: a.value for a in spans["healthz"].attributes}
    status = attributes["http.response.status_code"]
    assert status.int_value == 200
    assert attributes["cohort.request_id"].string_value == "r-of-a-test"
    assert "a.task" in spans
    message = b"".join(body for _, body in receiver.bodies)
    assert SECRET.encode() not in message


SPANS = """
import django; django.setup()
from opentelemetry import trace
from dashboard.observability.tracing import begin_reporting
from dashboard.observability.tracing import span
begin_reporting()
with span("a span"):
    pass
trace.get_tracer_provider().force_flush()
"""


@pytest.mark.slow
@pytest.mark.parametrize("with_own", [False, True])
def test_spans_use_the_endpoint_file_unless_they_have_their_own(
    app_environment, receiver, tmp_path, with_own
):
    file = tmp_path / "endpoint"
    file.write_text(f"http://{receiver.address}/otlp/\n")
    env = {**app_environment, "OTEL_EXPORTER_OTLP_ENDPOINT_FILE": str(file)}
    env.pop("OTEL_EXPORTER_OTLP_ENDPOINT", None)
    if with_own:
        own = f"http://{receiver.address}/of/spans"
        env["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = own

    run(env, SPANS)

    [(path, body)] = receiver.bodies
    assert path == ("/of/spans" if with_own else "/otlp/v1/traces")
    assert b"a span" in body


@pytest.mark.slow
def test_a_missing_package_is_reported_and_nothing_else_fails(app_environment):
    env = {
        **app_environment,
        "COHORT_SENTRY_DSN": "http://key@127.0.0.1:9/7",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
    }
    code = (
        "import sys; sys.modules['sentry_sdk'] = sys.modules['opentelemetry'] = None\n"
        "import django; django.setup()\nimport dashboard.celery\n"
    )

    said = run(env, code)

    assert "COHORT_SENTRY_DSN" in said
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in said
    assert "pip install '.[observe]'" in said


@pytest.mark.slow
def test_nothing_is_loaded_without_configuration(app_environment):
    code = (
        "import django; django.setup()\nimport dashboard.celery, sys\n"
        "assert not {'sentry_sdk', 'opentelemetry'} & set(sys.modules)\n"
    )

    run(app_environment, code)


def test_spans_of_requests_contain_only_the_method():
    event = {
        "request": {
            "method": "POST",
            "url": f"https://x/sign-in/{SECRET}/",
            "query_string": SECRET,
            "cookies": {"cohort_session": SECRET},
            "headers": {"Authorization": f"Bearer {SECRET}"},
        },
        "user": {"username": SECRET, "ip_address": "192.0.2.7"},
        "breadcrumbs": {"values": [{"message": SECRET}]},
        "extra": {"sys.argv": [SECRET]},
        "message": f"GET /public/{SECRET} failed",
    }

    sent = scrub(event, {})

    assert SECRET not in json.dumps(sent)
    assert sent["request"] == {"method": "POST"}
