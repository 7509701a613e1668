"""Calls of the scripts: groups rows into calls and calls into pipelines, and sends these."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import orjson

from cdc.model.event import Events, TableEvents, parse_key
from sinks.contract import Rejection
from sinks.redis.connection import Client, pipelined
from sinks.redis.keys import RedisKeys
from sinks.redis.layout import key_text
from sinks.redis.scripts import Argument, arguments_for, guarded, script_for
from sinks.redis.settings import RedisSettings
from sinks.sink_kernel import chosen_sink_kernel

# Bounds of a call. A call for each row would double its time. During a call, the server does nothing else.
_CALL_ROWS: Final = 64
_CALL_BYTES: Final = 256 * 1024
# Bounds of a pipeline: large enough to hide the round trip, small enough for the server's and our buffers.
_PIPELINE_ROWS: Final = 1024
_PIPELINE_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Call:
    events: TableEvents
    indexes: Sequence[int]
    """Of its events in ``events``."""
    script: str
    arguments: tuple[Argument, ...]
    bytes: int
    """Its approximate size on the wire."""


class Calls:
    def __init__(self, settings: RedisSettings, keys: RedisKeys) -> None:
        self._settings = settings
        self._keys = keys
        self._layout = settings.layout
        self._keeps_rows = settings.mode == "materialise"
        self._shas: dict[str, str] = {}

    def pipelines(
        self, events: Events, rejections: list[Rejection], *, overwrite_equal_tags: bool, fence: int | None = None
    ) -> Iterator[list[Call]]:
        """The scripts' calls, grouped into pipelines.

        Rows that are too large become rejections. With a ``fence``, rows are written only while it is the writer's.
        """
        pipeline: list[Call] = []
        rows = size = 0
        for table_events in events.tables:
            calls = self._calls(table_events, rejections, overwrite_equal_tags=overwrite_equal_tags, fence=fence)
            for call in calls:
                pipeline.append(call)
                rows += len(call.indexes)
                size += call.bytes
                if rows >= _PIPELINE_ROWS or size >= _PIPELINE_BYTES:
                    yield pipeline
                    pipeline, rows, size = [], 0, 0
        if pipeline:
            yield pipeline

    def send(self, client: Client, calls: Sequence[Call]) -> list[bytes]:
        """Send the calls and return a reply for each. Raises the client's error if there is none."""
        from redis.exceptions import NoScriptError

        for script in {call.script for call in calls} - self._shas.keys():
            self._shas[script] = str(client.script_load(script))
        commands = [("EVALSHA", self._shas[call.script], *call.arguments) for call in calls]
        replies = pipelined(client, commands)
        forgotten = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if forgotten:
            # The server restarted, or its scripts were flushed. The pipeline's other commands were carried out.
            for script in {calls[index].script for index in forgotten}:
                client.script_load(script)
            again = pipelined(client, [commands[index] for index in forgotten])
            for index, reply in zip(forgotten, again, strict=True):
                replies[index] = reply
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def _script_plan(self, events: TableEvents, *, overwrite_equal_tags: bool, fence: int | None) -> "_ScriptPlan":
        layout = self._layout.of(events.table)
        script, fixed = script_for(
            layout,
            tombstone_ttl_s=self._settings.tombstone_ttl_s,
            overwrite_equal_tags=overwrite_equal_tags,
            rows=self._keys.rows,
            memos=self._keys.memos,
        )
        guard: tuple[Argument, ...] = ()
        if fence is not None:
            script, guard = guarded(script), (self._keys.fence, fence)
        key_columns = list(parse_key(events.keys[0]))
        begin, key_of = layout.key_maker(key_columns)
        prefix = self._keys.rows + begin
        arguments_of = None if layout.is_plain else arguments_for(layout)
        take: Any = None
        if arguments_of is None and key_of is key_text:
            take = getattr(chosen_sink_kernel().module, "take_arguments", None)
        if take is not None:
            key_starts = [
                b"%b%b:" % (b"," if place else b"{", orjson.dumps(name)) for place, name in enumerate(key_columns)
            ]
            take = partial(take, key_starts=key_starts, prefix=prefix.encode())
        return _ScriptPlan(events, script, fixed, guard, lambda values: prefix + key_of(values), arguments_of, take)

    def _calls(
        self, events: TableEvents, rejections: list[Rejection], *, overwrite_equal_tags: bool, fence: int | None
    ) -> Iterator[Call]:
        """Each call has a bounded number of rows and bytes. Values that are too large become rejections."""
        plan = self._script_plan(events, overwrite_equal_tags=overwrite_equal_tags, fence=fence)
        value_bytes_max = self._settings.max_value_bytes
        keys, tags = events.keys, events.tags
        rows = events.rows if self._keeps_rows else [None] * len(keys)
        names: list[Argument] = []
        values: list[Argument] = []
        indexes: list[int] = []
        size = index = 0
        while index < len(keys):
            if plan.take is not None and len(names) < _CALL_ROWS:
                until = min(index + _CALL_ROWS - len(names), len(keys))
                bytes_max = min(_CALL_BYTES - size, value_bytes_max)
                end, taken = plan.take(keys, tags, rows, index, until, bytes_max=bytes_max, names=names, values=values)
                indexes += range(index, end)
                size += taken
                index = end
                if index == len(keys):
                    break
            row = rows[index]
            row_bytes = 0 if row is None else len(row)
            if row_bytes > value_bytes_max:
                reason = f"the row's JSON has {row_bytes} bytes, max_value_bytes allows {value_bytes_max}"
                rejections.append(Rejection(events[index], reason))
            elif names and (len(names) >= _CALL_ROWS or size + row_bytes > _CALL_BYTES):
                yield plan.call(indexes, names, values, size)
                names, values, indexes, size = [], [], [], 0
                continue
            else:
                names.append(plan.name_of(events.key_values_at(index)))
                if plan.arguments_of is None:
                    values.append(tags[index].encode() + row if row is not None else tags[index].encode())
                else:
                    values += plan.arguments_of(tags[index], row)
                indexes.append(index)
                size += row_bytes
            index += 1
        if names:
            yield plan.call(indexes, names, values, size)


@dataclass(frozen=True, slots=True)
class _ScriptPlan:
    events: TableEvents
    script: str
    fixed: tuple[Argument, ...]
    """Arguments between the names and the values."""

    guard: tuple[Argument, ...]
    """Arguments at the end."""

    name_of: Callable[[Any], str]
    arguments_of: Callable[[str, bytes | None], Sequence[Argument]] | None
    """None if a row is one argument, after its tag."""

    take: Any
    """The compiled function that does this for ordinary rows, if there is one."""

    def call(self, indexes: list[int], names: list[Argument], values: list[Argument], size: int) -> Call:
        arguments = (len(names), *names, *self.fixed, *values, *self.guard)
        return Call(self.events, indexes, self.script, arguments, size)
