"""A capture whose process ends at one of its commits, in the test's own process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cdc.kafka.publisher import TransactionalPublisher
from cdc.protocol.control_records import CaptureState, SchemaRecord


class Killed(BaseException):
    """The process is gone: nothing of it runs on, and nothing of it catches this."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The ``number``-th commit of the process, from 1, with the topics that were sent to since it began."""

    number: int
    schemas: Sequence[SchemaRecord]
    topics: frozenset[str]
    state: CaptureState


class DyingPublisher:
    """Ends the process at the first commit of which ``dies`` says so: before Kafka has it, or after."""

    def __init__(
        self, publisher: TransactionalPublisher, dies: Callable[[Commit], bool], *, before: bool = False
    ) -> None:
        self._publisher = publisher
        self._dies = dies
        self._before = before
        self._number = 0
        self._topics: set[str] = set()

    def send(self, topic: str, *arguments: Any) -> None:
        self._topics.add(topic)
        self._publisher.send(topic, *arguments)

    def send_rows(self, topic: str, *arguments: Any) -> None:
        self._topics.add(topic)
        self._publisher.send_rows(topic, *arguments)

    def commit(self, state: CaptureState, schemas: Sequence[SchemaRecord] = (), **options: Any) -> object:
        self._number += 1
        is_last = self._dies(Commit(self._number, schemas, frozenset(self._topics), state))
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
    """For ``wrap_publisher``."""
    return lambda publisher: DyingPublisher(publisher, dies, before=before)
