"""TensorBoard's event files: TFRecords that each hold an Event message.

A record is its length (8 bytes), that length's masked CRC-32C (4), the message, and the
message's (4); little-endian. Of the messages (tensorboard/compat/proto/event.proto,
summary.proto) only the fields that scalars need are written and read.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

VERSION = "brain.Event:2"
MAX_RECORD_BYTES = 64 * 2**20  # pictures may lie between the scalars
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DT_FLOAT, _DT_DOUBLE = 1, 2
_POLYNOMIAL = 0x82F63B78  # of CRC-32C (Castagnoli, RFC 3720), reflected
_MASK_DELTA = 0xA282EAD8


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = tuple(_entry(byte) for byte in range(256))


def crc32c(data: bytes) -> int:
    table, crc = _TABLE, 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """Rotated right by 15 bits and shifted, as TFRecord stores it."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Scalars:
    """The scalars of a record, by tag."""

    step: int
    time: float
    values: dict[str, float]
    end: int  # of the record, in bytes of the file


def is_event_file(file: BinaryIO) -> bool:
    """Recognise it by its first record, whose check only such a file passes."""
    head = file.read(12)
    return len(head) == 12 and _check(head[:8], head[8:]) and _length(head) < 2**20


def read_scalars(file: BinaryIO) -> Iterator[Scalars]:
    """Record by record; ValueError, with its number, for one that is damaged.

    A file that ends within a record was being written: what came before is read.
    """
    number = end = 0
    while len(head := file.read(12)) == 12:
        number += 1
        length = _length(head)
        if not _check(head[:8], head[8:]):
            raise ValueError(
                f"Record {number:,} is damaged: the checksum of its length is wrong."
            )
        if length > MAX_RECORD_BYTES:
            raise ValueError(
                f"Record {number:,} has {length:,} bytes; the limit is "
                f"{MAX_RECORD_BYTES:,}."
            )
        message, check = file.read(length), file.read(4)
        if len(message) < length or len(check) < 4:
            return
        if not _check(message, check):
            raise ValueError(f"Record {number:,} is damaged: its checksum is wrong.")
        end += 16 + length
        try:
            yield _scalars(message, end)
        except (IndexError, struct.error, UnicodeDecodeError):
            raise ValueError(f"Record {number:,} is not an event.") from None


def _length(head: bytes) -> int:
    return int.from_bytes(head[:8], "little")


def _check(data: bytes, check: bytes) -> bool:
    return int.from_bytes(check, "little") == masked_crc32c(data)


def _scalars(message: bytes, end: int) -> Scalars:
    step, time = 0, 0.0
    values: dict[str, float] = {}
    for number, value in _fields(message):
        if number == 1 and isinstance(value, float):
            time = value
        elif number == 2 and isinstance(value, int):
            step = value - 2**64 if value >= 2**63 else value
        elif number == 5 and isinstance(value, bytes):
            for inner, part in _fields(value):
                if inner == 1 and isinstance(part, bytes):
                    tag, scalar = _tagged(part)
                    if scalar is not None:
                        values[tag] = scalar
    return Scalars(step, time, values, end)


def _tagged(message: bytes) -> tuple[str, float | None]:
    tag, scalar = "", None
    for number, value in _fields(message):
        if number == 1 and isinstance(value, bytes):
            tag = value.decode()
        elif number == 2 and isinstance(value, float):
            scalar = value
        elif number == 8 and isinstance(value, bytes):
            scalar = _tensor(value)
    return tag, scalar


def _tensor(message: bytes) -> float | None:
    """Read a tensor of one number; None: it is another one."""
    kind, values, has_shape = 0, [], False
    for number, value in _fields(message):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number == 2 and isinstance(value, bytes):
            has_shape = bool(value)
        elif number in (4, 5, 6) and isinstance(value, bytes):
            form = "<f" if kind == _DT_FLOAT else "<d"
            if kind in (_DT_FLOAT, _DT_DOUBLE):
                values += [number for (number,) in struct.iter_unpack(form, value)]
        elif number in (5, 6) and isinstance(value, float):
            values.append(value)
    return values[0] if len(values) == 1 and not has_shape else None


def _fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        match key & 7:
            case 0:
                value, at = _read_varint(data, at)
                yield key >> 3, value
            case 1:
                yield key >> 3, struct.unpack_from("<d", data, at)[0]
                at += 8
            case 5:
                yield key >> 3, struct.unpack_from("<f", data, at)[0]
                at += 4
            case 2:
                length, at = _read_varint(data, at)
                if at + length > len(data):
                    raise IndexError
                yield key >> 3, data[at : at + length]
                at += length
            case _:
                raise IndexError


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError


def write_version(time: float) -> bytes:
    """Write the first record of an event file."""
    return _record(_double(1, time) + _text(3, VERSION))


def write_scalars(step: int, time: float, values: Mapping[str, float]) -> bytes:
    """Write one record: the values of a step by tag."""
    summary = b"".join(_field(1, _value(tag, value)) for tag, value in values.items())
    at_step = _key(2, _VARINT) + _varint(step)
    return _record(_double(1, time) + at_step + _field(5, summary))


def _value(tag: str, value: float) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", math.copysign(math.inf, value))
    return _text(1, tag) + _key(2, _FIXED32) + packed


def _record(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    checks = [struct.pack("<I", masked_crc32c(part)) for part in (length, message)]
    return length + checks[0] + message + checks[1]


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def _double(field: int, value: float) -> bytes:
    return _key(field, _FIXED64) + struct.pack("<d", value)


def _text(field: int, text: str) -> bytes:
    return _field(field, text.encode("utf-8", "replace"))


def _field(field: int, data: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(data)) + data
