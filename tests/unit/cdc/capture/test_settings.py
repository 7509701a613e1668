"""The sizes of Kafka transactions."""

from cdc.capture.batch_size import BatchSize


def test_batches_become_smaller_by_half_down_to_some_that_are_never_too_many() -> None:
    size, sizes = BatchSize(5000, 3 * 1024 * 1024), []
    for _ in range(4):
        size = size.halved()
        sizes.append((size.rows, size.bytes // 1024))
    assert sizes == [(2500, 1536), (1250, 1024), (1000, 1024), (1000, 1024)]


def test_what_is_smaller_stays() -> None:
    assert BatchSize(7, 4096).halved() == BatchSize(7, 4096)
