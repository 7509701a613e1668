"""Rows of a snapshot -> their events' keys and values, by compiled code if it knows the row's types. Pure. Rows come as
lines of COPY. They become ``r`` events tagged (consistent point, 0)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from cdc.capture.published_table import PublishedTable
from cdc.event_format.encode import TableEncoder, event_value
from cdc.model.errors import LockstepError
from cdc.model.tag import SNAPSHOT_SEQ, tag_prefix, tag_text
from cdc.protocol.control_records import CaptureState
from cdc.protocol.copy_text import split_row
from cdc.protocol.pgoutput import Fields

if TYPE_CHECKING:
    from cdc.event_format._kernel import RowKernel

Line = bytes | memoryview
"""A row as COPY sends it in text format, with its newline."""

EncodedRow = tuple[bytes, bytes]
"""An event's key and value."""


class RowEvents:
    """The events of one table's rows in one snapshot. ``kernel`` is the compiled encoder, if any. Methods that encode
    raise LockstepError for a row that can't be encoded."""

    def __init__(
        self,
        encoder: TableEncoder,
        kernel: "RowKernel | None",
        *,
        epoch: int,
        consistent_point: int,
        commit_time_ms: int,
    ) -> None:
        self._encoder = encoder
        self._kernel = kernel
        self._prefix = tag_prefix(epoch, consistent_point)
        self._source = encoder.source(commit_time_ms=commit_time_ms, xid=0, snapshot=True)
        self._consistent_point = consistent_point
        self._commit_time_ms = commit_time_ms
        self.tombstone_tag = tag_text(self._prefix, SNAPSHOT_SEQ)

    @classmethod
    def of(cls, published: PublishedTable, lsn: int, state: CaptureState) -> Self:
        """The events of rows as of this position."""
        return cls(
            published.encoder,
            published.kernel,
            epoch=state.epoch,
            consistent_point=lsn,
            commit_time_ms=state.commit_time_ms,
        )

    def of_lines(self, lines: list[Line]) -> Sequence[EncodedRow]:
        if self._kernel is None:
            return [self.of_fields(_fields(line)) for line in lines]
        events: list[EncodedRow] = []
        done = 0
        while done < len(lines):
            pairs, done, _ = self._kernel.encode_copied(
                lines,
                done,
                prefix=self._prefix,
                source=self._source,
                lsn=self._consistent_point,
                time=b"%d" % self._commit_time_ms,
            )
            events += pairs
            if done < len(lines):
                events.append(self.of_fields(_fields(lines[done])))
                done += 1
        return events

    def of_fields(self, fields: Fields) -> EncodedRow:
        encoder = self._encoder
        try:
            return encoder.key(fields), self._value(b"r", encoder.row(fields))
        except ValueError as error:
            # The error must not show the value, so the cause isn't chained.
            raise LockstepError(
                f"a row of {encoder.table.name} can't be encoded ({type(error).__name__})",
                hint="is the database's encoding SQL_ASCII? Its text must be valid UTF-8",
            ) from None

    def of_delete(self) -> bytes:
        """The value that deletes a key."""
        return self._value(b"d", b"null")

    def of_truncate(self) -> tuple[bytes, bytes]:
        """The event that empties an append-only table: only what follows remains."""
        return self._encoder.key(()), self._value(b"t", b"null")

    def _value(self, op: bytes, row: bytes) -> bytes:
        return event_value(
            op,
            self._prefix,
            SNAPSHOT_SEQ,
            b"null",
            row,
            self._source,
            self._consistent_point,
            self._commit_time_ms,
        )


def _fields(line: Line) -> Fields:
    return split_row(bytes(line)[:-1])
