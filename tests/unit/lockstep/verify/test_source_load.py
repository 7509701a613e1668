"""lockstep.verify.source_load"""

from lockstep.verify.source_load import next_chunk_rows


def test_chunks_come_to_take_the_time_that_they_should():
    rows, per_row_s = 1000, 0.0001
    for _ in range(10):
        rows = next_chunk_rows(rows, took_s=rows * per_row_s, chunk_s=1.0)

    assert 9000 <= rows <= 11000
    assert next_chunk_rows(10_000, took_s=100.0, chunk_s=1.0) == 2500
    assert next_chunk_rows(60, took_s=100.0, chunk_s=1.0) == 50
    assert next_chunk_rows(1000, took_s=0.0, chunk_s=1.0) == 4000
