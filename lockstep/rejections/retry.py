"""``lockstep rejections retry``: rejected events once more, through their sink and with their own tags.

It writes beside a running job with that job's fence, so it fences nobody off. The tags keep it from making any row
older. An event that the sink takes for the second time changes nothing. A rejection is closed after its event is
durable in the sink, so a retry that was interrupted can be run again.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from cdc.kafka.control_topics import read_schema_records
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import is_stream_result_topic
from cdc.model.errors import ConfigurationError, Fenced, LockstepError, Overtaken, Unavailable
from cdc.model.printable import visible
from cdc.model.table import TableName
from cdc.protocol.control_records import SchemaRecord
from cdc.webhook import DocumentRefused, PerhapsRefused
from jobs.dead_letters.record import DeadLetter
from jobs.executor.computed_row import RowComputer
from jobs.executor.shape_history import newest_shapes
from jobs.generations.prepared import load_prepared
from jobs.generations.record import Generation, Phase, check_owner, load_record, require_in_use, way_on
from jobs.query.row_plan import row_plans
from jobs.streams.posted import posted_document, refused_row
from jobs.streams.posting_turn import posting_turns
from jobs.streams.settings import row_webhook
from lockstep.config import Config
from lockstep.generations import list_of, settings_of_generation
from lockstep.rejections.book import RejectionBook, no_such_rejection
from lockstep.rejections.events import (
    Evaluate,
    RetryEvents,
    evaluated,
    prepared_histories,
    result_histories,
    retry_events,
    stored,
    versions_of,
)
from lockstep.rejections.newer_builds import NewerBuilds
from lockstep.rejections.output import Tables, counted, key_text, position_text, rejection_json, table_text
from lockstep.rejections.selection import Selection
from lockstep.stream_queries import stream_query_plan
from sinks.contract import Batch, OpenedSink, Outcome, Progress
from sinks.registry import SinkSettings, history_tables, open_sink
from sinks.view_settings import ViewSettings
from sinks.wrappers.retrying import Retries, retrying

_PORTION_EVENTS: Final = 1000
_PORTION_BYTES: Final = 32 * 1024 * 1024

_TRIES: Final = 5
"""How often a portion is begun again because a job has started, or has prepared other shapes, meanwhile."""

_LOOK_S: Final = 0.5

Portion = Sequence[tuple[DeadLetter, bytes | None]]
"""Dead letters with their events' values."""


@dataclass(slots=True)
class Retried:
    """What became of the rejections that were retried. ``generation`` is None where they are of several ones.

    ``taken`` counts those that the sink has now or had already, in this version or a newer one. ``void`` counts those
    whose event means nothing to the table as it is now, ``gone`` those that were closed meanwhile. ``refused`` have
    the reason for which they stay open.
    """

    generation: int | None
    taken: int = 0
    void: int = 0
    gone: int = 0
    refused: list[DeadLetter] = field(default_factory=list)

    def sentence(self, sink: str) -> str:
        """For people."""
        text = f"{sink} took {counted(self.taken, 'rejected event')}"
        if self.void:
            text += f"; void, since their table was copied again: {self.void:,}"
        if self.gone:
            text += f"; closed meanwhile: {self.gone:,}"
        if self.refused:
            text += f"; still open: {len(self.refused):,}"
        return text

    def to_json(self, tables: Tables) -> dict[str, Any]:
        """For programs."""
        return {
            "generation": self.generation,
            "taken": self.taken,
            "void": self.void,
            "gone": self.gone,
            "refused": [rejection_json(dead_letter, tables) for dead_letter in self.refused],
        }


def retried_table(retried: Retried, tables: Tables) -> Table:
    """For people: those that stay open."""
    table = Table()
    for heading in ("table", "key", "position", "refused again"):
        table.add_column(heading, overflow="fold")
    for dead_letter in retried.refused:
        where = table_text(dead_letter, tables)
        cells = (where, key_text(dead_letter), position_text(dead_letter), dead_letter.reason)
        table.add_row(*(Text(visible(cell)) for cell in cells))
    return table


def retry(config: Config, name: str, selection: Selection, *, say: Callable[[str], None]) -> Retried:
    """Apply the rejections that are meant, of the live generation where none is named. Raises LockstepError.

    Those of a stream query are posted to its webhook, of all builds where none is named. ``say`` hears of rejections of
    other generations, which are left alone.
    """
    book = RejectionBook(config)
    if name in config.stream_queries:
        return _posted(config, name, book, selection, say=say)
    if name not in config.sinks:
        raise config.not_found("sink or stream query", name)
    chosen, _ = book.read(name, selection)
    if selection.keys and not chosen:
        raise no_such_rejection(name)
    generations = {generation.number: generation for generation in list_of(config, name)}
    generation = _generation(config, name, generations, selection.generation, len(chosen))
    if not generation.is_live:
        say(f"generation {generation.number} of {name} isn't the one that readers see")
    for number, count in _others(chosen, generation.number):
        what = f"{counted(count, 'rejection')} of generation {number}"
        if number in generations:
            say(f"left alone: {what}, which isn't live; --generation {number} retries those")
        else:
            way_out = f"`lockstep rejections discard {name} --generation {number} --all` closes those"
            say(f"left alone: {what}, which was dropped; {way_out}")
    mine = [dead_letter for dead_letter in chosen if dead_letter.generation == generation.number]
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
            tables = {book.tables.get(dead_letter.position.topic) for dead_letter in mine}
            evaluate = _evaluation(config, settings, tables)
            _Attempt(config, name, settings, opened, book, retried, generation.number, evaluate).run(mine)
    return retried


def _posted(
    config: Config, name: str, book: RejectionBook, selection: Selection, *, say: Callable[[str], None]
) -> Retried:
    """Post the rows that are meant to the query's webhook, in the order in which they were refused.

    The query's job posts none meanwhile: else it could post a newer one after this has looked for one. A rejection is
    closed once its row is received, so an interrupted retry can be run again. Of a key only the newest row is posted,
    of all builds of the result: the receiver would go back with any other. Those before it are closed with it.
    """
    settings = config.stream_queries[name].webhook
    chosen, _ = book.read(name, selection)
    if selection.keys and not chosen:
        raise no_such_rejection(name)
    if settings is None:
        raise ConfigurationError(
            f"stream query {name} has no webhook to post its rows to",
            hint=f"set stream_queries.{name}.webhook, or `lockstep rejections discard {name}` gives them up",
        )
    pipeline, retried, seen = config.pipeline.name, Retried(selection.generation), set[bytes]()
    refused = dict.fromkeys((each.record_key for each in chosen), "it is no row of a stream query; discard it")
    closed = set[bytes]()
    # A sink may have had this name before.
    rows = [each for each in book.read(name)[0] if is_stream_result_topic(pipeline, each.position.topic)]
    of_key: dict[bytes, list[DeadLetter]] = {}
    for each in sorted(rows, key=lambda each: each.generation):
        of_key.setdefault(each.key, []).append(each)
    to_post = []
    for each in chosen:
        if not is_stream_result_topic(pipeline, each.position.topic):
            continue
        last = of_key.get(each.key, [each])[-1]
        if last.generation > each.generation:
            reason = f"generation {last.generation} has a newer row of this key, which was refused too: retry that one"
            refused[each.record_key] = reason
        else:
            to_post.append(each)
    newer = NewerBuilds(
        config.kafka.client(),
        pipeline,
        name,
        keys={each.key for each in to_post},
        generation=min((each.generation for each in to_post), default=0),
    )
    if to_post:
        newer.read()  # topics may be long, and a turn isn't
    still_open = set[bytes]()

    def look(is_another: bool, dead_letter: DeadLetter, row: bytes) -> tuple[bool, int | None]:
        """Whether it is still open, and which newer build has another row of its key."""
        nonlocal still_open
        if is_another:
            # Another `retry` may have posted it meanwhile, and `lockstep erase` may have removed it.
            still_open = {each.record_key for each in book.read(name)[0]}
        if dead_letter.record_key not in still_open:
            return False, None
        return True, newer.other_row_in(dead_letter.key, row, dead_letter.generation)

    turns = posting_turns(stream_query_plan(config, name), say=say)
    with row_webhook(name, settings) as webhook, turns as turn:
        for dead_letter, row in book.topic.values(to_post):
            if row is None:
                seen.add(dead_letter.record_key)
                continue
            is_open, build = turn.looked(partial(look, dead_letter=dead_letter, row=row))
            if not is_open:
                continue
            seen.add(dead_letter.record_key)
            if build is not None:
                reason = f"generation {build} has another row of this key, which its job posts"
                refused[dead_letter.record_key] = reason
                continue
            document = posted_document(
                pipeline=pipeline, query=name, generation=dead_letter.generation, key=dead_letter.key, row=row
            )
            try:
                webhook.post(document)
            except (DocumentRefused, PerhapsRefused) as error:
                refused[dead_letter.record_key] = refused_row(error.answer)
                continue
            older = [each for each in of_key.get(dead_letter.key, ()) if each.generation < dead_letter.generation]
            received = [dead_letter, *older]
            book.close(received)
            closed |= {each.record_key for each in received}
    unread = {each.record_key for each in to_post} - seen
    for each in chosen:
        if each.record_key in closed:
            retried.taken += 1
        elif each.record_key in unread:
            retried.gone += 1
        else:
            retried.refused.append(replace(each, reason=refused[each.record_key]))
    return retried


def _evaluation(config: Config, settings: SinkSettings, tables: Collection[TableName | None]) -> Evaluate:
    """``evaluated`` for these settings. Raises ConfigurationError where an expression can't be evaluated."""
    expressions = {table: each for table, each in settings.expressions().items() if table in tables}
    if not expressions:
        return lambda events: events
    shapes = newest_shapes(read_schema_records(config.kafka.client(), config.pipeline.name))
    plans = row_plans(expressions, shapes)
    return partial(evaluated, computers={table: RowComputer(plans[table]) for table in expressions})


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
        number: int,
        evaluate: Evaluate,
    ) -> None:
        self._config = config
        self._name = name
        self._opened = opened
        self._book = book
        self._retried = retried
        self._evaluate = evaluate
        self._settings = settings
        self._number = number
        self._tables = set(config.sink_tables(settings)) if settings.view is None else {settings.view.table}

    def run(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Retry these, a portion at a time. Raises LockstepError."""
        progress = self._opened.generations.load_progress()
        topics = {dead_letter.position.topic for dead_letter in dead_letters}
        if self._settings.view is not None:
            topics.clear()  # its rows come from no topic of their own
        lost_reasons = lost_topics(topics, progress, self._topic_ids(topics))
        usable = []
        for dead_letter in dead_letters:
            topic = dead_letter.position.topic
            reason = lost_reasons.get(topic) or self._foreign_reason(topic)
            if reason is None:
                usable.append(dead_letter)
            else:
                self._retried.refused.append(replace(dead_letter, reason=reason))
        taken_count = 0
        for portion in _portions(self._book, usable):
            taken_count += self._take(portion)
        self._retried.gone = len(usable) - taken_count

    def _topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        cluster = TopicAdmin(self._config.kafka.client())
        existing = cluster.partition_counts(list(topics), must_see=True)
        return cluster.topic_ids(list(existing)) if existing else {}

    def _foreign_reason(self, topic: str) -> str | None:
        """Why the generation can't take events of this topic; None when it can."""
        table = self._book.tables.get(topic)
        if table is None:
            return "its table isn't captured any more; discard it"
        if self._settings.view is not None and table != self._settings.view.table:
            return "its row was left out of its topic; `lockstep snapshot table` publishes it again"
        return None if table in self._tables else "its table isn't one of this generation's any more; discard it"

    def _take(self, portion: Portion) -> int:
        """Apply what is still open of a portion, then close what the sink took. Returns how many were open.

        Raises LockstepError.
        """
        portion, events, outcome = apply_beside(
            self._opened,
            self._name,
            self._number,
            portion,
            tables=self._book.tables,
            still_open=self._still_open,
            records=lambda: read_schema_records(self._config.kafka.client(), self._config.pipeline.name),
            evaluate=self._evaluate,
            keeps=history_tables(self._settings, self._tables - self._config.source.append_only),
            view=self._settings.view,
        )
        by_row = {(event.table, str(event.key)): dead_letter for dead_letter, event in events.events}
        refused = events.refused + [
            replace(by_row[rejection.event.table, str(rejection.event.key)], reason=rejection.reason)
            for rejection in outcome.rejections
        ]
        still_open = {dead_letter.record_key for dead_letter in refused}
        closed = [dead_letter for dead_letter, _ in portion if dead_letter.record_key not in still_open]
        self._book.close(closed)
        self._retried.taken += len(closed) - events.void
        self._retried.void += events.void
        self._retried.refused += refused
        return len(portion)

    def _still_open(self, portion: Portion) -> Portion:
        """Its rejections that nobody has closed since they were read, as `lockstep erase` closes those of a row."""
        now = {dead_letter.record_key for dead_letter in self._book.read(self._name)[0]}
        return [(dead_letter, value) for dead_letter, value in portion if dead_letter.record_key in now]


def apply_beside(
    opened: OpenedSink,
    name: str,
    generation: int,
    portion: Portion,
    *,
    tables: Tables,
    records: Callable[[], Iterable[SchemaRecord]],
    still_open: Callable[[Portion], Portion] = lambda portion: portion,
    evaluate: Evaluate = lambda events: events,
    keeps: Collection[TableName] = (),
    view: ViewSettings | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Portion, RetryEvents, Outcome]:
    """Apply rejected events beside the generation's job, in the shapes that it has prepared. Raises LockstepError.

    Returns what was ``still_open`` of the portion, its events and what became of them. A row that was erased since its
    rejection was read isn't brought back: where anything was erased, it is looked again what is open. ``records`` reads
    all shapes in the order of the topic. ``keeps`` are the tables of which the sink keeps all versions. Rows of a
    ``view`` are as they were refused: one that has changed since was given to the sink again.
    """
    was_erased = False
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
        table_histories = prepared_histories(records(), prepared) if view is None else result_histories(view)
        of_portion = {tables.get(dead_letter.position.topic) for dead_letter, _ in portion}
        erased = opened.sink.erased([table for table in of_portion if table is not None])
        portion = still_open(portion)
        append_only = {table for table, history in table_histories.items() if not history.key}
        events = stored(evaluate(retry_events(portion, tables, table_histories)), append_only)
        try:
            # A row in the same version is written again: an earlier try may have left it in an earlier shape.
            outcome = opened.sink.apply(
                Batch(
                    [event for _, event in events.events],
                    fence=opened.sink.fence(),
                    overwrite_equal_tags=True,
                    never_applied=True,
                    erased=erased,
                    versions=versions_of(events, keeps),
                )
            )
        except Overtaken:  # something was erased since
            was_erased = True
            sleep(_LOOK_S)
            continue
        except Fenced:  # a job has begun between the two calls
            sleep(_LOOK_S)
            continue
        if load_prepared(opened.records, generation) == prepared:
            return portion, events, outcome
        # What was written just now may lack a column that all other rows have got meanwhile.
    if was_erased:
        raise Unavailable(
            f"deleted rows are removed for good from generation {generation} of sink {name!r} again and again",
            hint="nothing was closed that the sink doesn't have; run the same command again in a moment",
        )
    raise LockstepError(
        f"generation {generation} of sink {name!r} is being prepared for the tables' shapes, or never was",
        hint=f"let `lockstep apply {name}` start, then try again; nothing was closed that the sink doesn't have",
    )


def lost_topics(topics: Iterable[str], progress: Progress | None, topic_ids: Mapping[str, str]) -> dict[str, str]:
    """The topics whose rejections can't be retried, and why; ``topic_ids`` are those of the existing topics. Pure.

    What a generation has read of an earlier topic of the same name says nothing about today's rows.
    """
    reasons = {}
    for topic in topics:
        known_topic_id = None if progress is None else progress.topic_ids.get(topic)
        if topic not in topic_ids:
            reasons[topic] = f"topic {topic} doesn't exist any more; discard it"
        elif known_topic_id is not None and known_topic_id != topic_ids[topic]:
            reasons[topic] = f"topic {topic} was recreated since; rebuild the sink, or discard it"
    return reasons


def _portions(
    book: RejectionBook, dead_letters: Sequence[DeadLetter]
) -> Iterator[list[tuple[DeadLetter, bytes | None]]]:
    """The dead letters with their events' values, a bounded part at a time."""
    portion: list[tuple[DeadLetter, bytes | None]] = []
    size = 0
    for dead_letter, value in book.topic.values(dead_letters):
        portion.append((dead_letter, value))
        size += len(dead_letter.key) + len(value or b"")
        if len(portion) >= _PORTION_EVENTS or size >= _PORTION_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _generation(
    config: Config, name: str, generations: Mapping[int, Generation], wanted_number: int | None, rejections: int
) -> Generation:
    """The one to retry into. Raises LockstepError when there is none, or when it isn't in use."""
    if wanted_number is None:
        generation = next((generation for generation in generations.values() if generation.is_live), None)
        if generation is None:
            raise LockstepError(
                f"sink {name!r} has no live generation yet",
                hint=f"`lockstep apply {name}` builds it, from the log's beginning",
            )
    elif wanted_number in generations:
        generation = generations[wanted_number]
    else:
        way_out = (
            f"; `lockstep rejections discard {name} --generation {wanted_number} --all` closes its rejections"
            if rejections
            else ""
        )
        raise LockstepError(
            f"sink {name!r} has no generation {wanted_number}: it was dropped, or never was",
            hint=f"it has: {', '.join(map(str, generations)) or 'none'}{way_out}",
        )
    if generation.record is not None:
        check_owner(name, generation.number, generation.record, config.pipeline.name)
    if generation.phase is not Phase.READY:
        raise LockstepError(
            f"generation {generation.number} of sink {name!r} is {generation.phase.value}",
            hint=f"{way_on(generation.phase, name, generation.number)}; retry when it has ended",
        )
    return generation


def _others(dead_letters: Iterable[DeadLetter], number: int) -> list[tuple[int, int]]:
    """The other generations that have rejections, and how many."""
    others = (dead_letter.generation for dead_letter in dead_letters if dead_letter.generation != number)
    return sorted(Counter(others).items())
