"""Opens both sides of a comparison, as its options need them, and closes what it has opened."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Final

from cdc.kafka.control_topics import ProgressReader, read_schema_records, read_state
from cdc.kafka.topic_admin import TopicAdmin, partitions_of
from cdc.model.append_only import stored_table
from cdc.model.errors import LockstepError
from cdc.model.table import Table, TableName
from jobs.executor.shape_history import histories, newest_shapes
from jobs.generations.lease import heartbeat_name
from jobs.query.view_plan import planned_view, top_rows
from lockstep.config import Config
from lockstep.verify.options import SOURCE, TOPIC, VerifyOptions, generation_number
from lockstep.verify.sides.compared_columns import ComparedTable, compared_table, has_all_columns
from lockstep.verify.sides.expected import Expected
from lockstep.verify.sides.generation import GenerationSide
from lockstep.verify.sides.held_tables import ProgressOfTables, UnreadTables
from lockstep.verify.sides.sink import SinkSide
from lockstep.verify.sides.sink_view import SinkView
from lockstep.verify.sides.source import SourceSide
from lockstep.verify.sides.source_connection import SourceConnection
from lockstep.verify.sides.topic import TopicSide
from lockstep.verify.sides.view import ViewSide
from lockstep.verify.waiting import Applied, LoadsProgress, SyncPoint, Waiting, settled_time
from sinks.contract import OpenedSink, TopicPartition
from sinks.registry import SinkSettings, open_sink, projection_of
from sinks.view_settings import ViewSettings
from views.retention import NotedTime, noted_name, noted_together
from views.sql.statement import reads_events, whole_statement

_READS_EVENTS: Final = (
    "its query names a column of events (_event, _operation), which the source doesn't have; --against compares it with"
    " another generation"
)


@dataclass(frozen=True, slots=True)
class Sides:
    """A sink's generation and what it is compared with, open.

    ``settings`` are those that the generation was built with, ``other_settings`` those of the generation that it is
    compared with, else the same. ``applied`` waits for the generation. ``source`` asks for repairs, and is the expected
    side too if the options say so. ``new_topic_side`` opens another reader of the topics; None for a view, whose rows
    have no topic.
    """

    generation: int
    settings: SinkSettings
    other_settings: SinkSettings
    sink: SinkSide
    applied: Applied
    expected: Expected
    source: SourceSide | ViewSide
    new_topic_side: Callable[[], TopicSide] | None
    log_ends: Callable[[], Mapping[TopicPartition, int]]
    tables: tuple[ComparedTable, ...]
    epoch_now: Callable[[], int]

    @property
    def is_against_source(self) -> bool:
        return self.expected is self.source

    def sync_point(self) -> SyncPoint:
        """Where the stream is now: an LSN if the source is compared, else the ends of the topics."""
        return self.source.sync_point() if self.is_against_source else SyncPoint(offsets=self.log_ends())

    def check_epoch(self, point: SyncPoint) -> None:
        """Raise LockstepError if capture was recovered since the point: its LSN belongs to another line of WAL."""
        if point.lsn is not None and self.epoch_now() != point.epoch:
            raise LockstepError("capture was recovered in the meantime", hint="start again")


@contextmanager
def open_sides(
    config: Config,
    options: VerifyOptions,
    settings: SinkSettings,
    names: Sequence[TableName],
    *,
    waiting: Waiting,
    say: Callable[[str], None],
) -> Iterator[Sides]:
    """Both sides until the block ends, with these tables of a sink with these settings, or with a view's result. Raises
    LockstepError for a generation or a table that doesn't exist, Unavailable if a server can't be reached."""
    with ExitStack() as closing:
        if settings.view is not None:
            names = config.sink_tables(settings)
        opening = _Opening(config, options, settings, names, closing, waiting=waiting, say=say)
        yield opening.of_tables() if settings.view is None else opening.of_view(settings.view)


@dataclass(frozen=True, slots=True)
class _OpenedGeneration:
    """A generation, and the tables that its job doesn't read."""

    number: int
    opened: OpenedSink
    unread: UnreadTables
    rows: SinkSide


class _Opening:
    """Opens the generation, the other one if it is compared with one, and then what else is needed."""

    def __init__(
        self,
        config: Config,
        options: VerifyOptions,
        settings: SinkSettings,
        names: Sequence[TableName],
        closing: ExitStack,
        *,
        waiting: Waiting,
        say: Callable[[str], None],
    ) -> None:
        """``closing`` closes what is opened. Raises as ``open_sides``."""
        self._config, self._options, self._settings = config, options, settings
        self._names = names
        self._closing = closing
        self._waiting, self._say = waiting, say
        self._client = config.kafka.client()
        self._opened = [self._generation(settings, options.generation or self._live())]
        self._other_settings = settings
        if options.against not in (SOURCE, TOPIC):
            self._other_settings = options.other_settings or settings
            self._opened.append(self._generation(self._other_settings, generation_number(options.against)))
        # The topics that both read, by table, and why the other tables can't be compared.
        self._why_not = {
            name: "; ".join(filter(None, (each.unread.reason(name) for each in self._opened))) for name in names
        }
        self._read = {name: topic for name, topic in config.topics().items() if self._why_not.get(name) == ""}
        self._records = read_schema_records(self._client, config.pipeline.name)
        self._shapes = _logged_shapes(newest_shapes(self._records), names, config.pipeline.name)
        self._applied = [self._waits_for(each) for each in self._opened]

    def of_view(self, settings: ViewSettings) -> Sides:
        """The result of a view, and its query on the source."""
        connection = SourceConnection(self._config.source, epoch=self._epoch_now(), waiting=self._waiting)
        self._closing.callback(connection.close)
        of_query, compared = _view_side(connection, settings, self._shapes, lambda: self._view_time(settings.tasks))
        other = self._other()
        if other is not None:
            compared = replace(compared, not_comparable="")
        return self._sides(other or of_query, of_query, None, [compared])

    def of_tables(self) -> Sides:
        """The tables, and the source, their topics or the other generation."""
        config, options, settings = self._config, self._options, self._settings
        view = SinkView(projection_of(settings), settings.expressions(), self._shapes)
        source = SourceSide(
            config.source,
            names=self._names,
            publication=config.publication,
            epoch=self._epoch_now(),
            load=options.load,
            waiting=self._waiting,
            view=view,
        )
        self._closing.callback(source.close)
        earlier_shapes = histories(self._records)

        def new_topic_side() -> TopicSide:
            return TopicSide(
                self._client,
                config.topics(),
                earlier_shapes,
                keys_max=options.keys_max,
                waiting=self._waiting,
                view=view,
            )

        topic: TopicSide | None = new_topic_side() if options.against == TOPIC else None
        expected: Expected = self._other() or topic or source
        origins = self._shapes
        if expected is source:
            origins = _source_tables(source, self._names, self._shapes, view)
        tables = [self._compared(name, origins[name], view, topic, expected.name) for name in self._names]
        return self._sides(expected, source, new_topic_side, tables)

    def _compared(
        self, name: TableName, origin: Table, view: SinkView, topic: TopicSide | None, against: str
    ) -> ComparedTable:
        compared = compared_table(
            stored_table(origin),
            stored_table(self._shapes[name]),
            view,
            ours=self._settings,
            theirs=self._other_settings,
            against=against,
        )
        lost = "" if topic is None else topic.what_is_lost(compared.table)
        return replace(compared, not_comparable=self._why_not[name] or lost)

    def _sides(
        self,
        expected: Expected,
        source: SourceSide | ViewSide,
        new_topic_side: Callable[[], TopicSide] | None,
        tables: Sequence[ComparedTable],
    ) -> Sides:
        if not self._options.keys:
            for each in self._opened:
                # What is stored later is looked up by its key, like everything that seems to be missing.
                each.rows.plan_scans([compared.table for compared in tables if not compared.not_comparable])
        return Sides(
            self._opened[0].number,
            self._settings,
            self._other_settings,
            self._opened[0].rows,
            self._applied[0],
            expected,
            source,
            new_topic_side,
            self._log_ends,
            tuple(tables),
            self._epoch_now,
        )

    def _other(self) -> GenerationSide | None:
        if len(self._opened) == 1:
            return None
        return GenerationSide(self._opened[1].number, self._opened[1].rows, self._applied[1], self._log_ends)

    def _log_ends(self) -> Mapping[TopicPartition, int]:
        cluster, topics = TopicAdmin(self._client), list(self._read.values())
        partitions = partitions_of(topics, cluster.partition_counts(topics))
        return cluster.end_offsets(partitions, while_waiting=self._waiting.check)

    def _epoch_now(self) -> int:
        state = read_state(self._client, self._config.pipeline.name, self._config.slot)
        return 0 if state is None else state.epoch

    def _live(self) -> int:
        """The generation that readers see. Raises LockstepError if there is none."""
        name = self._options.sink
        live = self._open(self._settings, 1).generations.live()
        if live is None:
            raise LockstepError(
                f"sink {name!r} has no live generation: nothing was ever applied to it",
                hint=f"start `lockstep apply {name}`",
            )
        return live

    def _generation(self, settings: SinkSettings, number: int) -> _OpenedGeneration:
        """Raises LockstepError if there is no such generation."""
        name, opened = self._options.sink, self._open(settings, number)
        existing = opened.generations.numbers()
        if number not in existing:
            raise LockstepError(
                f"sink {name!r} has no generation {number}", hint=f"it has: {', '.join(map(str, existing)) or 'none'}"
            )
        rows = SinkSide(opened.sink, self._waiting)
        return _OpenedGeneration(number, opened, UnreadTables(opened.records, name, number), rows)

    def _waits_for(self, each: _OpenedGeneration) -> Applied:
        """What waits for a generation to apply what is in the topics that are read. If other tables hold up its
        watermark, the progress of these comes from what capture has published."""
        progress: LoadsProgress = each.opened.generations
        if each.unread.hold_watermark:
            published = ProgressReader(self._client, self._config.pipeline.name, list(self._read.values()))
            self._closing.callback(published.close)
            progress = ProgressOfTables(
                progress, each.opened.records, each.number, topics=self._read, published=published
            )
        return Applied(
            progress,
            name=self._options.sink,
            generation=each.number,
            waiting=self._waiting,
            stall_s=self._options.stall_s,
            say=self._say,
            check=each.unread.check,
            sign_of_life=lambda: each.opened.records.load(heartbeat_name(each.number)),
        )

    def _view_time(self, shards: int) -> NotedTime:
        """The time of a view by which its rows are too old. Raises as ``settled_time``."""
        number, records = self._opened[0].number, self._opened[0].opened.records
        names = [noted_name(number, shard) for shard in ([None] if shards == 1 else range(shards))]
        return settled_time(
            lambda: noted_together([NotedTime.from_json(records.load(name)) for name in names]),
            name=self._options.sink,
            generation=number,
            waiting=self._waiting,
            stall_s=self._options.stall_s,
        )

    def _open(self, settings: SinkSettings, generation: int) -> OpenedSink:
        opened = open_sink(self._options.sink, settings, generation)
        self._closing.callback(opened.sink.close)
        return opened


def _view_side(
    connection: SourceConnection,
    view: ViewSettings,
    shapes: Mapping[TableName, Table],
    time_now: Callable[[], NotedTime],
) -> tuple[ViewSide, ComparedTable]:
    """The query on the source, and its result as a table, over these shapes of its tables. Raises Refused. ``time_now``
    returns the time of the view by which rows are too old."""
    planned = planned_view(view, shapes)
    plan = planned.plan

    def query() -> str:
        time_ms = time_now().time_ms if plan.retained else 0
        return whole_statement(plan, view.sql, top_rows(view), time_ms=time_ms)

    side = ViewSide(connection, query=query, view=view.name)
    return side, ComparedTable(planned.table, (), _READS_EVENTS if reads_events(view.sql) else "")


def _logged_shapes(
    newest: Mapping[TableName, Table], names: Sequence[TableName], pipeline: str
) -> dict[TableName, Table]:
    """The newest shapes that the log knows of these tables. Raises LockstepError if it knows none."""
    missing = [name for name in names if name not in newest]
    if missing:
        raise LockstepError(
            f"table {missing[0]} isn't in the log of pipeline {pipeline!r} yet",
            hint="start `lockstep capture`, and verify when it has copied the table",
        )
    return {name: newest[name] for name in names}


def _source_tables(
    source: SourceSide, names: Sequence[TableName], logged: Mapping[TableName, Table], view: SinkView
) -> dict[TableName, Table]:
    """The tables' shapes in the source. Raises LockstepError for one that is gone, or that can't be compared yet."""
    tables = source.tables()
    missing = [name for name in names if name not in tables]
    if missing:
        raise LockstepError(
            f"table {missing[0]} isn't in the source any more",
            hint="compare the other tables with --table, or with --against topic",
        )
    for name in names:
        if view.evaluates(name) and not has_all_columns(tables[name], logged[name]):
            raise LockstepError(
                f"table {name} has another shape in the source than in the log,"
                " and this sink's expressions are evaluated by the log's",
                hint="compare again once a row of it was written, or with --against topic",
            )
    return tables
