"""Rows as hashes in Redis or Valkey, replaced only by a greater tag. See ``docs/sinks/redis.md`` for the layout."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from cdc.model.errors import ConfigurationError
from cdc.model.event import Events, JsonValue
from cdc.model.table import Table, TableName
from sinks.capabilities.erasing import Erasing, Leftover, marks_of_rows
from sinks.columns.shape import Shape
from sinks.contract import (
    NOTHING_ADDED,
    AddedValues,
    Batch,
    OpenedSink,
    Outcome,
    Rejection,
    Sink,
    StoredRow,
)
from sinks.page_size import PageSize
from sinks.redis.calls import Calls
from sinks.redis.connection import Client, pipelined
from sinks.redis.coordination import RedisCoordination
from sinks.redis.generations import RedisGenerations
from sinks.redis.layout import TableLayout, table_field
from sinks.redis.scripts import CLAIM, EPOCH_LENGTH, FENCED, KEEP_EPOCH
from sinks.redis.settings import RedisSettings, settings_text
from sinks.redis.stored_rows import ROWS_MAX, KeyLists, RecentKeys, keys_of, of_ours, read_rows
from sinks.redis.tables import RedisTables
from sinks.stored_format import STORED_FORMAT

_NO_END: Final = -1
"""The server's answer for a key that doesn't expire."""

_WRITTEN: Final = ord("1")
_KNOWN: Final = ord("0")

_NOT_OURS: Final = "WRONGTYPE: the key holds something that isn't ours; remove it, then retry the rejection"


def open_redis(name: str, settings: RedisSettings, generation: int) -> OpenedSink:
    """The destination opened for one generation, not yet connected. Raises ConfigurationError for an unfit prefix."""
    tables = RedisTables(name, settings, generation)
    connection = tables.connection
    sink, generations = RedisSink(tables), RedisGenerations(tables)
    return OpenedSink(
        sink,
        generations,
        RedisCoordination(tables),
        erasing=sink,
        identities=generations,
        server=connection.history,
        require_server=connection.require_history,
    )


class RedisSink(Sink, Erasing):
    def __init__(self, tables: RedisTables) -> None:
        self._tables = tables
        self._connection = tables.connection
        self._keys = tables.keys
        self._settings = tables.settings
        self._layout = tables.settings.layout
        self._keeps_rows = tables.settings.mode == "materialise"
        self._calls = Calls(tables.settings, tables.keys)
        self._epoch = ""
        self._page_sizes: dict[TableName, PageSize] = {}
        self._planned: dict[TableName, tuple[str, ...]] = {}
        self._key_lists: KeyLists | None = None

    def prepare(
        self, tables: Sequence[Table], *, go_live: bool = True, added: AddedValues = NOTHING_ADDED
    ) -> AddedValues:
        with self._connection.talking() as client:
            shapes = self._tables.shapes(client)
            for table in tables:
                known = shapes.get(table_field(table.name))
                shapes[table_field(table.name)] = Shape.of(table) if known is None else known.evolve(table)
            self._check_layout(shapes.values())
            prepared = {table_field(table.name) for table in tables}
            pipeline = client.pipeline(transaction=True)
            pipeline.setnx(self._keys.format, STORED_FORMAT)
            pipeline.sadd(self._keys.generations, self._keys.generation)
            if prepared:
                pipeline.hset(self._keys.tables, mapping={field: shapes[field].to_json() for field in prepared})
            if not self._keeps_rows:
                pipeline.set(self._keys.layout, settings_text(self._settings))
            if go_live:
                pipeline.setnx(self._keys.live, f"g{self._keys.generation}")
            pipeline.execute()
        self._tables.remember(table.name for table in tables)
        return added

    def claim(self) -> int:
        """Returns 0 for tables: the tags alone make two writers safe. A view has one writer at a time."""
        if self._tables.fences:
            with self._connection.talking() as client:
                self._tables.fence = int(client.eval(CLAIM, 1, self._keys.fence, time.time_ns() // 1_000_000))
        return self._tables.fence

    def fence(self) -> int:
        if not self._tables.fences:
            return 0
        with self._connection.talking() as client:
            return int(client.get(self._keys.fence) or 0)

    def apply(self, batch: Batch) -> Outcome:
        counts = {_WRITTEN: 0, _KNOWN: 0}
        rejections: list[Rejection] = []
        events = Events.of(batch.events)
        with self._connection.talking() as client:
            self._tables.check_prepared(client, {table_events.table for table_events in events.tables})
            if not self._keeps_rows:
                self._keep_epoch(client, events)
            if self._tables.fences and not events.tables:
                self._tables.check_fence(client.get(self._keys.fence), batch.fence)
            pipelines = self._calls.pipelines(
                events,
                rejections,
                overwrite_equal_tags=batch.overwrite_equal_tags,
                fence=batch.fence if self._tables.fences else None,
            )
            for calls in pipelines:
                replies = self._calls.send(client, calls)
                if FENCED in replies:
                    raise self._tables.fenced()
                for call, reply in zip(calls, replies, strict=True):
                    for code in counts:
                        counts[code] += reply.count(code)
                    refused = (index for index, code in zip(call.indexes, reply, strict=True) if code not in counts)
                    rejections += [Rejection(call.events[index], _NOT_OURS) for index in refused]
        return Outcome(counts[_WRITTEN], counts[_KNOWN], rejections)

    def plan_scans(self, tables: Sequence[Table]) -> None:
        self._planned = {table.name: table.key for table in tables}
        self._forget_lists()

    def scan(self, table: Table) -> Iterator[StoredRow]:
        layout = self._layout.of(table.name)
        with self._connection.talking() as client:
            self._tables.check_prepared(client, {table.name})
            for keys in self._all_keys(client, table, layout):
                yield from read_rows(client, keys, table, layout, self._page_size(table))

    def rows(self, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        layout = self._layout.of(table.name)
        begin, text = layout.key_maker(table.key)
        prefix = self._keys.rows + begin
        with self._connection.talking() as client:
            self._tables.check_prepared(client, {table.name})
            wanted = dict.fromkeys(prefix + text([key[name] for name in table.key]) for key in keys)
            yield from read_rows(client, list(wanted), table, layout, self._page_size(table))

    def leftovers(self, table: Table, key: Mapping[str, JsonValue] | None) -> Sequence[Leftover]:
        """Sets aren't checked: a set holds a row's key only while the row exists."""
        layout = self._layout.of(table.name)
        with self._connection.talking() as client:
            if table_field(table.name) not in client.hkeys(self._keys.tables):
                return []
            if key is None:
                return self._marks(client, layout)
            begin, text = layout.key_maker(table.key)
            own = begin + text([key[name] for name in table.key])
            tag, deletion = f"{layout.mark}t", f"{layout.mark}x"
            places = [self._keys.rows + own, *([self._keys.memos + own] if layout.ttl_s else [])]
            commands = [command for place in places for command in (("HMGET", place, tag, deletion), ("PTTL", place))]
            replies = [of_ours(reply) for reply in pipelined(client, commands)]
        now_ms = time.time_ns() // 1_000_000
        found = []
        for place, fields, ttl_ms in zip(places, replies[::2], replies[1::2], strict=True):
            if fields is None or fields[0] is None:
                continue
            deleted = fields[1]
            is_mark = deleted is not None or place.startswith(self._keys.memos)
            what = "the mark of its deletion" if is_mark else "the row"
            found.append(Leftover(what, not is_mark, now_ms + ttl_ms if ttl_ms >= 0 and is_mark else None))
        return found

    def erase(self, table: Table, key: Mapping[str, JsonValue] | None, *, below: str | None) -> Sequence[Leftover]:
        """The mark of a deletion stays until it expires: nothing else would keep an older event out."""
        return self.leftovers(table, key)

    def _marks(self, client: Client, layout: TableLayout) -> list[Leftover]:
        """Marks of all rows that were deleted or have expired. Walks all keys of the server."""
        deletion = f"{layout.mark}x"
        count, latest_ms, has_no_end = 0, 0, False
        for places in (self._keys.rows, *([self._keys.memos] if layout.ttl_s else [])):
            is_memo = places == self._keys.memos
            recent = RecentKeys()
            for _, keys in keys_of(client, places, [layout.template]):
                own = recent.new(keys)
                rows = [self._keys.rows.encode() + key[len(places.encode()) :] for key in own]
                commands = [
                    each
                    for key, row in zip(own, rows, strict=True)
                    for each in (("EXISTS", row) if is_memo else ("HMGET", key, deletion), ("PTTL", key))
                ]
                replies = [of_ours(reply) for reply in pipelined(client, commands)]
                for held, ttl_ms in zip(replies[::2], replies[1::2], strict=True):
                    is_mark = held == 0 if is_memo else held is not None and held[0] is not None
                    if not is_mark:
                        continue  # a row, or another application's key
                    count += 1
                    latest_ms, has_no_end = max(latest_ms, ttl_ms), has_no_end or ttl_ms == _NO_END
        until_ms = None if has_no_end else time.time_ns() // 1_000_000 + latest_ms
        return marks_of_rows(count, until_ms)

    def close(self) -> None:
        self._forget_lists()
        self._connection.close()

    def _all_keys(self, client: Client, table: Table, layout: TableLayout) -> Iterator[list[bytes]]:
        """The keys of a table's rows, in groups. SCAN always walks all keys of the server."""
        if self._planned.get(table.name) != table.key:
            recent = RecentKeys()
            for _, keys in keys_of(client, self._keys.rows, [layout.template]):
                yield recent.new(keys)
            return
        if self._key_lists is None:
            templates = [self._layout.of(name).template for name in self._planned]
            self._key_lists = KeyLists(client, self._keys.rows, templates)
        yield from self._key_lists.keys(list(self._planned).index(table.name))

    def _forget_lists(self) -> None:
        if self._key_lists is not None:
            self._key_lists.close()
            self._key_lists = None

    def _page_size(self, table: Table) -> PageSize:
        return self._page_sizes.setdefault(table.name, PageSize(ROWS_MAX))

    def _check_layout(self, shapes: Iterable[Shape]) -> None:
        """Raise ConfigurationError with all that doesn't fit the tables' columns, or could give two rows one key."""
        # A column that the source has dropped is null in all later rows, so none of its sets gets them.
        problems = self._layout.problems_with([replace(shape.table, columns=shape.columns) for shape in shapes])
        if problems:
            raise ConfigurationError(
                "the rows of this sink can't be laid out as it says",
                problems=problems,
                hint="mend keys, sets and ttl_s of this sink; nothing was changed",
            )

    def _keep_epoch(self, client: Client, events: Events) -> None:
        """Store the newest tags' epoch: applications give the rows that they put here tags of an epoch seen here."""
        epoch = max((tag[:EPOCH_LENGTH] for table_events in events.tables for tag in table_events.tags), default="")
        if epoch > self._epoch:
            client.eval(KEEP_EPOCH, 1, self._keys.epoch, epoch)
            self._epoch = epoch
