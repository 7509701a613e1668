"""extensions.streams.erasing: what stream queries have of a row, and by what it is found"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from cdc.kafka.topic_reader import Record
from cdc.model.errors import ConfigurationError, Unavailable
from cdc.model.table import TableName
from extensions.streams.configured import queries_of
from extensions.streams.erasing import (
    Found,
    Mapped,
    StreamQueryErasing,
    found_in,
    has_key,
    is_of_row,
    mapped,
    may_come_again,
    place_of_reading,
)
from extensions.streams.executor.results import batch_tag
from extensions.streams.jobs.records import POSTING_PAUSE, erased_name
from extensions.streams.jobs.resume import Figures
from extensions.streams.topic_names import stream_query_topic, stream_result_topic
from jobs.dead_letters.record import dead_letter_key
from jobs.generations.record import list_generations
from lockstep.config import Config, read
from lockstep.erasing import DeletedRow, Means, Place, Stopped, stopped
from sinks.memory import open_memory
from tests.builders import column, table
from tests.configurations import SHOP, query
from tests.generations import prepared_store


def _of_order(name: str) -> str:
    made = query(f"stream_queries.{name}", "select order_id as o, id, at from t", sink="warehouse", key=["o", "id"])
    return made + 'rows_of = { "public.orders" = ["o"] }\n'


_FILE = (
    SHOP
    + """[sinks.warehouse]
type = "warehouse"
url = "postgresql+psycopg://warehouse/shop"
[streams.s]
topic = "shop.__views.open.g1"
columns = { id = "text", order_id = "int8", at = "timestamptz" }
time = "at"
late = "10 minutes"
[streams.t]
topic = "web.searches"
columns = { id = "text", order_id = "int8", at = "timestamptz" }
time = "at"
late = "10 minutes"
rows_of = { "public.orders" = ["order_id"] }
[stream_queries.pairs]
sink = "warehouse"
pattern = { per = ["order_id"], within = "5 minutes", steps = [{ name = "a", stream = "t", times = 2 }] }
[stream_queries.triples]
sink = "warehouse"
pattern = { per = ["id"], within = "5 minutes", steps = [{ name = "a", stream = "t", times = 3 }] }
"""
    + query("stream_queries.recent", "select id, at from s", sink="warehouse")
    + query("stream_queries.others", "select id, at as s_at from t", sink="warehouse")
    + _of_order("said")
)
_TOLD = "".join(_of_order(name) + 'webhook = { url = "http://127.0.0.1:1/" }\n' for name in ("told", "told_too"))
ROW = DeletedRow(table(column("id", "int8"), name=TableName("public", "orders")), {"id": 42}, "", "shop.public.orders")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "lockstep.toml").write_text(_FILE)
    return read(tmp_path / "lockstep.toml")


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        ({"shop.__views.open.g1"}, ["stream query recent"]),
        ({"web.searches"}, [f"stream query {name}" for name in ("pairs", "triples", "others", "said")]),
        ({"shop.public.orders"}, []),
    ],
)
def test_a_query_over_a_topic_that_has_had_the_row_keeps_it(
    config: Config, topics: set[str], expected: list[str]
) -> None:
    places = [
        place
        for query in queries_of(config)
        if (place := place_of_reading(config, query, mapped(config, query, ROW), topics.__contains__)) is not None
    ]
    assert [place.name for place in places] == expected
    assert not any(place.is_proven for place in places)
    for place in places:
        assert place.unasked is not None
        assert f"it reads {min(topics)}," in place.unasked
        query = place.name.removeprefix("stream query ")
        assert f"shop.__stream_queries.{query}" in place.unasked
        assert f"`lockstep streams rebuild {query}`" in place.unasked


@pytest.mark.parametrize(
    ("query", "in_events", "in_result"),
    [
        ("recent", {"s": None}, None),
        ("others", {"t": ("order_id",)}, None),
        ("said", {"t": ("order_id",)}, ("o",)),
        ("pairs", {"t": ("order_id",)}, ("order_id",)),
        ("triples", {"t": ("order_id",)}, None),
    ],
)
def test_a_row_is_found_by_what_the_configuration_says_and_a_pattern_has_it_of_its_streams(
    config: Config, query: str, in_events: dict[str, Any], in_result: Any
) -> None:
    assert mapped(config, query, ROW) == Mapped(in_events, in_result)


def test_another_table_is_not_meant_and_a_key_of_another_length_is_refused(config: Config) -> None:
    other = replace(ROW, table=table(column("id", "int8"), name=TableName("public", "other")))
    assert not mapped(config, "said", other).is_any
    with pytest.raises(ConfigurationError, match=r"rows_of of streams\.t names 1 columns for public\.orders") as error:
        mapped(config, "said", replace(ROW, key={"id": 42, "line": 1}))
    assert "id, line" in (error.value.hint or "")


@pytest.mark.parametrize(
    ("values", "has"),
    [
        ({"order_id": 42}, True),
        ({"order_id": "42"}, True),
        ({"order_id": 421}, False),
        ({"order_id": None}, False),
        ({}, False),
        ([42], False),
        (None, False),
    ],
)
def test_values_are_compared_as_texts(values: Any, has: bool) -> None:
    assert has_key(values, ("order_id",), {"id": 42}) is has


def test_a_null_in_the_key_s_place_is_no_text_of_it() -> None:
    assert not has_key({"order_id": None}, ("order_id",), {"id": "null"})


HOW = Mapped({"t": ("order_id",), "s": None}, ("o",))
_EVENT = '{"order_id": 42, "note": "x"}'
_AT = b'{"topic":"web.searches","partition":0,"offset":7}'


@pytest.mark.parametrize(
    ("key", "value", "is_wanted"),
    [
        (_AT, {"kind": "late", "stream": "t", "value": _EVENT}, True),
        (_AT, {"kind": "malformed", "stream": "t", "value": _EVENT}, True),
        (_AT, {"kind": "late", "stream": "s", "value": _EVENT}, False),
        (_AT, {"kind": "late", "stream": "t", "value": _EVENT[:-3], "value_bytes": 29}, False),
        (_AT, {"kind": "malformed", "stream": "t", "value_base64": "/w=="}, False),
        (_AT, {"kind": "malformed", "stream": "t"}, False),
        (b'{"batch":3,"row":0,"key_sha256":"a"}', {"kind": "refused", "key": {"o": 42, "id": "x"}}, True),
        (b'{"batch":3,"row":0,"key":{"o":42}}', {"kind": "refused", "key_text": '{"o":4', "key_bytes": 99}, True),
        (b'{"batch":3,"row":0,"key":{"o":43}}', {"kind": "refused", "key": {"o": 43, "id": "x"}}, False),
        (b"\0", {"kind": "refused"}, False),
    ],
)
def test_a_record_of_the_side_topic_is_of_the_row_by_its_event_or_by_the_key_of_its_row(
    key: bytes, value: dict[str, Any], is_wanted: bool
) -> None:
    assert is_of_row(key, orjson.dumps(value), HOW, {"id": 42}) is is_wanted


def test_a_position_that_is_another_event_s_by_now_gets_no_tombstone() -> None:
    """A topic that was made anew has other events at the positions of its predecessor."""

    def record(offset: int, key: bytes, value: bytes | None) -> Record:
        return Record(0, offset, key, value, f"t{offset}")

    records = [
        record(0, b"mine", b"row"), record(1, b"again", b"row"), record(2, b"reused", b"row"),
        record(3, b"reused", b"another's"), record(4, b"other", b"another's"), record(5, b"again", b"another's"),
        record(6, b"again", b"row"), record(7, b"gone", b"row"), record(8, b"gone", None),
    ]  # fmt: skip
    found = found_in(records, lambda record: record.value == b"row")
    assert found.wanted == {b"mine": "t0", b"again": "t6", b"reused": "t2", b"gone": "t7"}
    assert (found.removed, found.others) == ({b"gone": "t8"}, {b"reused": (0, 3)})
    assert found.to_remove == {b"mine": "t0", b"again": "t6", b"gone": "t7"}


def test_what_is_no_record_of_ours_is_of_no_row() -> None:
    assert not is_of_row(b"\0", b"no JSON", HOW, {"id": 42})


@pytest.mark.parametrize(
    ("key", "is_again"),
    [
        (b'{"topic":"w","partition":0,"offset":4}', False),
        (b'{"topic":"w","partition":0,"offset":5}', True),
        (b'{"topic":"w","partition":1,"offset":0}', True),
        (b'{"batch":2,"row":0}', False),
        (b'{"batch":3,"row":0}', True),
        (b"no JSON", True),
    ],
)
def test_what_the_last_batch_has_written_may_come_again(key: bytes, is_again: bool) -> None:
    assert may_come_again(key, Figures(batch=3, starts={("w", 0): 5})) is is_again
    assert not may_come_again(key, None), "nobody goes on from anything"


def test_tables_that_are_not_captured_and_columns_that_are_not_there_are_named(tmp_path: Path) -> None:
    file = tmp_path / "lockstep.toml"
    for old, new, told in (
        ('"public.orders" = ["order_id"]', '"public.gone" = ["order_id"]', "isn't captured: public.gone"),
        ('"public.orders" = ["order_id"]', '"public.orders" = ["gone"]', "'gone' is no column of the stream"),
        ('"public.orders" = ["o"]', '"public.orders" = ["at"]', "'at' is no column of the result's key"),
        ('"public.orders" = ["o"]', '"orders" = ["o"]', "rows_of.orders"),
        ('"public.orders" = ["o"]', '"public.orders" = []', "names no column"),
    ):
        assert old in _FILE
        file.write_text(_FILE.replace(old, new))
        with pytest.raises(ConfigurationError) as error:
            read(file)
        assert told in str(error.value), (told, str(error.value))


class Stores:
    """Results in memory, by query. ``down`` is one whose store doesn't answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.down = ""
        self.of = {query: prepared_store(1) for query in ("told", "told_too")}
        monkeypatch.setattr("extensions.streams.erasing.stream_query_plan", self._plan)

    def _plan(self, _: Config, query: str) -> Any:
        return SimpleNamespace(
            name=query, opened=lambda generation: self._opened(query, generation), builds=list_generations
        )

    def _opened(self, query: str, generation: int) -> Any:
        if query == self.down:
            raise Unavailable("the store doesn't answer")
        return open_memory(self.of[query], generation)

    @property
    def held(self) -> list[str]:
        """The queries whose jobs are to post nothing."""
        return [query for query, store in self.of.items() if POSTING_PAUSE in store.records]


@pytest.fixture
def told(tmp_path: Path) -> Config:
    """With queries that have a webhook."""
    (tmp_path / "lockstep.toml").write_text(_FILE + _TOLD)
    return read(tmp_path / "lockstep.toml")


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> Stores:
    return Stores(monkeypatch)


def erasing(config: Config, *, check: Callable[[], None] = lambda: None) -> StreamQueryErasing:
    return StreamQueryErasing(config, ROW, Means(cast("Any", None), 1.0, check, lambda _: None))


def rejection(query: str, order: int = 42) -> bytes:
    topic = stream_result_topic("shop", query, 1)
    return dead_letter_key(query, 1, topic, b'{"id":"a","o":%d}' % order, batch_tag(1))


def test_only_queries_whose_webhook_has_refused_the_row_are_held_up_and_only_while_that_is_removed(
    told: Config, stores: Stores
) -> None:
    closed = list[tuple[list[str], list[bytes]]]()
    keys = [rejection("told"), rejection("said"), rejection("told")]
    why = erasing(told).close_rejections(keys, lambda those: closed.append((stores.held, list(those))))
    assert why is None
    assert closed == [(["told"], [keys[0], keys[2]]), ([], [keys[1]])]
    assert stores.held == []


def test_a_store_that_does_not_answer_keeps_open_what_is_of_its_query_and_nothing_else(
    told: Config, stores: Stores
) -> None:
    stores.down = "told"
    closed = list[bytes]()
    keys = [rejection("told"), rejection("said"), rejection("told_too")]
    assert erasing(told).close_rejections(keys, closed.extend) == (
        "rejections of stream query told stay: the store doesn't answer"
    )
    assert closed == keys[1:]


def test_who_is_told_to_stop_waits_for_no_other_command(told: Config, stores: Stores) -> None:
    stores.of["told"].records[POSTING_PAUSE] = "another's"

    def check() -> None:
        raise stopped()

    closed = list[bytes]()
    with pytest.raises(Stopped):
        erasing(told, check=check).close_rejections([rejection("told")], closed.extend)
    assert closed == []
    assert stores.of["told"].records[POSTING_PAUSE] == "another's"


def test_tombstones_of_a_result_are_written_once_and_its_job_is_told_of_the_last(
    told: Config, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is written after its job was told may stand behind a row that is posted."""
    side, result = stream_query_topic("shop", "told"), stream_result_topic("shop", "told", 1)
    key, log = b'{"id":"a","o":42}', list[tuple[str, list[bytes], list[str]]]()
    found = {side: Found(wanted={b'{"batch":1}': "1"}), result: Found(wanted={key: batch_tag(1)})}
    admin = SimpleNamespace(
        all_partition_counts=lambda: {side: 1, result: 1},
        end_offsets=lambda partitions: dict.fromkeys(partitions, len(log)),
    )
    monkeypatch.setattr("extensions.streams.erasing.TopicAdmin", lambda _: admin)
    monkeypatch.setattr(
        "extensions.streams.erasing.write_tombstones",
        lambda _, topic, keys: log.append((topic, list(keys), stores.held)) if keys else None,
    )
    monkeypatch.setattr("extensions.streams.erasing.TopicReader", lambda *_, **__: SimpleNamespace(records=str))
    monkeypatch.setattr("extensions.streams.erasing.found_in", lambda topic, _: found[topic])
    topics = SimpleNamespace(erase_those=lambda topic, *_: Place(topic))
    erasing = StreamQueryErasing(told, ROW, Means(cast("Any", topics), 1.0, lambda: None, lambda _: None))
    list(erasing.in_topics("told", mapped(told, "told", ROW), only_look=False))
    assert log == [(side, [b'{"batch":1}'], []), (result, [key], ["told"])]
    assert stores.of["told"].records[erased_name(1)] == str(len(log))
    assert stores.held == []


def test_topics_of_queries_that_are_not_configured_any_more_are_named(told: Config) -> None:
    gone = [stream_query_topic("shop", "gone"), stream_result_topic("shop", "gone", 2)]
    own = [stream_query_topic("shop", "told"), stream_result_topic("shop", "told", 1), "shop.__views.open.g1"]
    sentences = [each for each in erasing(told).unchecked([*own, *gone]) if each.startswith("topic ")]
    assert [sentence.split(": ")[0] for sentence in sentences] == [f"topic {topic}" for topic in gone]
    assert all("isn't in this configuration" in sentence for sentence in sentences)
