"""extensions.erase.matches: which records of the topic of matches are of a document"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from cdc.kafka.key_records import KeyRecord
from cdc.model.table import TableName
from extensions.erase import matches
from extensions.erase.deleted_row import DeletedRow
from extensions.erase.matches import MatchErasing, is_of
from extensions.erase.report import Place
from extensions.erase.topics import TopicErasing
from lockstep.config import read
from tests.builders import column, table
from tests.shop_settings import SHOP

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


_FILE = (
    SHOP
    + """[sinks.search]
type = "opensearch"
urls = ["http://127.0.0.1:1"]
ids = { "public.orders" = "o-{number}" }
rename = { "public.orders.id" = "number" }
"""
)


class Topic:
    """The records of a topic of matches: of each its key, and whether it is a tombstone."""

    def __init__(self, *records: tuple[bytes, bool]) -> None:
        self._records = records

    def records(self, _: str, is_wanted: Callable[[bytes], bool]) -> list[KeyRecord]:
        return [
            KeyRecord(0, offset, 1, is_tombstone=is_tombstone)
            for offset, (record_key, is_tombstone) in enumerate(self._records)
            if is_wanted(record_key)
        ]

    def erase(self, topic: str, *_: Any) -> Place:
        return Place(topic)


def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: Topic) -> Place:
    (tmp_path / "lockstep.toml").write_text(_FILE)
    monkeypatch.setattr(matches, "TopicAdmin", lambda _: SimpleNamespace(exists=lambda _: True))
    monkeypatch.setattr(matches, "list_of", lambda *_: [])
    row = DeletedRow(table(column("id", "int8")), {"id": 42}, "", "shop.public.orders")
    erasing = MatchErasing(
        read(tmp_path / "lockstep.toml"), row, cast("TopicErasing", topic), timeout_s=0.0, check=lambda: None
    )
    (place,) = erasing.places(only_look=False)
    return place


def test_a_document_that_still_matches_as_far_as_was_told_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, other = key(id="o-42"), key(id="o-43")
    place = _place(tmp_path, monkeypatch, Topic((told, False), (told, True), (told, False), (other, False)))
    assert "nobody has told that its document ceases to match a search of search" in (place.why or "")
    assert _place(tmp_path, monkeypatch, Topic((told, False), (told, True), (other, False))).why is None
