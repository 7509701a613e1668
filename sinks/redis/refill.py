"""For applications: puts rows into a Redis sink of mode ``invalidate``. See ``docs/sinks/redis.md``."""

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

# A commit is in the WAL before others see it, and stays invisible while it waits for a synchronous standby. So the end
# of the WAL alone isn't enough. A running transaction that has written holds the lock of its own id, from before it
# writes its commit until after others see that.
RUNNING_SQL: Final = (
    "select array(select transactionid::text from pg_locks"
    " where locktype = 'transactionid' and mode = 'ExclusiveLock' and granted)"
)
"""The running transactions that have written. Ask after ``WAL_END_SQL``, by a separate statement."""

LATEST_S: Final = 60.0
"""How long after its position a row may be put there, in seconds.

Never more than half of ``tombstone_ttl_s``, after which changes are forgotten.
"""

# How long a position also serves other rows. An old position isn't wrong, only older.
_RENEWED_S: Final = 0.05

Query = Callable[[str], Sequence[Any]]
"""Runs a statement without parameters on the source and returns its only row."""


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """Rows that are read from now on include every commit below ``lsn``. Changes of other transactions have greater
    tags.

    ``found_at`` is in seconds, by the clock of its ``Refill``.
    """

    epoch: int
    lsn: int
    found_at: float


@dataclass(frozen=True, slots=True)
class WalEnd:
    """An end of the WAL, and the transactions that were running then: they may have committed below it, unseen."""

    epoch: int
    lsn: int
    timeline: str
    running: frozenset[str]

    def is_good_by(self, later: "WalEnd") -> bool:
        """Whether all those transactions have ended by ``later``: everything committed below this end is visible."""
        # On another timeline, the same LSN may belong to another commit.
        return self.timeline == later.timeline and self.lsn <= later.lsn and not self.running & later.running


class Refill:
    """Puts rows into the live generation of one sink, unless something newer is known of them there.

    ``client`` is redis-py's, ``name`` the sink's and ``settings`` its section. Use it from one thread at a time. The
    client's errors pass through. Raises LockstepError for a sink of another mode.
    """

    def __init__(
        self, client: Any, name: str, settings: RedisSettings, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        if settings.mode != "invalidate":
            raise LockstepError(
                f"sink {name!r} keeps all rows by itself", hint='only a sink of mode = "invalidate" is refilled'
            )
        self._client = client
        self._name = name
        self._prefix = settings.prefix or name
        self._settings = settings
        self._latest_s = min(LATEST_S, settings.tombstone_ttl_s / 2)
        self._monotonic = monotonic
        self._waiting: WalEnd | None = None
        self._good: WalEnd | None = None
        self._position: ReadPosition | None = None
        self._shapes: dict[tuple[int, TableName], Shape] = {}

    def position(self, query: Query) -> ReadPosition | None:
        """The position of rows that are read from the source from now on. None while nothing can be put there.

        ``query`` asks the captured primary, in autocommit or at READ COMMITTED. While a long transaction runs, the last
        good position is returned again.
        """
        now = self._monotonic()
        if self._position is not None and now - self._position.found_at < _RENEWED_S:
            return self._position
        generation = self._live()
        # The epoch first: if it is a new one, the WAL read after it is the new server's too. The reverse doesn't hold.
        epoch = None if generation is None else self._client.get(RedisKeys(self._prefix, generation).epoch)
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
        # The time before the source was asked, so that a duration measured from it includes everything after that.
        self._position = None if self._good is None else ReadPosition(self._good.epoch, self._good.lsn, now)
        return self._position

    def put(
        self,
        table: str,
        key: Mapping[str, JsonValue],
        row: Mapping[str, JsonValue],
        position: ReadPosition,
    ) -> bool:
        """Put a row that was read after ``position`` was. Returns whether it is stored now.

        It isn't if something newer is known of it, or if it comes more than ``LATEST_S`` later. ``table`` is
        ``schema.table``. Key and row are in the event's form, with the sink's columns. Raises LockstepError for a table
        that the sink doesn't have, for another layout, and for a sink that another version has written.
        """
        generation = self._live()
        if generation is None or self._monotonic() - position.found_at > self._latest_s:
            return False
        name = TableName.parse(table)
        shape = self._shape(generation, name)
        layout = self._settings.layout.of(name)
        keys = RedisKeys(self._prefix, generation)
        script, shared = script_for(
            layout,
            tombstone_ttl_s=self._settings.tombstone_ttl_s,
            overwrite_equal_tags=False,
            rows=keys.rows,
            memos=keys.memos,
        )
        tag = str(Tag(position.epoch, position.lsn, SNAPSHOT_SEQ))
        own = arguments_for(layout)(tag, orjson.dumps(dict(row)))
        begin, key_of = layout.key_maker(shape.table.key)
        row_key = keys.rows + begin + key_of([key[column] for column in shape.table.key])
        outcome: bytes | str = self._client.register_script(script)(keys=[row_key], args=[*shared, *own])
        return outcome in (b"1", "1")

    def _live(self) -> int | None:
        live: Any = self._client.get(f"{self._prefix}:live")
        text = live.decode() if isinstance(live, bytes) else live
        return None if text is None else int(text.removeprefix("g"))

    def _shape(self, generation: int, name: TableName) -> Shape:
        """The shape for which the generation was prepared. Raises LockstepError if it has none, or another layout."""
        shape = self._shapes.get((generation, name))
        if shape is None:
            keys = RedisKeys(self._prefix, generation)
            check_format(self._client, self._name, keys)
            text = self._client.hget(keys.tables, table_field(name))
            if text is None:
                raise unprepared(name)
            built_with = self._client.get(keys.layout)
            if built_with is not None and orjson.loads(built_with) != orjson.loads(settings_text(self._settings)):
                raise LockstepError(
                    f"generation {generation} of this sink was built with another layout than these settings have",
                    hint="give the application the settings that the sink has by now: its rows would never be "
                    "invalidated",
                )
            shape = self._shapes[generation, name] = Shape.from_json(text)
        return shape
