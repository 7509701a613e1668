"""lockstep.erase.matches: which records of the topic of matches are of a document"""

import orjson
import pytest

from cdc.model.table import TableName
from lockstep.erase.matches import is_of

TABLE = TableName("public", "orders")
IDS = {"search": {"42", "o-42"}}


def key(**changes: str) -> bytes:
    return orjson.dumps({"sink": "search", "search": "cheap", "table": "public.orders", "id": "42"} | changes)


@pytest.mark.parametrize(
    ("record_key", "expected"),
    [
        (key(), True),
        (key(id="o-42"), True),
        (key(sink="gone"), True),
        (key(sink="gone", id="o-42"), False),
        (key(table="public.items"), False),
        (key(id="43"), False),
        (b"\0", False),
        (b"[1]", False),
    ],
)
def test_a_record_is_of_a_document_by_its_id_in_the_sink(record_key: bytes, expected: bool) -> None:
    """A sink that isn't configured any more has called it by the key."""
    assert is_of(record_key, TABLE, IDS, "42") is expected
