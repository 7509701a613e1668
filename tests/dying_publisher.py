"""A capture that dies at one of its commits, in the test's own process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cdc.kafka.publisher import TransactionalPublisher
from cdc.protocol.control_records import CaptureState, SchemaRecord


class Killed(BaseException):
    """The process is gone: nothing of it runs on, and nothing of it catches this."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The process's ``number``-th commit, from 1. ``topics`` are those sent to since it began.

    ``ranges`` counts the ranges of the first copy sent since then, ``read`` the commits, including this one, with rows
    that were read from their table.
    """

    number: int
    schemas: Sequence[SchemaRecord]
    topics: frozenset[str]
    state: CaptureState
    ranges: int = 0
    read: int = 0


class DyingPublisher:
    """Ends the process at the first commit for which ``dies`` returns True, before Kafka has it or after."""

    def __init__(
        self, publisher: TransactionalPublisher, dies: Callable[[Commit], bool], *, before: bool = False
    ) -> None:
        self._publisher = publisher
        self._dies = dies
        self._before = before
        self._number = 0
        self._topics: set[str] = set()
        self._ranges = self._read = 0
        self._has_read = False

    def send(self, topic: str, key: bytes, value: bytes | None, *more: Any) -> None:
        self._topics.add(topic)
        self._has_read |= (value or b"").startswith((b'{"op":"r"', b'{"op":"d"'))
        self._publisher.send(topic, key, value, *more)

    def send_rows(self, topic: str, rows: Any) -> None:
        self._topics.add(topic)
        self._has_read |= any(value.startswith(b'{"op":"r"') for _, value in rows)
        self._publisher.send_rows(topic, rows)

    def send_beside_state(self, key: bytes, value: bytes | None) -> None:
        self._ranges += value is not None
        self._publisher.send_beside_state(key, value)

    def commit(self, state: CaptureState, schemas: Sequence[SchemaRecord] = (), **options: Any) -> object:
        self._number += 1
        self._read += self._has_read
        self._has_read = False
        is_last = self._dies(Commit(self._number, schemas, frozenset(self._topics), state, self._ranges, self._read))
        if is_last and self._before:
            raise Killed
        bounds = self._publisher.commit(state, schemas, **options)
        if is_last:
            raise Killed
        return bounds

    def __getattr__(self, name: str) -> object:
        return getattr(self._publisher, name)


def dying(
    dies: Callable[[Commit], bool], *, before: bool = False
) -> Callable[[TransactionalPublisher], DyingPublisher]:
    return lambda publisher: DyingPublisher(publisher, dies, before=before)
