"""Erases a row from stream queries: from results in their store, and by tombstones from their topics. `rows_of` of a
stream names the columns of its events that hold the key of a table's row, `rows_of` of a query those of its result's
key. What `rows_of` doesn't cover can't be found: it stays, and is reported.
"""

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import orjson

from cdc.kafka.tombstones import write_tombstones
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_reader import Record, TopicReader
from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.event import JsonValue, value_text
from extensions.streams.configured import queries_of, streams_of
from extensions.streams.erased_results import ResultErasing
from extensions.streams.jobs.posting_turn import posting_turns
from extensions.streams.jobs.records import erased_name
from extensions.streams.jobs.resume import Figures, load_figures
from extensions.streams.queries import stream_query_plan
from extensions.streams.settings import StreamQuerySettings
from extensions.streams.topic_names import is_stream_query_topic, stream_query_topic, stream_result_generation
from jobs.dead_letters.record import event_of
from jobs.generations.lease import Clock
from jobs.generations.record import Phase
from lockstep.config import Config
from lockstep.erasing import DeletedRow, Eraser, KeyRecord, Means, Place, RecordWords, Stopped
from sinks.capabilities.erasing import Leftover
from sinks.contract import CoordinationRecords

_HAS_READ: Final = (
    "it reads {topics}, which has or may have had values of the row. Its result is final, and its checkpoint and topic"
    " {side} keep events by keys of their own.{result} `lockstep streams rebuild {query}` builds it again from what the"
    " topics still hold. Delete records of {side} by hand"
)
_RESULT_BY_HAND: Final = " Delete what its result has by hand first."
_AGAIN: Final = Leftover("rows that its job's last batch may write again", has_values=True)
_WHEN_AGAIN: Final = (
    "a job that is killed may do its last batch again: run the command again once it has done another one, as"
    " `lockstep streams list` shows, after more events have come"
)
_IN_SIDE: Final = RecordWords(with_what="of the row's events and results")


@dataclass(frozen=True, slots=True)
class Mapped:
    """How to find a row in a query: the columns that hold the row's key, in the key's order. ``in_events`` has the
    columns of each stream that the query reads, by the stream's name; ``in_result`` has those of the result's key. None
    if the configuration doesn't name them.
    """

    in_events: Mapping[str, tuple[str, ...] | None]
    in_result: tuple[str, ...] | None

    @property
    def is_any(self) -> bool:
        return self.in_result is not None or any(columns is not None for columns in self.in_events.values())

    @property
    def unsaid(self) -> list[str]:
        """The streams without such columns."""
        return sorted(name for name, columns in self.in_events.items() if columns is None)


def mapped(config: Config, query: str, row: DeletedRow) -> Mapped:
    """What the configuration says about finding the row in a query. Pure. Raises ConfigurationError when the number of
    columns differs from the table's key.
    """
    section, table = queries_of(config)[query], str(row.table.name)
    streams = {name: stream for name, stream in streams_of(config).items() if _reads(section, name)}
    found = Mapped(
        {name: stream.rows_of.get(table) for name, stream in streams.items()},
        section.query.key_of_row(table, streams_of(config)),
    )
    said = {f"streams.{name}": columns for name, columns in found.in_events.items()}
    said[f"stream_queries.{query}"] = found.in_result
    for where, columns in said.items():
        if columns is not None and len(columns) != len(row.key):
            raise ConfigurationError(
                f"rows_of of {where} names {len(columns)} columns for {table}, whose key has {len(row.key)}",
                hint=f"name one for each of {', '.join(row.key)}, in this order",
            )
    return found


def place_of_reading(config: Config, query: str, how: Mapped, has_had: Callable[[str], bool]) -> Place | None:
    """A report on a query that reads a topic which ``has_had`` values of the row; None if it reads none. Pure."""
    topics = [topic for name in how.in_events if has_had(topic := streams_of(config)[name].topic)]
    if not topics:
        return None
    side = stream_query_topic(config.pipeline.name, query)
    result = _RESULT_BY_HAND if how.in_result is None else ""
    why = _HAS_READ.format(topics=", ".join(sorted(topics)), side=side, query=query, result=result)
    return Place(f"stream query {query}", unasked=why)


def has_key(values: Any, columns: Sequence[str] | None, key: Mapping[str, JsonValue]) -> bool:
    """Whether these columns of an object equal a key, compared as text, since events may have other types. Pure."""
    if columns is None or not isinstance(values, dict):
        return False
    return all(
        name in values and values[name] is not None and value_text(values[name]) == value_text(part)
        for name, part in zip(columns, key.values(), strict=True)
    )


def is_of_row(record_key: bytes, value: bytes, how: Mapped, key: Mapping[str, JsonValue]) -> bool:
    """Whether a record of a side topic is about an event of the row or a row of the result that belongs to it. Pure."""
    facts = _parsed(value)
    if not isinstance(facts, dict):
        return False
    if facts.get("kind") == "refused":
        return has_key(facts.get("key"), how.in_result, key) or _names_row(record_key, how, key)
    event = _parsed(facts.get("value"))
    return has_key(event, how.in_events.get(str(facts.get("stream"))), key)


def _names_row(record_key: bytes, how: Mapped, key: Mapping[str, JsonValue]) -> bool:
    """Whether the key of a side topic's record contains the key of such a row of the result."""
    named = _parsed(record_key)
    return isinstance(named, dict) and has_key(named.get("key"), how.in_result, key)


def may_come_again(record_key: bytes, figures: Figures | None) -> bool:
    """Whether a job that resumes from these figures may write a record of the side topic again. Pure."""
    if figures is None:
        return False
    named = _parsed(record_key)
    if not isinstance(named, dict):
        return True
    if "batch" in named:
        return int(named["batch"]) >= figures.batch
    at = str(named.get("topic")), int(named.get("partition", 0))
    return int(named.get("offset", 0)) >= figures.starts.get(at, 0)


@dataclass(slots=True)
class Found:
    """What a topic has of a row.

    ``wanted`` are the keys of records with values of the row, ``removed`` all keys with a tombstone, each with its
    newest tag. ``others`` are the wanted keys whose newest record has no values of the row, with that record's
    partition and offset. That happens when a topic was recreated and a position belongs to another event now.
    """

    wanted: dict[bytes, str] = field(default_factory=dict)
    removed: dict[bytes, str] = field(default_factory=dict)
    others: dict[bytes, tuple[int, int]] = field(default_factory=dict)

    @property
    def to_remove(self) -> dict[bytes, str]:
        """The keys that get a tombstone. For the others, compaction removes what is before their newest record."""
        return {key: tag for key, tag in self.wanted.items() if key not in self.others}


def found_in(records: Iterable[Record], is_wanted: Callable[[Record], bool]) -> Found:
    """All records of a topic, in order -> what it has of a row. Pure."""
    found = Found()
    for record in records:
        found.others.pop(record.key, None)
        if record.value is None:
            found.removed[record.key] = record.tag
        elif is_wanted(record):
            found.wanted[record.key] = record.tag
        elif record.key in found.wanted:
            found.others[record.key] = record.partition, record.offset
    return found


class StreamQueryErasing(Eraser):
    """Erases from the topics of stream queries, whose keys may or may not contain the row's key."""

    def __init__(self, config: Config, row: DeletedRow, means: Means) -> None:
        self._config = config
        self._client = config.kafka.client()
        self._pipeline = config.pipeline.name
        self._row = row
        self._topics = means.topics
        self._check = means.check
        self._say = means.say
        self._mapped = {query: mapped(config, query, row) for query in queries_of(config)}

    def is_rejected(self, topic: str, key: bytes) -> bool:
        """Whether a rejection of this topic and key belongs to the row: a query's webhook has refused it."""
        return self._query_of(topic, key) is not None

    def _query_of(self, topic: str, key: bytes) -> str | None:
        of_row = (
            query
            for query, how in self._mapped.items()
            if stream_result_generation(self._pipeline, query, topic) is not None
            and has_key(_parsed(key), how.in_result, self._row.key)
        )
        return next(of_row, None)

    def places(self, has_had: Callable[[str], bool], *, only_look: bool) -> Iterator[Place]:
        """Results and topics of all queries for which the configuration says how to find the row there. Also a place
        for each query over a stream whose topic ``has_had`` the row or what follows from it.
        """
        for query, how in self._mapped.items():
            if how.is_any:
                if not only_look:
                    self._say(f"stream query {query}")
                if how.in_result is not None:
                    results = ResultErasing(stream_query_plan(self._config, query), check=self._check)
                    is_of_row = partial(has_key, columns=how.in_result, key=self._row.key)
                    yield from results.places(how.in_result, is_of_row, only_look=only_look)
                try:
                    yield from self.in_topics(query, how, only_look=only_look)
                except Stopped:
                    raise
                except LockstepError as error:
                    yield Place(f"stream query {query}, its topics", unasked=error.message)
            if (place := place_of_reading(self._config, query, how, has_had)) is not None:
                yield place

    def unchecked(self, topics: Collection[str]) -> Iterator[str]:
        """What isn't checked, per query, and what to do about it; then topics of queries that aren't configured."""
        yield "stream queries that aren't in this configuration."
        for query, how in self._mapped.items():
            side, section = stream_query_topic(self._pipeline, query), queries_of(self._config)[query]
            lacking = list[str]()
            if how.in_result is None:
                lacking.append(f"its result in stream_queries.{query}")
            if section.webhook is not None:
                lacking.append("rows that its webhook got")
            if how.in_result is None and section.has_topic:
                lacking.append("the topic of its result")
            if how.in_result is None and section.webhook is not None:
                lacking.append("rows that its webhook refused")
            if how.unsaid or how.in_result is None:
                lacking.append(f"the topic {side}")
            elif how.is_any:
                lacking.append(f"records of {side} that are no JSON objects or were cut")
            yield (
                f"stream query {query}: {', '.join(lacking)}, and the events that its checkpoint keeps, with the rows"
                " that come of them until its watermark has passed the end of each window, session, join and pattern"
                " that an event of the row was in. They are of what others wrote to its streams, by keys of their own."
                + (
                    " Events in topics of others are theirs to delete."
                    if how.in_result is not None
                    else " `rows_of` says how to find a row there, where the result's key has its key: docs/erase.md."
                    " Else delete rows of the result by hand."
                )
            )

        yield from self._of_others(topics)

    def _of_others(self, topics: Iterable[str]) -> Iterator[str]:
        """Those of these topics that belong to stream queries outside of the configuration; they are not searched."""
        sides = {stream_query_topic(self._pipeline, query) for query in self._mapped}
        for topic in sorted(topics):
            known = topic in sides or any(
                stream_result_generation(self._pipeline, query, topic) is not None for query in self._mapped
            )
            if not known and is_stream_query_topic(self._pipeline, topic):
                yield (
                    f"topic {topic}: it is of a stream query that isn't in this configuration. Neither it is looked at,"
                    " nor the query's result in its store, nor rows that its webhook refused. Put the query back into"
                    " the configuration, with its `rows_of`, or delete what is left of it by hand."
                )

    def in_topics(self, query: str, how: Mapped, *, only_look: bool) -> Iterator[Place]:
        side = stream_query_topic(self._pipeline, query)
        there = TopicAdmin(self._client).all_partition_counts()
        newest, figures = self._newest(query)
        if side in there:
            found = self._found(side, lambda record: is_of_row(record.key, record.value or b"", how, self._row.key))
            # Nobody can tell which rows the tombstones of earlier runs were for.
            is_again = any(may_come_again(key, figures) for key in (*found.wanted, *found.removed))

            def of_row(record_key: bytes) -> bool:
                return _names_row(record_key, how, self._row.key)

            remove = partial(write_tombstones, self._client, side)
            yield self._erased(side, found, of_row, remove=remove, is_again=is_again, only_look=only_look)
        if how.in_result is None:
            return
        results = {topic: stream_result_generation(self._pipeline, query, topic) for topic in there}
        for topic in sorted(topic for topic, generation in results.items() if generation is not None):

            def of_result(record_key: bytes) -> bool:
                return has_key(_parsed(record_key), how.in_result, self._row.key)

            found = self._found(topic, lambda record: of_result(record.key))
            tags = [*found.wanted.values(), *(tag for key, tag in found.removed.items() if of_result(key))]
            is_last = results[topic] == newest and figures is not None
            is_again = is_last and any(tag >= _tag_of(figures) for tag in tags)
            remove = partial(self._remove_posted, query, topic, results[topic] or 0)
            yield self._erased(topic, found, of_result, remove=remove, is_again=is_again, only_look=only_look)

    def _remove_posted(self, query: str, topic: str, generation: int, keys: Mapping[bytes, str]) -> None:
        """Write the tombstones while the job posts nothing, and record their end, so that the job never posts those
        rows. The topic still has the rows until compaction. No tombstone is written behind the end that the job knows.
        """
        if not keys:
            return
        with self._turn(query) as records:
            write_tombstones(self._client, topic, keys)
            end = TopicAdmin(self._client).end_offsets([(topic, 0)])[topic, 0]
            records.save(erased_name(generation), str(end))

    def close_rejections(self, rejections: Collection[bytes], close: Callable[[Collection[bytes]], None]) -> str | None:
        """Close rejections while neither a job nor `lockstep rejections retry` posts a row. Returns why rejections of a
        webhook stay open, or None. Raises Stopped, and what ``close`` raises for others.
        """
        whys, of_query = list[str](), dict[str, list[bytes]]()
        for rejection in rejections:
            event = event_of(rejection)
            if event is not None and (query := self._query_of(*event[:2])) is not None:
                of_query.setdefault(query, []).append(rejection)
        for query, those in of_query.items():
            if queries_of(self._config)[query].webhook is None:
                close(those)
                continue
            try:
                with self._turn(query):
                    close(those)
            except Stopped:
                raise
            except LockstepError as error:
                whys.append(f"rejections of stream query {query} stay: {error.message}")
        return "; ".join(whys) or None

    @contextmanager
    def _turn(self, query: str) -> Iterator[CoordinationRecords]:
        """Take the turn to post, and post nothing. Raises as ``PostingTurn.take``."""
        clock = Clock(sleep=self._sleep)
        with posting_turns(stream_query_plan(self._config, query), say=self._say, clock=clock) as turn:
            turn.take()
            yield turn.records

    def _sleep(self, seconds: float) -> None:
        self._check()
        time.sleep(seconds)

    def _newest(self, query: str) -> tuple[int | None, Figures | None]:
        """The build that the query's job works on, and its figures; None if there is none."""
        plan = stream_query_plan(self._config, query)
        opened = plan.opened(1)
        with closing(opened.sink):
            numbers = [each.number for each in plan.builds(opened) if each.phase is not Phase.RETIRED]
            if not numbers:
                return None, None
            return numbers[-1], load_figures(opened.records.load, numbers[-1])

    def _found(self, topic: str, is_wanted: Callable[[Record], bool]) -> Found:
        return found_in(TopicReader(self._client, self._check, with_tags=True).records(topic), is_wanted)

    def _erased(
        self,
        topic: str,
        found: Found,
        has_row: Callable[[bytes], bool],
        *,
        remove: Callable[[Mapping[bytes, str]], None],
        is_again: bool,
        only_look: bool,
    ) -> Place:
        """Write tombstones for what is found, and compact. Keys for which ``has_row`` is true contain the row's key."""
        of_others = set(found.others.values())

        def read() -> list[KeyRecord]:
            keys = list[bytes]()

            def noted(record_key: bytes) -> bool:
                is_wanted = record_key in found.wanted or has_row(record_key)
                if is_wanted:
                    keys.append(record_key)
                return is_wanted

            records = self._topics.records(topic, noted)
            # A tombstone of an event has only a position as its key, and nothing of the row.
            return [
                record
                for key, record in zip(keys, records, strict=True)
                if (record.partition, record.offset) not in of_others and (not record.is_tombstone or has_row(key))
            ]

        if only_look:
            return self._topics.look_at(topic, read, _IN_SIDE)
        remove(found.to_remove)
        place = self._topics.erase_those(topic, read, _IN_SIDE)
        return replace(place, left=(*place.left, _AGAIN), why=place.why or _WHEN_AGAIN) if is_again else place


def _tag_of(figures: Figures | None) -> str:
    from extensions.streams.executor.results import batch_tag  # it imports PyArrow

    return batch_tag(-1 if figures is None else figures.batch)


def _reads(query: StreamQuerySettings, stream: str) -> bool:
    if query.pattern is not None:
        return stream in query.pattern.streams
    return re.search(rf"\b{re.escape(stream)}\b", query.sql or "") is not None


def _parsed(text: object) -> Any:
    """JSON as a value; None if it can't be parsed."""
    try:
        return orjson.loads(text) if isinstance(text, str | bytes) else None
    except orjson.JSONDecodeError:
        return None
