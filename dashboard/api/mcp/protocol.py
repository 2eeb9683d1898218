"""Messages of the Model Context Protocol: both handshakes, headers and errors.

A client of 2026-07-28 names its version with each request. An older one begins with
`initialize`. No session is kept, so a restart changes nothing for either.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STATELESS = "2026-07-28"
WITH_HANDSHAKE = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
VERSIONS = (STATELESS, *WITH_HANDSHAKE)
VERSION_HEADER = "Mcp-Protocol-Version"
VERSION_FIELD = "io.modelcontextprotocol/protocolVersion"
CLIENT_FIELD = "io.modelcontextprotocol/clientInfo"
# Errors of JSON-RPC and of the protocol.
BAD_JSON, BAD_REQUEST, NO_METHOD, BAD_PARAMS = -32700, -32600, -32601, -32602
HEADER_MISMATCH, UNKNOWN_VERSION = -32020, -32022
LIST_SECONDS = 60
# Methods whose header Mcp-Name repeats a parameter.
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


class Fault(Exception):
    """A fault of the protocol; failures of a tool are results."""

    def __init__(
        self, code: int, message: str, *, status: int = 400, data: Any = None
    ) -> None:
        super().__init__(message)
        self.code, self.status, self.data = code, status, data


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    id: str | int | float | None  # None: a notification
    method: str
    params: dict[str, Any]
    version: str  # "": an older client's, which need not name it

    @property
    def is_stateless(self) -> bool:
        return self.version == STATELESS

    @property
    def client(self) -> str:
        """The client's name and version, as it sends them."""
        meta = _tree(self.params.get("_meta"))
        info = _tree(meta.get(CLIENT_FIELD)) or _tree(self.params.get("clientInfo"))
        words = (info.get("name"), info.get("version"))
        return " ".join(word for word in words if isinstance(word, str))

    def text(self, name: str) -> str:
        value = self.params.get(name)
        if not isinstance(value, str):
            raise Fault(BAD_PARAMS, f"{self.method} requires the text {name!r}.")
        return value


def parse(body: bytes) -> dict[str, Any]:
    """Parse the body. Fault: it is not one JSON object, or has no valid method."""
    try:
        tree = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise Fault(BAD_JSON, "The body is not valid JSON.") from None
    if not isinstance(tree, dict) or tree.get("jsonrpc") != "2.0":
        raise Fault(BAD_REQUEST, "Send one JSON-RPC 2.0 message, not a batch.")
    is_named = isinstance(tree.get("method"), str)
    has_id = _is_id(tree.get("id", 0))
    if not (is_named and has_id and isinstance(tree.get("params", {}), dict)):
        raise Fault(
            BAD_REQUEST, "A message has a method, an id and parameters by name."
        )
    return tree


def _is_id(value: Any) -> bool:
    """Tell whether a response can repeat it: 1e400 is no number in JSON."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, str) or (is_number and abs(value) < math.inf)


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def read_message(tree: dict[str, Any], headers: Mapping[str, str]) -> Message:
    """Read a message. Fault: headers differ from it, or its version is unknown."""
    message = Message(
        id=tree.get("id"),
        method=tree["method"],
        params=tree.get("params", {}),
        version=headers.get(VERSION_HEADER, ""),
    )
    meta = _tree(message.params.get("_meta"))
    version = message.version or meta.get(VERSION_FIELD, "")
    if version not in (*VERSIONS, ""):
        raise Fault(
            UNKNOWN_VERSION,
            "Unsupported protocol version.",
            data={"supported": VERSIONS, "requested": str(version)[:60]},
        )
    if STATELESS not in (message.version, meta.get(VERSION_FIELD)):
        return message
    expected = {
        VERSION_HEADER: meta.get(VERSION_FIELD),
        "Mcp-Method": message.method,
    }
    if parameter := NAMED.get(message.method):
        expected["Mcp-Name"] = message.params.get(parameter)
    for name, value in expected.items():
        if _decoded(headers.get(name, "")) != value:
            raise Fault(
                HEADER_MISMATCH, f"The header {name} does not equal the body's value."
            )
    return message


def _decoded(text: str) -> str:
    """Decode a header of characters that headers cannot hold."""
    if not (text.startswith("=?base64?") and text.endswith("?=")):
        return text
    try:
        return base64.b64decode(text[9:-2], validate=True).decode()
    except ValueError:
        return text


def _tree(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def greet(message: Message, server: dict[str, Any]) -> dict[str, Any]:
    """Answer `initialize`, with the client's version or our newest one."""
    wanted = message.params.get("protocolVersion")
    version = wanted if wanted in WITH_HANDSHAKE else WITH_HANDSHAKE[0]
    return {"protocolVersion": version, **server}


def write_result(message: Message, result: dict[str, Any]) -> dict[str, Any]:
    if message.is_stateless:
        result = {"resultType": "complete", **result}
        if message.method not in ("tools/call", "prompts/get"):
            result |= {"ttlMs": LIST_SECONDS * 1_000, "cacheScope": "private"}
    return {"jsonrpc": "2.0", "id": message.id, "result": result}


def write_fault(fault: Fault, message_id: Any) -> dict[str, Any]:
    error = {"code": fault.code, "message": str(fault)}
    if fault.data is not None:
        error["data"] = fault.data
    return {"jsonrpc": "2.0", "id": message_id, "error": error}
