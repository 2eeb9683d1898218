"""Client of a model server: messages, requests and retries."""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import secrets
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from trainer.host import ticking

BINARY = "application/octet-stream"


def is_private(host: str) -> bool:
    """Return whether each address of a host is on this machine or on a private network.

    Link-local addresses are not: clouds answer there with a machine's credentials.

    Raises:
        ValueError: the name has no address.
    """
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(f"Cannot resolve {host}: {error.strerror}.") from None
    addresses = [ipaddress.ip_address(str(entry[4][0])) for entry in infos]
    return all(
        address.is_private and not address.is_link_local and not address.is_unspecified
        for address in addresses
    )


_IDLE_SECONDS, _PAUSE_SECONDS, _NUM_PROBES = 30, 10, 3


def notice_silence(connection: socket.socket) -> None:
    """Have the kernel ask whether the other end is still there, and give up in 60 s.

    A host that lost its power says nothing, and the kernel's own patience is two hours:
    so long a server would be held by a run that is gone, and a run wait for an answer.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # named so on Linux; elsewhere the kernel's own patience has to do
    for name, value in (
        ("TCP_KEEPIDLE", _IDLE_SECONDS),
        ("TCP_KEEPINTVL", _PAUSE_SECONDS),
        ("TCP_KEEPCNT", _NUM_PROBES),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


_SHORTEST = 16


def read_token(path: Path) -> str:
    """Return the token in a file.

    Raises:
        ValueError: there is none, or it is no token.
    """
    try:
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise ValueError(
            f"The token file {path} cannot be read: {error.strerror}."
        ) from None
    except UnicodeDecodeError:
        raise ValueError(_complaint(path)) from None
    if len(token) < _SHORTEST or not all("!" <= letter <= "~" for letter in token):
        raise ValueError(_complaint(path))
    return token


def read_or_make_token(path: Path) -> str:
    """Return the token in a file, which is made, for its owner alone, where there is
    none.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(path)
    except OSError as error:
        raise ValueError(
            f"The token file {path} cannot be written: {error.strerror}."
        ) from None
    token = secrets.token_urlsafe(32)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(token + "\n")
    return token


def _complaint(path: Path) -> str:
    return (
        f"The token file {path} must contain one word of at least {_SHORTEST} plain "
        "letters, digits or signs. Delete it and start the server, which creates a "
        "new one."
    )


_Result = TypeVar("_Result")


def in_parallel(acts: Sequence[Callable[[], _Result]]) -> list[_Result]:
    """Return what each gives, in order; all have ended before the first error is
    raised.
    """
    if len(acts) < 2:
        return [act() for act in acts]
    with ThreadPoolExecutor(len(acts), thread_name_prefix="server") as threads:
        futures = [threads.submit(act) for act in acts]
    return [future.result() for future in futures]


# The tensors of a message by name, with their types and numbers of dimensions.
Fields = dict[str, tuple[torch.dtype, int]]


def pack(fields: Fields, **values: Any) -> bytes:
    """Return numbers as safetensors: a JSON head, then each tensor as it lies in
    memory.
    """
    return save(
        {
            name: torch.as_tensor(values[name], dtype=dtype, device="cpu").contiguous()
            for name, (dtype, _) in fields.items()
        }
    )


def unpack(body: bytes, fields: Fields | None = None) -> dict[str, torch.Tensor]:
    """Return the tensors of a body that anyone may have sent; of any names without
    `fields`.

    Raises:
        ValueError: it is no safetensors, or has other tensors than these fields.
    """
    try:
        tensors: dict[str, torch.Tensor] = load(body)
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"The body is not a valid safetensors file: {error}") from None
    forms = {name: (tensor.dtype, tensor.dim()) for name, tensor in tensors.items()}
    if fields is not None and forms != fields:
        raise ValueError(
            "The body must have tensors of these types and dimensions: "
            f"{fields}; got {forms}."
        )
    return tensors


def check_range(name: str, values: torch.Tensor, end: int) -> None:
    """ValueError if a value is negative or not below `end`."""
    if values.numel() and not 0 <= int(values.min()) <= int(values.max()) < end:
        raise ValueError(
            f"{name} must be at least 0 and below {end}; got "
            f"{int(values.min())} to {int(values.max())}."
        )


# A server that was restarted needs minutes to load a large model.
PATIENCE_SECONDS = 600.0
REQUEST_SECONDS = 300.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 15.0
_FAREWELL_SECONDS = 5.0
# safetensors' own header, and the sentences of refusals
SLACK_BYTES = 65_536


class Unreachable(Exception):
    """The server is not there, or not ready; it may be soon."""


class Refused(ValueError):
    """The server answered, and said no."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of server, as sentences call it.

    >>> Kind(name="vLLM server", part="reference", command="vllm serve", port=8000)
    """

    name: str
    part: str  # of the configuration, with url and token_file
    command: str  # that starts it
    port: int  # that it usually has


@dataclass(frozen=True, kw_only=True)
class Call:
    """A question to a server.

    >>> Call(method="GET", path="/model")
    """

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    limit: int = SLACK_BYTES  # bytes that the answer has at most
    seconds: float = REQUEST_SECONDS  # without a byte: the server counts as away


@dataclass(kw_only=True)
class HeldServer:
    """A server that this run uses, and its time that was not taken yet."""

    kind: str  # rollout, reference
    hardware: str
    num_gpus: int | None  # None: neither the server nor the run's settings tell
    since: float  # time.monotonic()
    # Of a server that several runs share: reads the number of its requests, of all
    # runs. num_own are this process's since the last call.
    count_requests: Callable[[], int] | None = None
    num_requests: int = 0
    num_own: int = 0

    def take_hours(self) -> float:
        """Return the GPU-hours since the last call, or the hours of unknown GPUs; of a
        shared server the run's share of its requests.
        """
        since, self.since = self.since, time.monotonic()
        # Each process of the run asks for its part of a batch.
        own, self.num_own = self.num_own * int(os.environ.get("WORLD_SIZE", "1")), 0
        before, share = self.num_requests, 1.0
        if self.count_requests is not None:
            with suppress(Unreachable, ValueError):  # then it is this run's alone
                self.num_requests = self.count_requests()
            share = own / max(own, self.num_requests - before, 1)
        num_gpus = 1 if self.num_gpus is None else self.num_gpus
        return (self.since - since) / 3600 * share * num_gpus


_servers: dict[str, HeldServer] = {}  # by URL


def hold_server(
    connection: Connection,
    status: bytes,
    *,
    num_gpus: int | None = None,
    count_requests: Callable[[], int] | None = None,
) -> HeldServer:
    """Count a server's time from now on, or go on with it.

    Args:
        connection: to the server.
        status: that it tells of itself; an older one, or vLLM's, tells no GPUs.
        num_gpus: of such a server, by the run's settings.
        count_requests: of a server that several runs share.
    """
    facts = json.loads(status)
    reported = facts["gpus"] if isinstance(facts.get("gpus"), dict) else {}
    count, num_requests = reported.get("count"), facts.get("num_requests")
    known = _servers.get(connection.url)
    held = HeldServer(
        kind=connection.kind.part,
        hardware=str(reported.get("name") or "unknown").replace("/", " ")[:60],
        num_gpus=count if isinstance(count, int) else num_gpus,
        since=known.since if known else time.monotonic(),
        count_requests=count_requests,
        num_requests=num_requests if isinstance(num_requests, int) else 0,
    )
    _servers[connection.url] = held
    return held


def release_server(url: str) -> None:
    _servers.pop(url, None)


def server_metrics() -> dict[str, float]:
    """Return GPU-hours of the servers since the last call, by metric; hours of those
    whose GPUs are not known.
    """
    metrics: dict[str, float] = defaultdict(float)
    for held in list(_servers.values()):
        if held.num_gpus != 0:
            unit = "hours" if held.num_gpus is None else "gpu_hours"
            name = f"server/{held.kind}/{held.hardware}/{unit}"
            metrics[name] += held.take_hours()
    return metrics


class OpenAnswer:
    """The first line of an answer that goes on until this end closes it."""

    def __init__(
        self, line: bytes, response: http.client.HTTPResponse, stream: socket.socket
    ) -> None:
        self.line = line
        self._response = response
        self._stream = stream

    def close(self) -> None:
        """End it, and wait until the server has noticed, unless it is gone."""
        with suppress(OSError, http.client.HTTPException):
            self._stream.settimeout(_FAREWELL_SECONDS)
            self._stream.shutdown(socket.SHUT_WR)
            self._response.read()
        self._response.close()


class Connection:
    """Asks one server.

    Raises:
        ValueError: from any question: the server stayed away, or refused.
    """

    def __init__(
        self,
        url: str,
        kind: Kind,
        *,
        token: str,
        headers: Mapping[str, str] | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self.url = url
        self.kind = kind
        self._is_tls, self._host, self._port = _parts(url, kind)
        self._patience_seconds = patience_seconds
        self._headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": BINARY,
            **(headers or {}),
        }

    def ask(self, call: Call, *, on_return: Callable[[], None] | None = None) -> bytes:
        """Return the answer of a server that is waited for.

        Args:
            call: what is asked.
            on_return: called before the question is asked again: whatever is there now
                may be another server.
        """
        return self._waiting(lambda: self.try_once(call), on_return)

    def read_field(self, reply: bytes, name: str, kind: type[_Result]) -> _Result:
        """Return a field of an answer in JSON.

        Raises:
            ValueError: no server of this kind answers so.
        """
        with suppress(ValueError, RecursionError, LookupError, TypeError):
            if isinstance(value := json.loads(reply)[name], kind):
                return value
        raise ValueError(
            f"The server at {self.url} is not a {self.kind.name}. Correct "
            f"{self.kind.part}.url."
        )

    def open(self, call: Call) -> OpenAnswer:
        """Return an answer that stays open; the server is waited for."""
        return self._waiting(lambda: self._open_once(call))

    def try_once(self, call: Call) -> bytes:
        """Return the answer of a server that must be there.

        Raises:
            Away: it is not.
        """
        connection = self._connect(call.seconds)
        try:
            with ticking():
                response = self._request(connection, call)
                reply = response.read(call.limit + 1)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(_reason(error)) from None
        finally:
            connection.close()
        if response.length:  # more was promised than came, or than was read
            if len(reply) > call.limit:
                raise ValueError(
                    f"The response of {self.url} is larger than {call.limit} bytes. "
                    f"Correct {self.kind.part}.url."
                )
            raise Unreachable("it closed the connection in the middle of a response")
        self._check(response.status, reply)
        return reply

    def _open_once(self, call: Call) -> OpenAnswer:
        connection = self._connect(call.seconds)
        stream: socket.socket = connection.sock  # which the response takes over
        try:
            response = self._request(connection, call)
            line = response.readline(call.limit)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Unreachable(_reason(error)) from None
        if response.status != HTTPStatus.OK:
            response.close()  # which has the socket, as it ends with the answer
        self._check(response.status, line)
        return OpenAnswer(line, response, stream)

    def _request(
        self, connection: http.client.HTTPConnection, call: Call
    ) -> http.client.HTTPResponse:
        headers = {**self._headers, **call.headers}
        connection.request(call.method, call.path, body=call.body, headers=headers)
        return connection.getresponse()

    def _waiting(
        self, act: Callable[[], _Result], on_return: Callable[[], None] | None = None
    ) -> _Result:
        """Return what comes of an act, which is repeated while the server is away."""
        pause, started = _FIRST_PAUSE_SECONDS, time.monotonic()
        while True:
            try:
                if pause > _FIRST_PAUSE_SECONDS and on_return is not None:
                    on_return()
                return act()
            except Unreachable as reason:
                waited = time.monotonic() - started
                if waited + pause > self._patience_seconds:
                    raise ValueError(
                        f"The {self.kind.name} at {self.url} has been unreachable for "
                        f"{waited:.0f} s ({reason}). Restart it with "
                        f"`{self.kind.command}`, and resume the run."
                    ) from None
                if pause == _FIRST_PAUSE_SECONDS:
                    sys.stdout.write(
                        f"waiting for the {self.kind.name} at {self.url} ({reason})\n"
                    )
                    sys.stdout.flush()
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _connect(self, seconds: float) -> http.client.HTTPConnection:
        kind = (
            http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        )
        connection = kind(self._host, self._port, timeout=seconds)
        try:
            connection.connect()
        except OSError as error:
            raise Unreachable(_reason(error)) from None
        notice_silence(connection.sock)
        return connection

    def _check(self, status: int, reply: bytes) -> None:
        if status == HTTPStatus.OK:
            return
        sentence = _sentence(reply)
        if status in (
            HTTPStatus.SERVICE_UNAVAILABLE,
            HTTPStatus.BAD_GATEWAY,
            HTTPStatus.GATEWAY_TIMEOUT,
        ):
            raise Unreachable(sentence)
        if status == HTTPStatus.UNAUTHORIZED:
            raise Refused(
                status,
                f"The {self.kind.name} at {self.url} rejected the token. Set "
                f"{self.kind.part}.token_file to the token file of the server.",
            )
        raise Refused(
            status,
            f"The {self.kind.name} at {self.url} returned {status}: {sentence}",
        )


def _parts(url: str, kind: Kind) -> tuple[bool, str, int]:
    """Return whether it is encrypted, the host and the port of an address."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    is_plain = parts.path in ("", "/") and not (parts.query or parts.username)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        port = -1
    if port == -1:
        raise ValueError(
            f'{kind.part}.url must look like http://127.0.0.1:{kind.port}; got "{url}".'
        )
    is_tls = parts.scheme == "https"
    assert parts.hostname is not None
    if not is_private(parts.hostname):
        raise ValueError(
            f"{kind.part}.url {url} is outside the private network, where sampled "
            "texts and the token must not be sent. Run the server on this machine or "
            "a private network, or open a tunnel to it."
        )
    return is_tls, parts.hostname, port or (443 if is_tls else 80)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _sentence(reply: bytes) -> str:
    try:
        reason = str(json.loads(reply)["error"])[:500]
    except (ValueError, RecursionError, LookupError, TypeError):
        return "no reason given"
    return reason.encode("utf-8", "replace").decode("utf-8")  # no half characters
