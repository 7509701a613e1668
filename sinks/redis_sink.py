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
``shop:notes``                         hash: notes by which jobs and commands agree
=====================================  ===============================================================

A reader asks for ``HGET shop:g1:public.orders:42 v`` and takes no answer as "no such row"; a deletion has no ``v``. Several key
columns are joined by ``:``. ``:`` and ``%`` inside them and ``.``, ``:``, ``%`` inside schema and table are percent-encoded, so that
two rows never share a key.

A script compares and sets, row by row. It compares the tags' hexadecimal text: Lua's numbers are doubles and would lose the low
digits, and its ``<`` on other text follows the server's locale. A deletion keeps its tag for ``tombstone_ttl_s``, longer than
any stale write can be on its way. Set ``maxmemory-policy noeviction``: an evicted row is a row that readers miss.

What the server says decides: a replica (READONLY), loading, a lost connection are ``Unavailable``, since a failover or a restart
ends them. A full memory (OOM), a failed save (MISCONF), a wrong password stop the job: only a person can end these.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from cdc.model.errors import ConfigurationError, LockstepError, Unavailable
from cdc.model.event import Events, JsonValue, TableEvents
from cdc.model.table import Table, TableName
from sinks.access import Login, Tls
from sinks.progress_json import dump_progress, load_progress
from sinks.projection import Excluded
from sinks.shape import Shape, unprepared
from sinks.sink import NOTHING_ADDED, AddedValues, Batch, Outcome, Progress, Rejection, StoredRow

# redis-py annotates each reply for the synchronous and the asynchronous client at once, which no caller can use.
_Client = Any

# KEYS: rows. ARGV: the milliseconds that a deletion is remembered; '1' where an equal tag replaces the row; then for each row its
# tag with its JSON behind it, or nothing for a deletion: every argument costs the client more than the server. Returns a letter per
# row: 1 written, 0 the server has it already, w a key that isn't ours. An error of any other kind ends the script: what was
# written stays, and the caller repeats all of it.
_COMPARE_AND_SET: Final = """
local outcome = {}
for n, key in ipairs(KEYS) do
  local tag, row = string.sub(ARGV[n + 2], 1, 28), string.sub(ARGV[n + 2], 29)
  local known = redis.pcall('HMGET', key, 't', 'x')
  if known.err then
    if not string.find(known.err, 'WRONGTYPE', 1, true) then return known end
    outcome[n] = 'w'
  elseif known[1] and (known[1] > tag or (known[1] == tag and ARGV[2] ~= '1')) then
    outcome[n] = '0'
  else
    if known[2] or (known[1] and row == '') then redis.call('DEL', key) end
    if row == '' then
      redis.call('HSET', key, 't', tag, 'x', '1')
      redis.call('PEXPIRE', key, ARGV[1])
    else
      redis.call('HSET', key, 't', tag, 'v', row)
    end
    outcome[n] = '1'
  end
end
return table.concat(outcome)
"""
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

# The first words of replies that redis-py has no class for. These end by themselves, ...
_PASSING: Final = ("BUSY", "NOREPLICAS", "UNBLOCKED", "LOADING")
# ... this one doesn't.
_CANT_SAVE: Final = "MISCONF"
_NOT_OURS: Final = "WRONGTYPE: the key holds something that isn't ours; remove it, then retry the rejection"
_RETRY_AFTER_S: Final = 0.5


class RedisSettings(BaseModel):
    """A Redis or Valkey server. ``rediss://`` in the address switches TLS on.

    ``prefix`` is the first part of every key; without it the sink's name. ``exclude`` names columns that never get here.

    ``max_open_rejections`` is how many rows that it refused may be kept; before there are more, the job stops.
    """

    SHAPING: ClassVar[frozenset[str]] = frozenset({"tables", "exclude"})

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["redis"] = "redis"
    url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    prefix: str | None = None
    tables: tuple[str, ...] = ()
    exclude: Excluded = ()
    login: Login = Login()
    tls: Tls = Tls()
    tombstone_ttl_s: int = Field(24 * 60 * 60, gt=0)
    max_value_bytes: int = Field(64 * 1024 * 1024, gt=0, le=511 * 1024 * 1024)
    timeout_s: float = Field(30.0, gt=0)
    max_open_rejections: int = Field(10_000, ge=0)


def escape_name(part: str) -> str:
    """Schema or table as a part of a key: one dot and two colons in a key are ours."""
    return part.replace("%", "%25").replace(".", "%2E").replace(":", "%3A")


def key_text(values: Sequence[JsonValue]) -> str:
    """The key's values as the last part of a key. Different keys of one table have different texts."""
    if len(values) == 1:
        return _plain(values[0])
    return ":".join(_plain(value).replace("%", "%25").replace(":", "%3A") for value in values)


def _plain(value: JsonValue) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of the script for some events of a table. ``bytes`` are about what it takes on the wire."""

    events: TableEvents
    places: Sequence[int]
    command: tuple[Any, ...]
    bytes: int


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
        self._notes_key = f"{self._prefix}:notes"
        self._client: _Client | None = None
        self._sha = ""
        self._prepared: set[TableName] = set()

    def prepare(
        self, tables: Sequence[Table], *, go_live: bool = True, added: AddedValues = NOTHING_ADDED
    ) -> AddedValues:
        with self._talking() as client:
            held: dict[bytes, bytes] = client.hgetall(self._tables_key)
            shapes = {}
            for table in tables:
                text = held.get(_table_field(table.name))
                shape = Shape.of(table) if text is None else Shape.from_json(text).evolve(table)
                shapes[_table_field(table.name)] = shape.to_json()
            pipeline = client.pipeline(transaction=True)
            pipeline.sadd(self._generations_key, self._generation)
            if shapes:
                pipeline.hset(self._tables_key, mapping=shapes)
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
            for calls in self._pipelines(events, rejections, replays=batch.replays):
                replies = self._send(client, [call.command for call in calls])
                for call, reply in zip(calls, replies, strict=True):
                    for code in counts:
                        counts[code] += reply.count(code)
                    refused = (place for place, code in zip(call.places, reply, strict=True) if code not in counts)
                    rejections += [Rejection(call.events[place], _NOT_OURS) for place in refused]
        return Outcome(counts[_WRITTEN], counts[_KNOWN], rejections)

    def load_progress(self) -> Progress | None:
        with self._talking() as client:
            text = client.get(self._progress_key)
        return None if text is None else load_progress(text)

    def save_progress(self, progress: Progress) -> None:
        with self._talking() as client:
            client.set(self._progress_key, dump_progress(progress))

    def live_generation(self) -> int | None:
        with self._talking() as client:
            return self._live(client)

    def generations(self) -> list[int]:
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
                for keys in self._scan(client, self._table_prefix(name)):
                    client.unlink(*keys)
                client.hdel(self._tables_key, held)  # last: until the rows are gone this tells of them
                others.append(name)
        self._prepared.difference_update(others)
        return sorted(others)

    def drop(self) -> None:
        if self.live_generation() == self._generation:
            raise LockstepError(
                f"generation {self._generation} is live", hint="switch to another generation before you drop this one"
            )
        with self._talking() as client:
            # The shapes first: a job that still writes here finds its tables unprepared when it next starts.
            client.delete(self._tables_key, self._progress_key)
            for keys in self._scan(client, self._rows):
                client.unlink(*keys)
            notes = [
                name for name in client.hkeys(self._notes_key) if name.startswith(f"g{self._generation}.".encode())
            ]
            if notes:
                client.hdel(self._notes_key, *notes)
            # Last: until all of the above is done there is something to drop.
            client.srem(self._generations_key, self._generation)
        self._prepared.clear()

    def load_note(self, name: str) -> str | None:
        with self._talking() as client:
            text: bytes | None = client.hget(self._notes_key, name)
        return None if text is None else text.decode()

    def save_note(self, name: str, text: str | None) -> None:
        with self._talking() as client:
            if text is None:
                client.hdel(self._notes_key, name)
            else:
                client.hset(self._notes_key, name, text)

    def create_note(self, name: str, text: str) -> bool:
        with self._talking() as client:
            return bool(client.hsetnx(self._notes_key, name, text))

    def scan(self, table: Table) -> Iterator[StoredRow]:
        with self._talking() as client:
            self._check_prepared(client, {table.name})
            seen: set[bytes] = set()  # SCAN may name a key twice while the server's table grows
            for keys in self._scan(client, self._table_prefix(table.name)):
                new = [key for key in keys if key not in seen]
                seen.update(new)
                yield from _read(client, new, table)

    def rows(self, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        prefix = self._table_prefix(table.name)
        with self._talking() as client:
            self._check_prepared(client, {table.name})
            wanted = dict.fromkeys(prefix + key_text([key[name] for name in table.key]) for key in keys)
            yield from _read(client, list(wanted), table)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _table_prefix(self, name: TableName) -> str:
        return f"{self._rows}{escape_name(name.schema)}.{escape_name(name.name)}:"

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
                if _table_field(name) not in held:
                    raise unprepared(name)
            self._prepared.update(unknown)

    def _pipelines(self, events: Events, rejections: list[Rejection], *, replays: bool) -> Iterator[list["_Call"]]:
        """The script's calls, as many at a time as one pipeline should hold."""
        pipeline: list[_Call] = []
        rows = size = 0
        for of_table in events.tables:
            for call in self._calls(of_table, rejections, replays=replays):
                pipeline.append(call)
                rows += len(call.places)
                size += call.bytes
                if rows >= _PIPELINE_ROWS or size >= _PIPELINE_BYTES:
                    yield pipeline
                    pipeline, rows, size = [], 0, 0
        if pipeline:
            yield pipeline

    def _calls(self, events: TableEvents, rejections: list[Rejection], *, replays: bool) -> Iterator["_Call"]:
        """Each at most so many rows and about so many bytes; values that are too large become rejections."""
        prefix = self._table_prefix(events.table)
        value_bytes_max = self._settings.max_value_bytes
        fixed = (self._settings.tombstone_ttl_s * 1000, "1" if replays else "0")
        names: list[str] = []
        values: list[bytes] = []
        places: list[int] = []
        size = 0
        for place, (key, tag, row) in enumerate(zip(events.key_values(), events.tags, events.rows, strict=True)):
            row_bytes = 0 if row is None else len(row)
            if row_bytes > value_bytes_max:
                reason = f"the row's JSON has {row_bytes} bytes, max_value_bytes allows {value_bytes_max}"
                rejections.append(Rejection(events[place], reason))
                continue
            if names and (len(names) >= _CALL_ROWS or size + row_bytes > _CALL_BYTES):
                yield _Call(events, places, ("EVALSHA", self._sha, len(names), *names, *fixed, *values), size)
                names, values, places, size = [], [], [], 0
            names.append(prefix + key_text(key))
            values.append(tag.encode() + row if row is not None else tag.encode())
            places.append(place)
            size += row_bytes
        if names:
            yield _Call(events, places, ("EVALSHA", self._sha, len(names), *names, *fixed, *values), size)

    def _send(self, client: _Client, commands: Sequence[tuple[Any, ...]]) -> list[bytes]:
        """A reply per command. Raises the client's error when there is none."""
        from redis.exceptions import NoScriptError

        replies = _pipelined(client, commands)
        forgotten = [place for place, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if forgotten:
            # The server restarted or its scripts were flushed; the other commands of the pipeline were carried out.
            client.script_load(_COMPARE_AND_SET)
            again = _pipelined(client, [commands[place] for place in forgotten])
            for place, reply in zip(forgotten, again, strict=True):
                replies[place] = reply
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def _scan(self, client: _Client, prefix: str) -> Iterator[list[bytes]]:
        pattern = "".join(f"\\{character}" if character in "*?[]^\\" else character for character in prefix) + "*"
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
            retry=Retry(NoBackoff(), 0),  # the RetryingSink waits, nobody else
            **options,
        )

    @contextmanager
    def _talking(self) -> Iterator[_Client]:
        """A client with the script loaded, and the server's errors as ours."""
        from redis.exceptions import RedisError

        try:
            client = self._client or self._connect()
            if self._client is None:
                self._sha = str(client.script_load(_COMPARE_AND_SET))
                self._client = client
            yield client
        except RedisError as error:
            raise _translate(error) from error


def _translate(error: Exception) -> LockstepError:
    """redis-py's error as ours. The code that a reply begins with is in the class, or in the text where there is none."""
    from redis import exceptions

    words = str(error).splitlines()[0][:200] if str(error) else "connection lost"
    match error:
        case (
            exceptions.AuthenticationError()
            | exceptions.AuthorizationError()
            | exceptions.AuthenticationWrongNumberOfArgsError()
        ):
            return LockstepError(f"redis refuses the login: {words}", hint="check user and password of this sink")
        case exceptions.NoPermissionError():
            commands = (
                "EVALSHA, SCRIPT|LOAD, HGET, HGETALL, HKEYS, HMGET, HSET, HDEL, DEL, PEXPIRE, EXISTS, GET, SET, SETNX, "
                "SADD, SMEMBERS, SREM, SCAN, UNLINK, MULTI, EXEC"
            )
            return LockstepError(
                f"redis refuses: {words}", hint=f"grant the sink's user {commands} on the keys of its prefix"
            )
        case exceptions.OutOfMemoryError():
            return LockstepError(f"redis refuses: {words}", hint="raise maxmemory, or move other data away")
        case exceptions.AskError():  # MOVED is one too
            return LockstepError(
                "redis is a cluster", hint="give this sink the address of a single server, or of a proxy"
            )
        case exceptions.NoScriptError():
            return LockstepError("redis forgets scripts at once", hint="find out who runs SCRIPT FLUSH all the time")
        case exceptions.ConnectionError() | exceptions.TimeoutError():
            if "certificate verify failed" in str(error):
                return LockstepError(
                    "the certificate of redis isn't trusted",
                    hint="set tls.ca_file of this sink to its authority's certificate",
                )
            return Unavailable(f"redis: {words}", retry_after_s=_RETRY_AFTER_S)
        case exceptions.ReadOnlyError() | exceptions.ClusterDownError() | exceptions.TryAgainError():
            return Unavailable(f"redis: {words}", retry_after_s=_RETRY_AFTER_S)
    if words.startswith(_CANT_SAVE):
        return LockstepError(
            "redis can't save to its disk", hint="free space, or mend the server's persistence settings"
        )
    if words.startswith(_PASSING):
        return Unavailable(f"redis: {words}", retry_after_s=_RETRY_AFTER_S)
    return LockstepError(f"redis refuses: {words}", hint="look at the server's log")


def _table_field(name: TableName) -> bytes:
    return f"{escape_name(name.schema)}.{escape_name(name.name)}".encode()


def _pipelined(client: _Client, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    pipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    replies: list[Any] = pipeline.execute(raise_on_error=False)
    return replies


def _read(client: _Client, keys: Sequence[bytes | str], table: Table) -> Iterator[StoredRow]:
    """The live rows that stand under these keys."""
    replies = _pipelined(client, [("HMGET", key, "t", "v") for key in keys])
    for reply in replies:
        if isinstance(reply, Exception):
            if "WRONGTYPE" not in str(reply):
                raise reply
            continue  # somebody else's; the row was rejected
        tag, value = reply
        if value is not None:
            stored = orjson.loads(value)
            row = {column.name: stored.get(column.name) for column in table.columns}
            lacks = [name for name in row if name not in stored]
            yield StoredRow({name: row[name] for name in table.key}, row, tag.decode(), lacks)
