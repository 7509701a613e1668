"""extensions.searches.erasing: which records of the topic of matches are of a row"""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from cdc.model.table import TableName
from extensions.searches import erasing
from extensions.searches.erasing import MatchesOfRow, open_keys
from lockstep.config import read
from tests.configurations import SHOP

_FILE = (
    SHOP
    + """[sinks.search]
type = "opensearch"
urls = ["http://127.0.0.1:1"]
ids = { "public.orders" = "o-{number}" }
rename = { "public.orders.id" = "number" }
"""
)


def key(**changes: str) -> bytes:
    return orjson.dumps({"sink": "search", "search": "cheap", "table": "public.orders", "id": "42"} | changes)


@pytest.fixture
def matches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MatchesOfRow:
    """Those of a row of which no generation is there."""
    monkeypatch.setattr(erasing, "list_of", lambda *_: [])
    (tmp_path / "lockstep.toml").write_text(_FILE)
    return MatchesOfRow(read(tmp_path / "lockstep.toml"), TableName("public", "orders"), {"id": 42})


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
def test_a_record_is_of_a_document_by_its_id_in_the_sink(
    matches: MatchesOfRow, record_key: bytes, expected: bool
) -> None:
    """A sink that isn't configured any more has called it by the key."""
    assert matches.is_of_row(record_key) is expected


def test_a_document_that_still_matches_names_its_sink(matches: MatchesOfRow) -> None:
    assert "its document ceases to match a search of search:" in (matches.why_open([key(id="o-42")]) or "")
    assert matches.why_open([]) is None


class _Topic:
    """The records of a topic: of each its key, and whether it is a tombstone."""

    def __init__(self, *records: tuple[bytes, bool]) -> None:
        self._records = records

    def records(self, _: str, is_wanted: Callable[[bytes], bool]) -> list[Any]:
        wanted = [is_tombstone for record_key, is_tombstone in self._records if is_wanted(record_key)]
        return [SimpleNamespace(is_tombstone=is_tombstone) for is_tombstone in wanted]


def test_a_record_that_no_tombstone_follows_is_open() -> None:
    reported, other = b"42 a", b"43 a"

    def found(*records: tuple[bytes, bool]) -> Sequence[bytes]:
        return open_keys(cast("Any", _Topic(*records)), "known", lambda record_key: record_key.startswith(b"42"))

    assert found((reported, False), (reported, True), (reported, False), (other, False)) == [reported]
    assert found((reported, False), (reported, True), (other, False)) == []
