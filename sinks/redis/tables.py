"""The tables of one generation of a Redis sink: the shapes for which it was prepared, and where its rows are."""

import re
from collections.abc import Collection, Iterable
from typing import Final

from cdc.model.errors import ConfigurationError, Fenced
from cdc.model.table import TableName
from sinks.columns.shape import Shape, unprepared
from sinks.generation_errors import replaced_writer
from sinks.redis.connection import Client, RedisConnection
from sinks.redis.keys import RedisKeys
from sinks.redis.layout import table_field
from sinks.redis.settings import RedisSettings

_PREFIX: Final = re.compile(r"[A-Za-z0-9_.-]+")


class RedisTables:
    """The tables of one generation, with the connection to the server. It connects at the first call.

    With ``fences``, one job at a time may write, as for a view's result. ``fence`` is what this object has claimed.
    Raises ConfigurationError for a prefix that can't begin a key.
    """

    def __init__(self, name: str, settings: RedisSettings, generation: int) -> None:
        prefix = settings.prefix or name
        if not _PREFIX.fullmatch(prefix):
            raise ConfigurationError(
                f"sink {name!r}: {prefix!r} can't begin a key",
                hint="set prefix to letters, digits, '_', '.' and '-'",
            )
        self._name = name
        self.settings = settings
        self.generation = generation
        self.fences = settings.view is not None
        self.fence = 0
        self.keys = RedisKeys(prefix, generation)
        self.connection = RedisConnection(name, settings, self.keys)
        self._prepared: set[TableName] = set()

    def check_fence(self, known: bytes | None, fence: int) -> None:
        """Raise Fenced when the server's fence differs from this one."""
        if int(known or 0) != fence:
            raise self.fenced()

    def fenced(self) -> Fenced:
        return replaced_writer(self._name, self.generation)

    def shapes(self, client: Client) -> dict[bytes, Shape]:
        """The shapes for which the generation was prepared, by field of their hash."""
        held: dict[bytes, bytes] = client.hgetall(self.keys.tables)
        return {field: Shape.from_json(text) for field, text in held.items()}

    def remember(self, names: Iterable[TableName]) -> None:
        """These tables are prepared: the server needn't be asked."""
        self._prepared.update(names)

    def check_prepared(self, client: Client, names: Collection[TableName]) -> None:
        """Raise LockstepError when the generation isn't prepared for one of these tables."""
        unknown = set(names) - self._prepared
        if unknown:
            held = client.hkeys(self.keys.tables)
            for name in unknown:
                if table_field(name) not in held:
                    raise unprepared(name)
            self._prepared.update(unknown)

    def forget_all(self) -> None:
        self._prepared.clear()
