"""The store's format: keys that fit LMDB's limit, and values that reveal damage."""

import hashlib
import struct
import zlib
from collections.abc import Mapping
from typing import Final

KEY_BYTES_MAX: Final = 500
"""Longer event keys are hashed: LMDB allows 511 bytes, and topic and kind come before them."""

_ROW: Final = struct.Struct(">cIc")
_OFFSET: Final = struct.Struct(">cII")
_CHECKSUM: Final = struct.Struct("<I")
_KEY: Final = struct.Struct("<IH")
_MEMBER: Final = struct.Struct("<HI")

_ROWS, _PLAIN, _HASHED = b"r", b"p", b"h"

Bucket = dict[bytes, Mapping[str, bytes]]
"""The rows of one record: one, or several with the same hash."""


class Damaged(Exception):
    """Bytes that differ from what was written."""


def row_key(topic_id: int, key: bytes) -> bytes:
    """The key of a row's record. Two long keys may share a record, which therefore holds the keys themselves."""
    if len(key) <= KEY_BYTES_MAX:
        return _ROW.pack(_ROWS, topic_id, _PLAIN) + key
    return _ROW.pack(_ROWS, topic_id, _HASHED) + digest(key)


def topic_range(topic_id: int) -> bytes:
    """The common prefix of the keys of a topic's rows."""
    return _ROW.pack(_ROWS, topic_id, b"\0")[:-1]


def offset_key(topic_id: int, partition: int) -> bytes:
    return _OFFSET.pack(b"o", topic_id, partition)


def parse_offset_key(key: bytes) -> tuple[int, int]:
    """Topic id and partition."""
    _, topic_id, partition = _OFFSET.unpack(key)
    return topic_id, partition


def digest(key: bytes) -> bytes:
    """32 bytes in place of a long key."""
    return hashlib.blake2b(key, digest_size=32).digest()


def pack(bucket: Bucket) -> bytes:
    parts: list[bytes] = []
    for key, values in bucket.items():
        parts += (_KEY.pack(len(key), len(values)), key)
        for name, json in values.items():
            encoded = name.encode()
            parts += (_MEMBER.pack(len(encoded), len(json)), encoded, json)
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return b"".join((_CHECKSUM.pack(checksum), *parts))


def unpack(record: memoryview) -> Bucket:
    """A record's rows, copied out of it. Raises Damaged."""
    try:
        (checksum,) = _CHECKSUM.unpack_from(record)
        if checksum != zlib.crc32(record[_CHECKSUM.size :]):
            raise Damaged("a record's checksum is wrong")
        bucket: Bucket = {}
        position = _CHECKSUM.size
        while position < len(record):
            key_length, count = _KEY.unpack_from(record, position)
            position += _KEY.size
            key = bytes(record[position : position + key_length])
            position += key_length
            values: dict[str, bytes] = {}
            for _ in range(count):
                name_length, length = _MEMBER.unpack_from(record, position)
                position += _MEMBER.size
                name = bytes(record[position : position + name_length]).decode()
                position += name_length
                values[name] = bytes(record[position : position + length])
                position += length
            bucket[key] = values
        return bucket
    except (struct.error, UnicodeDecodeError) as error:
        raise Damaged("a record is cut off") from error
