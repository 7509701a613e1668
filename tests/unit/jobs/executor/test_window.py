"""jobs.executor.window"""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.model.errors import LockstepError
from jobs.executor.window import newest, with_tags
from tests.builders import tag


def value(at: str, op: str = "u") -> bytes:
    return f'{{"op":"{op}","tag":"{at}","before":null,"after":{{}}}}'.encode()


def fold(*records: tuple[str, bytes, bytes | None, str | None]) -> list[int]:
    """The indexes of the newest of these records of (topic, key, value, tombstone's tag), all of one partition."""
    topics, keys, values, tags = zip(*records, strict=True)
    indexes = range(len(records))
    table = pa.table(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": pa.array(topics, pa.string()),
            "partition": pa.array([0] * len(records), pa.int32()),
            "offset": pa.array(indexes, pa.int64()),
            "tombstone_tag": pa.array([None if t is None else t.encode() for t in tags], pa.binary()),
        }
    )
    kept: list[int] = newest(with_tags(table)).column("offset").to_pylist()
    return kept


def test_the_greatest_tag_of_each_key_of_a_topic_stays() -> None:
    changes = [("t", b"a", value(tag(2)), None), ("t", b"b", value(tag(1)), None), ("t", b"a", value(tag(1)), None)]
    assert fold(*changes) == [0, 1]
    assert fold(("t", b"a", value(tag(1)), None), ("u", b"a", value(tag(2)), None)) == [0, 1]


def test_the_tombstone_of_a_delete_replaces_it_and_loses_to_a_newer_insert() -> None:
    assert fold(("t", b"a", value(tag(1), "d"), None), ("t", b"a", None, tag(1))) == [1]
    assert fold(("t", b"a", value(tag(2), "c"), None), ("t", b"a", None, tag(1))) == [0]


def test_what_was_before_a_row_that_is_left_out_stays() -> None:
    """As a deletion: the event that says so is neither a row nor a deletion."""
    records = [
        ("t", b"a", value(tag(1), "c"), None),
        ("t", b"a", value(tag(2), "d"), None),
        ("t", b"a", value(tag(3), "x"), None),
        ("t", b"b", value(tag(4), "c"), None),
        ("t", b"b", value(tag(5), "x"), None),
        ("t", b"b", value(tag(6), "x"), None),
        ("t", b"c", value(tag(7), "x"), None),
        ("t", b"c", value(tag(8), "u"), None),
    ]
    assert fold(*records) == [1, 2, 3, 5, 7]


@pytest.mark.parametrize(
    "record",
    [
        ("t", b"k", b'{"id":1}', None),
        ("t", b"k", b"", None),
        ("t", b"k", b'{"op":"u","tag":"00', None),
        ("t", b"k", None, None),
        ("t", b"k", None, "12"),
    ],
)
def test_a_record_without_a_tag_is_an_error_that_names_its_place(record: tuple[str, bytes, bytes | None, str]) -> None:
    with pytest.raises(LockstepError, match="topic 't', partition 0, offset 1"):
        fold(("t", b"a", value(tag(1)), None), record)


@given(st.lists(st.tuples(st.sampled_from(["t", "u"]), st.integers(0, 3), st.integers(0, 9), st.booleans())))
def test_it_keeps_what_a_plain_fold_keeps(changes: list[tuple[str, int, int, bool]]) -> None:
    records = [
        (topic, str(key).encode(), None if dead else value(tag(at)), tag(at) if dead else None)
        for topic, key, at, dead in changes
    ]
    plain: dict[tuple[str, int], tuple[int, int]] = {}
    for index, (topic, key, at, _) in enumerate(changes):
        plain[topic, key] = max(plain.get((topic, key), (-1, -1)), (at, index))
    assert (fold(*records) if records else []) == sorted(index for _, index in plain.values())
