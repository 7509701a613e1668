"""Requests to publish the rows of chosen keys again, from their arrival in the stream until they are done. Pure. The
process keeps them across sessions that it restarts after lost connections. A request that can't be answered is reported
and dropped: no request, right or wrong, stops capture."""

from collections.abc import Callable, Iterable, Mapping

import orjson

from cdc.capture.published_table import PublishedTable
from cdc.model.table import TableName
from cdc.postgres.repair_messages import KEYS_MAX, Key, RepairRequest, UnreadableRequest


class RepairRequests:
    """The requests for one slot, merged by table and key."""

    def __init__(self, slot: str, say: Callable[[str], None], *, keys_max: int = KEYS_MAX) -> None:
        self._slot = slot
        self._say = say
        self._keys_max = keys_max
        self._keys: dict[TableName, dict[bytes, Key]] = {}
        self._whole_tables: set[TableName] = set()

    def add(self, content: bytes, captured: Mapping[TableName, PublishedTable]) -> None:
        """Process a message. ``captured`` are the tables that are captured now."""
        try:
            request = RepairRequest.from_bytes(content)
        except UnreadableRequest as error:
            self._say(f"warning: a repair request is ignored: {error}")
            return
        if request.slot != self._slot:
            return
        name = request.table
        published = captured.get(name)
        if published is None:
            self._say(f"warning: a repair of {name} is ignored: the table isn't captured")
            return
        table = published.table
        if request.keys is None:
            self._whole_tables.add(name)
            return
        if not table.key:
            self._say(f"warning: a repair of {name} is ignored: it is append-only, so its rows have no keys")
            return
        keys = [key for key in request.keys if key.keys() == set(table.key)]
        if len(keys) < len(request.keys):
            self._say(
                f"warning: keys of a repair of {name} are ignored ({len(request.keys) - len(keys)}): the columns of"
                f" its key are {', '.join(table.key)}"
            )
        pending = self._keys.get(name, {})
        for key in keys:
            pending.setdefault(orjson.dumps(dict(key), option=orjson.OPT_SORT_KEYS), key)
            if len(pending) > self._keys_max:
                pending.popitem()
                self._say(
                    f"warning: a part of a repair of {name} is ignored: {self._keys_max} keys are waiting already; ask"
                    " again when they are done"
                )
                break
        if pending:
            self._keys[name] = pending

    def take_whole_tables(self) -> set[TableName]:
        """The tables to copy whole; they count as done."""
        tables, self._whole_tables = self._whole_tables, set()
        return tables

    def tables(self) -> list[TableName]:
        """The tables with waiting keys."""
        return list(self._keys)

    def keys(self, name: TableName) -> list[Key]:
        return list(self._keys.get(name, {}).values())

    def done(self, name: TableName) -> None:
        self._keys.pop(name, None)

    def done_keys(self, name: TableName, keys: Iterable[Key]) -> None:
        pending = self._keys.get(name, {})
        for key in keys:
            pending.pop(orjson.dumps(dict(key), option=orjson.OPT_SORT_KEYS), None)
        if not pending:
            self._keys.pop(name, None)
