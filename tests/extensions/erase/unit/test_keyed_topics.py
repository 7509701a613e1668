"""extensions.erase.keyed_topics: when what another extension keeps of a row is proven to be gone"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.kafka.key_records import KeyRecord
from cdc.model.errors import LockstepError
from extensions.erase import keyed_topics
from extensions.erase.deleted_row import DeletedRow
from extensions.erase.keyed_topics import KeyedTopicErasing
from extensions.erase.report import Place
from extensions.erase.topics import TopicErasing
from lockstep.config import read
from lockstep.extension import Extension
from tests.builders import column, table
from tests.configurations import SHOP


class Topic:
    """The records of a topic: of each its key, and whether it is a tombstone."""

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


class Known:
    """What an extension says of its topic."""

    name = "shop.__known"

    def is_of_row(self, record_key: bytes) -> bool:
        return record_key.startswith(b"42")

    def why_open(self, record_keys: Iterable[bytes]) -> str | None:
        keys = list(record_keys)
        return f"{len(keys)} are open" if keys else None


def _topics(*_: Any) -> Sequence[Known]:
    return [Known()]


def _refused(*_: Any) -> Sequence[Known]:
    raise LockstepError("nobody knows")


def _place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: Topic, asked: Callable[..., Sequence[Known]] = _topics
) -> Place:
    (tmp_path / "lockstep.toml").write_text(SHOP)
    monkeypatch.setattr(keyed_topics, "TopicAdmin", lambda _: SimpleNamespace(exists=lambda _: True))
    row = DeletedRow(table(column("id", "int8")), {"id": 42}, "", "shop.public.orders")
    extensions = [Extension(name="without"), Extension(name="extra", keyed_topics=asked)]
    erasing = KeyedTopicErasing(
        read(tmp_path / "lockstep.toml"),
        row,
        cast("TopicErasing", topic),
        extensions,
        timeout_s=0.0,
        check=lambda: None,
    )
    (place,) = erasing.places(only_look=False)
    return place


def test_a_record_that_no_tombstone_follows_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, other = b"42 a", b"43 a"
    place = _place(tmp_path, monkeypatch, Topic((told, False), (told, True), (told, False), (other, False)))
    assert place.why == "1 are open"
    assert _place(tmp_path, monkeypatch, Topic((told, False), (told, True), (other, False))).why is None


def test_what_an_extension_can_not_tell_is_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _place(tmp_path, monkeypatch, Topic(), _refused).unasked == "nobody knows"
