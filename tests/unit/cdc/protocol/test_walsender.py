"""Frames of the replication protocol."""

import struct

import pytest

from cdc.model.errors import MalformedMessage
from cdc.model.lsn import Lsn
from cdc.protocol.pgoutput import decode
from cdc.protocol.walsender import (
    POSTGRES_EPOCH_US,
    WAL_DATA_OFFSET,
    Keepalive,
    parse_keepalive,
    status_update,
    unix_ms,
    wal_start,
)
from tests.wal import COMMIT_TIME_MS, COMMIT_TIME_US, data_frame, insert, keepalive_frame


def test_a_data_frame_says_where_its_payload_starts() -> None:
    assert wal_start(data_frame(insert(b"1"), 0x16_B374D848)) == 0x16_B374D848


def test_the_payload_comes_after_the_header() -> None:
    assert decode(data_frame(insert(b"1")), WAL_DATA_OFFSET) == insert(b"1")


def test_a_data_frame_that_is_cut_in_its_header_is_malformed() -> None:
    for length in range(1, WAL_DATA_OFFSET):
        with pytest.raises(MalformedMessage):
            wal_start(data_frame(insert(b"1"))[:length])


@pytest.mark.parametrize("asked", [True, False])
def test_a_keepalive_says_how_far_the_server_is_and_whether_it_wants_an_answer(asked: bool) -> None:
    assert parse_keepalive(keepalive_frame(0x30, reply_requested=asked)) == Keepalive(Lsn(0x30), asked)


def test_a_keepalive_that_is_cut_is_malformed() -> None:
    frame = keepalive_frame(0x30)
    for length in range(len(frame)):
        with pytest.raises(MalformedMessage):
            parse_keepalive(frame[:length])


def test_a_keepalive_with_a_byte_added_is_malformed() -> None:
    with pytest.raises(MalformedMessage):
        parse_keepalive(keepalive_frame(0x30) + b"\0")


def test_a_status_update_has_what_was_received_confirmed_and_applied_in_that_order() -> None:
    frame = status_update(
        received=Lsn(0x40), confirmed=Lsn(0x30), applied=Lsn(0x38), unix_time_us=POSTGRES_EPOCH_US + 7
    )
    assert struct.unpack("!cQQQqB", frame) == (b"r", 0x40, 0x30, 0x38, 7, 0)


def test_times_count_from_the_year_2000() -> None:
    assert unix_ms(COMMIT_TIME_US) == COMMIT_TIME_MS


def test_a_time_within_a_millisecond_is_rounded_down() -> None:
    assert unix_ms(1999) == 946_684_800_001
