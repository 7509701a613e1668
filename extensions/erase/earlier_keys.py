"""The keys that events of a row may have from before its table's key was changed. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from cdc.model.event import JsonValue
from cdc.protocol.control_records import SchemaRecord
from jobs.executor.shape_history import earlier_keys


@dataclass(frozen=True, slots=True)
class EarlierKeys:
    """``of_the_row``: earlier keys of the row's events. ``others``: column names of keys that can't be assigned to
    rows. False if the table has had only one key.
    """

    of_the_row: frozenset[bytes]
    others: frozenset[tuple[str, ...]]

    @classmethod
    def of(cls, records: Sequence[SchemaRecord], key: Mapping[str, JsonValue]) -> "EarlierKeys":
        """``records`` are the table's shapes in the order of the topic, ``key`` is the row's present key."""
        found = earlier_keys(records)
        of_the_row = {
            orjson.dumps({before: key[now] for before, now in zip(names, now_names, strict=True)})
            for names, now_names in found.items()
            if now_names is not None
        }
        return cls(frozenset(of_the_row), frozenset(names for names, now in found.items() if now is None))

    def __bool__(self) -> bool:
        return bool(self.of_the_row or self.others)

    def is_of_others(self, record_key: bytes) -> bool:
        """Whether a record of the table's topic has such a key."""
        if not self.others:
            return False
        try:
            values = orjson.loads(record_key)
        except orjson.JSONDecodeError:
            return False
        return isinstance(values, dict) and tuple(values) in self.others
