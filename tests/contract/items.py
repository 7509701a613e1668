"""Rows and tables of the contract suite, and what tests look at after applying them."""

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from cdc.model.event import JsonValue, RowEvent
from cdc.model.table import Table, TableName
from jobs.query.column_backfill import backfill_columns
from sinks.contract import AddedValues, OpenedSink, Outcome, Sink
from sinks.wrappers.retrying import Retries, Waiting, retrying
from tests.builders import column, delete, table, tag, upsert
from tests.contract.destinations import ITEMS

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


def rows_of(sink: Sink, of: Table = ITEMS) -> dict[str, str]:
    note_by_key = [(str(tuple(stored.key.values())), str(stored.row["note"])) for stored in sink.scan(of)]
    assert len(note_by_key) == len(dict(note_by_key)), "a row was found twice"
    return dict(note_by_key)


def item(number: int, note: str, at: int | str, **others: JsonValue) -> RowEvent:
    return upsert({"id": number, "note": note, "number": 1, **others}, at, of=ITEMS)


def gone(number: int, at: int | str) -> RowEvent:
    return delete({"id": number}, at, of=ITEMS)


def counts(outcome: Outcome) -> tuple[int, int, int]:
    return outcome.applied, outcome.stale, len(outcome.rejections)


def carried(sink: Sink, of: Table, left: AddedValues) -> int:
    """What a job does with the values that ``prepare`` leaves to it. Returns how many rows it has carried over."""
    values = left.get(of.name, {})
    if not values:
        return 0
    carried = backfill_columns(sink, of, values, fence=0, enter=lambda: True, leave=lambda _: None)
    assert (carried.is_over, carried.refused) == (True, 0)
    return carried.rows


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[RowEvent], list[list[RowEvent]]]:
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


def expected(events: Sequence[RowEvent]) -> dict[str, str]:
    last = {event.key["id"]: event for event in events}
    return {f"({key},)": str(event.row["note"]) for key, event in last.items() if event.row is not None}


def patiently(opened: OpenedSink, waits: list[Waiting], sleep: Callable[[float], None] = lambda _: None) -> OpenedSink:
    clock = iter(range(1_000_000))
    retries = Retries(sleep=sleep, monotonic=lambda: float(next(clock)), random=lambda: 0.0, on_wait=waits.append)
    return retrying(opened, retries)
