"""Which values of a row are stored for a later update that leaves them out."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, cast

from cdc.capture.published_table import PublishedTable
from cdc.protocol.pgoutput import Fields
from cdc.toast.memory import LEFT_OUT, LEFT_OUT_ROW, ToastMemory

_NONE_KNOWN: Mapping[int, bytes] = {}
_ANY_BYTES: Final = (1 << 63) - 1


class ToastRows:
    """Stores JSON values of the stream's rows in a memory. Does nothing for tables without a rule. The memory
    identifies a column independently of its name; the arguments here are indexes in the row."""

    def __init__(self, memory: ToastMemory) -> None:
        self._memory = memory

    def known(self, published: PublishedTable, key: bytes, indexes: Sequence[int]) -> dict[int, bytes]:
        """The known JSON values of these columns of a row, by index."""
        if not indexes or published.toast is None:
            return {}
        values = self._memory.get(published.topic, key) or {}
        columns = published.table.columns
        return {index: values[columns[index].identity] for index in indexes if columns[index].identity in values}

    def is_left_out(self, published: PublishedTable, key: bytes) -> bool:
        """Whether the row's newest event lacks all values, since the row was too large."""
        return LEFT_OUT in (self._memory.get(published.topic, key) or ())

    def leave_out(self, published: PublishedTable, key: bytes) -> None:
        """Forget the row's values, and note that it was too large."""
        self._memory.put(published.topic, key, LEFT_OUT_ROW)

    def remember(
        self,
        published: PublishedTable,
        key: bytes,
        fields: Fields,
        known_json: Mapping[int, bytes] = _NONE_KNOWN,
        unchanged: Sequence[int] = (),
    ) -> None:
        """Store what a later update may not send again. ``known_json`` has the JSON of values that ``fields`` lacks,
        ``unchanged`` the indexes that the update left out."""
        if published.toast is None:
            return
        complete = [known_json.get(index, value) for index, value in enumerate(fields)] if known_json else fields
        values = cast(Sequence[bytes | None], complete)
        self._put(published, key, values, published.toast.out_of_line(values, unchanged), known_json)

    def remember_read(self, published: PublishedTable, key: bytes, fields: Fields) -> None:
        """``remember`` for a row read from the table, which shows less of how its values are stored."""
        if published.toast is not None:
            values = cast(Sequence[bytes | None], fields)
            self._put(published, key, values, published.toast.suspects(values))

    def short_bytes(self, published: PublishedTable) -> int:
        """A row whose texts have at most so many bytes needs no storing; -1 if each row must be examined."""
        return _ANY_BYTES if published.toast is None else published.toast.safe_bytes

    def forget_short(self, published: PublishedTable, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """What ``remember`` does for whole, short rows: drop what is stored for their keys, since it is outdated.
        ``rows`` are events' keys and values."""
        if published.toast is not None and self._memory.may_have(published.topic):
            for key, _ in rows:
                self._memory.forget(published.topic, key)

    def forget(self, published: PublishedTable, key: bytes) -> None:
        if published.toast is not None:
            self._memory.forget(published.topic, key)

    def described(self, published: PublishedTable) -> None:
        """The stream describes a table. Without a rule its rows aren't followed from here on, so what is stored becomes
        outdated. That happens under replica identity FULL, for instance, which may end again."""
        if published.toast is None:
            self._memory.clear(published.topic)

    def _put(
        self,
        published: PublishedTable,
        key: bytes,
        values: Sequence[bytes | None],
        indexes: Sequence[int],
        known_json: Mapping[int, bytes] = _NONE_KNOWN,
    ) -> None:
        columns, encode = published.table.columns, published.encoder.column
        large = {
            columns[index].identity: known_json[index] if index in known_json else encode(index, value)
            for index in indexes
            if (value := values[index]) is not None
        }
        if large:
            self._memory.put(published.topic, key, large)
        else:  # values of an earlier row must not be taken for this one's
            self._memory.forget(published.topic, key)
