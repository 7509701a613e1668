"""Opens both sides of a comparison, as its options need them, and closes what it has opened."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from cdc.kafka.control_topics import read_schema_records, read_state
from cdc.kafka.topic_admin import TopicAdmin, partitions_of
from cdc.model.errors import LockstepError
from cdc.model.table import Table, TableName
from jobs.executor.shape_history import histories, newest_shapes
from lockstep.config import Config
from lockstep.verify.options import SOURCE, TOPIC, VerifyOptions, generation_number
from lockstep.verify.sides.compared_columns import ComparedTable, compared_table, has_all_columns
from lockstep.verify.sides.expected import Expected
from lockstep.verify.sides.generation import GenerationSide
from lockstep.verify.sides.sink import SinkSide
from lockstep.verify.sides.sink_view import RowComputer, SinkView
from lockstep.verify.sides.source import SourceSide
from lockstep.verify.sides.source_connection import SourceConnection
from lockstep.verify.sides.topic import TopicSide
from lockstep.verify.sides.view import ViewSide
from lockstep.verify.waiting import Applied, SyncPoint, Waiting
from lockstep.views.configured import plan_of, top_rows
from sinks.append_only import stored_table
from sinks.contract import OpenedSink, TopicPartition
from sinks.registry import SinkSettings, open_sink, projection_of
from sinks.view_settings import ViewSettings
from views.result import result_table
from views.sql.statement import whole_statement


@dataclass(frozen=True, slots=True)
class Sides:
    """A sink's generation and what it is compared with, open.

    ``settings`` are those that the generation was built with, ``other_settings`` those of the generation that it is
    compared with, else the same. ``applied`` waits for the generation. ``source`` is the side that asks for repairs,
    and the expected one where the options say so. ``new_topic_side`` gives another reader of the topics, None for a
    view, whose rows have no topic.
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
        """Where the stream is now: an LSN where the source is asked, else the ends of the topics."""
        return self.source.sync_point() if self.is_against_source else SyncPoint(offsets=self.log_ends())

    def check_epoch(self, point: SyncPoint) -> None:
        """Raises LockstepError where capture was recovered since the point: its LSN is of another line of WAL."""
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
    """Both sides until the block ends, with these tables of a sink with these settings, or with a view's result.

    Raises LockstepError for a generation or a table that isn't there, Unavailable when a server can't be reached.
    """
    client = config.kafka.client()
    cluster = TopicAdmin(client)
    topics = config.topics()
    if settings.view is not None:
        names = config.sink_tables(settings)

    def log_ends() -> Mapping[TopicPartition, int]:
        partitions = partitions_of([topics[name] for name in names], cluster.partition_counts())
        return cluster.end_offsets(partitions, while_waiting=waiting.check)

    def epoch_now() -> int:
        state = read_state(client, config.pipeline.name, config.slot)
        return 0 if state is None else state.epoch

    with ExitStack() as closing:
        generations = _Generations(options, closing, waiting=waiting, say=say)
        generation = generations.live(settings) if options.generation is None else options.generation
        sink, applied = generations.open(settings, generation)
        records = read_schema_records(client, config.pipeline.name)
        shapes = _logged_shapes(newest_shapes(records), names, config.pipeline.name)
        earlier_shapes = histories(records)
        generations_read = [sink]
        other_settings = settings
        compared_with: Expected | None = None
        if options.against not in (SOURCE, TOPIC):
            number = generation_number(options.against)
            other_settings = options.other_settings or settings
            other_sink, other_applied = generations.open(other_settings, number)
            compared_with = GenerationSide(number, other_sink, other_applied, log_ends)
            generations_read.append(other_sink)
        if settings.view is not None:
            connection = SourceConnection(config.source, epoch=epoch_now(), waiting=waiting)
            closing.callback(connection.close)
            of_query, compared = _view_side(connection, settings.view, shapes)
            if not options.keys:
                for read in generations_read:
                    read.plan_scans([compared.table])
            yield Sides(
                generation,
                settings,
                other_settings,
                sink,
                applied,
                compared_with or of_query,
                of_query,
                None,
                log_ends,
                (compared,),
                epoch_now,
            )
            return

        def open_computer() -> RowComputer:
            from jobs.spark.computed_columns import opened_row_computer  # PySpark takes longer than a small comparison
            from lockstep.apply import with_java

            say("starting Spark: this sink's settings have expressions, which it evaluates")
            spark = with_java(config.spark)
            return closing.enter_context(opened_row_computer(spark, settings.expressions(), shapes))

        view = SinkView(projection_of(settings), open_computer)
        source = SourceSide(
            config.source,
            names=names,
            publication=config.publication,
            epoch=epoch_now(),
            load=options.load,
            waiting=waiting,
            view=view,
        )
        closing.callback(source.close)

        def new_topic_side() -> TopicSide:
            return TopicSide(client, topics, earlier_shapes, keys_max=options.keys_max, waiting=waiting, view=view)

        expected: Expected
        origins = shapes
        if compared_with is not None:
            expected = compared_with
        elif options.against == SOURCE:
            expected = source
            origins = _source_tables(source, names, shapes, view)
        else:
            expected = new_topic_side()
        tables = tuple(
            compared_table(
                stored_table(origins[name]),
                stored_table(shapes[name]),
                view,
                ours=settings,
                theirs=other_settings,
                against=expected.name,
            )
            for name in names
        )
        if isinstance(expected, TopicSide):
            tables = tuple(
                replace(compared, not_comparable=expected.what_is_lost(compared.table)) for compared in tables
            )
        if not options.keys:
            for read in generations_read:
                # What is stored later is looked up by its key, as everything that seems to be missing.
                read.plan_scans([compared.table for compared in tables])
        yield Sides(
            generation,
            settings,
            other_settings,
            sink,
            applied,
            expected,
            source,
            new_topic_side,
            log_ends,
            tables,
            epoch_now,
        )


class _Generations:
    """Opens generations of one sink, which ``closing`` closes."""

    def __init__(
        self, options: VerifyOptions, closing: ExitStack, *, waiting: Waiting, say: Callable[[str], None]
    ) -> None:
        self._name = options.sink
        self._stall_s = options.stall_s
        self._closing = closing
        self._waiting = waiting
        self._say = say

    def live(self, settings: SinkSettings) -> int:
        """The generation that readers see. Raises LockstepError when there is none."""
        live = self._open(settings, 1).generations.live()
        if live is None:
            raise LockstepError(
                f"sink {self._name!r} has no live generation: nothing was ever applied to it",
                hint=f"start `lockstep apply {self._name}`",
            )
        return live

    def open(self, settings: SinkSettings, generation: int) -> tuple[SinkSide, Applied]:
        """A generation's rows, and what waits for it. Raises LockstepError when there is no such generation."""
        opened = self._open(settings, generation)
        existing = opened.generations.numbers()
        if generation not in existing:
            raise LockstepError(
                f"sink {self._name!r} has no generation {generation}",
                hint=f"it has: {', '.join(map(str, existing)) or 'none'}",
            )
        applied = Applied(
            opened.generations,
            name=self._name,
            generation=generation,
            waiting=self._waiting,
            stall_s=self._stall_s,
            say=self._say,
        )
        return SinkSide(opened.sink, self._waiting), applied

    def _open(self, settings: SinkSettings, generation: int) -> OpenedSink:
        opened = open_sink(self._name, settings, generation)
        self._closing.callback(opened.sink.close)
        return opened


def _view_side(
    connection: SourceConnection, view: ViewSettings, shapes: Mapping[TableName, Table]
) -> tuple[ViewSide, ComparedTable]:
    """The query on the source, and its result as a table, over these shapes of its tables. Raises Refused."""
    plan = plan_of(view, shapes)
    query = whole_statement(plan, view.sql, top_rows(view))
    return ViewSide(connection, query=query, view=view.name), ComparedTable(result_table(plan, shapes, view.table), ())


def _logged_shapes(
    newest: Mapping[TableName, Table], names: Sequence[TableName], pipeline: str
) -> dict[TableName, Table]:
    """The newest shapes that the log knows of these tables. Raises LockstepError where it knows none."""
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
