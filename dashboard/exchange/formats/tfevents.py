"""TensorBoard's event files: TFRecords that each hold an Event message.

A record is its length (8 bytes), that length's masked CRC-32C (4), the message, and the
message's (4); little-endian. Of the messages (tensorboard/compat/proto/event.proto,
summary.proto) only the fields that scalars need are written and read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from dashboard.exchange.formats.crc32c import masked_crc32c

VERSION = "brain.Event:2"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def write_version(time: float) -> bytes:
    """The record that every event file begins with."""
    return _record(_double(1, time) + _text(3, VERSION))


def write_scalars(step: int, time: float, values: Mapping[str, float]) -> bytes:
    """One record: the values of a step by tag."""
    summary = b"".join(_field(1, _value(tag, value)) for tag, value in values.items())
    return _record(_double(1, time) + _number(2, step) + _field(5, summary))


def _value(tag: str, value: float) -> bytes:
    return _text(1, tag) + _key(2, _FIXED32) + _float32(value)


def _float32(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def _record(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    parts: Iterable[bytes] = (
        length,
        struct.pack("<I", masked_crc32c(length)),
        message,
        struct.pack("<I", masked_crc32c(message)),
    )
    return b"".join(parts)


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def _number(field: int, value: int) -> bytes:
    return _key(field, _VARINT) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _key(field, _FIXED64) + struct.pack("<d", value)


def _text(field: int, text: str) -> bytes:
    return _field(field, text.encode("utf-8", "replace"))


def _field(field: int, data: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(data)) + data
