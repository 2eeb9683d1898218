"""A server that accepts a reporter's requests and responds as Cohort does."""

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cohort.http import Server
from trainer.events import Event, parse_event


class FakeServer:
    """One run. `fail_next`: statuses of the next responses, which are errors."""

    def __init__(self) -> None:
        self.openings: list[dict[str, Any]] = []
        self.attempts: list[list[Event]] = []
        self.from_steps = [0]
        self.ended = ""
        self.num_requests = 0
        self.fail_next: list[int] = []
        self.num_to_lose = 0  # responses
        self.largest_body = 10**9
        self.tokens: set[str] = set()

    @property
    def events(self) -> list[Event]:
        return [event for events in self.attempts for event in events]

    def respond(
        self, method: str, path: str, query: dict[str, str], body: bytes
    ) -> tuple[int, Any]:
        if self.fail_next:
            return self.fail_next.pop(0), {"detail": "Not now."}
        if path == "/api/v1/external-runs":
            return self._open(json.loads(body))
        if path == "/api/v1/external-runs/7/attempts":
            self.from_steps.append(json.loads(body)["from_step"])
            self.attempts.append([])
            return 200, {"attempt": len(self.attempts)}
        if method == "GET":
            return 200, self._stored()
        return self._store(query, body)

    def _open(self, opening: dict[str, Any]) -> tuple[int, Any]:
        self.openings.append(opening)
        self.attempts = self.attempts or [[]]
        return 201, {"id": 7, "attempt": 1, "address": "http://here/alpha/runs/7/"}

    def _stored(self) -> dict[str, Any]:
        steps = [e.step for e in self.events if e.type == "step_finished"]  # type: ignore[attr-defined]
        return {
            "attempt": len(self.attempts),
            "line": len(self.attempts[-1]),
            "step": max(steps, default=0),
            "state": self.ended or "running",
        }

    def _store(self, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        if len(body) > self.largest_body:
            return 413, {"detail": "Too large."}
        attempt, first = int(query["attempt"]), int(query["first"])
        if attempt != len(self.attempts):
            return 409, {"detail": "Fenced."}
        stored = self.attempts[-1]
        if first > len(stored) + 1:
            return 409, {"detail": "A gap."}
        events = [parse_event(line) for line in gzip.decompress(body).splitlines()]
        for line, event in enumerate(events, start=first):
            assert (event.line, event.attempt) == (line, attempt)
        stored += events[len(stored) + 1 - first :]
        return 200, self._stored()


@contextmanager
def serve(fake: FakeServer) -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._do("GET")

        def do_POST(self) -> None:
            self._do("POST")

        def _do(self, method: str) -> None:
            fake.num_requests += 1
            fake.tokens.add(self.headers["Authorization"])
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            status, tree = fake.respond(method, parts.path, query, body)
            if fake.num_to_lose and method == "POST" and "first" in query:
                fake.num_to_lose -= 1
                self.close_connection = True
                return
            data = json.dumps(tree).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield Server(f"http://127.0.0.1:{http.server_port}", "secret")
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
