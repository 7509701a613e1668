"""Rows of the log -> rows inside a view, many at once."""

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, Final

import orjson

from cdc.model.errors import LockstepError
from cdc.model.table import Table
from views.batch_functions import Code
from views.values import Row, event_class, from_event, type_of

_NONE: Final = type(None)


class LogRows:
    def __init__(self, table: Table, names: Sequence[str]) -> None:
        types = [type_of(table.column(name)) for name in names]
        self._classes = [
            (1 + place, frozenset((python, _NONE)))
            for place, of in enumerate(types)
            if (python := event_class(of)) is not None
        ]
        code = Code(())
        values = [
            f"r[{name!r}]" if event_class(of) is not None else f"{code.name(from_event(of))}(r[{name!r}])"
            for name, of in zip(names, types, strict=True)
        ]
        self._read: Callable[[Iterable[str], Iterable[Any]], list[Row]] = code.written(
            f"lambda tags, rows: [({', '.join(['t', *values])},) for t, r in zip(tags, rows)]"
        )

    def tagged(self, tags: Sequence[str], texts: Sequence[bytes]) -> list[Row] | None:
        """The rows of these JSON texts, each with its tag before its values; None if one of them can't be read. To find
        the error, the caller reads each row by itself.
        """
        try:
            rows = self._read(tags, map(orjson.loads, texts))
        except (LockstepError, ValueError, KeyError, TypeError):
            return None
        if all(set(map(type, map(itemgetter(place), rows))) <= classes for place, classes in self._classes):
            return rows
        return None
