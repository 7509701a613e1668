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

One script per row compares and sets. It compares the tags' hexadecimal text: Lua's numbers are doubles and would lose the low
digits, and its ``<`` on other text follows the server's locale. A deletion keeps its tag for ``tombstone_ttl_s``, longer than
any stale write can be on its way. Set ``maxmemory-policy noeviction``: an evicted row is a row that readers miss.

What the server says decides: a replica (READONLY), loading, a lost connection are ``Unavailable``, since a failover or a restart
ends them. A full memory (OOM), a failed save (MISCONF), a wrong password stop the job: only a person can end these.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from cdc.model.errors import ConfigurationError, LockstepError, Unavailable
from cdc.model.event import JsonValue, RowEvent
from cdc.model.table import Table, TableName
from sinks.access import Login, Tls
from sinks.progress_json import dump_progress, load_progress
from sinks.projection import Excluded
from sinks.shape import Shape, unprepared
from sinks.sink import Batch, Outcome, Progress, Rejection, StoredRow

# redis-py annotates each reply for the synchronous and the asynchronous client at once, which no caller can use.
_Client = Any

# KEYS[1]: the row. ARGV: tag, its JSON, and for a deletion the milliseconds that it is remembered ('' for a row); a fourth one
# lets an equal tag replace the row.
_COMPARE_AND_SET: Final = """
local known = redis.call('HGET', KEYS[1], 't')
if known then
  if known > ARGV[1] or (known == ARGV[1] and not ARGV[4]) then return 0 end
  redis.call('DEL', KEYS[1])
end
if ARGV[3] and ARGV[3] ~= '' then
  redis.call('HSET', KEYS[1], 't', ARGV[1], 'x', '1')
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
else
  redis.call('HSET', KEYS[1], 't', ARGV[1], 'v', ARGV[2])
end
return 1
"""

_LIVE: Final = re.compile(rb"g(?P<generation>\d{1,10})")
_PREFIX: Final = re.compile(r"[A-Za-z0-9_.-]+")

# A pipeline's bounds: enough to hide the round trip, little enough for the server's and our buffers.
_PIPELINE_COMMANDS: Final = 1000
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
    max_value_bytes: int = Field(64 * 1024 * 1024, gt=0, le=512 * 1024 * 1024)
    timeout_s: float = Field(30.0, gt=0)


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

    def prepare(self, tables: Sequence[Table], *, go_live: bool = True) -> None:
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

    def begin_bulk(self) -> None:
        """Has no effect: wider pipelines than those of ``apply`` gain nothing, the script per row is what takes the time."""

    def end_bulk(self) -> None:
        """See ``begin_bulk``."""

    def claim(self) -> int:
        """Returns 0: the server can't fence, the tags alone keep two writers right."""
        return 0

    def apply(self, batch: Batch) -> Outcome:
        applied = stale = 0
        rejections: list[Rejection] = []
        with self._talking() as client:
            self._check_prepared(client, {event.table for event in batch.events})
            for events, commands in self._pipelines(batch.events, rejections, replays=batch.replays):
                for event, reply in zip(events, self._send(client, commands), strict=True):
                    if reply == 1:
                        applied += 1
                    elif reply == 0:
                        stale += 1
                    else:
                        rejections.append(Rejection(event, _NOT_OURS))
        return Outcome(applied, stale, rejections)

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

    def _pipelines(
        self, events: Sequence[RowEvent], rejections: list[Rejection], *, replays: bool
    ) -> Iterator[tuple[list[RowEvent], list[tuple[Any, ...]]]]:
        """The script calls in portions, each at most so many and so large. Values that are too large become rejections."""
        prefixes: dict[TableName, str] = {}
        value_bytes_max = self._settings.max_value_bytes
        tombstone_ms = self._settings.tombstone_ttl_s * 1000
        portion: list[RowEvent] = []
        commands: list[tuple[Any, ...]] = []
        size = 0
        for event in events:
            prefix = prefixes.get(event.table)
            if prefix is None:
                prefix = prefixes[event.table] = self._table_prefix(event.table)
            key = prefix + key_text(list(event.key.values()))
            if event.row is None:
                command: tuple[Any, ...] = ("EVALSHA", self._sha, 1, key, event.tag, "", tombstone_ms)
                value_bytes = 0
            else:
                value = orjson.dumps(event.row)
                value_bytes = len(value)
                if value_bytes > value_bytes_max:
                    reason = f"the row's JSON has {value_bytes} bytes, max_value_bytes allows {value_bytes_max}"
                    rejections.append(Rejection(event, reason))
                    continue
                command = ("EVALSHA", self._sha, 1, key, event.tag, value)
            if replays:
                command = (*command, *("", "1")[len(command) - 6 :])
            portion.append(event)
            commands.append(command)
            size += value_bytes + len(key)
            if len(commands) >= _PIPELINE_COMMANDS or size >= _PIPELINE_BYTES:
                yield portion, commands
                portion, commands, size = [], [], 0
        if commands:
            yield portion, commands

    def _send(self, client: _Client, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """A reply per command: 1, 0, or the error that refuses this row alone. Every other error is raised."""
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
            if isinstance(reply, Exception) and "WRONGTYPE" not in str(reply):
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
            yield StoredRow({name: row[name] for name in table.key}, row, tag.decode())
