"""WebSockets whose messages are compressed once, however many pages they go to.

uvicorn compresses each message anew for each socket, against what that socket was sent
before. Here each is compressed by itself, so all sockets that are sent the same text
share the result. Of 200 pages of a run with 50 steps a second, compressing would take a
fifth of a core; by itself a frame of ten steps is a tenth larger, one of one step half
as large as its text.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.extensions import Extension
from websockets.extensions.permessage_deflate import (
    PerMessageDeflate,
    ServerPerMessageDeflateFactory,
)
from websockets.frames import CTRL_OPCODES, Frame, Opcode
from websockets.server import ServerProtocol
from websockets.typing import ExtensionParameter

# Frames of a few runs at a few places, and the snapshots that newcomers are sent.
MAX_SHARED = 16
# What a sync flush ends with, and the protocol leaves out (RFC 7692, 7.2.1).
FLUSHED = b"\x00\x00\xff\xff"


@lru_cache(maxsize=MAX_SHARED)
def deflate(data: bytes, window_bits: int) -> bytes:
    packer = zlib.compressobj(wbits=-window_bits)
    packed = packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)
    return packed.removesuffix(FLUSHED)


class SharedDeflate(PerMessageDeflate):
    def encode(self, frame: Frame) -> Frame:
        is_whole = frame.fin and frame.opcode is not Opcode.CONT
        if frame.opcode in CTRL_OPCODES or not is_whole:
            return super().encode(frame)
        data = deflate(bytes(frame.data), self.local_max_window_bits)
        return dataclasses.replace(frame, data=data, rsv1=True)


class SharedDeflateFactory(ServerPerMessageDeflateFactory):
    def process_request_params(
        self,
        params: Sequence[ExtensionParameter],
        accepted_extensions: Sequence[Extension],
    ) -> tuple[list[ExtensionParameter], SharedDeflate]:
        answer, agreed = super().process_request_params(params, accepted_extensions)
        assert agreed.local_no_context_takeover, agreed
        return answer, SharedDeflate(
            remote_no_context_takeover=agreed.remote_no_context_takeover,
            local_no_context_takeover=True,
            remote_max_window_bits=agreed.remote_max_window_bits,
            local_max_window_bits=agreed.local_max_window_bits,
        )


class Connection(ServerProtocol):
    def recv_frame(self, frame: Frame) -> None:
        """A Close may come within a message (RFC 6455, 5.4), which is then let go.

        websockets would call that an error, and answer the Close with 1002.
        """
        if frame.opcode is Opcode.CLOSE:
            self.current_size = None
        super().recv_frame(frame)


class SharedDeflateProtocol(WebSocketsSansIOProtocol):
    """For `uvicorn --ws dashboard.live.deflate:SharedDeflateProtocol`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn.__class__ = Connection
        # Pages send a few bytes, so little memory is held for reading them.
        self.conn.available_extensions = [
            SharedDeflateFactory(
                server_no_context_takeover=True, client_max_window_bits=12
            )
        ]
