"""`cohort mcp`: passes an assistant's messages from standard input to the server.

Each line is a JSON-RPC message. Standard output carries nothing else.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from threading import Lock
from typing import Any, TextIO

from cohort.http import Refused, Server, Unreachable, find_server

AT_ONCE = 8
MAX_MESSAGE_CHARS = 2**20
INTERNAL_ERROR, BAD_JSON = -32603, -32700
VERSION_FIELD = "io.modelcontextprotocol/protocolVersion"
# The server checks these headers against the body.
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
SKILL = Path(__file__).with_name("skill.md")


def print_skill(_: Namespace) -> None:
    sys.stdout.write(SKILL.read_text(encoding="utf-8"))


def serve(_: Namespace) -> None:
    if isinstance(sys.stdin, TextIOWrapper):
        # A line that is not UTF-8 gets an error, and ends nothing.
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    relay(find_server(), sys.stdin, sys.stdout)


def relay(server: Server, source: TextIO, target: TextIO) -> None:
    """Pass on messages until `source` ends, up to 8 at once."""
    lock = Lock()

    def answer(line: str) -> None:
        response = _ask(server, line)
        if response is not None:
            with lock:
                target.write(json.dumps(response) + "\n")
                target.flush()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for line in iter(partial(source.readline, MAX_MESSAGE_CHARS), ""):
            if line.strip():
                pool.submit(answer, line)


def _ask(server: Server, line: str) -> dict[str, Any] | None:
    """Return the server's response, or its error as one; None to a notification."""
    try:
        body = line.encode()
        message = json.loads(body)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        return _error(None, BAD_JSON, "The line is not a JSON object in UTF-8.")
    headers = {"Content-Type": "application/json", **_headers_of(message)}
    try:
        response: dict[str, Any] | None = server.send(
            "POST", "/mcp", body, headers, base=""
        )
        return response
    except (Refused, Unreachable) as error:
        problem = dict(getattr(error, "problem", {}))
        if "jsonrpc" in problem:  # an error of the protocol
            return problem
        if "id" not in message:
            return None
        return _error(message["id"], INTERNAL_ERROR, str(error))


def _headers_of(message: dict[str, Any]) -> dict[str, str]:
    """Return the headers of a client that names its version in each message."""
    params = message.get("params")
    params = params if isinstance(params, dict) else {}
    meta = params.get("_meta")
    version = meta.get(VERSION_FIELD) if isinstance(meta, dict) else None
    if not isinstance(version, str):
        return {}
    method = str(message.get("method", ""))
    headers = {"Mcp-Protocol-Version": version, "Mcp-Method": method}
    if method in NAMED:
        headers["Mcp-Name"] = str(params.get(NAMED[method], ""))
    return {
        name: value
        for name, value in headers.items()
        if value.isascii() and value.isprintable()
    }


def _error(message_id: Any, code: int, text: str) -> dict[str, Any]:
    error = {"code": code, "message": text}
    return {"jsonrpc": "2.0", "id": message_id, "error": error}
