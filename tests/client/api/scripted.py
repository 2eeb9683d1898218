"""A server with scripted responses."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cohort import Client

VERSION = {
    "id": 12,
    "dataset_id": 4,
    "dataset": "sums",
    "number": 2,
    "num_rows": 1,
    "num_left_out": 0,
    "content_sha256": "0",
    "mapping": {},
    "source_text": "",
    "created_at": "2026-03-01T12:00:00Z",
}
IMPORT = {
    "id": 3,
    "state": "running",
    "filename": "sums.jsonl",
    "done": 1,
    "total": 2,
    "unit": "bytes",
    "version": None,
    "error": "",
    "refusals": {},
}


class Scripted:
    """Sends its responses in turn: (status, headers, body)."""

    def __init__(self, *responses: tuple[int, dict[str, str], Any]) -> None:
        self.responses = list(responses)
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                scripted.requests.append((self.path, dict(self.headers), sent))
                status, headers, body = scripted.responses.pop(0)
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in {
                    "Content-Length": str(len(data)),
                    **headers,
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_PUT = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))
        self.thread.start()

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    def client(self, retries: int = 2) -> Client:
        return Client(self.url, "cohort_secret", retries=retries)


def run_tree() -> dict[str, Any]:
    numbers = ("last_step", "num_steps", "attempt")
    tree: dict[str, Any] = dict.fromkeys(numbers, 1)
    tree |= dict.fromkeys(("name", "model", "notes", "fail_reason"), "")
    tree |= dict.fromkeys(("pause_reason", "stop_reason"), "")
    nothing = ("owner", "dataset_version", "recipe_version", "sweep_id")
    tree |= dict.fromkeys((*nothing, "last_reward", "best_reward", "fork_step"))
    tree |= dict.fromkeys(("cloned_from_id", "forked_from_id"))
    tree |= dict.fromkeys(("is_imported", "is_locked"), False)
    tree |= dict.fromkeys(("is_archived", "is_trashed"), False)
    tree |= {"created_at": "2026-03-01T12:00:00Z", "started_at": None}
    return tree | {
        "id": 7,
        "state": "finished",
        "finished_at": None,
        "tags": [],
        "config": {},
    }
