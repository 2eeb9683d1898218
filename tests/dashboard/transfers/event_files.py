"""An independent reader of TensorBoard's event files, from their definition."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Event:
    time: float = 0.0
    step: int = 0
    version: str = ""
    values: dict[str, float] = field(default_factory=dict)


def read_event_file(data: bytes) -> list[Event]:
    events, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        (check,) = struct.unpack_from("<I", data, at + 8)
        assert check == masked(crc_by_bits(data[at : at + 8]))
        message = data[at + 12 : at + 12 + length]
        (check,) = struct.unpack_from("<I", data, at + 12 + length)
        assert check == masked(crc_by_bits(message))
        events.append(_event(message))
        at += 16 + length
    return events


def crc_by_bits(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) % 2**32


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
        elif kind == 1:
            yield key >> 3, struct.unpack_from("<d", data, at)[0]
            at += 8
        elif kind == 5:
            yield key >> 3, struct.unpack_from("<f", data, at)[0]
            at += 4
        else:
            size = varint()
            yield key >> 3, data[at : at + size]
            at += size


def _event(message: bytes) -> Event:
    event = Event()
    for number, value in _fields(message):
        if number == 1:
            event.time = value
        elif number == 2:
            event.step = value
        elif number == 3:
            event.version = value.decode()
        elif number == 5:
            for _, one in _fields(value):
                fields = dict(_fields(one))
                event.values[fields[1].decode()] = fields[2]
    return event
