"""Rows as hashes in Redis or Valkey, one per row, replaced only by a greater tag.

=====================================  ===============================================================
key                                    holds
=====================================  ===============================================================
``shop:g1:public.orders:42``           a row: hash of ``t`` (tag) and ``v`` (the row as JSON)
                                       or a deletion: hash of ``t`` and ``x``, which expires
``shop:live``                          the generation that readers use, ``g1``
``shop:g1.tables``                     hash: the shapes that generation 1 was prepared for
``shop:g1.progress``                   how far generation 1 is, as JSON
``shop:generations``                   set: the generations there are, ``1``
``shop:coordination``                  hash: coordination records, by which jobs and commands agree
``shop:format``                        the number of this layout (``sinks.stored_format``)
``shop:g1.tags:public.orders:42``      only with ``ttl_s``: the tag, and the sets, of a row that may have expired
``shop:g1.epoch``                      only with ``mode = "invalidate"``: the newest tags' epoch, for ``sinks.redis.refill``
=====================================  ===============================================================

A reader asks for ``HGET shop:g1:public.orders:42 v`` and takes no answer as "no such row"; a deletion has no ``v``. Several key
columns are joined by ``:``. ``:`` and ``%`` inside them and ``.``, ``:``, ``%`` inside schema and table are percent-encoded, so that
two rows never share a key. With a name or a template of its own a table's rows stand at ``shop:g1:order:42``; then ``:``, ``%`` and line
breaks are percent-encoded in every value.

``values = "fields"`` keeps a field per column, called as the column: ``HGET shop:g1:public.orders:42 note``. Texts are there as they are,
everything else as in the event's JSON; null is no field. Our own are then ``:t``, ``:x``, ``:n`` (the columns that are null) and ``:s``, and
a column whose name begins with a colon has one more in front.

``sets`` keep the keys of rows under what rows have in common: ``SMEMBERS shop:g1:orders:by_customer:42``. A row's own sets stand in its field
``s``, a line each, and change in the same step as the row. A row with null in a placeholder's column isn't in the set.

``ttl_s`` lets rows expire. Their tags stay in ``shop:g1.tags:*`` for as long as a deletion's, so that no older version comes back, and for ever
while the row is in a set. A set names rows that have expired, too.

``mode = "invalidate"`` keeps no rows: a change removes what is at its key and leaves its tag, as a deletion does, and the application
puts rows there by ``sinks.redis.refill``.

A script compares and sets, row by row: see ``scripts``. A deletion keeps its tag for ``tombstone_ttl_s``, longer than any stale write can
be on its way. Set ``maxmemory-policy noeviction``: an evicted row is a row that readers miss.

What the server says decides: a replica (READONLY), loading, a lost connection are ``Unavailable``, since a failover or a restart
ends them. A full memory (OOM), a failed save (MISCONF), a wrong password, a cluster stop the job: only a person can end these. A
failover that comes between two savings of progress is ``DataLost``, since the new server may lack what the old one had taken.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar

import orjson
from pydantic import AfterValidator, Field, SecretStr, model_validator

from cdc.model.errors import ConfigurationError, DataLost, LockstepError
from cdc.model.event import Events, JsonValue, TableEvents, parse_key
from cdc.model.table import Table, TableName
from sinks.access import Login, Tls
from sinks.columns.shape import Shape, unprepared
from sinks.contract import NOTHING_ADDED, AddedValues, Batch, OpenedSink, Outcome, Progress, Rejection, StoredRow
from sinks.progress_json import dump_progress, load_progress
from sinks.redis.errors import translated
from sinks.redis.layout import Layout, TableLayout, Template, glob_text, row_of, table_field
from sinks.redis.scripts import EPOCH_LENGTH, KEEP_EPOCH, Argument, arguments_for, script_for
from sinks.stored_format import STORED_FORMAT, check_stored_format
from sinks.table_settings import PROJECTING, TableSettings

# redis-py annotates each reply for the synchronous and the asynchronous client at once, which no caller can use.
_Client = Any

_WRITTEN: Final = ord("1")
_KNOWN: Final = ord("0")

_LIVE: Final = re.compile(rb"g(?P<generation>\d{1,10})")
_PREFIX: Final = re.compile(r"[A-Za-z0-9_.-]+")

# A call's bounds: starting the script for each row takes as long as the row itself, and the server does nothing else meanwhile.
_CALL_ROWS: Final = 64
_CALL_BYTES: Final = 256 * 1024
# A pipeline's: enough to hide the round trip, little enough for the server's and our buffers.
_PIPELINE_ROWS: Final = 1024
_PIPELINE_BYTES: Final = 8 * 1024 * 1024
_SCAN_COUNT: Final = 1000

_NOT_OURS: Final = "WRONGTYPE: the key holds something that isn't ours; remove it, then retry the rejection"


_Of = TypeVar("_Of")


def _are_tables(by_table: Mapping[str, _Of]) -> Mapping[str, _Of]:
    problems = []
    for name in by_table:
        try:
            TableName.parse(name)
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ValueError("; ".join(problems))
    return by_table


_ByTable = Annotated[Mapping[str, _Of], AfterValidator(_are_tables)]


class RedisSettings(TableSettings):
    """A Redis or Valkey server. ``rediss://`` in the address switches TLS on.

    ``prefix`` is the first part of every key; without it the sink's name.

    By table: ``names`` is what it is called in keys instead of ``schema.table``, ``keys`` the template of its rows' keys, ``sets`` are
    templates of the sets that hold its rows' keys, ``ttl_s`` is after how many seconds without a change a row expires. ``values`` keeps a
    row as one JSON or as a field per column. ``mode`` is whether rows are kept here, or only removed when they change.
    """

    PLACING: ClassVar[frozenset[str]] = frozenset({"names", "keys", "values", "sets", "ttl_s", "mode"})
    SHAPING: ClassVar[frozenset[str]] = PROJECTING | PLACING

    type: Literal["redis"] = "redis"
    url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    prefix: str | None = None
    names: _ByTable[str] = Field(default_factory=dict)
    keys: _ByTable[str] = Field(default_factory=dict)
    values: Literal["json", "fields"] = "json"
    sets: _ByTable[tuple[str, ...]] = Field(default_factory=dict)
    ttl_s: _ByTable[int] = Field(default_factory=dict)
    mode: Literal["materialise", "invalidate"] = "materialise"
    login: Login = Login()
    tls: Tls = Tls()
    tombstone_ttl_s: int = Field(24 * 60 * 60, gt=0)
    max_value_bytes: int = Field(64 * 1024 * 1024, gt=0, le=511 * 1024 * 1024)
    timeout_s: float = Field(30.0, gt=0)

    @property
    def libraries(self) -> tuple[str, ...]:
        return ("redis",)

    @model_validator(mode="after")
    def _layout_fits(self) -> Self:
        layout, problems = self._parsed()
        problems += layout.problems()
        held = {TableName.parse(text) for text in self.tables if _is_table(text)}
        problems += [f"this sink has no table {name}" for name in sorted(layout.named()) if held and name not in held]
        if self.mode == "invalidate" and self.sets:
            problems.append("sets can't be kept with mode = 'invalidate': the rows aren't here")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def layout(self) -> Layout:
        """Where rows stand."""
        return self._parsed()[0]

    def named_tables(self) -> set[TableName]:
        """The tables that the layout's settings speak of."""
        return super().named_tables() | self.layout.named()

    def may_lack_rows(self, table: TableName) -> bool:
        """Whether rows of the table may be missing, rightly: they have expired, or nobody has asked for them yet."""
        return self.mode == "invalidate" or table in self.layout.ttl_s

    def _parsed(self) -> tuple[Layout, list[str]]:
        """The layout without what is no template, and what is wrong with that."""
        problems = []
        keys, sets = {}, {}
        for name, text in self.keys.items():
            try:
                keys[TableName.parse(name)] = Template.parse(text)
            except ValueError as error:
                problems.append(f"keys: {error}")
        for name, texts in self.sets.items():
            templates = []
            for text in texts:
                try:
                    templates.append(Template.parse(text))
                except ValueError as error:
                    problems.append(f"sets: {error}")
            sets[TableName.parse(name)] = tuple(templates)
        names = {TableName.parse(name): called for name, called in self.names.items()}
        ttl_s = {TableName.parse(name): seconds for name, seconds in self.ttl_s.items()}
        return Layout(names, keys, sets, ttl_s, has_fields=self.values == "fields"), problems


def _is_table(text: str) -> bool:
    try:
        TableName.parse(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a script for some events of a table. ``bytes`` are about what it takes on the wire."""

    events: TableEvents
    places: Sequence[int]
    script: str
    arguments: tuple[Argument, ...]
    bytes: int


def layout_key(prefix: str, generation: int) -> str:
    """The key of what a generation's layout is made of, for those who put rows there beside the job."""
    return f"{prefix}:g{generation}.layout"


def settings_text(settings: RedisSettings) -> str:
    """What a generation's layout is made of, as JSON."""
    shaping = settings.model_dump(mode="json", include=set(settings.PLACING))
    return orjson.dumps(shaping, option=orjson.OPT_SORT_KEYS).decode()


def open_redis(name: str, settings: RedisSettings, generation: int) -> OpenedSink:
    """The destination opened for one generation. It connects when it is first used."""
    sink = RedisSink(name, settings, generation)
    return OpenedSink(sink, sink, sink)


class RedisSink:
    """Applies events to a Redis or Valkey server. Connects at the first call."""

    def __init__(self, name: str, settings: RedisSettings, generation: int) -> None:
        self._settings = settings
        self._prefix = settings.prefix or name
        if not _PREFIX.fullmatch(self._prefix):
            raise ConfigurationError(
                f"sink {name!r}: {self._prefix!r} can't begin a key",
                hint="set prefix to letters, digits, '_', '.' and '-'",
            )
        self._generation = generation
        self._rows = f"{self._prefix}:g{generation}:"
        self._live_key = f"{self._prefix}:live"
        self._tables_key = f"{self._prefix}:g{generation}.tables"
        self._progress_key = f"{self._prefix}:g{generation}.progress"
        self._generations_key = f"{self._prefix}:generations"
        self._records_key = f"{self._prefix}:coordination"
        self._format_key = f"{self._prefix}:format"
        self._name = name
        self._format_is_checked = False
        self._epoch_key = f"{self._prefix}:g{generation}.epoch"
        self._layout_key = layout_key(self._prefix, generation)
        self._memos = f"{self._prefix}:g{generation}.tags:"
        self._layout = settings.layout
        self._keeps_rows = settings.mode == "materialise"
        self._epoch = ""
        self._history: str | None = None
        self._saved: Progress | None = None
        self._client: _Client | None = None
        self._shas: dict[str, str] = {}
        self._prepared: set[TableName] = set()

    def prepare(
        self, tables: Sequence[Table], *, go_live: bool = True, added: AddedValues = NOTHING_ADDED
    ) -> AddedValues:
        with self._talking() as client:
            held: dict[bytes, bytes] = client.hgetall(self._tables_key)
            shapes = {field: Shape.from_json(text) for field, text in held.items()}
            for table in tables:
                known = shapes.get(table_field(table.name))
                shapes[table_field(table.name)] = Shape.of(table) if known is None else known.evolve(table)
            self._check_layout(shapes.values())
            prepared = {table_field(table.name) for table in tables}
            pipeline = client.pipeline(transaction=True)
            pipeline.setnx(self._format_key, STORED_FORMAT)
            pipeline.sadd(self._generations_key, self._generation)
            if prepared:
                pipeline.hset(self._tables_key, mapping={field: shapes[field].to_json() for field in prepared})
            if not self._keeps_rows:
                pipeline.set(self._layout_key, settings_text(self._settings))
            if go_live:
                pipeline.setnx(self._live_key, f"g{self._generation}")
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
        with self._talking() as client:
            self._check_prepared(client, {of_table.table for of_table in events.tables})
            if not self._keeps_rows:
                self._keep_epoch(client, events)
            for calls in self._pipelines(events, rejections, overwrite_equal_tags=batch.overwrite_equal_tags):
                replies = self._send(client, calls)
                for call, reply in zip(calls, replies, strict=True):
                    for code in counts:
                        counts[code] += reply.count(code)
                    refused = (place for place, code in zip(call.places, reply, strict=True) if code not in counts)
                    rejections += [Rejection(call.events[place], _NOT_OURS) for place in refused]
        return Outcome(counts[_WRITTEN], counts[_KNOWN], rejections)

    def load_progress(self) -> Progress | None:
        with self._talking() as client:
            if self._history is None:
                self._history, _ = _replication_ids(client)
            text = client.get(self._progress_key)
        return None if text is None else load_progress(text)

    def save_progress(self, progress: Progress) -> None:
        with self._talking() as client:
            self._check_history(client)
            # What was stored before is there, else everything else may be gone as well.
            if not client.set(self._progress_key, dump_progress(progress), xx=self._saved is not None):
                raise DataLost(f"key {self._progress_key!r}, which this job has written, is gone from redis")
        self._saved = progress

    def live(self) -> int | None:
        with self._talking() as client:
            return self._live(client)

    def numbers(self) -> list[int]:
        with self._talking() as client:
            return sorted(map(int, client.smembers(self._generations_key)))

    def switch(self) -> None:
        with self._talking() as client:
            if not client.exists(self._tables_key):
                raise LockstepError(
                    f"generation {self._generation} doesn't exist", hint="it was never prepared, or it was dropped"
                )
            self._live(client)  # SET would overwrite anything
            client.set(self._live_key, f"g{self._generation}")

    def keep_only(self, tables: Collection[TableName]) -> list[TableName]:
        others = []
        with self._talking() as client:
            for held, text in client.hgetall(self._tables_key).items():
                name = Shape.from_json(text).table.name
                if name in tables:
                    continue
                layout = self._layout.of(name)
                for template in (layout.template(Shape.from_json(text).table.key), *layout.sets):
                    for keys in self._keys_of(client, self._rows, template):
                        client.unlink(*keys)
                    if layout.ttl_s:
                        for keys in self._keys_of(client, self._memos, template):
                            client.unlink(*keys)
                client.hdel(self._tables_key, held)  # last: until the rows are gone this tells of them
                others.append(name)
        self._prepared.difference_update(others)
        return sorted(others)

    def drop(self) -> None:
        if self.live() == self._generation:
            raise LockstepError(
                f"generation {self._generation} is live", hint="switch to another generation before you drop this one"
            )
        with self._talking() as client:
            # The shapes first: a job that still writes here finds its tables unprepared when it next starts.
            client.delete(self._tables_key, self._progress_key)
            for keys in self._scan(client, glob_text(self._rows) + "*"):
                client.unlink(*keys)
            # Whatever the settings are by now: it may have been built with others.
            for keys in self._scan(client, glob_text(self._memos) + "*"):
                client.unlink(*keys)
            client.delete(self._epoch_key, self._layout_key)
            records = [
                name for name in client.hkeys(self._records_key) if name.startswith(f"g{self._generation}.".encode())
            ]
            if records:
                client.hdel(self._records_key, *records)
            # Last: until all of the above is done there is something to drop.
            client.srem(self._generations_key, self._generation)
        self._prepared.clear()

    def load(self, name: str) -> str | None:
        with self._talking() as client:
            text: bytes | None = client.hget(self._records_key, name)
        return None if text is None else text.decode()

    def save(self, name: str, text: str | None) -> None:
        with self._talking() as client:
            if text is None:
                client.hdel(self._records_key, name)
            else:
                pipeline = client.pipeline(transaction=True)
                pipeline.setnx(self._format_key, STORED_FORMAT)
                pipeline.hset(self._records_key, name, text)
                pipeline.execute()

    def create(self, name: str, text: str) -> bool:
        with self._talking() as client:
            pipeline = client.pipeline(transaction=True)
            pipeline.setnx(self._format_key, STORED_FORMAT)
            pipeline.hsetnx(self._records_key, name, text)
            return bool(pipeline.execute()[1])

    def scan(self, table: Table) -> Iterator[StoredRow]:
        layout = self._layout.of(table.name)
        with self._talking() as client:
            self._check_prepared(client, {table.name})
            seen: set[bytes] = set()  # SCAN may name a key twice while the server's table grows
            for keys in self._keys_of(client, self._rows, layout.template(table.key)):
                new = [key for key in keys if key not in seen]
                seen.update(new)
                yield from _read(client, new, table, layout)

    def rows(self, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        layout = self._layout.of(table.name)
        begin, text = layout.key_maker(table.key)
        prefix = self._rows + begin
        with self._talking() as client:
            self._check_prepared(client, {table.name})
            wanted = dict.fromkeys(prefix + text([key[name] for name in table.key]) for key in keys)
            yield from _read(client, list(wanted), table, layout)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _live(self, client: _Client) -> int | None:
        """What the pointer says. Raises LockstepError when it is something that this sink didn't write."""
        from redis.exceptions import ResponseError

        try:
            text: bytes | None = client.get(self._live_key)
        except ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            found = None
        else:
            if text is None:
                return None
            found = _LIVE.fullmatch(text)
        if found is None:
            raise LockstepError(
                f"key {self._live_key!r}, by which readers find this sink's live rows, doesn't name a generation",
                hint=f"somebody wrote something else there: set it to g<number> again, or remove it (DEL {self._live_key}), "
                "then try again; nothing was changed",
            )
        return int(found["generation"])

    def _check_prepared(self, client: _Client, names: set[TableName]) -> None:
        unknown = names - self._prepared
        if unknown:
            held = client.hkeys(self._tables_key)
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

    def _check_history(self, client: _Client) -> None:
        """Raise LockstepError when the server may lack what was written here since this object saved or loaded progress last.

        A server has a new replication id after a restart, too. What a promoted replica had before is the id of the server whose
        stream it has followed, to wherever it got.
        """
        history, before = _replication_ids(client)
        if self._history is not None and history is not None and history != self._history:
            text = client.get(self._progress_key)
            reached = {} if text is None else load_progress(text).next_offsets
            saved = {} if self._saved is None else self._saved.next_offsets
            is_behind = any(reached.get(at, 0) < offset for at, offset in saved.items())
            # Without a log of its own, a server comes back as it was when it was saved last.
            is_logged = bool(client.info("persistence").get("aof_enabled"))
            if before == self._history or is_behind or not is_logged:
                raise DataLost("redis has failed over to another server, or come back without its last seconds")
        self._history = history

    def _keep_epoch(self, client: _Client, events: Events) -> None:
        """Remember the newest tags' epoch: who puts rows here gives them tags of an epoch that this sink has seen."""
        epoch = max((tag[:EPOCH_LENGTH] for of_table in events.tables for tag in of_table.tags), default="")
        if epoch > self._epoch:
            client.eval(KEEP_EPOCH, 1, self._epoch_key, epoch)
            self._epoch = epoch

    def _pipelines(
        self, events: Events, rejections: list[Rejection], *, overwrite_equal_tags: bool
    ) -> Iterator[list["_Call"]]:
        """The scripts' calls, as many at a time as one pipeline should hold."""
        pipeline: list[_Call] = []
        rows = size = 0
        for of_table in events.tables:
            for call in self._calls(of_table, rejections, overwrite_equal_tags=overwrite_equal_tags):
                pipeline.append(call)
                rows += len(call.places)
                size += call.bytes
                if rows >= _PIPELINE_ROWS or size >= _PIPELINE_BYTES:
                    yield pipeline
                    pipeline, rows, size = [], 0, 0
        if pipeline:
            yield pipeline

    def _calls(
        self, events: TableEvents, rejections: list[Rejection], *, overwrite_equal_tags: bool
    ) -> Iterator["_Call"]:
        """Each at most so many rows and about so many bytes; values that are too large become rejections."""
        layout = self._layout.of(events.table)
        script, fixed = script_for(
            layout,
            tombstone_ttl_s=self._settings.tombstone_ttl_s,
            overwrite_equal_tags=overwrite_equal_tags,
            rows=self._rows,
            memos=self._memos,
        )
        begin, key_of = layout.key_maker(list(parse_key(events.keys[0])))
        prefix = self._rows + begin
        arguments_of = None if layout.is_plain else arguments_for(layout)
        value_bytes_max = self._settings.max_value_bytes
        names: list[str] = []
        values: list[Argument] = []
        places: list[int] = []
        size = 0
        rows = events.rows if self._keeps_rows else [None] * len(events)
        for place, (key, tag, row) in enumerate(zip(events.key_values(), events.tags, rows, strict=True)):
            row_bytes = 0 if row is None else len(row)
            if row_bytes > value_bytes_max:
                reason = f"the row's JSON has {row_bytes} bytes, max_value_bytes allows {value_bytes_max}"
                rejections.append(Rejection(events[place], reason))
                continue
            if names and (len(names) >= _CALL_ROWS or size + row_bytes > _CALL_BYTES):
                yield _Call(events, places, script, (len(names), *names, *fixed, *values), size)
                names, values, places, size = [], [], [], 0
            names.append(prefix + key_of(key))
            if arguments_of is None:
                values.append(tag.encode() + row if row is not None else tag.encode())
            else:
                values += arguments_of(tag, row)
            places.append(place)
            size += row_bytes
        if names:
            yield _Call(events, places, script, (len(names), *names, *fixed, *values), size)

    def _send(self, client: _Client, calls: Sequence["_Call"]) -> list[bytes]:
        """A reply per call. Raises the client's error when there is none."""
        from redis.exceptions import NoScriptError

        for script in {call.script for call in calls} - self._shas.keys():
            self._shas[script] = str(client.script_load(script))
        commands = [("EVALSHA", self._shas[call.script], *call.arguments) for call in calls]
        replies = _pipelined(client, commands)
        forgotten = [place for place, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if forgotten:
            # The server restarted or its scripts were flushed; the other commands of the pipeline were carried out.
            for script in {calls[place].script for place in forgotten}:
                client.script_load(script)
            again = _pipelined(client, [commands[place] for place in forgotten])
            for place, reply in zip(forgotten, again, strict=True):
                replies[place] = reply
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def _keys_of(self, client: _Client, prefix: str, template: Template) -> Iterator[list[bytes]]:
        """The keys of this template behind the prefix, in portions; a key may come twice."""
        pattern = glob_text(prefix) + template.glob()
        if template.is_open:  # its first segment is nobody else's, as prepare has made sure
            yield from self._scan(client, pattern)
            return
        fits = re.compile((re.escape(prefix) + template.expression()).encode(), re.DOTALL).fullmatch
        for keys in self._scan(client, pattern):
            ours = [key for key in keys if fits(key)]
            if ours:
                yield ours

    def _scan(self, client: _Client, pattern: str) -> Iterator[list[bytes]]:
        cursor = 0
        while True:
            cursor, keys = client.scan(cursor, match=pattern, count=_SCAN_COUNT)
            if keys:
                yield keys
            if cursor == 0:
                return

    def _connect(self) -> _Client:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        settings = self._settings
        url = settings.url.get_secret_value()
        options: dict[str, Any] = {}
        if settings.login.user is not None:
            options["username"] = settings.login.user
        password = settings.login.read_password()
        if password is not None:
            options["password"] = password
        if url.startswith("rediss:"):
            tls = settings.tls
            options["ssl_cert_reqs"] = "required" if tls.verify else "none"
            options["ssl_check_hostname"] = tls.verify
            for option, file in (
                ("ssl_ca_certs", tls.ca_file),
                ("ssl_certfile", tls.certificate_file),
                ("ssl_keyfile", tls.key_file),
            ):
                if file is not None:
                    options[option] = str(file)
        return Redis.from_url(
            url,
            socket_timeout=settings.timeout_s,
            socket_connect_timeout=settings.timeout_s,
            retry=Retry(NoBackoff(), 0),  # the caller retries, nobody else does
            **options,
        )

    def _check_format(self, client: _Client) -> None:
        """Raise LockstepError when what is stored here is of another format. An empty sink is of any."""
        text: bytes | None = client.get(self._format_key)
        if text is not None and not text.isdigit():
            raise LockstepError(
                f"key {self._format_key!r} is no number of a stored format",
                hint="another application uses this prefix: set another one for this sink",
            )
        if text is not None:
            check_stored_format(self._name, int(text), elsewhere="prefix")
        elif client.exists(self._generations_key, f"{self._prefix}:notes"):
            check_stored_format(self._name, 1, elsewhere="prefix")
        self._format_is_checked = True

    @contextmanager
    def _talking(self) -> Iterator[_Client]:
        """A client, and the server's errors as ours."""
        from redis.exceptions import RedisError

        try:
            if self._client is None:
                self._client = self._connect()
            if not self._format_is_checked:
                self._check_format(self._client)
            yield self._client
        except RedisError as error:
            raise translated(error) from error


def _replication_ids(client: _Client) -> tuple[str | None, str | None]:
    """By which the server's stream of writes is known, now and before it was promoted; None where it doesn't say."""
    from redis.exceptions import ResponseError

    try:
        facts = client.info("replication")
    except ResponseError:  # INFO isn't everybody's; where progress is behind, the job's next start notices
        return None, None
    return facts.get("master_replid"), facts.get("master_replid2")


def _pipelined(client: _Client, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    pipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    replies: list[Any] = pipeline.execute(raise_on_error=False)
    return replies


def _read(client: _Client, keys: Sequence[bytes | str], table: Table, layout: TableLayout) -> Iterator[StoredRow]:
    """The live rows that stand under these keys."""
    if layout.has_fields:
        yield from _read_fields(client, keys, table, layout)
        return
    replies = _pipelined(client, [("HMGET", key, "t", "v") for key in keys])
    for reply in _ours(replies):
        tag, value = reply
        if value is not None:
            stored = orjson.loads(value)
            row = {column.name: stored.get(column.name) for column in table.columns}
            lacks = [name for name in row if name not in stored]
            yield StoredRow({name: row[name] for name in table.key}, row, tag.decode(), lacks)


def _read_fields(
    client: _Client, keys: Sequence[bytes | str], table: Table, layout: TableLayout
) -> Iterator[StoredRow]:
    tag_field, deletion = f"{layout.mark}t".encode(), f"{layout.mark}x".encode()
    for reply in _ours(_pipelined(client, [("HGETALL", key) for key in keys])):
        fields = dict(zip(reply[::2], reply[1::2], strict=True)) if isinstance(reply, list) else reply
        if tag_field in fields and deletion not in fields:
            row, lacks = row_of(fields, table.columns)
            yield StoredRow({name: row[name] for name in table.key}, row, fields[tag_field].decode(), lacks)


def _ours(replies: Iterable[Any]) -> Iterator[Any]:
    """The replies about hashes. Raises the client's error for what is no reply."""
    for reply in replies:
        if isinstance(reply, Exception):
            if "WRONGTYPE" not in str(reply):
                raise reply
            continue  # somebody else's; the row was rejected
        yield reply
