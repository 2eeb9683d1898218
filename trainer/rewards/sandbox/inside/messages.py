"""Messages between the caller, the zygote and the child of a call.

On a pipe, a message is four bytes of length and its bytes. The child of a call
exchanges JSON over two pipes of its own. Python values leave it as JSON without objects
(`encode`).
"""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Set
from decimal import Decimal
from fractions import Fraction
from typing import Any, TextIO

from trainer.rewards.sandbox.inside.confinement import QUESTIONS, REPLIES

MAX_BYTES = 64 * 1024**2
HEAD = 4


class HungUp(Exception):
    """No one holds the other end any more."""


def send(descriptor: int, message: bytes) -> None:
    data = memoryview(frame(message))
    while data:
        data = data[os.write(descriptor, data) :]


def frame(message: bytes) -> bytes:
    return len(message).to_bytes(4, "little") + message


def length_of(head: bytes) -> int:
    return int.from_bytes(head, "little")


def receive(descriptor: int) -> bytes:
    """Return the next message, however long it takes to come."""
    length = length_of(_exactly(descriptor, HEAD))
    if length > MAX_BYTES:
        raise HungUp
    return _exactly(descriptor, length)


def _exactly(descriptor: int, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = os.read(descriptor, min(length - len(data), 1 << 20))
        if not part:
            raise HungUp
        data += part
    return bytes(data)


MAX_DEPTH = 40
MAX_VALUES = 50_000
_EXACT = 10**15


def encode(value: object) -> Any:
    """Return a Python value as JSON that holds no object: what leaves a call, to be
    compared.

    JSON as it is for null, booleans, text, lists, floats and whole numbers of up to 15
    digits. An object with one key is anything else: n a whole number (hexadecimal), f a
    float that is no number, q a fraction, c a complex number, b bytes, t a tuple, s a
    set, d the pairs of a dict, r the first and last number and the step of a range, and
    o something that is none of these, with whether it is true. Never raises: what
    cannot be encoded is something else.

    >>> encode((1, {"a"}))
    {"t": [1, {"s": ["a"]}]}
    """
    try:
        return _Encoder().encode(value, MAX_DEPTH)
    except Exception:  # noqa: BLE001 - its methods may raise anything
        return opaque(value)


def opaque(value: object) -> dict[str, Any]:
    try:
        is_true = bool(value)
    except Exception:  # noqa: BLE001 - as above
        is_true = False
    return {"o": [str(type(value).__name__)[:80], is_true]}


class _Encoder:
    def __init__(self) -> None:
        self._left = MAX_VALUES

    def encode(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if depth == 0 or self._left < 0:
            raise ValueError("too deep or too large")
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int | float | complex | Fraction | Decimal):
            return _number(value)
        return self._container(value, depth - 1)

    def _container(self, value: Any, depth: int) -> Any:
        if isinstance(value, list | deque):
            return self._all(value, depth)
        if isinstance(value, tuple):
            return {"t": self._all(value, depth)}
        if isinstance(value, dict):
            return {"d": [self._all(pair, depth) for pair in value.items()]}
        if isinstance(value, Set):  # also the keys and the items of a dict
            return {"s": self._all(value, depth)}
        if isinstance(value, range):
            # A range of one number has no step to compare.
            ends = (
                (value[0], value[-1], value.step if value[1:] else 1) if value else ()
            )
            return {"r": self._all(ends, depth)}
        if isinstance(value, bytes | bytearray):
            return {"b": bytes(value).hex()}
        return opaque(value)

    def _all(self, values: Iterable[Any], depth: int) -> list[Any]:
        return [self.encode(value, depth) for value in values]


def _number(value: Any) -> Any:
    if isinstance(value, int):
        whole = int(value)
        return whole if abs(whole) < _EXACT else {"n": hex(whole)}
    if isinstance(value, float):
        number = float(value)
        return number if math.isfinite(number) else {"f": repr(number)}
    if isinstance(value, complex):
        return {"c": [_number(value.real), _number(value.imag)]}
    if isinstance(value, Decimal) and not value.is_finite():
        return {"f": repr(float(value))}
    top, bottom = value.as_integer_ratio()
    return {"q": [hex(top), hex(bottom)]}


_MAX_TEXT = 300
_ready: tuple[TextIO, TextIO] | None = None


def next_question() -> Any:
    return json.loads(receive(QUESTIONS))


def questions() -> Iterator[Any]:
    while True:
        try:
            yield next_question()
        except HungUp:
            return


def reply(message: Any) -> None:
    send(REPLIES, json.dumps(message, default=plain).encode())


def plain(value: Any) -> Any:
    """Return what JSON has for numpy's values and for other numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(type(value), "__float__"):
        return float(value)
    raise TypeError(f"a {type(value).__name__} is neither text nor JSON")


def open_outputs(*, at_once: bool) -> None:
    """Streams of its own for what is printed, at once or when there is enough of it.

    At once, it is there also when the time is up. Half a character's pair is spelled
    out.
    """
    stdout, stderr = (_ready or _streams(1)) if at_once else _streams(-1)
    sys.stdout, sys.stderr = stdout, stderr
    sys.__stdout__, sys.__stderr__ = stdout, stderr  # type: ignore[misc,assignment]


def prepare_outputs() -> None:
    """Have the streams ready, over pipes as they will be: a tenth of a call's time."""
    global _ready
    copies = [os.dup(descriptor) for descriptor in (1, 2)]
    reader, writer = os.pipe()
    for descriptor in (1, 2):
        os.dup2(writer, descriptor)
    _ready = _streams(1)
    for descriptor, before in zip((1, 2), copies, strict=True):
        os.dup2(before, descriptor)
    for descriptor in (*copies, reader, writer):
        os.close(descriptor)


def _streams(buffering: int) -> tuple[TextIO, TextIO]:
    stdout, stderr = (
        open(  # noqa: SIM115 - for as long as the process runs
            descriptor,
            "w",
            encoding="utf-8",
            errors="backslashreplace",
            buffering=buffering,
            closefd=False,
        )
        for descriptor in (1, 2)
    )
    return stdout, stderr


def module_names(name: str) -> dict[str, Any]:
    """Return the namespace of a new module, which dataclasses and others look up by
    name.
    """
    module = type(sys)(name)
    sys.modules[name] = module
    return vars(module)


def run(source: str, name: str, names: dict[str, Any]) -> None:
    code = compile(source.removeprefix("\ufeff"), name, "exec", dont_inherit=True)
    exec(code, names)  # nosec B102 # noqa: S102 - what this process is for


def describe(error: BaseException, name: str) -> str:
    """Return one line: what was raised, and at which line of the source of this name.

    An object made by what ran may raise anything when it is asked for its text.
    """
    try:
        text = f"{type(error).__name__}: {error}".rstrip(": ")
    except BaseException:  # noqa: BLE001 - see above
        text = "an error without a message"
    line = _line_of(error, name)
    where = f" (line {line})" if line else ""
    return " ".join(text[:_MAX_TEXT].split()) + where


def _line_of(error: BaseException, name: str) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == name:
        return error.lineno
    line = None
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == name:
            line = frame.tb_lineno
        frame = frame.tb_next
    return line


def print_traceback(error: BaseException) -> None:
    """Print for the log; a chain of errors may be endless, or raise by itself."""
    try:
        traceback.print_exception(error, limit=-20, chain=False)
    except BaseException:  # noqa: BLE001 - see above
        os.write(2, b"An error whose text cannot be shown.\n")
