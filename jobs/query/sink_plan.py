"""What one sink's job is about."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from cdc.kafka.settings import KafkaSettings
from cdc.model.table import TableName
from jobs.executor.task_input import OpenSink
from jobs.query.captured_tables import Captured
from jobs.settings import OFFSETS_MAX, WINDOW_BYTES, SparkSettings
from sinks.contract import OpenedSink
from sinks.registry import SinkSettings, history_tables, open_sink

PARTITIONS_MAX: Final = 200
"""A task that goes on asks for all of its partitions five times a second, and every two seconds after a silence. With
200 the former takes it 0.3 % of a core, with 1,200 1.2 %, and the broker several times as much."""


@dataclass(frozen=True)
class SinkPlan:
    """What one sink's job is about. Everything here is configuration; nothing is opened.

    ``settings`` are those that this generation is built with. ``once``: it ends where the log ends as of now.
    ``go_live`` lets the generation become the live one when there is none. ``bulk`` loads it in the destination's
    fastest way, for which nobody may read it yet. ``trimmed`` reads a log that has lost its beginning.

    ``captured`` says which tables are captured by now, and raises LockstepError where that can't be told. Those among
    them that the sink is to have take the place of ``tables``, again and again. None: nobody takes any in while the
    job runs.
    """

    name: str
    settings: SinkSettings
    generation: int
    pipeline: str
    kafka: KafkaSettings
    tables: Sequence[TableName]
    spark: SparkSettings
    once: bool
    go_live: bool = True
    bulk: bool = False
    trimmed: bool = False
    open: OpenSink = open_sink
    captured: Callable[[], Captured] | None = None

    @property
    def takes_up(self) -> bool:
        """Whether tables that are captured meanwhile are read, too. In a bulk load ``tables`` stay, and the watermark
        ends where others are captured."""
        return not self.bulk

    @property
    def applies_steps(self) -> bool:
        """Whether readers see whole transactions. In a bulk load there are no readers."""
        return self.settings.consistent and self.settings.view is None and not self.bulk

    @property
    def offsets_per_trigger(self) -> int:
        """How many records a batch takes at most; more in a bulk load, since what it holds of a key is written once."""
        return OFFSETS_MAX * (20 if self.bulk else 1)

    @property
    def window_bytes(self) -> int:
        """How many bytes of the log a task holds at once."""
        return WINDOW_BYTES * (6 if self.bulk else 1)

    def goes_on(self, partitions: int) -> bool:
        """Whether batches of so many partitions go on until the job ends them. The others end where the log ends.

        The task of one that goes on talks to the driver on its own machine, which a cluster's may not be.
        """
        if self.once or self.bulk or not self.spark.is_local:
            return False
        return partitions <= PARTITIONS_MAX and goes_on(self.settings, self.tables)

    def opened(self) -> OpenedSink:
        """Open the sink for this generation: one object per thread that uses it. Raises what opening it raises."""
        return self.open(self.name, self.settings, self.generation)


def goes_on(settings: SinkSettings, tables: Sequence[TableName]) -> bool:
    """Whether a task of a sink of these tables may go on with what comes to the log after its range. Pure.

    Not where a large batch is written much quicker than many small ones. Nor does a history: it asks for each batch
    since when its versions are complete.
    """
    return not settings.likes_large_batches and not history_tables(settings, tables)
