"""Coordination records in a hash of a Redis server."""

from collections.abc import Collection

from sinks.redis.scripts import FENCED, SAVE_RECORD
from sinks.redis.tables import RedisTables
from sinks.stored_format import STORED_FORMAT


class RedisCoordination:
    def __init__(self, tables: RedisTables) -> None:
        self._tables = tables
        self._connection = tables.connection
        self._keys = tables.keys

    def load(self, name: str) -> str | None:
        with self._connection.talking() as client:
            text: bytes | None = client.hget(self._keys.records, name)
        return None if text is None else text.decode()

    def load_all(self, names: Collection[str]) -> dict[str, str]:
        asked = list(names)
        if not asked:
            return {}
        with self._connection.talking() as client:
            texts: list[bytes | None] = client.hmget(self._keys.records, asked)
        return {name: text.decode() for name, text in zip(asked, texts, strict=True) if text is not None}

    def save(self, name: str, text: str | None, *, fence: int = 0) -> None:
        with self._connection.talking() as client:
            if text is None:
                client.hdel(self._keys.records, name)
            elif fence:
                if client.eval(SAVE_RECORD, 2, self._keys.fence, self._keys.records, fence, name, text) == FENCED:
                    raise self._tables.fenced()
            else:
                pipeline = client.pipeline(transaction=True)
                pipeline.setnx(self._keys.format, STORED_FORMAT)
                pipeline.hset(self._keys.records, name, text)
                pipeline.execute()

    def create(self, name: str, text: str) -> bool:
        with self._connection.talking() as client:
            pipeline = client.pipeline(transaction=True)
            pipeline.setnx(self._keys.format, STORED_FORMAT)
            pipeline.hsetnx(self._keys.records, name, text)
            return bool(pipeline.execute()[1])
