"""cdc.kafka.partitioner"""

import pytest

from cdc.kafka.partitioner import murmur2, partition_of


@pytest.mark.parametrize(
    ("data", "hashed"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536), (b"abc", 479470107)],
)
def test_murmur2_is_that_of_kafkas_java_client(data, hashed):
    """The vectors of Kafka's own UtilsTest."""
    assert murmur2(data) == hashed % 2**32


def test_a_partition_is_never_negative():
    assert {partition_of(str(n).encode(), 3) for n in range(100)} == {0, 1, 2}
