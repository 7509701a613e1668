"""``lockstep rejections retry``: applies rejected events once more, through their sink and with their own tags.

It writes beside a running job with that job's fence, so it fences nobody off. The tags keep it from making any row
older. An event that the sink takes a second time changes nothing. A rejection is closed after its event is durable in
the sink, so an interrupted retry can be run again.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Final

from cdc.kafka.control_topics import read_schema_records
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from jobs.dead_letters.record import DeadLetter
from jobs.executor.computed_row import RowComputer
from jobs.executor.shape_history import newest_shapes
from jobs.generations.record import Generation, Phase, check_owner, way_on
from jobs.query.row_plan import row_plans, unevaluated
from lockstep.config import Config
from lockstep.generations import list_of, settings_of_generation
from lockstep.rejections.apply_beside import Beside, Portion
from lockstep.rejections.events import Evaluate, evaluated
from lockstep.rejections.open_records import OpenRecords, no_such_rejection
from lockstep.rejections.output import counted
from lockstep.rejections.retried import Retried
from lockstep.rejections.selection import Selection
from sinks.contract import OpenedSink, Progress
from sinks.registry import SinkSettings, history_tables, open_sink
from sinks.wrappers.retrying import Retries, retrying

_PORTION_EVENTS: Final = 1000
_PORTION_BYTES: Final = 32 * 1024 * 1024


def retry(config: Config, name: str, selection: Selection, *, say: Callable[[str], None]) -> Retried:
    """Apply the selected rejections, of the live generation unless one is named. Raises LockstepError.

    An extension's store retries in its own way, for all generations unless one is named. ``say`` gets the rejections of
    other generations, which are left alone.
    """
    open_records = OpenRecords(config)
    if name not in config.stores:
        raise config.not_found("store", name)
    chosen, _ = open_records.read(name, selection)
    if selection.keys and not chosen:
        raise no_such_rejection(name)
    if (added := config.added_stores.get(name)) is not None:
        taken, gone, refused = added.retry(chosen, say=say)
        return Retried(selection.generation, taken=taken, gone=gone, refused=list(refused))
    generations = {generation.number: generation for generation in list_of(config, name)}
    generation = _generation(config, name, generations, selection.generation, len(chosen))
    if not generation.is_live:
        say(f"readers of {name} see another generation than {generation.number}")
    for number, count in _others(chosen, generation.number):
        what = f"{counted(count, 'rejection')} of generation {number}"
        if number in generations:
            say(f"left alone: {what}, which isn't live; --generation {number} retries those")
        else:
            way_out = f"`lockstep rejections discard {name} --generation {number} --all` closes those"
            say(f"left alone: {what}, which was dropped; {way_out}")
    mine = [dead_letter for dead_letter in chosen if dead_letter.generation == generation.number]
    if not mine:
        return Retried(generation.number)
    settings = settings_of_generation(config, name, generation)
    retries = Retries(
        sleep=time.sleep,
        monotonic=time.monotonic,
        random=random.random,
        on_wait=lambda waiting: say(f"waiting for {name}: {waiting.reason}"),
        give_up_after_s=config.spark.retry_s,
    )
    opened = retrying(open_sink(name, settings, generation.number), retries)
    with closing(opened.sink):
        return _Attempt(config, name, open_records, settings, opened, generation.number).run(mine)


class _Attempt:
    def __init__(
        self,
        config: Config,
        name: str,
        open_records: OpenRecords,
        settings: SinkSettings,
        opened: OpenedSink,
        number: int,
    ) -> None:
        self._config = config
        self._name = name
        self._open_records = open_records
        self._opened = opened
        self._settings = settings
        self._number = number
        self._retried = Retried(number)
        self._tables = set(config.sink_tables(settings)) if settings.view is None else {settings.view.table}
        # Why no row of a table can be computed.
        self._unevaluated: Mapping[TableName, LockstepError] = {}

    def run(self, dead_letters: Sequence[DeadLetter]) -> Retried:
        """Retry these, a bounded part at a time. Raises LockstepError."""
        beside = self._beside({self._open_records.tables.get(each.position.topic) for each in dead_letters})
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
        for portion in _portions(self._open_records, usable):
            taken_count += self._take(beside, portion)
        self._retried.gone = len(usable) - taken_count
        return self._retried

    def _beside(self, tables: Collection[TableName | None]) -> Beside:
        return Beside(
            self._opened,
            self._name,
            self._number,
            self._open_records.tables,
            records=lambda: read_schema_records(self._config.kafka.client(), self._config.pipeline.name),
            still_open=self._still_open,
            evaluate=self._evaluation(tables),
            keeps=history_tables(self._settings, self._tables - self._config.source.append_only),
            view=self._settings.view,
        )

    def _evaluation(self, tables: Collection[TableName | None]) -> Evaluate:
        """``evaluated`` for these tables, without those whose expressions fail: they hold up no other table."""
        expressions = {table: each for table, each in self._settings.expressions().items() if table in tables}
        if not expressions:
            return lambda events: events
        shapes = newest_shapes(read_schema_records(self._config.kafka.client(), self._config.pipeline.name))
        self._unevaluated = unevaluated(expressions, {table: shapes[table] for table in expressions if table in shapes})
        usable = {table: each for table, each in expressions.items() if table not in self._unevaluated}
        plans = row_plans(usable, shapes)
        return partial(evaluated, computers={table: RowComputer(plan) for table, plan in plans.items()})

    def _topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        cluster = TopicAdmin(self._config.kafka.client())
        existing = cluster.partition_counts(list(topics), must_see=True)
        return cluster.topic_ids(list(existing)) if existing else {}

    def _foreign_reason(self, topic: str) -> str | None:
        """Why the generation can't take events of this topic; None if it can."""
        table = self._open_records.tables.get(topic)
        if table is None:
            return "its table isn't captured any more; discard it"
        if self._settings.view is not None and table != self._settings.view.table:
            return "its row was left out of its topic; `lockstep snapshot table` publishes it again"
        if table not in self._tables:
            return "its table isn't one of this generation's any more; discard it"
        return None if table not in self._unevaluated else self._unevaluated[table].message

    def _take(self, beside: Beside, portion: Portion) -> int:
        """Apply what is still open, then close what the sink took. Returns how many were open. Raises LockstepError."""
        portion, events, outcome = beside.apply(portion)
        by_row = {(event.table, str(event.key)): dead_letter for dead_letter, event in events.events}
        refused = events.refused + [
            replace(by_row[rejection.event.table, str(rejection.event.key)], reason=rejection.reason)
            for rejection in outcome.rejections
        ]
        still_open = {dead_letter.record_key for dead_letter in refused}
        closed = [dead_letter for dead_letter, _ in portion if dead_letter.record_key not in still_open]
        self._open_records.close(closed)
        self._retried.taken += len(closed) - events.void
        self._retried.void += events.void
        self._retried.refused += refused
        return len(portion)

    def _still_open(self, portion: Portion) -> Portion:
        """Those that nobody has closed since they were read, as `lockstep erase` closes a row's rejections."""
        now = {dead_letter.record_key for dead_letter in self._open_records.read(self._name)[0]}
        return [(dead_letter, value) for dead_letter, value in portion if dead_letter.record_key in now]


def lost_topics(topics: Iterable[str], progress: Progress | None, topic_ids: Mapping[str, str]) -> dict[str, str]:
    """The topics whose rejections can't be retried, and why; ``topic_ids`` are those of the existing topics. Pure. What
    a generation has read of an earlier topic of the same name says nothing about today's rows."""
    reasons = {}
    for topic in topics:
        known_topic_id = None if progress is None else progress.topic_ids.get(topic)
        if topic not in topic_ids:
            reasons[topic] = f"topic {topic} doesn't exist any more; discard it"
        elif known_topic_id is not None and known_topic_id != topic_ids[topic]:
            reasons[topic] = f"topic {topic} was recreated since; rebuild the sink, or discard it"
    return reasons


def _portions(
    open_records: OpenRecords, dead_letters: Sequence[DeadLetter]
) -> Iterator[list[tuple[DeadLetter, bytes | None]]]:
    """The dead letters with their events' values, a bounded part at a time."""
    portion: list[tuple[DeadLetter, bytes | None]] = []
    size = 0
    for dead_letter, value in open_records.topic.values(dead_letters):
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
    """The generation to retry into. Raises LockstepError if there is none, or if it isn't in use."""
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
    others = (dead_letter.generation for dead_letter in dead_letters if dead_letter.generation != number)
    return sorted(Counter(others).items())
