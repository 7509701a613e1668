"""The generations of a Redis or Valkey sink. A key names the live one."""

import re
from collections.abc import Collection, Mapping
from typing import Final

from cdc.model.errors import DataLost, LockstepError, Unavailable
from cdc.model.table import TableName
from sinks.capabilities.identities import TableIdentities
from sinks.contract import NOTHING_WRITTEN, Generations, Progress, TopicPartition
from sinks.generation_errors import live_generation, missing_generation
from sinks.progress_json import dump_progress, load_progress
from sinks.redis.connection import Client, Evictions, history_of
from sinks.redis.layout import glob_text, table_field
from sinks.redis.stored_rows import scan_keys
from sinks.redis.tables import RedisTables
from sinks.stored_progress import check_stored

_LIVE: Final = re.compile(rb"g(?P<generation>\d{1,10})")


class RedisGenerations(Generations, TableIdentities):
    def __init__(self, tables: RedisTables) -> None:
        self._tables = tables
        self._connection = tables.connection
        self._keys = tables.keys
        self._number = tables.generation
        self._known: Progress | None = None

    def live(self) -> int | None:
        with self._connection.talking() as client:
            return self._live(client)

    def numbers(self) -> list[int]:
        with self._connection.talking() as client:
            return sorted(map(int, client.smembers(self._keys.generations)))

    def switch(self) -> None:
        with self._connection.talking() as client:
            if not client.exists(self._keys.tables):
                raise missing_generation(self._number)
            self._live(client)  # SET would overwrite anything
            client.set(self._keys.live, f"g{self._number}")

    def identities(self, tables: Collection[TableName]) -> Mapping[TableName, str]:
        """How many keys the server has evicted by now. Nobody counts or walks a table's keys."""
        with self._connection.talking() as client:
            held = set(client.hkeys(self._keys.tables))
            evictions = str(Evictions.of(client))
        return {name: evictions for name in tables if table_field(name) in held}

    def lost(self, known: Mapping[TableName, str]) -> Mapping[TableName, str]:
        now = self.identities(known)
        lost = {name: f"key {self._keys.tables!r} doesn't name it any more" for name in known if name not in now}
        if self._connection.keeps_rows:
            for name in known.keys() & now.keys():
                if not (known[name] and now[name]):
                    continue
                evicted = Evictions.parse(now[name]).since(Evictions.parse(known[name]))
                if evicted:
                    lost[name] = f"the server has evicted {evicted} keys, and doesn't say which: it must not evict"
        return lost

    def drop(self) -> None:
        if self.live() == self._number:
            raise live_generation(self._number)
        with self._connection.talking() as client:
            # First the shapes: a job that still writes here finds its tables unprepared at its next start. Without its
            # fence, a job that writes a view here is refused from now on.
            client.delete(self._keys.tables, self._keys.progress, self._keys.fence)
            for keys in scan_keys(client, glob_text(self._keys.rows) + "*"):
                client.unlink(*keys)
            # Whatever the present settings are: the generation may have been built with others.
            for keys in scan_keys(client, glob_text(self._keys.memos) + "*"):
                client.unlink(*keys)
            client.delete(self._keys.epoch, self._keys.layout)
            beginning = f"g{self._number}.".encode()
            records = [name for name in client.hkeys(self._keys.records) if name.startswith(beginning)]
            if records:
                client.hdel(self._keys.records, *records)
            # Last: until everything above is done, there is something to drop.
            client.srem(self._keys.generations, self._number)
        self._tables.forget_all()

    def load_progress(self) -> Progress | None:
        self._connection.history()
        with self._connection.talking() as client:
            text = client.get(self._keys.progress)
        self._known = None if text is None else load_progress(text)
        return self._known

    def save_progress(
        self,
        progress: Progress,
        *,
        written: Mapping[TopicPartition, int] = NOTHING_WRITTEN,
        whole: Collection[TableName] | None = None,
    ) -> None:
        """Also raises DataLost when the server may lack what was written to it since, and Unavailable when another job
        stores progress at the same moment.
        """
        from redis.exceptions import WatchError

        with self._connection.talking() as client:
            try:
                with client.pipeline(transaction=True) as pipeline:
                    # Nobody else can store progress, or become a view's writer, between the read and the write.
                    pipeline.watch(self._keys.progress, self._keys.fence)
                    self._check_history(pipeline)
                    if self._tables.fences:
                        self._tables.check_fence(pipeline.get(self._keys.fence), self._tables.fence)
                    text: bytes | None = pipeline.get(self._keys.progress)
                    stored = None if text is None else load_progress(text)
                    check_stored(self._known, stored, following=progress, destination=f"key {self._keys.progress!r}")
                    pipeline.multi()
                    pipeline.set(self._keys.progress, dump_progress(progress))
                    pipeline.execute()
            except WatchError:
                # The client also raises this for a connection that is lost in between.
                raise Unavailable("redis was lost, or another job has just stored its progress there") from None
        self._known = progress

    def _live(self, client: Client) -> int | None:
        """The generation that the pointer names. Raises LockstepError if this sink didn't write it."""
        from redis.exceptions import ResponseError

        try:
            text: bytes | None = client.get(self._keys.live)
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
                f"key {self._keys.live!r}, by which readers find this sink's live rows, doesn't name a generation",
                hint="something else was written there: set it to g<number> again, "
                f"or remove it (DEL {self._keys.live}), then try again; nothing was changed",
            )
        return int(pointer["generation"])

    def _check_history(self, watching: Client) -> None:
        """Raise DataLost if this server may lack what this object has written to, or found on, another.

        A restart changes a server's history, and so does a replica's promotion. Even with a log, a server may come back
        without its last writes: unless ``appendfsync`` is ``always``, it answers before they are in a file, for up to
        two seconds while the disk is busy. Only writes of the present batch can be missing, and its progress isn't
        stored yet.
        """
        # If it is unknown, the job's next start notices progress that is behind.
        history = history_of(lambda: watching.info("replication").get("master_replid"))
        if history is not None and set(self._connection.histories) - {history}:
            raise DataLost("redis was started again or has failed over to another server: it may lack its last writes")
        self._connection.note(history)
