"""Values of rejected events that were too large to come along with a task's result: read from the log again."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from cdc.kafka.control_topics import ClientSettings
from cdc.model.event import Position
from jobs.executor.log_reader import LogReader, Range
from jobs.executor.result import RejectedEvent


def with_values(client: ClientSettings, events: Iterable[RejectedEvent]) -> Iterator[RejectedEvent]:
    """The same events with their values, of which one is held at a time.

    An event that the log has no longer is left out: compaction takes only what has a newer one, which is still to come.
    Raises as ``LogReader.read``.
    """
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


def _value(reader: LogReader, at: Position) -> bytes | None:
    wanted = Range(at.topic, at.partition, at.offset, at.offset + 1)
    values = [value for records in reader.read([wanted]) for value in records.column("value").to_pylist()]
    return values[0] if values else None
