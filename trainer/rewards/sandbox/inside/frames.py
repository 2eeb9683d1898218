"""Messages on a pipe: four bytes of length, and so many bytes."""

from __future__ import annotations

import os
import struct

MAX_BYTES = 64 * 1024**2
HEAD = 4


class HungUp(Exception):
    """Nobody holds the other end any more."""


def send(descriptor: int, message: bytes) -> None:
    data = memoryview(frame(message))
    while data:
        data = data[os.write(descriptor, data) :]


def frame(message: bytes) -> bytes:
    return struct.pack("<I", len(message)) + message


def length_of(head: bytes) -> int:
    length: int = struct.unpack("<I", head)[0]
    return length


def receive(descriptor: int) -> bytes:
    """The next message, however long it takes to come."""
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
