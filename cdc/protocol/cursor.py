"""Bounds-checked reads of one message. Any malformed bytes raise MalformedMessage."""

import struct

from cdc.model.errors import MalformedMessage

_UINT8 = struct.Struct("!B")
_UINT16 = struct.Struct("!H")
_UINT32 = struct.Struct("!I")
_INT32 = struct.Struct("!i")
_UINT64 = struct.Struct("!Q")
_INT64 = struct.Struct("!q")


class Cursor:
    """Reads the fields of ``message`` one after the other, in network byte order."""

    __slots__ = ("message", "position")

    def __init__(self, message: bytes, position: int = 0) -> None:
        self.message = message
        self.position = position

    def _number(self, layout: struct.Struct) -> int:
        try:
            (value,) = layout.unpack_from(self.message, self.position)
        except struct.error:
            raise self.malformed(f"{layout.size} more bytes expected") from None
        self.position += layout.size
        return int(value)

    def uint8(self) -> int:
        return self._number(_UINT8)

    def uint16(self) -> int:
        return self._number(_UINT16)

    def uint32(self) -> int:
        return self._number(_UINT32)

    def int32(self) -> int:
        return self._number(_INT32)

    def uint64(self) -> int:
        return self._number(_UINT64)

    def int64(self) -> int:
        return self._number(_INT64)

    def take(self, length: int) -> bytes:
        """The next ``length`` bytes. Raises MalformedMessage if fewer are left."""
        end = self.position + length
        if length < 0 or end > len(self.message):
            raise self.malformed(f"{length} more bytes expected")
        taken = self.message[self.position : end]
        self.position = end
        return taken

    def string(self) -> str:
        """A zero-terminated UTF-8 string. Raises MalformedMessage."""
        end = self.message.find(b"\0", self.position)
        if end < 0:
            raise self.malformed("string without its final zero")
        raw = self.message[self.position : end]
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            raise self.malformed("string is not UTF-8") from None
        self.position = end + 1
        return text

    def finish(self) -> None:
        """Raises MalformedMessage if bytes are left over."""
        if self.position != len(self.message):
            raise self.malformed(f"{len(self.message) - self.position} bytes left over")

    def malformed(self, reason: str) -> MalformedMessage:
        return MalformedMessage(reason, position=self.position, message=self.message)
