"""Rows as hashes in Redis or Valkey, replaced only by a greater tag.

``docs/sinks/redis.md`` says what is stored where.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from cdc.model.errors import ConfigurationError, DataLost, LockstepError
from cdc.model.event import Events, JsonValue
from cdc.model.table import Table, TableName
from sinks.columns.shape import Shape, unprepared
from sinks.contract import NOTHING_ADDED, AddedValues, Batch, OpenedSink, Outcome, Progress, Rejection, StoredRow
from sinks.progress_json import dump_progress, load_progress
from sinks.redis.calls import Calls
from sinks.redis.connection import Client, RedisConnection
from sinks.redis.coordination import RedisCoordination
from sinks.redis.keys import RedisKeys
from sinks.redis.layout import glob_text, table_field
from sinks.redis.scripts import EPOCH_LENGTH, KEEP_EPOCH
from sinks.redis.settings import RedisSettings, settings_text
from sinks.redis.stored_rows import keys_of, read_rows, scan_keys
from sinks.stored_format import STORED_FORMAT

_WRITTEN: Final = ord("1")
_KNOWN: Final = ord("0")

_LIVE: Final = re.compile(rb"g(?P<generation>\d{1,10})")
_PREFIX: Final = re.compile(r"[A-Za-z0-9_.-]+")

_NOT_OURS: Final = "WRONGTYPE: the key holds something that isn't ours; remove it, then retry the rejection"


def open_redis(name: str, settings: RedisSettings, generation: int) -> OpenedSink:
    """The destination opened for one generation. It connects when it is first used.

    Raises ConfigurationError for a prefix that can't begin a key.
    """
    sink = RedisSink(name, settings, generation)
    return OpenedSink(sink, sink, RedisCoordination(sink.connection, sink.keys))


class RedisSink:
    """Applies events to a Redis or Valkey server, and keeps its generations. Connects at the first call."""

    def __init__(self, name: str, settings: RedisSettings, generation: int) -> None:
        prefix = settings.prefix or name
        if not _PREFIX.fullmatch(prefix):
            raise ConfigurationError(
                f"sink {name!r}: {prefix!r} can't begin a key",
                hint="set prefix to letters, digits, '_', '.' and '-'",
            )
        self.keys = RedisKeys(prefix, generation)
        self.connection = RedisConnection(name, settings, self.keys)
        self._settings = settings
        self._generation = generation
        self._layout = settings.layout
        self._keeps_rows = settings.mode == "materialise"
        self._calls = Calls(settings, self.keys)
        self._epoch = ""
        self._history: str | None = None
        self._saved: Progress | None = None
        self._prepared: set[TableName] = set()

    def prepare(
        self, tables: Sequence[Table], *, go_live: bool = True, added: AddedValues = NOTHING_ADDED
    ) -> AddedValues:
        with self.connection.talking() as client:
            held: dict[bytes, bytes] = client.hgetall(self.keys.tables)
            shapes = {field: Shape.from_json(text) for field, text in held.items()}
            for table in tables:
                known = shapes.get(table_field(table.name))
                shapes[table_field(table.name)] = Shape.of(table) if known is None else known.evolve(table)
            self._check_layout(shapes.values())
            prepared = {table_field(table.name) for table in tables}
            pipeline = client.pipeline(transaction=True)
            pipeline.setnx(self.keys.format, STORED_FORMAT)
            pipeline.sadd(self.keys.generations, self._generation)
            if prepared:
                pipeline.hset(self.keys.tables, mapping={field: shapes[field].to_json() for field in prepared})
            if not self._keeps_rows:
                pipeline.set(self.keys.layout, settings_text(self._settings))
            if go_live:
                pipeline.setnx(self.keys.live, f"g{self._generation}")
            pipeline.execute()
        self._prepared.update(table.name for table in tables)
        return added

    def begin_bulk(self) -> None:
        """Has no effect: larger calls and pipelines than those of ``apply`` gain nothing."""

    def end_bulk(self) -> None:
        """See ``begin_bulk``."""

    def claim(self) -> int:
        """Returns 0: the server can't fence, the tags alone keep two writers right."""
        return 0

    def fence(self) -> int:
        """Returns 0, as ``claim`` does."""
        return 0

    def apply(self, batch: Batch) -> Outcome:
        counts = {_WRITTEN: 0, _KNOWN: 0}
        rejections: list[Rejection] = []
        events = Events.of(batch.events)
        with self.connection.talking() as client:
            self._check_prepared(client, {table_events.table for table_events in events.tables})
            if not self._keeps_rows:
                self._keep_epoch(client, events)
            for calls in self._calls.pipelines(events, rejections, overwrite_equal_tags=batch.overwrite_equal_tags):
                replies = self._calls.send(client, calls)
                for call, reply in zip(calls, replies, strict=True):
                    for code in counts:
                        counts[code] += reply.count(code)
                    refused = (index for index, code in zip(call.indexes, reply, strict=True) if code not in counts)
                    rejections += [Rejection(call.events[index], _NOT_OURS) for index in refused]
        return Outcome(counts[_WRITTEN], counts[_KNOWN], rejections)

    def load_progress(self) -> Progress | None:
        with self.connection.talking() as client:
            if self._history is None:
                self._history, _ = _replication_ids(client)
            text = client.get(self.keys.progress)
        return None if text is None else load_progress(text)

    def save_progress(self, progress: Progress) -> None:
        with self.connection.talking() as client:
            self._check_history(client)
            # What was stored before is there, else everything else may be gone as well.
            if not client.set(self.keys.progress, dump_progress(progress), xx=self._saved is not None):
                raise DataLost(f"key {self.keys.progress!r}, which this job has written, is gone from redis")
        self._saved = progress

    def live(self) -> int | None:
        with self.connection.talking() as client:
            return self._live(client)

    def numbers(self) -> list[int]:
        with self.connection.talking() as client:
            return sorted(map(int, client.smembers(self.keys.generations)))

    def switch(self) -> None:
        with self.connection.talking() as client:
            if not client.exists(self.keys.tables):
                raise LockstepError(
                    f"generation {self._generation} doesn't exist", hint="it was never prepared, or it was dropped"
                )
            self._live(client)  # SET would overwrite anything
            client.set(self.keys.live, f"g{self._generation}")

    def keep_only(self, tables: Collection[TableName]) -> list[TableName]:
        others = []
        with self.connection.talking() as client:
            for held, text in client.hgetall(self.keys.tables).items():
                name = Shape.from_json(text).table.name
                if name in tables:
                    continue
                layout = self._layout.of(name)
                for template in (layout.template(Shape.from_json(text).table.key), *layout.sets):
                    for keys in keys_of(client, self.keys.rows, template):
                        client.unlink(*keys)
                    if layout.ttl_s:
                        for keys in keys_of(client, self.keys.memos, template):
                            client.unlink(*keys)
                client.hdel(self.keys.tables, held)  # last: until the rows are gone this tells of them
                others.append(name)
        self._prepared.difference_update(others)
        return sorted(others)

    def drop(self) -> None:
        if self.live() == self._generation:
            raise LockstepError(
                f"generation {self._generation} is live", hint="switch to another generation before you drop this one"
            )
        with self.connection.talking() as client:
            # The shapes first: a job that still writes here finds its tables unprepared when it next starts.
            client.delete(self.keys.tables, self.keys.progress)
            for keys in scan_keys(client, glob_text(self.keys.rows) + "*"):
                client.unlink(*keys)
            # Whatever the settings are by now: it may have been built with others.
            for keys in scan_keys(client, glob_text(self.keys.memos) + "*"):
                client.unlink(*keys)
            client.delete(self.keys.epoch, self.keys.layout)
            records = [
                name for name in client.hkeys(self.keys.records) if name.startswith(f"g{self._generation}.".encode())
            ]
            if records:
                client.hdel(self.keys.records, *records)
            # Last: until all of the above is done there is something to drop.
            client.srem(self.keys.generations, self._generation)
        self._prepared.clear()

    def scan(self, table: Table) -> Iterator[StoredRow]:
        layout = self._layout.of(table.name)
        with self.connection.talking() as client:
            self._check_prepared(client, {table.name})
            seen: set[bytes] = set()  # SCAN may name a key twice while the server's table grows
            for keys in keys_of(client, self.keys.rows, layout.template(table.key)):
                new = [key for key in keys if key not in seen]
                seen.update(new)
                yield from read_rows(client, new, table, layout)

    def rows(self, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        layout = self._layout.of(table.name)
        begin, text = layout.key_maker(table.key)
        prefix = self.keys.rows + begin
        with self.connection.talking() as client:
            self._check_prepared(client, {table.name})
            wanted = dict.fromkeys(prefix + text([key[name] for name in table.key]) for key in keys)
            yield from read_rows(client, list(wanted), table, layout)

    def close(self) -> None:
        self.connection.close()

    def _live(self, client: Client) -> int | None:
        """What the pointer says. Raises LockstepError when it is something that this sink didn't write."""
        from redis.exceptions import ResponseError

        try:
            text: bytes | None = client.get(self.keys.live)
        except ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            pointer = None
        else:
            if text is None:
                return None
            pointer = _LIVE.fullmatch(text)
        if pointer is None:
            raise LockstepError(
                f"key {self.keys.live!r}, by which readers find this sink's live rows, doesn't name a generation",
                hint="somebody wrote something else there: set it to g<number> again, "
                f"or remove it (DEL {self.keys.live}), then try again; nothing was changed",
            )
        return int(pointer["generation"])

    def _check_prepared(self, client: Client, names: set[TableName]) -> None:
        unknown = names - self._prepared
        if unknown:
            held = client.hkeys(self.keys.tables)
            for name in unknown:
                if table_field(name) not in held:
                    raise unprepared(name)
            self._prepared.update(unknown)

    def _check_layout(self, shapes: Iterable[Shape]) -> None:
        """Raise ConfigurationError with all that doesn't fit the tables' columns, or could give two rows one key."""
        # A column that the source has dropped since is null in all rows to come: then they are in no set of it.
        problems = self._layout.problems_with([replace(shape.table, columns=shape.columns) for shape in shapes])
        if problems:
            raise ConfigurationError(
                "the rows of this sink can't be laid out as it says",
                problems=problems,
                hint="mend names, keys, sets and ttl_s of this sink; nothing was changed",
            )

    def _check_history(self, client: Client) -> None:
        """Raise DataLost when the server may lack what was written since this object saved or loaded progress last.

        A server has a new replication id after a restart, too. What a promoted replica had before is the id of the
        server whose stream it has followed, to wherever it got.
        """
        history, before = _replication_ids(client)
        if self._history is not None and history is not None and history != self._history:
            text = client.get(self.keys.progress)
            reached = {} if text is None else load_progress(text).next_offsets
            saved = {} if self._saved is None else self._saved.next_offsets
            is_behind = any(reached.get(at, 0) < offset for at, offset in saved.items())
            # Without a log of its own, a server comes back as it was when it was saved last.
            is_logged = bool(client.info("persistence").get("aof_enabled"))
            if before == self._history or is_behind or not is_logged:
                raise DataLost("redis has failed over to another server, or come back without its last seconds")
        self._history = history

    def _keep_epoch(self, client: Client, events: Events) -> None:
        """Remember the newest tags' epoch: who puts rows here gives them tags of an epoch that this sink has seen."""
        epoch = max((tag[:EPOCH_LENGTH] for table_events in events.tables for tag in table_events.tags), default="")
        if epoch > self._epoch:
            client.eval(KEEP_EPOCH, 1, self.keys.epoch, epoch)
            self._epoch = epoch


def _replication_ids(client: Client) -> tuple[str | None, str | None]:
    """By which the server's stream of writes is known, now and before it was promoted; None where it doesn't say."""
    from redis.exceptions import ResponseError

    try:
        facts = client.info("replication")
    except ResponseError:  # INFO isn't everybody's; where progress is behind, the job's next start notices
        return None, None
    return facts.get("master_replid"), facts.get("master_replid2")
