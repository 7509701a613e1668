"""Loads a Delta table in bulk: appends first, and at the end keeps each row's newest version, in key order."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, count, pairwise
from queue import Full, Queue
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from sinks.delta.emptied import emptied_tag
from sinks.delta.lake import TARGET_FILE_BYTES, Lake, Overtaken, talking
from sinks.delta.names import quoted
from sinks.delta.opened_table import BULK, OpenedTable

if TYPE_CHECKING:
    import pyarrow as pa

    from sinks.columns.arrow_columns import Rows

# How many rows one query holds when the bulk load ends. More rows are processed in parts.
ROWS_AT_ONCE: Final = 2_000_000
_PORTIONS_MAX: Final = 256
_BATCHES_AHEAD: Final = 4


def begin_bulk_load(lake: Lake, opened: OpenedTable) -> None:
    """From now on, batches are appended. Has no effect on a table with rows. Raises Overtaken."""
    if not opened.is_bulk and not opened.has_rows():
        lake.set_properties(opened.path, opened.table, {BULK: "yes"})


def end_bulk_load(lake: Lake, opened: OpenedTable) -> None:
    """Keep each row's newest version; batches are merged from then on. Raises Overtaken: the caller looks again."""
    from deltalake import write_deltalake

    if not opened.is_bulk:
        return
    if opened.has_rows():
        with talking():
            newest = _newest(opened)
        version = opened.table.version()
        lake.commit(
            opened.path,
            opened.table,
            lambda properties: write_deltalake(
                opened.table,
                newest,
                mode="overwrite",
                target_file_size=TARGET_FILE_BYTES,
                commit_properties=properties,
            ),
        )
        if opened.table.version() != version + 1:
            raise Overtaken  # by another append
    lake.set_properties(opened.path, opened.table, {BULK: "no"})


def _newest(opened: OpenedTable) -> "pa.RecordBatchReader":
    """The newest version of each row, in key order, read lazily. In that order, a merge needs few files."""
    import pyarrow as pa
    from deltalake import QueryBuilder

    table, rows = opened.table, opened.rows()
    key = ", ".join(map(quoted, rows.shape.table.key))
    names = opened.columns().names
    emptied = emptied_tag(opened)
    deleted = f"({quoted('_deleted')} or {quoted('_tag')} < '{emptied}') as {quoted('_deleted')}"
    columns = ", ".join(deleted if name == "_deleted" and emptied else quoted(name) for name in names)
    rank = next(name for name in (f"lockstep_rank_{number}" for number in count()) if name not in names)

    def query(text: str) -> "pa.RecordBatchReader":
        return pa.RecordBatchReader.from_stream(QueryBuilder().register("opened", table).execute(text))

    def newest() -> "Iterator[pa.RecordBatch]":
        for where in _portions(rows, min(_PORTIONS_MAX, -(-table.count() // ROWS_AT_ONCE)), query):
            yield from query(
                f"select {columns} from (select *, "
                f"row_number() over (partition by {key} order by {quoted('_tag')} desc) as {rank} "
                f"from opened where {where}) where {rank} = 1 order by {key}"
            )

    batches = _ahead(newest())
    first = next(batches)
    return pa.RecordBatchReader.from_batches(first.schema, chain([first], batches))


def _ahead(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """The same batches, made by a thread, a few ahead: deltalake can't begin a query while it takes data to write."""
    ready: Queue[pa.RecordBatch | Exception | None] = Queue(_BATCHES_AHEAD)
    is_over = Event()

    def hand_over(batch: "pa.RecordBatch | Exception | None") -> None:
        while not is_over.is_set():
            with suppress(Full):
                ready.put(batch, timeout=1)
                return

    def read() -> None:
        try:
            for batch in batches:
                hand_over(batch)
                if is_over.is_set():
                    return
            hand_over(None)
        except Exception as error:  # raised again by the consumer
            hand_over(error)

    thread = Thread(target=read, daemon=True, name="lockstep-newest")
    thread.start()
    try:
        while (batch := ready.get()) is not None:
            if isinstance(batch, Exception):
                raise batch
            yield batch
    finally:
        is_over.set()
        thread.join()


def _portions(rows: "Rows", count: int, query: Callable[[str], "pa.RecordBatchReader"]) -> Iterator[str]:
    """Conditions that divide the rows by their keys, so that no query has to hold all of a large table."""
    import pyarrow as pa

    leading = rows.schema.field(rows.shape.table.key[0])
    if count <= 1:
        yield "true"
        return
    if pa.types.is_integer(leading.type):
        name = quoted(leading.name)
        cuts = ", ".join(f"approx_percentile_cont({name}, {part / count})" for part in range(1, count))
        bounds = sorted(set(query(f"select {cuts} from opened").read_all().to_pylist()[0].values()))
        conditions = [f"{name} >= {low} and {name} < {high}" for low, high in pairwise(bounds)]
        yield from (f"{name} < {bounds[0]}", *conditions, f"{name} >= {bounds[-1]}")
        return
    texts = [
        f"encode({quoted(name)}, 'hex')"
        if pa.types.is_binary(rows.schema.field(name).type)
        else f"cast({quoted(name)} as varchar)"
        for name in rows.shape.table.key
    ]
    digits = f"substr(md5(concat_ws('/', {', '.join(texts)})), 1, 2)"
    hexadecimal = [f"'{_PORTIONS_MAX * part // count:02x}'" for part in range(count)]
    yield from (f"{digits} >= {low} and {digits} < {high}" for low, high in pairwise(hexadecimal))
    yield f"{digits} >= {hexadecimal[-1]}"
