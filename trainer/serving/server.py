"""HTTP server of a model, and its command."""

from __future__ import annotations

import argparse
import hmac
import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import transformers

from trainer.serving.client import is_private, read_or_make_token

HEALTH = "/healthz"
_JSON = "application/json"
_MAX_DISCARDED = 2**30


def gpus_of(device: torch.device, *, number: int = 1) -> dict[str, Any]:
    """Tell a server's GPUs: their name and number."""
    if device.type != "cuda":
        return {"name": device.type, "count": 0}
    return {"name": torch.cuda.get_device_name(device), "count": number}


class ModelServer(ThreadingHTTPServer):
    """Listens on one address, for clients that send the token.

    At most `max_unauthenticated` connections, each with a thread, wait at a time for
    their token, each for at most `handshake_seconds`.
    """

    daemon_threads = False  # closing waits until all requests are answered
    request_queue_size = 128
    max_unauthenticated = 64
    handshake_seconds = 30.0

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[RequestHandler],
        *,
        token: str,
        max_request_bytes: int,
    ) -> None:
        self.authorization = f"Bearer {token}".encode()
        self.max_request_bytes = max_request_bytes
        self._unauthenticated: dict[socket.socket, float] = {}  # and when they came
        self._unauthenticated_lock = threading.Lock()
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)  # closes this again when it cannot listen

    def verify_request(self, request: Any, client_address: Any) -> bool:
        with self._unauthenticated_lock:
            if len(self._unauthenticated) >= self.max_unauthenticated:
                return False
            self._unauthenticated[request] = time.monotonic()
            return True

    def mark_authenticated(self, connection: socket.socket) -> None:
        """Note that it sent the token, or has ended."""
        with self._unauthenticated_lock:
            self._unauthenticated.pop(connection, None)

    def service_actions(self) -> None:
        """Called twice a second while the server runs."""
        self._end_unauthenticated(self.handshake_seconds)

    def server_close(self) -> None:
        self._end_unauthenticated(0.0)
        super().server_close()

    def _end_unauthenticated(self, age: float) -> None:
        with self._unauthenticated_lock:
            for connection, came in self._unauthenticated.items():
                if time.monotonic() - came >= age:
                    with suppress(OSError):  # it is gone already
                        connection.shutdown(socket.SHUT_RDWR)


class RequestHandler(BaseHTTPRequestHandler):
    """A handler of one request per connection. No body is read before the token is
    verified.

    GET /healthz needs no token. Subclasses define other paths in `answer_get` and
    `answer_post`, refusals in `objection`, and in `remedy` what to do about a body that
    is too large.
    """

    server: ModelServer
    sys_version = ""
    timeout = 30.0  # seconds without a byte; a slow sender cannot hold a thread
    remedy = "Start the server with a larger --max-request-mib."

    def answer_get(self) -> None:
        self.refuse_page()

    def answer_post(self, body: bytes) -> None:
        self.refuse_page()

    def objection(self) -> tuple[HTTPStatus, str] | None:
        """Return why a question is refused before its body is taken in; None: it is
        not.
        """
        return None

    def do_GET(self) -> None:
        if self.path == HEALTH:
            self.reply(HTTPStatus.OK, {"status": "ok"})
        elif not self._is_allowed():
            self._refuse_token()
        else:
            self.answer_get()

    def do_POST(self) -> None:
        if not self._is_allowed():
            return self._refuse_token()
        content_length = self.headers.get("Content-Length", "")
        if not (
            content_length.isascii()
            and content_length.isdigit()
            and len(content_length) <= 15
        ):
            return self.refuse(
                HTTPStatus.LENGTH_REQUIRED, "The request has no Content-Length header."
            )
        length, limit = int(content_length), self.server.max_request_bytes
        if length > limit:
            self._discard(length)
            return self.refuse(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"A request of {length} bytes exceeds this server's limit of {limit} "
                f"bytes. {self.remedy}",
            )
        if (objection := self.objection()) is not None:
            self._discard(length)
            return self.refuse(*objection)
        return self.answer_post(self.rfile.read(length))

    def refuse_page(self) -> None:
        self.refuse(HTTPStatus.NOT_FOUND, f"Page {self.path} not found.")

    def refuse(self, status: HTTPStatus, sentence: str) -> None:
        self.reply(status, {"error": sentence})

    def reply(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        self.send(status, _JSON, json.dumps(content).encode())

    def send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: a line for each of thousands of questions would not help."""

    def _discard(self, length: int) -> None:
        """Take in what is not wanted: closing on it would drop the refusal too."""
        left = min(length, _MAX_DISCARDED)
        while left > 0 and (part := self.rfile.read(min(left, 65_536))):
            left -= len(part)

    def _is_allowed(self) -> bool:
        # Compared in constant time: the time it takes tells nothing of the token.
        header = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if not hmac.compare_digest(header, self.server.authorization):
            return False
        self.server.mark_authenticated(self.connection)
        return True

    def finish(self) -> None:
        try:
            super().finish()
        finally:
            self.server.mark_authenticated(self.connection)

    def _refuse_token(self) -> None:
        self.refuse(HTTPStatus.UNAUTHORIZED, "The token is not valid for this server.")


EXIT_BAD_ARGUMENTS = 2


def add_server_arguments(
    parser: argparse.ArgumentParser, *, port: int, max_request_mib: int
) -> None:
    """Options of every server; the numbers are its own defaults."""
    parser.add_argument(
        "--model", required=True, help=("model folder or Hugging Face model ID")
    )
    parser.add_argument(
        "--revision", help=("branch, tag or commit of a Hugging Face model")
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        required=True,
        help="file with the token that trainers send; created if missing",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on, of this machine or a private network (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=port,
        help=("port; 0: any free port (default: %(default)s)"),
    )
    parser.add_argument(
        "--dtype",
        default="auto",
        choices=["auto", "float32", "bfloat16"],
        help="data type of the weights",
    )
    parser.add_argument(
        "--max-request-mib",
        type=int,
        default=max_request_mib,
        help="largest request, in MiB (default: %(default)s)",
    )
    parser.add_argument("--threads", type=int, help="CPU threads (default: all cores)")


def serve(
    args: argparse.Namespace,
    make: Callable[[argparse.Namespace, str], ModelServer],
    *,
    counts: tuple[str, ...] = (),
) -> int:
    """Serve until SIGTERM or SIGINT, then answer what is open and end with 0.

    Args:
        args: with what `add_server_arguments` added.
        make: the server, from the arguments and the token.
        counts: further arguments that must be at least 1 where they are given.
    """
    try:
        server = _server(args, make, counts)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_BAD_ARGUMENTS

    def stop(number: int, frame: FrameType | None) -> None:
        """End in order; a second signal ends the process at once."""
        signal.signal(number, signal.SIG_DFL)
        # shutdown waits for the loop that this handler interrupts
        threading.Thread(target=server.shutdown).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    # With port 0 this line is how anyone knows where it is.
    host, port = args.host, server.server_port
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    sys.stdout.write(f"serving {args.model} at http://{where}\n")
    sys.stdout.flush()
    try:
        server.serve_forever()
    finally:
        server.server_close()
    sys.stdout.write("stopped\n")
    return 0


def _server(
    args: argparse.Namespace,
    make: Callable[[argparse.Namespace, str], ModelServer],
    counts: tuple[str, ...],
) -> ModelServer:
    for name in (*counts, "max_request_mib", "threads"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(
                f"--{name.replace('_', '-')} must be at least 1; got {value}."
            )
    if not 0 <= args.port <= 65_535:
        raise ValueError(f"--port must be from 0 to 65535; got {args.port}.")
    if not is_private(args.host):
        raise ValueError(
            f"{args.host} is not an address of this machine or of a private network. "
            "Traffic is not encrypted: set --host to such an address, and use a "
            "tunnel for other machines."
        )
    token = read_or_make_token(args.token_file)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        return make(args, token)
    except OSError as error:
        raise ValueError(
            f"Cannot listen on {args.host}:{args.port}: {error.strerror}. Use another "
            "--port or --host."
        ) from None
