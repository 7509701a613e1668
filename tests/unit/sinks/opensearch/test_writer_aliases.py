"""sinks.opensearch.writer_aliases: which requests of a cluster write to an index; the rest is in tests/contract"""

import pytest

from sinks.opensearch.writer_aliases import writes_to


@pytest.mark.parametrize(
    ("description", "writes"),
    [
        ("requests[2], indices[s.a_g1_W7]", True),
        ("requests[2], indices[s.b_g1_W7, s.a_g1_W]", True),
        ("requests[2], index[s.a_g1][0], refresh[IMMEDIATE]", True),
        ("requests[2], indices[s.a_g10_W7]", False),
        ("requests[2], indices[s.a]", False),
        ("requests[2], index[t.s.a_g1][0]", False),
        ("", False),
    ],
)
def test_a_task_of_the_cluster_says_to_what_it_writes(description: str, writes: bool) -> None:
    assert writes_to(description, ["s.a_g1"]) == writes
