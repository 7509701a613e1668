"""For applications: putting rows that they have read from the source into a Redis sink of mode ``invalidate``.

    refill = Refill(client, "cache", settings)
    position = refill.position(query)          # before the row is read
    row = ...                                  # read from PostgreSQL, by a statement of its own
    if position is not None:
        refill.put("public.orders", {"id": 42}, row, position)

A change that comes later must remove what was put there, and one that the row has in it already must not. The position
says which: it is an LSN below which every commit was visible before the row was read. A change of any other transaction
has a greater tag.

The end of the WAL isn't that. A commit is in the WAL before others see it, and stays so for as long as it waits for a
synchronous standby. So ``position`` notes the end of the WAL, and then which transactions are running; it is good as
soon as all of these are over. (Every running transaction that has written holds the lock of its own id, from before it
writes its commit until after others see that.) While none is running, that is at once. While a long one is, the last
good position serves: rows that haven't changed since are put there as ever, the others not before it is over.

What must hold: the statements run on the primary that is captured, in autocommit or at READ COMMITTED, and the row's
after ``position`` has returned. The row is put there within ``LATEST_S``. No commit waits for a standby for longer than
``tombstone_ttl_s``. A row that isn't put there is a row that the application reads from the source again next time; it
is never a reason to fail.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue
from cdc.model.table import TableName
from cdc.model.tag import SNAPSHOT_SEQ, Tag
from sinks.columns.shape import Shape, unprepared
from sinks.redis.connection import check_format
from sinks.redis.keys import RedisKeys
from sinks.redis.layout import table_field
from sinks.redis.scripts import arguments_for, script_for
from sinks.redis.settings import RedisSettings, settings_text

WAL_END_SQL: Final = (
    "select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint,"
    " left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)"
)
"""The end of the WAL as a number, and its timeline."""

RUNNING_SQL: Final = (
    "select array(select transactionid::text from pg_locks"
    " where locktype = 'transactionid' and mode = 'ExclusiveLock' and granted)"
)
"""The transactions that have written and that aren't over. A statement of its own.

It must look when the end of the WAL is known.
"""

LATEST_S: Final = 60.0
"""How long after its position a row may be put there.

Never more than half of ``tombstone_ttl_s``, after which changes are forgotten.
"""

_RENEWED_S: Final = 0.05
"""For so long a position serves other rows, too: it only gets older, not wrong."""

Query = Callable[[str], Sequence[Any]]
"""Runs a statement without parameters on the source and returns its only row."""


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """What rows that are read from now on have in them: every commit below ``lsn``.

    ``found_at`` is by the clock of its ``Refill``.
    """

    epoch: int
    lsn: int
    found_at: float


@dataclass(frozen=True, slots=True)
class WalEnd:
    """An end of the WAL. ``running`` are the transactions of which it isn't known whether they committed below it."""

    epoch: int
    lsn: int
    timeline: str
    running: frozenset[str]

    def is_good_by(self, later: "WalEnd") -> bool:
        """On another timeline the same LSN may be another commit's."""
        return self.timeline == later.timeline and self.lsn <= later.lsn and not self.running & later.running


class Refill:
    """Puts rows into the live generation of one sink, if nothing newer is known of them there.

    Not for several threads at once.

    ``client`` is redis-py's, ``name`` the sink's and ``settings`` its section. Errors of the client are the caller's.
    """

    def __init__(
        self, client: Any, name: str, settings: RedisSettings, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        if settings.mode != "invalidate":
            raise LockstepError(
                f"sink {name!r} keeps all rows by itself", hint='only one of mode = "invalidate" is refilled'
            )
        self._client = client
        self._name = name
        self._prefix = settings.prefix or name
        self._settings = settings
        self._latest_s = min(LATEST_S, settings.tombstone_ttl_s / 2)
        self._monotonic = monotonic
        self._waiting: WalEnd | None = None
        self._good: WalEnd | None = None
        self._found: ReadPosition | None = None
        self._shapes: dict[tuple[int, TableName], Shape] = {}

    def position(self, query: Query) -> ReadPosition | None:
        """For rows that are read from the source from now on. None while there is none.

        Then nothing can be put there.
        """
        now = self._monotonic()
        if self._found is not None and now - self._found.found_at < _RENEWED_S:
            return self._found
        generation = self._live()
        # First: whoever knows a newer epoch's tags reads a newer server's WAL, but not the other way round.
        epoch = None if generation is None else self._client.get(f"{self._prefix}:g{generation}.epoch")
        if epoch is None:
            return None
        lsn, timeline = query(WAL_END_SQL)
        end = WalEnd(int(epoch, 16), int(lsn), str(timeline), frozenset(query(RUNNING_SQL)[0]))
        if self._good is not None and (self._good.timeline != end.timeline or self._good.lsn > end.lsn):
            self._good = None
        if not end.running:
            self._good, self._waiting = end, None
        elif self._waiting is None:
            self._waiting = end
        elif self._waiting.is_good_by(end):
            self._good, self._waiting = self._waiting, end
        elif self._waiting.timeline != end.timeline or self._waiting.lsn > end.lsn:
            self._waiting = end
        # The time before the source was asked: what is measured from it includes all that came after.
        self._found = None if self._good is None else ReadPosition(self._good.epoch, self._good.lsn, now)
        return self._found

    def put(
        self,
        table: str,
        key: Mapping[str, JsonValue],
        row: Mapping[str, JsonValue],
        position: ReadPosition,
    ) -> bool:
        """Whether the row is there now. False where something newer is known of it, or where it is too late.

        ``table`` is ``schema.table``; key and row are in the event's form, with the columns that the sink has. Raises
        LockstepError for a table that the sink does not have, and for a sink that another version has written.
        """
        generation = self._live()
        if generation is None or self._monotonic() - position.found_at > self._latest_s:
            return False
        name = TableName.parse(table)
        shape = self._shape(generation, name)
        layout = self._settings.layout.of(name)
        rows = f"{self._prefix}:g{generation}:"
        script, shared = script_for(
            layout,
            tombstone_ttl_s=self._settings.tombstone_ttl_s,
            overwrite_equal_tags=False,
            rows=rows,
            memos=f"{self._prefix}:g{generation}.tags:",
        )
        tag = str(Tag(position.epoch, position.lsn, SNAPSHOT_SEQ))
        own = arguments_for(layout)(tag, orjson.dumps(dict(row)))
        begin, key_of = layout.key_maker(shape.table.key)
        where = rows + begin + key_of([key[column] for column in shape.table.key])
        outcome: bytes | str = self._client.register_script(script)(keys=[where], args=[*shared, *own])
        return outcome in (b"1", "1")

    def _live(self) -> int | None:
        """The generation that readers see."""
        live: Any = self._client.get(f"{self._prefix}:live")
        text = live.decode() if isinstance(live, bytes) else live
        return None if text is None else int(text.removeprefix("g"))

    def _shape(self, generation: int, name: TableName) -> Shape:
        """What the generation was prepared for."""
        shape = self._shapes.get((generation, name))
        if shape is None:
            check_format(self._client, self._name, RedisKeys(self._prefix, generation))
            text = self._client.hget(f"{self._prefix}:g{generation}.tables", table_field(name))
            if text is None:
                raise unprepared(name)
            built_with = self._client.get(RedisKeys(self._prefix, generation).layout)
            if built_with is not None and orjson.loads(built_with) != orjson.loads(settings_text(self._settings)):
                raise LockstepError(
                    f"generation {generation} of this sink was built with another layout than these settings have",
                    hint="give the application the settings that the sink has by now: its rows would never be "
                    "invalidated",
                )
            shape = self._shapes[generation, name] = Shape.from_json(text)
        return shape
