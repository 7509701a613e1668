"""What one sink's job is about."""

from collections.abc import Sequence
from dataclasses import dataclass

from cdc.kafka.settings import KafkaSettings
from cdc.model.table import TableName
from jobs.executor.task_input import OpenSink
from jobs.settings import SparkSettings
from sinks.contract import OpenedSink
from sinks.registry import SinkSettings, history_tables, open_sink


@dataclass(frozen=True)
class SinkPlan:
    """What one sink's job is about. Everything here is configuration; nothing is opened.

    ``settings`` are those that this generation is built with. ``once``: it ends where the log ends as of now.
    ``go_live`` lets the generation become the live one when there is none. ``bulk`` loads it in the destination's
    fastest way, for which nobody may read it yet. ``trimmed`` reads a log that has lost its beginning.
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

    def opened(self) -> OpenedSink:
        """Open the sink for this generation: one object per thread that uses it. Raises what opening it raises."""
        return self.open(self.name, self.settings, self.generation)


def may_go_on(settings: SinkSettings, tables: Sequence[TableName]) -> bool:
    """Whether a task of a sink of these tables can go on with what comes to the log after its range. Pure.

    It has to read the log itself, which can't evaluate expressions, and a history asks for each batch since when its
    versions are complete.
    """
    return not (settings.likes_large_batches or settings.expressions() or history_tables(settings, tables))
