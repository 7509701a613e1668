"""The rows of a view's result: their keys, and their stored form while they are pending. Pure."""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import orjson

from cdc.model.event import JsonValue
from views.batch_functions import Code
from views.evaluation import compiled, compiled_all
from views.operators.building import Item
from views.ordering import Direction, row_encoder
from views.plan import ViewPlan
from views.shard import Shard
from views.values import Row, from_event, to_event

_KEY_LENGTH: Final = struct.Struct("<I")
"""A pending row is preceded by its key. Both are JSON objects, as in events. A deleted row has no bytes."""


class ResultRows:
    """Rows of one plan's result, and which of them belong to this shard."""

    def __init__(self, plan: ViewPlan, shard: Shard | None) -> None:
        """Raises KeyError when a column of the key isn't in the result."""
        self._shard = shard
        self.names = [name for name, _ in plan.outputs]
        expressions = dict(plan.outputs)
        # Makes a row of the result from a row of the plan's root.
        self.outputs = compiled_all([made for _, made in plan.outputs], plan.root.columns)
        self._converted = [
            (place, to_event(made.type))
            for place, (_, made) in enumerate(plan.outputs)
            if not made.type.is_same_in_events
        ]
        self._key_places = [self.names.index(name) for name in plan.key]
        self._named_key = list(zip(plan.key, self._key_places, strict=True))
        self._encode_key = row_encoder([expressions[name].type for name in plan.key])
        self._key_from_event = [(name, from_event(expressions[name].type)) for name in plan.key]
        self._own_from_event = None if shard is None else dict(self._key_from_event)[shard.sharding.key]
        self._own_place = 0 if shard is None else self.names.index(shard.sharding.key)
        self._own_value = None if shard is None else compiled(expressions[shard.sharding.key], plan.root.columns)
        # Makes pending rows from a slice of the result, each with its key.
        self.items = self._written(plan)

    def key(self, values: Row) -> bytes:
        """The key of a pending row in the state. ``values`` are those of the outputs."""
        return self._encode_key([values[place] for place in self._key_places])

    def stored_key(self, key: Mapping[str, JsonValue]) -> bytes:
        """The same for a key in the form of events."""
        return self._encode_key([read(key[name]) for name, read in self._key_from_event])

    def pending(self, values: Row, *, is_gone: bool = False) -> bytes:
        """The pending entry of a row with these outputs; without the row if it ``is_gone``."""
        own: list[JsonValue] = [*values]
        for place, convert in self._converted:
            own[place] = convert(values[place])
        key = {name: own[place] for name, place in self._named_key}
        return entry_of(key, None if is_gone else dict(zip(self.names, own, strict=True)))

    def is_own(self, key: Mapping[str, JsonValue]) -> bool:
        """Whether this shard writes the row of the result with this key. Without shards, every row is its own."""
        if self._shard is None or self._own_from_event is None:
            return True
        return self._shard.has(self._own_from_event(key[self._shard.sharding.key]))

    def has(self, values: Row) -> bool:
        """The same, by the outputs' values."""
        return self._shard is None or self._shard.has(values[self._own_place])

    def checked_own(self, rows: list[Row]) -> list[Row]:
        """Asserts that rows of the plan's root belong to this shard."""
        if self._shard is not None and self._own_value is not None:
            assert all(map(self._shard.has, map(self._own_value, rows))), "a row of the result is another shard's"
        return rows

    def _written(self, plan: ViewPlan) -> Callable[[list[Row]], list[Item]]:
        code = Code(plan.root.columns)
        expressions = dict(plan.outputs)

        def as_event(name: str) -> str:
            made = expressions[name]
            value = code.value(made)
            return f"{name!r}: " + (
                value if made.type.is_same_in_events else f"{code.name(to_event(made.type))}({value})"
            )

        dumps, pack = code.name(orjson.dumps), code.name(_KEY_LENGTH.pack)
        encoded = code.key([(expressions[name], Direction(expressions[name].type)) for name in plan.key])
        key = ", ".join(map(as_event, plan.key))
        row = ", ".join(map(as_event, self.names))
        pending = f"{pack}(len(key := {dumps}({{{key}}}))) + key + {dumps}({{{row}}})"
        return code.of_rows(f'({encoded}, b"", {pending})', self._item)

    def _item(self, row: Row) -> Item:
        values = self.outputs(row)
        return self.key(values), b"", self.pending(values)


def entry_of(key: Mapping[str, JsonValue], row: Mapping[str, JsonValue] | None) -> bytes:
    return joined(orjson.dumps(key), b"" if row is None else orjson.dumps(row))


def joined(key: bytes, row: bytes) -> bytes:
    return _KEY_LENGTH.pack(len(key)) + key + row


def parts_of(pending: bytes) -> tuple[bytes, bytes]:
    end = _KEY_LENGTH.size + _KEY_LENGTH.unpack_from(pending)[0]
    return pending[_KEY_LENGTH.size : end], pending[end:]


def rows_of(items: Sequence[Item]) -> tuple[list[bytes], list[bytes]]:
    """Keys and rows, as JSON, of the items that ``Ahead`` gets."""
    parts = [parts_of(pending) for _, _, pending in items]
    return [key for key, _ in parts], [row for _, row in parts]


def key_of(pending: bytes) -> Mapping[str, JsonValue]:
    key: Mapping[str, JsonValue] = orjson.loads(parts_of(pending)[0])
    return key


def row_of(pending: bytes) -> bytes | None:
    """The row of a pending entry; None if it is deleted."""
    return parts_of(pending)[1] or None
