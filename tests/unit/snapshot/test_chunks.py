"""Which rows of a chunk are published, and what a snapshot sees."""

import pytest

from cdc.protocol.visibility import SourceSnapshot, UnfinishedTransactions
from snapshot.chunks import PendingChunk, next_chunk_rows

_EPOCH = 7 << 32


def test_a_snapshot_says_which_transactions_it_sees() -> None:
    snapshot = SourceSnapshot.parse(f"{_EPOCH + 100}:{_EPOCH + 110}:{_EPOCH + 100},{_EPOCH + 105}")
    assert [xid for xid in range(95, 115) if not snapshot.sees(xid)] == [100, 105, *range(110, 115)]


@pytest.mark.parametrize("xmax", [_EPOCH + 5, _EPOCH + (1 << 32) - 5])
def test_xids_of_32_bits_belong_to_the_epoch_that_is_nearest(xmax: int) -> None:
    snapshot = SourceSnapshot(xmax, xmax, frozenset())
    for distance in (1, 4, 10, 1000, (1 << 31) - 1):
        assert snapshot.sees((xmax - distance) & 0xFFFFFFFF)
    for distance in (0, 4, 10, 1000, (1 << 31) - 1):
        assert not snapshot.sees((xmax + distance) & 0xFFFFFFFF)


def test_what_an_earlier_process_may_have_published_is_waited_for() -> None:
    unfinished = UnfinishedTransactions()
    unfinished.may_be_of_before([_EPOCH + 50, _EPOCH + 60])
    assert not unfinished.all_seen_by(SourceSnapshot(_EPOCH + 60, _EPOCH + 70, frozenset({_EPOCH + 60})))
    assert unfinished.of_before == {_EPOCH + 60}
    unfinished.may_be_of_before([])  # it is known by now that it only runs
    assert unfinished.all_seen_by(SourceSnapshot(_EPOCH + 60, _EPOCH + 70, frozenset({_EPOCH + 60})))


def test_what_the_stream_changes_meanwhile_is_left_out() -> None:
    chunk = PendingChunk("t", SourceSnapshot(100, 102, frozenset({100})), {b"1": b"r", b"2": b"r", b"3": None})
    chunk.changed("u", [b"1"], xid=100)
    chunk.changed("t", [b"2", b"99"], xid=100)
    chunk.changed("t", [b"3"], xid=102)
    assert chunk.events == {b"1": b"r"}


def test_a_chunk_follows_the_time_that_it_took() -> None:
    assert next_chunk_rows(1000, took_s=0.025, target_s=0.05, row_bytes=10) == 2000
    assert next_chunk_rows(1000, took_s=0.001, target_s=0.05, row_bytes=10) == 2000
    assert next_chunk_rows(1000, took_s=0.1, target_s=0.05, row_bytes=10) == 500
    assert next_chunk_rows(20_000, took_s=0.001, target_s=0.05, row_bytes=10) == 20_000
    assert next_chunk_rows(50, took_s=10, target_s=0.05, row_bytes=10) == 50
    assert next_chunk_rows(50, took_s=10, target_s=0.05, row_bytes=1 << 30) == 1
