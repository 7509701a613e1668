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
from lockstep.verify.sides.set_aside import ProgressOfTables, SetAside
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

    def epoch_now() -> int:
        state = read_state(client, config.pipeline.name, config.slot)
        return 0 if state is None else state.epoch

    with ExitStack() as closing:
        generations = _Generations(options, closing, waiting=waiting, say=say)
        generation = generations.live(settings) if options.generation is None else options.generation
        opened = [generations.open(settings, generation)]
        other_settings = settings
        if options.against not in (SOURCE, TOPIC):
            other_settings = options.other_settings or settings
            opened.append(generations.open(other_settings, generation_number(options.against)))
        set_aside = {name: "; ".join(filter(None, (each.set_aside.reason(name) for each in opened))) for name in names}
        read = {name: topics[name] for name in names if not set_aside[name]}

        def log_ends() -> Mapping[TopicPartition, int]:
            partitions = partitions_of(list(read.values()), cluster.partition_counts(read.values()))
            return cluster.end_offsets(partitions, while_waiting=waiting.check)

        def published() -> ProgressReader:
            reader = ProgressReader(client, config.pipeline.name, list(read.values()))
            closing.callback(reader.close)
            return reader

        sink, *others = (SinkSide(each.opened.sink, waiting) for each in opened)
        applied, *others_applied = (generations.applied(each, read, published) for each in opened)
        records = read_schema_records(client, config.pipeline.name)
        shapes = _logged_shapes(newest_shapes(records), names, config.pipeline.name)
        earlier_shapes = histories(records)
        other: Expected | None = None
        if others:
            other = GenerationSide(opened[1].number, others[0], others_applied[0], log_ends)
        if settings.view is not None:
            connection = SourceConnection(config.source, epoch=epoch_now(), waiting=waiting)
            closing.callback(connection.close)
            shards = settings.view.tasks
            of_query, compared = _view_side(
                connection, settings.view, shapes, lambda: generations.view_time(opened[0], shards)
            )
            if other is not None:
                compared = replace(compared, not_comparable="")
            if not options.keys and not compared.not_comparable:
                for side in (sink, *others):
                    side.plan_scans([compared.table])
            yield Sides(
                generation,
                settings,
                other_settings,
                sink,
                applied,
                other or of_query,
                of_query,
                None,
                log_ends,
                (compared,),
                epoch_now,
            )
            return

        view = SinkView(projection_of(settings), settings.expressions(), shapes)
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
        if other is not None:
            expected = other
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
        tables = tuple(
            replace(compared, not_comparable=set_aside[compared.table.name] or compared.not_comparable)
            for compared in tables
        )
        if not options.keys:
            for side in (sink, *others):
                # What is stored later is looked up by its key, as everything that seems to be missing.
                side.plan_scans([compared.table for compared in tables if not compared.not_comparable])
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


@dataclass(frozen=True, slots=True)
class _OpenedGeneration:
    """A generation, and the tables that its job doesn't read."""

    number: int
    opened: OpenedSink
    set_aside: SetAside


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

    def open(self, settings: SinkSettings, generation: int) -> _OpenedGeneration:
        """Raises LockstepError when there is no such generation."""
        opened = self._open(settings, generation)
        existing = opened.generations.numbers()
        if generation not in existing:
            raise LockstepError(
                f"sink {self._name!r} has no generation {generation}",
                hint=f"it has: {', '.join(map(str, existing)) or 'none'}",
            )
        return _OpenedGeneration(generation, opened, SetAside(opened.records, self._name, generation))

    def applied(
        self, each: _OpenedGeneration, read: Mapping[TableName, str], published: Callable[[], ProgressReader]
    ) -> Applied:
        """What waits for a generation to apply what is in the topics of these tables.

        Where others hold up its watermark, what these have is known by what is ``published``.
        """
        progress: LoadsProgress = each.opened.generations
        if each.set_aside.hold_watermark:
            progress = ProgressOfTables(progress, each.opened.records, each.number, topics=read, published=published())
        return Applied(
            progress,
            name=self._name,
            generation=each.number,
            waiting=self._waiting,
            stall_s=self._stall_s,
            say=self._say,
            check=each.set_aside.check,
            sign_of_life=lambda: each.opened.records.load(heartbeat_name(each.number)),
        )

    def view_time(self, each: _OpenedGeneration, shards: int) -> NotedTime:
        """By which time of a view its rows are too old. Raises as ``settled_time``."""
        records = each.opened.records
        names = [noted_name(each.number, shard) for shard in ([None] if shards == 1 else range(shards))]
        return settled_time(
            lambda: noted_together([NotedTime.from_json(records.load(name)) for name in names]),
            name=self._name,
            generation=each.number,
            waiting=self._waiting,
            stall_s=self._stall_s,
        )

    def _open(self, settings: SinkSettings, generation: int) -> OpenedSink:
        opened = open_sink(self._name, settings, generation)
        self._closing.callback(opened.sink.close)
        return opened


def _view_side(
    connection: SourceConnection,
    view: ViewSettings,
    shapes: Mapping[TableName, Table],
    time_now: Callable[[], NotedTime],
) -> tuple[ViewSide, ComparedTable]:
    """The query on the source, and its result as a table, over these shapes of its tables. Raises Refused.

    ``time_now`` is asked by which time of the view rows are too old.
    """
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
