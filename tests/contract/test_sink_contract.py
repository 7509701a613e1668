"""What every sink promises, in memory and against real servers. A new sink adds one ``Destination`` here."""

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from cdc.model.errors import Fenced, LockstepError, Unavailable
from cdc.model.event import JsonValue, RowEvent
from cdc.model.table import Table, TableName
from sinks.collapse import newest
from sinks.memory_sink import MemorySink, MemoryStore
from sinks.opensearch_sink import OpenSearchSettings, OpenSearchSink
from sinks.redis_sink import RedisSettings, RedisSink
from sinks.retrying_sink import RetryingSink, Waiting
from sinks.sink import Outcome, Sink
from sinks.warehouse_sink import WarehouseSettings, WarehouseSink
from tests.builders import batch, column, delete, progress, table, tag, upsert

POISON = "poison"
MAX_VALUE_BYTES = 200_000

# One column that each destination refuses for its own reason: see Destination.poison.
ITEMS = table(column("id", "int8"), column("note"), column("number", "int4"), name=TableName("public", "items"))


@dataclass
class Destination:
    """One kind of sink: how to open it, how to break it, and what it refuses for good."""

    open: Callable[[str, int], Sink]
    poison: dict[str, JsonValue]
    server: str | None = None
    fences: bool = False
    opened: list[Sink] = field(default_factory=list)

    def sink(self, name: str, generation: int = 1, *tables: Table) -> Sink:
        """A sink of this kind; prepared when tables are given."""
        sink = self.open(name, generation)
        self.opened.append(sink)
        if tables:
            sink.prepare(tables)
        return sink


def _memory() -> Destination:
    stores: dict[str, MemoryStore] = {}

    def refuse(event: RowEvent) -> str | None:
        return "too long" if event.row is not None and len(str(event.row.get("note"))) > MAX_VALUE_BYTES else None

    def open_(name: str, generation: int) -> Sink:
        return MemorySink(stores.setdefault(name, MemoryStore()), generation, refuse=refuse)

    return Destination(open_, {"note": POISON * MAX_VALUE_BYTES}, fences=True)


def _redis(endpoints: Any) -> Destination:
    chosen = RedisSettings(url=SecretStr(endpoints.redis_url), max_value_bytes=MAX_VALUE_BYTES, timeout_s=5)
    return Destination(
        lambda name, generation: RedisSink(name, chosen, generation), {"note": POISON * MAX_VALUE_BYTES}, "valkey"
    )


def _opensearch(endpoints: Any) -> Destination:
    chosen = OpenSearchSettings(urls=(endpoints.opensearch_url,), replicas=0, timeout_s=10)
    return Destination(
        lambda name, generation: OpenSearchSink(name, chosen, generation), {"number": 2**40}, "opensearch"
    )


def _warehouse(endpoints: Any) -> Destination:
    chosen = WarehouseSettings(url=SecretStr(endpoints.warehouse_url), lock_timeout_s=1)
    return Destination(
        lambda name, generation: WarehouseSink(name, chosen, generation), {"number": 2**40}, "warehouse", fences=True
    )


_REAL = {"redis": _redis, "opensearch": _opensearch, "warehouse": _warehouse}
_LIVE = [pytest.param(kind, marks=pytest.mark.live) for kind in _REAL]


@pytest.fixture(params=["memory", *_LIVE])
def destination(request: pytest.FixtureRequest) -> Iterator[Destination]:
    made = _memory() if request.param == "memory" else _REAL[request.param](request.getfixturevalue("endpoints"))
    yield made
    for sink in made.opened:
        sink.close()


@pytest.fixture
def name() -> str:
    """A sink name of this test's own, so that tests share servers without sharing data."""
    return f"t{uuid.uuid4().hex[:12]}"


def rows_of(sink: Sink, of: Table = ITEMS) -> dict[str, str]:
    """Live rows, as key -> note."""
    found = [(str(tuple(stored.key.values())), str(stored.row["note"])) for stored in sink.scan(of)]
    assert len(found) == len(dict(found)), "a row was found twice"
    return dict(found)


def item(number: int, note: str, at: int | str, **others: JsonValue) -> RowEvent:
    return upsert({"id": number, "note": note, "number": 1, **others}, at, of=ITEMS)


def gone(number: int, at: int | str) -> RowEvent:
    return delete({"id": number}, at, of=ITEMS)


def counts(outcome: Outcome) -> tuple[int, int, int]:
    return outcome.applied, outcome.stale, len(outcome.rejections)


# A batch's order


def test_the_same_batch_twice_changes_nothing(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    events = [item(1, "a", 1), item(2, "b", 1), gone(3, 1)]
    assert counts(sink.apply(batch(*events))) == (3, 0, 0)
    assert counts(sink.apply(batch(*events))) == (0, 3, 0)
    assert rows_of(sink) == {"(1,)": "a", "(2,)": "b"}


def test_an_older_batch_after_a_newer_one_changes_nothing(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(item(1, "new", 2), item(2, "only", 2)))
    assert counts(sink.apply(batch(item(1, "old", 1), item(3, "other", 1)))) == (1, 1, 0)
    assert rows_of(sink) == {"(1,)": "new", "(2,)": "only", "(3,)": "other"}


def test_an_empty_batch_is_fine(destination: Destination, name: str) -> None:
    assert counts(destination.sink(name, 1, ITEMS).apply(batch())) == (0, 0, 0)


def test_a_deleted_row_stays_deleted_when_a_stale_write_comes(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(item(1, "a", 1)))
    sink.apply(batch(gone(1, 3)))
    assert counts(sink.apply(batch(item(1, "stale", 2)))) == (0, 1, 0)
    assert rows_of(sink) == {}


def test_a_row_that_never_was_here_stays_deleted_too(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(gone(1, 3)))
    sink.apply(batch(item(1, "stale", 2)))
    assert rows_of(sink) == {}


def test_a_deleted_row_can_be_inserted_again(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(item(1, "first", 1)))
    sink.apply(batch(gone(1, 2)))
    sink.apply(batch(item(1, "second", 3)))
    assert rows_of(sink) == {"(1,)": "second"}


def test_a_changed_key_moves_the_row(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(item(1, "a", 1)))
    sink.apply(batch(gone(1, tag(2, 1)), item(7, "a", tag(2, 2))))
    assert rows_of(sink) == {"(7,)": "a"}


def test_the_newest_of_many_changes_wins_whatever_their_order(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    changes = [item(1, f"v{n}", tag(n // 10, 1 + n % 10)) for n in range(1000)]
    random.Random(7).shuffle(changes)
    for change in changes:
        sink.apply(batch(change))
    assert rows_of(sink) == {"(1,)": "v999"}


def test_folding_a_batch_first_gives_the_same_row(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    changes = [item(1, f"v{n}", tag(n // 10, 1 + n % 10)) for n in range(1000)]
    random.Random(7).shuffle(changes)
    values = [b'{"op":"u","tag":"%b","after":{}}' % change.tag.encode() for change in changes]
    kept = newest(["t"] * 1000, [0] * 1000, range(1000), [b'{"id":1}'] * 1000, values, [None] * 1000)
    assert counts(sink.apply(batch(*(changes[place] for place in kept)))) == (1, 0, 0)
    assert rows_of(sink) == {"(1,)": "v999"}


def test_changes_beyond_4095_of_one_transaction_are_applied_in_order(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    for seq in (4000, 4095, 5000, 6000):
        sink.apply(batch(item(1, f"seq {seq}", tag(1, seq))))
    assert rows_of(sink) == {"(1,)": "seq 6000"}


def test_a_large_batch_is_applied_whole(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    events = [item(n, f"n{n}", 1) for n in range(5000)]
    assert counts(sink.apply(batch(*events))) == (5000, 0, 0)
    assert rows_of(sink) == {f"({n},)": f"n{n}" for n in range(5000)}


def test_two_writers_on_the_same_keys_end_with_the_newest(destination: Destination, name: str) -> None:
    destination.sink(name, 1, ITEMS)
    failures: list[BaseException] = []

    def write(seed: int) -> None:
        sink = destination.sink(name, 1)
        picks = random.Random(seed)
        patient = _patient(sink, [])
        try:
            for _ in range(30):
                keys = picks.sample(range(20), 10)
                at = picks.randrange(1, 500)
                patient.apply(batch(*(item(key, f"commit {at}", at) for key in keys)))
                written.extend((key, at) for key in keys)
        except BaseException as error:
            failures.append(error)

    written: list[tuple[int, int]] = []
    writers = [threading.Thread(target=write, args=(seed,)) for seed in (1, 2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failures == []
    newest_of = {key: max(at for other, at in written if other == key) for key, _ in written}
    assert rows_of(destination.sink(name, 1)) == {f"({key},)": f"commit {at}" for key, at in newest_of.items()}


# Poison


def test_a_poison_row_is_rejected_and_its_neighbours_are_applied(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    bad = item(50, "bad", 1)
    bad = replace(bad, row={**(bad.row or {}), **destination.poison})
    events = [item(n, f"n{n}", 1) for n in range(100) if n != 50]
    outcome = sink.apply(batch(*events[:40], bad, *events[40:]))
    assert counts(outcome) == (99, 0, 1)
    assert outcome.rejections[0].event == bad
    assert rows_of(sink) == {f"({n},)": f"n{n}" for n in range(100) if n != 50}


def test_a_rejection_has_a_reason_without_the_rows_values(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    bad = item(50, "secret-note", 1)
    bad = replace(bad, row={**(bad.row or {}), **destination.poison})
    (rejection,) = sink.apply(batch(bad)).rejections
    assert rejection.reason
    for secret in ("secret-note", POISON, str(2**40)):
        assert secret not in rejection.reason


def test_several_poison_rows_are_found(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    events = [item(n, f"n{n}", 1) for n in range(64)]
    for n in (0, 17, 18, 63):
        events[n] = replace(events[n], row={**(events[n].row or {}), **destination.poison})
    outcome = sink.apply(batch(*events))
    assert counts(outcome) == (60, 0, 4)
    assert sorted(rejection.event.key["id"] for rejection in outcome.rejections) == [0, 17, 18, 63]  # type: ignore[type-var]


# Generations


def test_the_first_generation_becomes_live_by_itself(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1)
    assert sink.live_generation() is None
    sink.prepare([ITEMS])
    assert sink.live_generation() == 1


def test_a_second_generation_is_built_beside_the_first_and_switched(destination: Destination, name: str) -> None:
    old = destination.sink(name, 1, ITEMS)
    new = destination.sink(name, 2, ITEMS)
    old.apply(batch(item(1, "old", 1)))
    assert counts(new.apply(batch(item(1, "rebuilt", 1)))) == (1, 0, 0)
    assert (new.live_generation(), rows_of(old), rows_of(new)) == (1, {"(1,)": "old"}, {"(1,)": "rebuilt"})
    new.switch()
    assert old.live_generation() == 2
    old.switch()
    assert new.live_generation() == 1


def test_the_live_generation_is_not_dropped(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    with pytest.raises(LockstepError, match="live"):
        sink.drop()


def test_a_dropped_generation_leaves_the_others_alone(destination: Destination, name: str) -> None:
    old = destination.sink(name, 1, ITEMS)
    new = destination.sink(name, 2, ITEMS)
    old.apply(batch(item(1, "old", 1)))
    old.save_progress(progress())
    new.apply(batch(item(1, "new", 1)))
    new.switch()
    old.drop()
    assert rows_of(new) == {"(1,)": "new"}
    assert destination.sink(name, 1).load_progress() is None
    with pytest.raises(LockstepError):
        destination.sink(name, 1).apply(batch(item(1, "late", 2)))


def test_a_generation_that_never_was_is_not_switched_to(destination: Destination, name: str) -> None:
    destination.sink(name, 1, ITEMS)
    with pytest.raises(LockstepError, match="doesn't exist"):
        destination.sink(name, 9).switch()


def test_a_dropped_generation_can_be_built_again(destination: Destination, name: str) -> None:
    destination.sink(name, 1, ITEMS).apply(batch(item(1, "kept", 1)))
    second = destination.sink(name, 2, ITEMS)
    second.apply(batch(item(1, "first try", 1)))
    second.drop()
    again = destination.sink(name, 2, ITEMS)
    assert rows_of(again) == {}
    assert counts(again.apply(batch(item(1, "second try", 1)))) == (1, 0, 0)


# Shapes


def test_prepare_twice_changes_nothing(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(item(1, "a", 1)))
    sink.prepare([ITEMS])
    destination.sink(name, 1, ITEMS)
    assert rows_of(sink) == {"(1,)": "a"}


def test_a_new_column_is_added_before_the_first_row_that_has_it(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(item(1, "a", 1)))
    wider = replace(ITEMS, columns=(*ITEMS.columns, column("added", "jsonb")))
    sink.prepare([wider])
    sink.apply(batch(upsert({"id": 2, "note": "b", "number": 1, "added": '{"x": 1}'}, 2, of=wider)))
    found = {stored.row["id"]: stored.row["added"] for stored in sink.scan(wider)}
    assert found == {1: None, 2: '{"x": 1}'}


def test_a_job_that_runs_on_sees_a_column_that_another_one_added(destination: Destination, name: str) -> None:
    worker = destination.sink(name, 1, ITEMS)
    worker.apply(batch(item(1, "a", 1)))
    wider = replace(ITEMS, columns=(*ITEMS.columns, column("added", "text")))
    destination.sink(name, 1, wider)
    worker.apply(batch(upsert({"id": 2, "note": "b", "number": 1, "added": "x"}, 2, of=wider)))
    assert {stored.row["id"]: stored.row["added"] for stored in worker.scan(wider)} == {1: None, 2: "x"}


def test_rows_go_on_without_a_column_that_the_source_dropped(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    narrower = replace(ITEMS, columns=ITEMS.columns[:2])
    sink.prepare([narrower])
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 1, of=narrower)))
    assert rows_of(sink, narrower) == {"(1,)": "a"}


@pytest.mark.parametrize(
    "other",
    [
        replace(ITEMS, key=("id", "note")),
        replace(ITEMS, columns=(column("id", "text"), *ITEMS.columns[1:])),
        replace(ITEMS, columns=(ITEMS.columns[0], column("renamed"), ITEMS.columns[2])),
    ],
    ids=["key", "type", "rename"],
)
def test_another_shape_needs_a_new_generation(destination: Destination, name: str, other: Table) -> None:
    sink = destination.sink(name, 1, ITEMS)
    with pytest.raises(LockstepError, match="give the sink another name"):
        sink.prepare([other])
    destination.sink(name, 2, other)


def test_an_unprepared_table_is_an_error(destination: Destination, name: str) -> None:
    destination.sink(name, 1, ITEMS)
    with pytest.raises(LockstepError, match="not prepared"):
        destination.sink(name, 1).apply(batch(upsert({"id": 1, "note": "a"}, 1)))


def test_tables_of_the_same_name_in_two_schemas_are_kept_apart(destination: Destination, name: str) -> None:
    tables = [replace(ITEMS, name=TableName(schema, "items")) for schema in ("public", "sales", "Sales")]
    sink = destination.sink(name, 1, *tables)
    for number, of in enumerate(tables):
        sink.apply(batch(upsert({"id": 1, "note": f"n{number}", "number": 1}, 1, of=of)))
    assert [rows_of(sink, of) for of in tables] == [{"(1,)": f"n{number}"} for number in range(3)]


# Progress and fencing


def test_progress_comes_back_as_it_was_saved(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    assert sink.load_progress() is None
    sink.save_progress(progress(1))
    sink.save_progress(progress(0xFFFF_FFFF_FFFF_FFFF))
    assert destination.sink(name, 1).load_progress() == progress(0xFFFF_FFFF_FFFF_FFFF)


def test_each_generation_has_its_own_progress(destination: Destination, name: str) -> None:
    destination.sink(name, 1, ITEMS).save_progress(progress(1))
    second = destination.sink(name, 2, ITEMS)
    assert second.load_progress() is None
    second.save_progress(progress(2))
    assert destination.sink(name, 1).load_progress() == progress(1)


def test_nothing_is_known_before_prepare(destination: Destination, name: str) -> None:
    assert destination.sink(name, 1).load_progress() is None


def test_a_writer_that_was_replaced_is_fenced(destination: Destination, name: str) -> None:
    zombie = destination.sink(name, 1, ITEMS)
    old_fence = zombie.claim()
    zombie.apply(batch(item(1, "a", 1), fence=old_fence))
    fence = destination.sink(name, 1).claim()
    if destination.fences:
        with pytest.raises(Fenced):
            zombie.apply(batch(item(1, "zombie", 2), fence=old_fence))
        with pytest.raises(Fenced):
            zombie.save_progress(progress())
        assert rows_of(zombie) == {"(1,)": "a"}
    else:
        assert (old_fence, fence) == (0, 0)
    assert counts(destination.sink(name, 1).apply(batch(item(1, "heir", 2), fence=fence))) == (1, 0, 0)


# Values


VALUES = table(
    column("id", "int8"),
    column("a_uuid", "uuid"),
    column("a_numeric", "numeric"),
    column("an_instant", "timestamptz"),
    column("a_timestamp", "timestamp"),
    column("a_date", "date"),
    column("a_time", "time"),
    column("a_json", "jsonb"),
    column("words", "text", is_array=True),
    column("numbers", "int4", is_array=True),
    column("flags", "bool", is_array=True),
    column("mood", "text", type_name="mood"),
    column("flag", "bool"),
    column("bytes", "bytea"),
    column("a_float", "float8"),
    column("an_interval", "interval"),
    column("prose", "text"),
    column("boxes", "box", is_array=True),
    column("span", "int4range"),
    column("address", "inet"),
    column("bits", "bit"),
    column("cash", "money"),
    column("Ünïcode \"q\" 100%", "text"),
    column("dotted.name", "jsonb"),
    column("_id", "int4"),
    name=TableName("public", "values"),
)  # fmt: skip

PLAIN: dict[str, JsonValue] = {
    "id": 1,
    "a_uuid": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "a_numeric": "12345678901234567890.10",
    "an_instant": "2016-11-04T13:51:30.123456Z",
    "a_timestamp": "2016-11-04T13:51:30",
    "a_date": "2016-11-04",
    "a_time": "24:00:00",
    "a_json": '{"a": 1.0, "b": [1, null, {"c": "é\\n"}], "d": 12345678901234567890.123}',
    "words": ["a", 'q"uo\\te', None, "NULL", "", "tab\tnl\n", "ü{},"],
    "numbers": [[1, 2], [3, 4]],
    "flags": [True, False, None],
    "mood": "so so",
    "flag": True,
    "bytes": "\\x00ff10",
    "a_float": 0.1,
    "an_interval": "1 year 2 mons 3 days 04:05:06.7",
    "prose": 'line\nbreak\ttab \\N back\\slash \\. "quotes" ü 🙂\r',
    "boxes": ["(1,1),(0,0)", "(2,2),(1,1)"],
    "span": "[1,5)",
    "address": "10.0.0.0/8",
    "bits": "10110",
    "cash": "$1,000.00",
    'Ünïcode "q" 100%': "yes :this %s",
    "dotted.name": '{"x": "y"}',
    "_id": 7,
}

ODD: list[dict[str, JsonValue]] = [
    {"id": 9223372036854775807},
    {"id": -9223372036854775808},
    {"a_float": "NaN"},
    {"a_float": "-Infinity"},
    {"a_float": 1e300},
    {"a_float": 5e-324},
    {"a_float": -0.0},
    {"a_numeric": "NaN"},
    {"a_numeric": "1" + "0" * 400},
    {"a_numeric": "0.00"},
    {"an_instant": "infinity"},
    {"an_instant": "21016-11-04T13:51:30Z"},
    {"an_instant": "0044-03-15T00:00:00Z BC"},
    {"a_timestamp": "-infinity"},
    {"a_timestamp": "0044-03-15T00:00:00 BC"},
    {"a_date": "21016-11-04"},
    {"a_date": "0044-03-15 BC"},
    {"a_json": "[1, 2]"},
    {"a_json": '"text"'},
    {"a_json": "null"},
    {"a_json": "1.50"},
    {"a_json": "{}"},
    {"a_json": '{"": 1, " ": 4, ".": 3, "a.b": 2}'},
    {"a_json": '{"a": null, "b": [], "c": {}, "d": [[1]]}'},
    {"a_json": '{"x": "' + "y" * 40_000 + '"}'},
    {"a_json": '{"a": ' * 30 + "1" + "}" * 30},
    {"words": []},
    {"words": "[0:1]={a,b}"},
    {"numbers": "[0:1]={7,8}"},
    {"numbers": [None]},
    {"prose": ""},
    {"prose": "x" * 100_000},
    {"prose": "\\N"},
    {"bytes": "\\x" + "ab" * 40_000},
    {name: None for name in PLAIN if name != "id"},
]


def test_every_value_comes_back_as_it_was_applied(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, VALUES)
    rows = [PLAIN, *({**PLAIN, "id": number, **odd} for number, odd in enumerate(ODD, 2))]
    outcome = sink.apply(batch(*(upsert(row, 1, of=VALUES) for row in rows)))
    assert [(rejection.reason, rejection.event.key) for rejection in outcome.rejections] == []
    found = {stored.key["id"]: stored for stored in sink.scan(VALUES)}
    for row in rows:
        stored = found.pop(row["id"])
        assert (dict(stored.row), stored.tag) == (row, tag(1))
        assert repr(stored.row["a_float"]) == repr(row["a_float"])  # -0.0 equals 0.0
    assert found == {}


KEYED = table(column("a"), column("b"), column("note"), name=TableName("My.Schema", "Odd: t%able_g1"), key=("b", "a"))


def test_odd_keys_stay_apart(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, KEYED)
    parts = ["a", "a:b", "b", ":", "/", "a/b", '"', "'", "a,b", "%3A", "ü", "🙂", "", " ", "*", "[x]", "\n", "x" * 600]
    rows: list[dict[str, JsonValue]] = [
        {"a": one, "b": other, "note": f"{one}|{other}"} for one in parts for other in parts
    ]
    assert counts(sink.apply(batch(*(upsert(row, 1, of=KEYED) for row in rows)))) == (len(rows), 0, 0)
    found = sorted((str(stored.key["b"]), str(stored.key["a"]), str(stored.row["note"])) for stored in sink.scan(KEYED))
    assert found == sorted((str(row["b"]), str(row["a"]), str(row["note"])) for row in rows)
    assert next(list(stored.key) for stored in sink.scan(KEYED)) == ["b", "a"]


def test_odd_single_keys_stay_apart(destination: Destination, name: str) -> None:
    single = table(column("k"), column("note"), name=TableName("public", "single"), key=("k",))
    sink = destination.sink(name, 1, single)
    long = "x" * 600
    keys = ["", "a", "a:b", "a/b", "42", "sha256:", long, long + "y", "ü", '"', "[1]", "%", ".", "..", "_x"]
    sink.apply(batch(*(upsert({"k": key, "note": f"note {key}"}, 1, of=single) for key in keys)))
    assert {stored.key["k"]: stored.row["note"] for stored in sink.scan(single)} == {k: f"note {k}" for k in keys}
    sink.apply(batch(*(delete({"k": key}, 2, of=single) for key in keys)))
    assert rows_of(sink, single) == {}


def test_a_scan_may_be_left_early(destination: Destination, name: str) -> None:
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(*(item(n, "x" * 1000, 1) for n in range(3000))))
    rows = sink.scan(ITEMS)
    assert next(rows).tag == tag(1)
    rows.close()  # type: ignore[attr-defined]
    assert counts(sink.apply(batch(item(1, "after", 2)))) == (1, 0, 0)


# Any order


@st.composite
def _histories(draw: st.DrawFn) -> tuple[list[RowEvent], list[list[RowEvent]]]:
    """Events of a few keys, and batches that hold all of them at least once, in any order."""
    changes = draw(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=12))
    events = [
        gone(key, tag(n + 1)) if is_delete else item(key, f"v{n}", tag(n + 1))
        for n, (key, is_delete) in enumerate(changes)
    ]
    extra = draw(st.lists(st.sampled_from(events), max_size=8))
    shuffled = draw(st.permutations(events + extra))
    batches: list[list[RowEvent]] = [[]]
    for event in shuffled:
        # One event per key in a batch, as the contract says.
        if draw(st.booleans()) or any(other.key == event.key for other in batches[-1]):
            batches.append([])
        batches[-1].append(event)
    return events, batches


def _expected(events: Sequence[RowEvent]) -> dict[str, str]:
    last = {event.key["id"]: event for event in events}
    return {f"({key},)": str(event.row["note"]) for key, event in last.items() if event.row is not None}


@given(history=_histories())
@settings(deadline=None)
def test_any_order_and_repetition_ends_in_the_same_rows(history: tuple[list[RowEvent], list[list[RowEvent]]]) -> None:
    events, batches = history
    sink = MemorySink(MemoryStore(), 1)
    sink.prepare([ITEMS])
    for events_of_batch in batches:
        sink.apply(batch(*events_of_batch))
    assert rows_of(sink) == _expected(events)


@pytest.mark.live
@pytest.mark.parametrize("kind", _REAL)
@given(history=_histories())
@settings(
    deadline=None,
    max_examples=12,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_order_and_repetition_ends_in_the_same_rows_on_servers(
    kind: str, endpoints: Any, history: tuple[list[RowEvent], list[list[RowEvent]]]
) -> None:
    events, batches = history
    # One schema of tables for all examples; the key space is another one each time.
    destination = _REAL[kind](endpoints)
    sink = destination.sink(f"t{uuid.uuid4().hex[:12]}", 1, ITEMS)
    try:
        for events_of_batch in batches:
            sink.apply(batch(*events_of_batch))
        assert rows_of(sink) == _expected(events)
    finally:
        sink.close()


# Servers that go away


def _patient(sink: Sink, waits: list[Waiting], sleep: Callable[[float], None] = lambda _: None) -> Sink:
    clock = iter(range(1_000_000))
    return RetryingSink(
        sink, sleep=sleep, monotonic=lambda: float(next(clock)), random=lambda: 0.0, on_wait=waits.append
    )


@pytest.mark.live
@pytest.mark.parametrize("kind", _REAL)
def test_a_job_waits_while_the_server_is_away_and_goes_on(kind: str, stack: Any, endpoints: Any, name: str) -> None:
    destination = _REAL[kind](endpoints)
    sink = destination.sink(name, 1, ITEMS)
    sink.apply(batch(item(1, "before", 1)))
    assert destination.server is not None
    stack.stop(destination.server)
    try:
        with pytest.raises(Unavailable):
            sink.apply(batch(item(1, "away", 2)))
        with pytest.raises(Unavailable):
            destination.sink(name, 1).load_progress()
    finally:
        stack.start(destination.server)
    waits: list[Waiting] = []
    patient = _patient(sink, waits, lambda seconds: time.sleep(min(seconds, 0.5)))
    outcome = patient.apply(batch(item(1, "after", 3)))
    assert outcome.applied + outcome.stale == 1
    sink.prepare([ITEMS])
    sink.apply(batch(item(2, "new", 1)))
    assert rows_of(sink)["(2,)"] == "new"
    sink.close()
