"""What one sink's job is about."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cdc.kafka.settings import KafkaSettings
from cdc.model.table import TableName
from jobs.batch_limits import BatchLimits
from jobs.executor.task_input import OpenSink
from jobs.query.captured_tables import Captured
from jobs.settings import SparkSettings
from sinks.contract import OpenedSink
from sinks.registry import SinkSettings, history_tables, open_sink


@dataclass(frozen=True)
class SinkPlan:
    """What one sink's job is about: configuration only, nothing is opened.

    ``settings`` are those that this generation is built with. ``once``: the job ends at the log's present end.
    ``go_live``: the generation becomes the live one if there is none. ``bulk``: load it in the destination's fastest
    way; nobody may read it meanwhile. ``trimmed``: read a log that has lost its beginning.

    ``captured`` returns the tables that are captured now, and raises LockstepError if that is unknown. The sink's
    tables among them repeatedly replace ``tables``. None: the sink's tables don't change while the job runs.
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
        """Whether the job reads tables that join later. A bulk load doesn't: its watermark ends where tables change."""
        return not self.bulk

    @property
    def applies_steps(self) -> bool:
        """Whether readers see whole transactions. A bulk load has no readers."""
        return self.settings.consistent and self.settings.view is None and not self.bulk

    @property
    def limits(self) -> BatchLimits:
        """How large the job's batches are."""
        return BatchLimits.of(self.spark, bulk=self.bulk)

    def goes_on(self, partitions: int) -> bool:
        """Whether batches of so many partitions go on until the job ends them, instead of ending with the log. The task
        of a long batch talks to the driver on its own machine, which isn't possible on a cluster."""
        if self.once or self.bulk or not self.spark.is_local:
            return False
        return self.limits.goes_on(partitions) and goes_on(self.settings, self.tables)

    def opened(self) -> OpenedSink:
        """Open the sink for this generation: one object per thread that uses it. Raises what opening it raises."""
        return self.open(self.name, self.settings, self.generation)


def goes_on(settings: SinkSettings, tables: Sequence[TableName]) -> bool:
    """Whether a task of a sink of these tables may go on with events that come after its range. Pure. It may not if
    large batches are written much quicker than many small ones, or for a history, which needs to know for each batch
    since when its versions are complete."""
    return not settings.likes_large_batches and not history_tables(settings, tables)
