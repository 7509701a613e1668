"""``lockstep rejections retry``: rejected events once more, through their sink and with their own tags.

It writes beside a running job with that job's fence, so it takes nothing over. The tags keep it from making any row
older, and an event that the sink takes for the second time changes nothing. A rejection is closed after its event is
durable in the sink, so an interrupted retry is simply run again.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import orjson
from rich.table import Table
from rich.text import Text

from cdc.kafka.control_topics import read_schema_records
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import Fenced, LockstepError
from cdc.model.event import Position, RowEvent, TableEvents
from cdc.model.table import TableName
from cdc.protocol.control_records import SchemaRecord
from cdc.protocol.envelope import parse_value, row_event, schema_id_of
from jobs.executor.computed_row import computed_row
from jobs.executor.shape_history import TableHistory, histories, newest_shapes
from jobs.generations.prepared import Prepared, load_prepared
from jobs.generations.record import Generation, Phase, check_owner, load_record, require_in_use
from jobs.spark.computed_columns import opened_row_computer
from lockstep.config import Config
from lockstep.generations import list_of, settings_of, settings_of_generation
from lockstep.rejections.commands import Rejection, RejectionBook, Selection, counted, cut, none_of_that
from sinks.contract import Batch, OpenedSink, Outcome, Progress, TableVersions
from sinks.registry import SinkSettings, history_tables, open_sink, projection_of
from sinks.wrappers.projection import Projection
from sinks.wrappers.retrying import Retries, retrying

_PORTION_EVENTS: Final = 1000
_PORTION_BYTES: Final = 32 * 1024 * 1024

_TRIES: Final = 5
"""How often a portion is begun again because a job has started, or has prepared other shapes, meanwhile."""

_LOOK_S: Final = 0.5


Kept = tuple[Rejection, bytes | None]
"""A rejection and its event's value."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A rejection that stays open, and why."""

    rejection: Rejection
    why: str


@dataclass(slots=True)
class Retried:
    """What became of the retried rejections.

    ``taken`` counts those that the sink has now, in this version or a newer one. ``void`` are those whose event means
    nothing to the table as it is now. ``gone`` are those that were closed meanwhile.
    """

    generation: int
    taken: int = 0
    void: int = 0
    gone: int = 0
    refused: list[Refused] = field(default_factory=list)

    def sentence(self, sink: str) -> str:
        """For people."""
        text = f"{sink} took {counted(self.taken, 'rejected event')}"
        if self.void:
            text += f"; void, since their table was copied anew: {self.void:,}"
        if self.gone:
            text += f"; closed meanwhile: {self.gone:,}"
        if self.refused:
            text += f"; still open: {len(self.refused):,}"
        return text

    def to_json(self) -> dict[str, Any]:
        return {
            "generation": self.generation,
            "taken": self.taken,
            "void": self.void,
            "gone": self.gone,
            "refused": [one.rejection.to_json() | {"reason": one.why} for one in self.refused],
        }


def retried_table(retried: Retried) -> Table:
    """For people: those that stay open."""
    table = Table()
    for heading in ("table", "key", "position", "refused again"):
        table.add_column(heading, overflow="fold")
    for one in retried.refused:
        table.add_row(*map(Text, (one.rejection.where, cut(one.rejection.key), one.rejection.position, one.why)))
    return table


def retry(config: Config, name: str, selection: Selection, *, say: Callable[[str], None]) -> Retried:
    """Apply the rejections that are meant, of the live generation where none is named. Raises LockstepError.

    ``say`` hears of rejections of other generations, which are left alone.
    """
    settings_of(config, name)
    book = RejectionBook(config)
    found, _ = book.read(name, selection)
    if selection.keys and not found:
        raise none_of_that(name)
    generations = {generation.number: generation for generation in list_of(config, name)}
    generation = _generation(config, name, generations, selection.generation, len(found))
    if not generation.is_live:
        say(f"generation {generation.number} of {name} isn't the one that readers see")
    for number, count in _others(found, generation.number):
        what = f"{counted(count, 'rejection')} of generation {number}"
        if number in generations:
            say(f"left alone: {what}, which isn't live; --generation {number} retries those")
        else:
            way_out = f"`lockstep rejections discard {name} --generation {number} --all` closes those"
            say(f"left alone: {what}, which was dropped; {way_out}")
    mine = [one for one in found if one.letter.generation == generation.number]
    retried = Retried(generation.number)
    if mine:
        settings = settings_of_generation(config, name, generation)
        retries = Retries(
            sleep=time.sleep,
            monotonic=time.monotonic,
            random=random.random,
            on_wait=lambda waiting: say(f"waiting for {name}: {waiting.reason}"),
            give_up_after_s=config.spark.retry_s,
        )
        opened = retrying(open_sink(name, settings, generation.number), retries)
        with ExitStack() as closing:
            closing.callback(opened.sink.close)
            _Attempt(config, name, settings, opened, book, retried, _evaluation(config, settings, mine, closing)).run(
                mine
            )
    return retried


Evaluate = Callable[["Made"], "Made"]
"""Gives events what has to be evaluated of their rows."""


def _evaluation(config: Config, settings: SinkSettings, mine: Sequence[Rejection], closing: ExitStack) -> Evaluate:
    """``evaluated`` for these settings. Starts Spark where one of the rejections needs it."""
    projection = projection_of(settings)
    expressions = settings.expressions()
    if not any(one.table in expressions for one in mine):
        return lambda made: made
    shapes = newest_shapes(read_schema_records(config.kafka.client(), config.pipeline.name))
    computer = closing.enter_context(opened_row_computer(config.spark, expressions, shapes))
    return partial(evaluated, projection=projection, compute=computer.compute)


class _Attempt:
    """One run over a generation's rejections."""

    def __init__(
        self,
        config: Config,
        name: str,
        settings: SinkSettings,
        opened: OpenedSink,
        book: RejectionBook,
        retried: Retried,
        evaluate: Evaluate,
    ) -> None:
        self._config = config
        self._name = name
        self._opened = opened
        self._book = book
        self._retried = retried
        self._evaluate = evaluate
        self._settings = settings
        self._number = retried.generation
        self._tables = {TableName.parse(text) for text in settings.tables} or set(config.source.keyed_names)

    def run(self, rejections: Sequence[Rejection]) -> None:
        progress = self._opened.generations.load_progress()
        topics = {one.letter.position.topic for one in rejections}
        lost = lost_topics(topics, progress, self._topic_ids(topics))
        usable = []
        for one in rejections:
            why = lost.get(one.letter.position.topic) or self._stranger(one.table)
            if why is None:
                usable.append(one)
            else:
                self._retried.refused.append(Refused(one, why))
        seen = 0
        for portion in _portions(self._book, usable):
            seen += len(portion)
            self._take(portion)
        self._retried.gone = len(usable) - seen

    def _topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        cluster = TopicAdmin(self._config.kafka.client())
        there = cluster.partition_counts()
        known = [topic for topic in topics if topic in there]
        return cluster.topic_ids(known) if known else {}

    def _stranger(self, table: TableName | None) -> str | None:
        if table is None:
            return "its table isn't captured any more; discard it"
        return None if table in self._tables else "its table isn't one of this generation's any more; discard it"

    def _take(self, portion: Sequence[Kept]) -> None:
        """Apply a portion, then close what the sink took. Raises LockstepError."""
        made, outcome = apply_beside(
            self._opened,
            self._name,
            self._number,
            portion,
            records=lambda: read_schema_records(self._config.kafka.client(), self._config.pipeline.name),
            evaluate=self._evaluate,
            keeps=history_tables(self._settings, self._tables),
        )
        rejections = {(event.table, str(event.key)): one for one, event in made.events}
        refused = made.refused + [
            Refused(rejections[found.event.table, str(found.event.key)], found.reason) for found in outcome.rejections
        ]
        stay = {id(one.rejection) for one in refused}
        closed = [one for one, _ in portion if id(one) not in stay]
        self._book.close(closed)
        self._retried.taken += len(closed) - made.void
        self._retried.void += made.void
        self._retried.refused += refused


def apply_beside(
    opened: OpenedSink,
    name: str,
    generation: int,
    portion: Sequence[Kept],
    *,
    records: Callable[[], Iterable[SchemaRecord]],
    evaluate: Evaluate = lambda made: made,
    keeps: Collection[TableName] = (),
    sleep: Callable[[float], None] = time.sleep,
) -> tuple["Made", Outcome]:
    """Apply rejected events beside the generation's job, in the shapes that it has prepared. Raises LockstepError.

    ``records`` reads all shapes in the order of the topic; ``keeps`` are the tables with all versions in the sink.
    """
    for _ in range(_TRIES):
        require_in_use(opened.records, name, generation)
        record = load_record(opened.records, generation)
        if record is not None and record.phase is not Phase.READY:
            raise LockstepError(
                f"generation {generation} of sink {name!r} is {record.phase.value} by now",
                hint="nothing was closed that the sink doesn't have; retry when that has ended",
            )
        prepared = load_prepared(opened.records, generation)
        if prepared is None:
            sleep(_LOOK_S)
            continue
        made = evaluate(make_events(portion, prepared_histories(records(), prepared)))
        events = [event for _, event in made.events]
        try:
            # A row in the same version is written again: it may be what this has left before in an earlier shape.
            versions = versions_of(made, keeps)
            outcome = opened.sink.apply(
                Batch(events, fence=opened.sink.fence(), overwrite_equal_tags=True, versions=versions)
            )
        except Fenced:  # a job has begun between the two calls
            sleep(_LOOK_S)
            continue
        if load_prepared(opened.records, generation) == prepared:
            return made, outcome
        # What was written just now may lack a column that all other rows have got meanwhile.
    raise LockstepError(
        f"generation {generation} of sink {name!r} is being prepared for the tables' shapes, or never was",
        hint=f"let `lockstep apply {name}` start, then try again; nothing was closed that the sink doesn't have",
    )


def lost_topics(topics: Iterable[str], progress: Progress | None, topic_ids: Mapping[str, str]) -> dict[str, str]:
    """The topics whose rejections can't be retried, and why; ``topic_ids`` are those of existing topics. Pure.

    What a generation has read of another topic of the same name says nothing about the rows that are there now.
    """
    lost = {}
    for topic in topics:
        known = None if progress is None else progress.topic_ids.get(topic)
        if topic not in topic_ids:
            lost[topic] = f"topic {topic} doesn't exist any more; discard it"
        elif known is not None and known != topic_ids[topic]:
            lost[topic] = f"topic {topic} was made anew since; build the sink anew, or discard it"
    return lost


def prepared_histories(records: Iterable[SchemaRecord], prepared: Prepared) -> dict[TableName, TableHistory]:
    """How events of the shapes up to the prepared ones become rows of these; ``records`` in topic order. Pure."""
    by_table: dict[TableName, list[SchemaRecord]] = {}
    for record in records:
        by_table.setdefault(record.table.name, []).append(record)
    found = {}
    for name, of_table in by_table.items():
        last = max(
            (n for n, record in enumerate(of_table) if record.table.schema_id == prepared.get(name)), default=None
        )
        if last is not None:
            table = of_table[last].table
            alone = TableHistory(name, table.key, {table.schema_id: ()})
            found[name] = histories(of_table[: last + 1]).get(name, alone)
    return found


@dataclass(slots=True)
class Made:
    """Events made of rejections; ``void`` counts those that a later copy of their table has replaced.

    ``origins`` are the operation and the commit time, in milliseconds since 1970, of the event at a log position.
    """

    events: list[tuple[Rejection, RowEvent]] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    void: int = 0
    origins: dict[Position, tuple[str, int]] = field(default_factory=dict)


def make_events(portion: Iterable[Kept], known: Mapping[TableName, TableHistory]) -> Made:
    """Rejected events in the shapes that the sink is prepared for. Pure."""
    made = Made()
    for one, value in portion:
        letter, table = one.letter, one.table
        history = None if table is None else known.get(table)
        if table is None or history is None:
            made.refused.append(Refused(one, "the sink isn't prepared for its table"))
            continue
        try:
            event = row_event(table, letter.key, value, letter.tag if value is None else None, letter.position)
            translated = history.translate(event, schema_id_of(value or b""))
        except LockstepError as error:
            made.refused.append(Refused(one, error.message))
            continue
        if translated is None:
            made.void += 1
        else:
            made.events.append((one, translated))
            # A tombstone says nothing of its time: it came when it was refused, about.
            envelope = None if value is None else parse_value(value)
            made.origins[letter.position] = (
                ("d", letter.rejected_at_ms) if envelope is None else (envelope.op, envelope.commit_time_ms)
            )
    return made


def versions_of(made: Made, keeps: Collection[TableName]) -> list[TableVersions]:
    """The events of those tables of which all versions are kept. Pure."""
    found = []
    for table in dict.fromkeys(event.table for _, event in made.events if event.table in keeps):
        of_table = [event for _, event in made.events if event.table == table]
        origins = [made.origins[event.position] for event in of_table]
        operations = ["d" if event.row is None else of for event, (of, _) in zip(of_table, origins, strict=True)]
        found.append(TableVersions(TableEvents.of(table, of_table), operations, [time_ms for _, time_ms in origins]))
    return found


def evaluated(
    made: Made, *, projection: Projection, compute: Callable[[TableName, Sequence[bytes]], Sequence[bytes]]
) -> Made:
    """Events with what ``compute`` says of their rows; those of which an expression still fails are refused."""
    found = Made(refused=list(made.refused), void=made.void, origins=made.origins)
    for table in dict.fromkeys(event.table for _, event in made.events):
        of_table = [(one, event) for one, event in made.events if event.table == table]
        if table not in projection.evaluated:
            found.events += of_table
            continue
        found.events += [(one, event) for one, event in of_table if event.row is None]
        rows = [(one, event, orjson.dumps(event.row)) for one, event in of_table if event.row is not None]
        results = compute(table, [row for _, _, row in rows])
        for (one, event, row), result in zip(rows, results, strict=True):
            computed = computed_row(row, result, projection.computed.get(table, ()))
            if computed.refused:
                found.refused.append(Refused(one, computed.refused))
            else:
                shown = None if computed.row is None else orjson.loads(computed.row)
                found.events.append((one, replace(event, row=shown)))
    return found


def _portions(book: RejectionBook, rejections: Sequence[Rejection]) -> Iterator[list[Kept]]:
    """The rejections with their events' values, a bounded part at a time."""
    by_place = {one.letter.place: one for one in rejections}
    portion: list[Kept] = []
    size = 0
    for letter, value in book.topic.values([one.letter for one in rejections]):
        portion.append((by_place[letter.place], value))
        size += len(letter.key) + len(value or b"")
        if len(portion) >= _PORTION_EVENTS or size >= _PORTION_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _generation(
    config: Config, name: str, there: Mapping[int, Generation], wanted: int | None, rejections: int
) -> Generation:
    """The one to retry into. Raises LockstepError when there is none, or when it isn't in use."""
    if wanted is None:
        generation = next((one for one in there.values() if one.is_live), None)
        if generation is None:
            raise LockstepError(
                f"sink {name!r} has no live generation yet",
                hint=f"`lockstep apply {name}` builds it, from the log's beginning",
            )
    elif wanted in there:
        generation = there[wanted]
    else:
        way_out = (
            f"; `lockstep rejections discard {name} --generation {wanted} --all` closes its rejections"
            if rejections
            else ""
        )
        raise LockstepError(
            f"sink {name!r} has no generation {wanted}: it was dropped, or never was",
            hint=f"it has: {', '.join(map(str, there)) or 'none'}{way_out}",
        )
    if generation.record is not None:
        check_owner(name, generation.number, generation.record, config.pipeline.name)
    if generation.phase is not Phase.READY:
        raise LockstepError(
            f"generation {generation.number} of sink {name!r} is {generation.phase.value}",
            hint=f"`lockstep rebuild {name}{' --in-place' if generation.phase is Phase.REPLAYING else ''}` goes on with"
            " what was begun; retry when it has ended",
        )
    return generation


def _others(found: Iterable[Rejection], number: int) -> list[tuple[int, int]]:
    """The other generations that have rejections, and how many."""
    return sorted(Counter(one.letter.generation for one in found if one.letter.generation != number).items())
