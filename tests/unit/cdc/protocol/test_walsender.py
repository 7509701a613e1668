"""Frames of the replication protocol."""

import struct

import pytest

from cdc.model.errors import MalformedMessage
from cdc.model.lsn import Lsn
from cdc.protocol.walsender import (
    POSTGRES_EPOCH_US,
    WAL_DATA_OFFSET,
    parse_keepalive,
    status_update,
    unix_ms,
    wal_start,
)
from tests.wal import data_frame, insert, keepalive_frame


def test_a_data_frame_that_is_cut_in_its_header_is_malformed() -> None:
    for length in range(1, WAL_DATA_OFFSET):
        with pytest.raises(MalformedMessage):
            wal_start(data_frame(insert(b"1"))[:length])


def test_a_keepalive_with_a_byte_added_is_malformed() -> None:
    with pytest.raises(MalformedMessage):
        parse_keepalive(keepalive_frame(0x30) + b"\0")


def test_a_status_update_has_what_was_received_confirmed_and_applied_in_that_order() -> None:
    frame = status_update(
        received=Lsn(0x40), confirmed=Lsn(0x30), applied=Lsn(0x38), unix_time_us=POSTGRES_EPOCH_US + 7
    )
    assert struct.unpack("!cQQQqB", frame) == (b"r", 0x40, 0x30, 0x38, 7, 0)


def test_a_time_within_a_millisecond_is_rounded_down() -> None:
    assert unix_ms(1999) == 946_684_800_001
