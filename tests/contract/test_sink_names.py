"""What every sink promises of columns whose names a store uses itself: they work, or they are refused in time."""

from collections.abc import Collection
from dataclasses import replace

import pytest

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue, RowEvent
from cdc.model.table import Table, TableName
from sinks.contract import Sink, TablesRefused
from tests.builders import batch, column, delete, upsert
from tests.contract.destinations import ITEMS, Destination
from tests.contract.items import gone, item, rows_of

POSTGRESQLS = ("ctid", "xmin", "xmax", "cmin", "cmax", "tableoid", "oid", "CTID")
DUCKDBS = ("rowid", "RowId", "row", "rank")
OPENSEARCHS = (
    *("_id", "_index", "_source", "_routing", "_type", "_version", "_field_names", "_ignored", "_seq_no", "_meta"),
    *("_primary_term", "_nested_path", "_doc_count", "_size", "_score", "_all", "_recovery_source", "_other"),
    *("@timestamp", ".", "a.b", "*", "%5fid", " "),
)
DELTAS = (
    *("__delta_rs_source", "__delta_rs_path", "__delta_rs_operation", "__delta_rs_file_id__", "__delta_rs_c_note"),
    *("_change_type", "_commit_version", "_commit_timestamp", "_metadata", "a`b"),
)
REDIS = ("t", "v", "s", "x", "n", ":t", ":n", ":")
OURS = (
    *(
        "_tag",
        "_deleted",
        "_exact",
        "_TAG",
        "_json",
        "_ranges",
        "_committed_at",
        "_operation",
        "valid_from",
        "valid_to",
    ),
    *("_dropped_1_note", "_lockstep_0", "lockstep_rank", "lockstep_rank_0", "lockstep_given"),
    *("known", "given", "excluded", "held", "wanted", "versions", "source", "target"),
)
OTHERS = ("x" * 63, "y" * 64, '"', "'", "\\", "?", ":name", "%s", "{}", "a,b", "a b", "\n", "select", "é", "a;b={}\n")
IN_KEYS = ("oid", "row", "rank", "_id", "_source", "t", "v", ":t", "known", "given", "excluded", "lockstep_rank", "é")


def named(names: list[str], *, in_keys: Collection[str]) -> Table:
    """A table with columns of these names. Those of ``in_keys`` are in its key."""
    key = ("id", *(name for name in names if name in in_keys))
    return replace(ITEMS, columns=(*ITEMS.columns, *map(column, names)), key=key)


def refusal(sink: Sink, shape: Table) -> LockstepError | None:
    try:
        sink.prepare([shape], go_live=False)
    except LockstepError as failure:
        return failure
    return None


def accepted(sink: Sink, names: list[str], *, in_keys: Collection[str]) -> list[str]:
    """The names that a sink takes, once it is prepared for them. Every refusal names the column and the way out."""
    left = names
    while (failure := refusal(sink, named(left, in_keys=in_keys))) is not None:
        refused = [name for name in left if f"has a column {name!r}," in str(failure)]
        assert len(refused) == 1, failure
        assert "rename = {" in (failure.hint or "")
        left = [name for name in left if name not in refused]
    return left


def test_a_column_by_a_name_of_a_store_works_or_is_refused(destination: Destination, name: str) -> None:
    opened = destination.opened(name, 1)
    every = list(dict.fromkeys((*POSTGRESQLS, *DUCKDBS, *OPENSEARCHS, *DELTAS, *REDIS, *OURS, *OTHERS)))
    in_keys = () if destination.names_keys else IN_KEYS
    names = accepted(opened.sink, every, in_keys=in_keys)
    shape = named(names, in_keys=in_keys)
    if opened.bulk is not None:
        opened.bulk.begin_bulk()
    fence = opened.sink.claim()

    def row(number: int, note: str, at: int) -> RowEvent:
        values: dict[str, JsonValue] = {name: name if name in shape.key else note for name in names}
        return upsert({"id": number, "note": note, "number": 1, **values}, at, of=shape)

    def removed(number: int, at: int) -> RowEvent:
        return delete(row(number, "", at).key, at, of=shape)

    for events in (
        [row(1, "a", 1), row(2, "a", 1), row(3, "a", 1), row(4, "a", 1)],
        [row(1, "newest", 3), removed(3, 3)],
        [row(1, "late", 2), row(2, "newest", 2), row(3, "late", 2)],
    ):
        assert not opened.sink.apply(batch(*events, fence=fence)).rejections
    if opened.bulk is not None:
        opened.bulk.end_bulk()
    opened.generations.switch()
    for events in ([row(4, "newest", 5), removed(2, 5)], [row(4, "late", 4), row(2, "late", 4), row(5, "newest", 6)]):
        assert not opened.sink.apply(batch(*events, fence=fence)).rejections
    wanted = {number: row(number, "newest", 9).row for number in (1, 4, 5)}
    assert {stored.row["id"]: stored.row for stored in opened.sink.scan(shape)} == wanted
    keys = [row(number, "", 9).key for number in range(1, 6)]
    assert {stored.row["id"]: stored.row for stored in opened.sink.rows(shape, keys)} == wanted


def test_a_column_that_is_added_by_a_name_of_a_store_is_refused_too(destination: Destination, name: str) -> None:
    """Refused before anything is changed: the earlier table goes on."""
    sink = destination.sink(name, 1, ITEMS)
    names = [*POSTGRESQLS, "rowid", "__delta_rs_source", "_tag", "_deleted", "valid_to", "_dropped_1_note"]
    for number, added in enumerate(names):
        wider = replace(ITEMS, columns=(*ITEMS.columns, column(added)))
        if refusal(destination.sink(f"{name}_{number}"), wider) is not None:
            with pytest.raises(LockstepError, match=f"has a column '{added}',"):
                sink.prepare([wider])
    assert not sink.apply(batch(item(1, "a", 1), item(2, "b", 1), gone(3, 1))).rejections
    assert rows_of(sink) == {"(1,)": "a", "(2,)": "b"}


def test_a_table_that_a_store_cannot_hold_keeps_no_other_out(destination: Destination, name: str) -> None:
    """Whether for a column with our name, for their number, or for its own name."""
    columns = [column(f"c{number}", "int4") for number in range(1_597)]
    odd = [
        replace(ITEMS, columns=(*ITEMS.columns, column("_tag")), name=TableName("public", "tagged")),
        replace(ITEMS, columns=(*ITEMS.columns, *columns), name=TableName("public", "wide")),
        replace(ITEMS, name=TableName("Ü" * 31, "Ü" * 31)),
    ]
    opened = destination.opened(name, 1)
    refused: dict[TableName, LockstepError] = {}
    try:
        opened.sink.prepare([odd[0], ITEMS, *odd[1:]])
    except TablesRefused as error:
        refused = error.errors
    assert ITEMS.name not in refused
    assert all(str(each) in why.message and why.hint for each, why in refused.items())
    assert opened.generations.live() == 1
    opened.sink.prepare([ITEMS])
    # Delta takes a minute to write a row of so many columns.
    fit = [shape for shape in odd if shape.name not in refused and len(shape.columns) < 1_000]
    rows = [
        upsert({each.name: "b" if each.value_type == "text" else 1 for each in shape.columns}, 1, of=shape)
        for shape in fit
    ]
    outcome = opened.sink.apply(batch(item(1, "a", 1), *rows))
    assert (outcome.applied, list(outcome.rejections)) == (1 + len(fit), [])
    assert rows_of(opened.sink) == {"(1,)": "a"}
