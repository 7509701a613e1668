"""Reads values of rejected events from the log again if they were too large for a task's result."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from cdc.kafka.control_topics import ClientSettings
from cdc.model.event import Position
from jobs.executor.result import RejectedEvent

if TYPE_CHECKING:
    from jobs.executor.log_reader import LogReader


def with_values(client: ClientSettings, events: Iterable[RejectedEvent]) -> Iterator[RejectedEvent]:
    """The same events with their values, of which one is held at a time. Leaves out an event that the log no longer
    has: compaction removes it only for a newer one, which is still to come. Raises as ``LogReader.read``."""
    from jobs.executor.log_reader import LogReader  # it loads Arrow, which takes as long as many a command

    reader = None
    try:
        for event in events:
            if not event.is_in_log:
                yield event
                continue
            reader = reader or LogReader(client)
            value = _value(reader, event.position)
            if value is not None:
                yield replace(event, value=value, is_in_log=False)
    finally:
        if reader is not None:
            reader.close()


def _value(reader: "LogReader", at: Position) -> bytes | None:
    from jobs.executor.log_reader import Range

    wanted = Range(at.topic, at.partition, at.offset, at.offset + 1)
    values = [value for records in reader.read([wanted]) for value in records.column("value").to_pylist()]
    return values[0] if values else None
