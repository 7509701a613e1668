"""A sink that waits while its server can't serve: the only place of the sinks that sleeps."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from cdc.model.errors import Unavailable
from cdc.model.event import JsonValue
from cdc.model.table import Table, TableName
from sinks.contract import NOTHING_ADDED, AddedValues, Batch, Outcome, Progress, Sink, StoredRow

_Result = TypeVar("_Result")

# Long enough to spare a server that is coming back, short enough that a job goes on soon after.
WAIT_MAX_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a RetryingSink is waiting for: why, how often it has tried, the next wait, and the time since the first try."""

    reason: str
    attempts: int
    wait_s: float
    elapsed_s: float


class RetryingSink:
    """Wraps a sink and repeats its calls while they raise ``Unavailable``; every other error passes.

    The wait starts at the error's ``retry_after_s``, doubles up to ``wait_max_s``, and is shortened at random by up to a half
    so that many jobs don't come back at the same moment. With ``give_up_after_s`` the last ``Unavailable`` is raised once the
    next wait would end beyond it; without, it goes on for ever, and ``on_wait`` is how others hear of it.

    ``scan`` and ``rows`` aren't repeated once they have begun: their caller has rows in hand already.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        sleep: Callable[[float], None],
        monotonic: Callable[[], float],
        random: Callable[[], float],
        on_wait: Callable[[Waiting], None],
        give_up_after_s: float | None = None,
        wait_max_s: float = WAIT_MAX_S,
    ) -> None:
        self._sink = sink
        self._sleep = sleep
        self._monotonic = monotonic
        self._random = random
        self._on_wait = on_wait
        self._give_up_after_s = give_up_after_s
        self._wait_max_s = wait_max_s

    def prepare(
        self, tables: Sequence[Table], *, go_live: bool = True, added: AddedValues = NOTHING_ADDED
    ) -> AddedValues:
        return self._persist(lambda: self._sink.prepare(tables, go_live=go_live, added=added))

    def begin_bulk(self) -> None:
        self._persist(self._sink.begin_bulk)

    def end_bulk(self) -> None:
        self._persist(self._sink.end_bulk)

    def claim(self) -> int:
        return self._persist(self._sink.claim)

    def fence(self) -> int:
        return self._persist(self._sink.fence)

    def apply(self, batch: Batch) -> Outcome:
        return self._persist(lambda: self._sink.apply(batch))

    def load_progress(self) -> Progress | None:
        return self._persist(self._sink.load_progress)

    def save_progress(self, progress: Progress) -> None:
        self._persist(lambda: self._sink.save_progress(progress))

    def live_generation(self) -> int | None:
        return self._persist(self._sink.live_generation)

    def generations(self) -> list[int]:
        return self._persist(self._sink.generations)

    def switch(self) -> None:
        self._persist(self._sink.switch)

    def keep_only(self, tables: Collection[TableName]) -> list[TableName]:
        return self._persist(lambda: self._sink.keep_only(tables))

    def drop(self) -> None:
        self._persist(self._sink.drop)

    def load_coordination(self, name: str) -> str | None:
        return self._persist(lambda: self._sink.load_coordination(name))

    def save_coordination(self, name: str, text: str | None) -> None:
        self._persist(lambda: self._sink.save_coordination(name, text))

    def create_coordination(self, name: str, text: str) -> bool:
        return self._persist(lambda: self._sink.create_coordination(name, text))

    def scan(self, table: Table) -> Iterator[StoredRow]:
        return self._sink.scan(table)

    def rows(self, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        return self._sink.rows(table, keys)

    def close(self) -> None:
        self._sink.close()

    def _persist(self, call: Callable[[], _Result]) -> _Result:
        began = self._monotonic()
        attempts = 0
        while True:
            try:
                return call()
            except Unavailable as error:
                attempts += 1
                elapsed_s = self._monotonic() - began
                # The exponent is bounded: after a night of waiting 2**attempts would not fit a float.
                longest_s = min(self._wait_max_s, error.retry_after_s * 2.0 ** min(attempts - 1, 20))
                wait_s = longest_s * (1 - self._random() / 2)
                if self._give_up_after_s is not None and elapsed_s + wait_s > self._give_up_after_s:
                    raise
                self._on_wait(Waiting(error.message, attempts, wait_s, elapsed_s))
                self._sleep(wait_s)
