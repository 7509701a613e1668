"""How large a sink's batch is, and how many tasks read it. Pure."""

from dataclasses import dataclass
from typing import Final, Self

from jobs.offsets import Offsets
from jobs.settings import SparkSettings

RECORDS_MAX: Final = 200_000
_WINDOW_BYTES: Final = 64 * 1024 * 1024

_TASKS_MAX: Final = 32
_TASKS_MAX_PER_CORE: Final = 4
"""A batch has at most the greater of both as tasks, whatever the number of partitions: each task costs milliseconds."""

PARTITIONS_MAX: Final = 200
"""A task that goes on polls each partition five times a second, and every two seconds after a silence. With 200
partitions polling takes the task 0.3 % of a core, with 1,200 it takes 1.2 %, and the broker several times as much."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """``small_records``: up to so many one task reads, since tasks cost more than records. ``window_bytes``: how many
    bytes of the log a task holds at once, folded by key; a Python worker takes about twice as much."""

    records_max: int
    small_records: int
    window_bytes: int

    @classmethod
    def of(cls, spark: SparkSettings, *, bulk: bool) -> Self:
        """A bulk load has larger batches: of the records of one key in a batch, only the newest is written."""
        if bulk:
            return cls(20 * RECORDS_MAX, spark.small_batch_rows, 6 * _WINDOW_BYTES)
        return cls(RECORDS_MAX, spark.small_batch_rows, _WINDOW_BYTES)

    def ends(self, starts: Offsets, ends: Offsets) -> Offsets:
        """The ends of a batch that begins at ``starts``, of the records up to ``ends``. If there are more than a batch
        takes, each partition gives the same share of its records, and at least one."""
        lacking = {at: end - starts.get(at, 0) for at, end in ends.items()}
        total = sum(lacking.values())
        if total <= self.records_max:
            return ends
        return {
            at: ends[at] - count + (count and max(1, count * self.records_max // total))
            for at, count in lacking.items()
        }

    def is_small(self, records: int) -> bool:
        return records <= self.small_records

    def goes_on(self, partitions: int) -> bool:
        """Whether a task that reads so many partitions may go on with what comes after its range."""
        return partitions <= PARTITIONS_MAX

    def tasks(self, records: int, *, cores: int) -> int:
        """How many tasks read a batch of so many records, at most."""
        return 1 if self.is_small(records) else max(_TASKS_MAX, _TASKS_MAX_PER_CORE * cores)
