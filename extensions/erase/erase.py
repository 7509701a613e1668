"""``lockstep erase``: its steps, one place after the other."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Final

from cdc.kafka.control_topics import read_schema_records, read_state
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import (
    DEAD_LETTERS,
    MATCHES,
    MESSAGES,
    STATE,
    control_topic,
    is_outbox_topic,
    is_view_topic,
    shared_outbox_topic,
    view_topic,
)
from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.lsn import format_lsn
from cdc.model.table import TableName
from cdc.model.tag import Tag
from cdc.toast.store import holds_values
from extensions.erase.earlier_keys import EarlierKeys
from extensions.erase.forced_compaction import ForcedCompaction
from extensions.erase.key_records import KeyRecord
from extensions.erase.report import Report
from extensions.erase.sinks import SinkErasing
from extensions.erase.source import deleted_at_source, kept_wal, lsn_now
from extensions.erase.topics import TopicErasing
from extensions.erase.views import ViewErasing
from jobs.dead_letters.record import event_of
from jobs.dead_letters.topic import DeadLetterTopic
from lockstep.config import Config
from lockstep.erasing import DeletedRow, Eraser, Means, Place, RecordWords, Stopped, stopped
from lockstep.extension import installed
from lockstep.verify.canonical import key_values
from lockstep.verify.waiting import Waiting
from sinks.capabilities.erasing import Leftover
from sinks.registry import KINDS

_LOOK_EVERY_S: Final = 0.3

_OF_VIEWS: Final = RecordWords(with_what="of rows that a view's sink refused", of_many=True)
_BY_OTHERS: Final = RecordWords(with_what="by another key of the table, maybe of this row", of_many=True)


def erase(
    config: Config,
    table: str,
    text: str,
    *,
    dry_run: bool,
    timeout_s: float,
    stopping: Callable[[], bool],
    say: Callable[[str], None],
) -> Report:
    """Erase one row that was deleted at the source: of schema.table, with the key ``text``.

    ``timeout_s`` applies to each place. Raises ConfigurationError for a table that isn't captured or has no key. Raises
    LockstepError if the source has the row, or capture hasn't published its deletion. Raises Unavailable if a required
    server doesn't answer.
    """
    try:
        name = TableName.parse(table)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    if name not in config.source.table_names:
        raise ConfigurationError(f"{name} isn't captured", hint="`lockstep doctor` lists the captured tables")
    if name not in config.source.keyed_names:
        raise ConfigurationError(
            f"{name} is append-only: its events have no key, so none of them can be erased alone",
            hint="docs/erase.md says what can be done",
        )
    return _Erasing(config, name, timeout_s=timeout_s, stopping=stopping, say=say).run(text, dry_run=dry_run)


_Closing = Callable[[Collection[bytes]], None]
"""Closes rejections, by their keys."""


def places_of(name: str, eraser: Eraser, has_had: Callable[[str], bool], *, only_look: bool) -> Iterator[Place]:
    """What an extension's eraser finds or erases; an error is reported as a place, too."""
    try:
        yield from eraser.places(has_had, only_look=only_look)
    except Stopped:
        raise
    except LockstepError as error:
        yield Place(f"data of the extension {name}", unasked=error.message)


def close_rejections(erasers: Iterable[Eraser], rejections: Iterable[bytes], close: _Closing) -> str | None:
    """Close rejections of the row; extensions close their own in their way. Returns why some stay open."""
    left, whys = list(rejections), list[str]()
    for eraser in erasers:
        own = [each for each in left if (event := event_of(each)) is not None and eraser.is_rejected(*event[:2])]
        left = [each for each in left if each not in own]
        if own and (why := eraser.close_rejections(own, close)) is not None:
            whys.append(why)
    if left:
        close(left)
    return "; ".join(whys) or None


class _Erasing:
    def __init__(
        self,
        config: Config,
        name: TableName,
        *,
        timeout_s: float,
        stopping: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        self._config = config
        self._name = name
        self._timeout_s = timeout_s
        self._stopping = stopping
        self._say = say
        self._client = config.kafka.client()
        self._pipeline = config.pipeline.name
        self._compaction = ForcedCompaction(self._client, self._pipeline, config.kafka.topics, check=self._check)
        self._topics = TopicErasing(
            self._client, self._compaction, timeout_s=timeout_s, check=self._check, say=self._say
        )
        self._topic = config.topics()[name]

    def run(self, text: str, *, dry_run: bool) -> Report:
        if not dry_run:
            for topic in self._compaction.restore():
                self._say(f"put back the settings of topic {topic}, which an interrupted run had changed")
        key = deleted_at_source(self._config, self._name, text, Waiting(self._stopping))
        gone_at = self._published()
        shapes = [
            record for record in read_schema_records(self._client, self._pipeline) if record.table.name == self._name
        ]
        if not shapes:
            raise LockstepError(f"{self._name} isn't in the log yet", hint="start `lockstep capture`")
        logged = shapes[-1].table
        earlier = EarlierKeys.of(shapes, key_values(key))

        def is_wanted(record_key: bytes) -> bool:
            return record_key == key

        records = self._topics.records(self._topic, is_wanted)
        row = DeletedRow(logged, key_values(key), self._deletion_tag(records), self._topic, gone_at)
        # Before any change: erasers refuse a configuration that doesn't match the table's key.
        erasers = self._erasers(row)
        # Before the sinks: otherwise a generation that is being built, or a job that reads again, would read the row
        # there.
        work = self._topics.look if dry_run else self._topics.erase
        places = [Place("source"), work(self._topic, is_wanted)]
        places += self._by_earlier_keys(earlier, work)
        of_sinks = list(self._in_sinks(row, only_look=dry_run))
        places += of_sinks
        views = ViewErasing(
            self._config,
            row,
            self._topics,
            published=self._published,
            timeout_s=self._timeout_s,
            check=self._check,
            say=self._say,
        )
        places += views.places(only_look=dry_run)
        # Before dead letters: a row that waits somewhere becomes one if it is refused. After the sinks: standing
        # searches then report that the document is gone.
        has_had = partial(self._has_had, views)
        of_extensions = [list(places_of(*each, has_had, only_look=dry_run)) for each in erasers.items()]
        # A sink that still has the row may have refused its deletion, which is a dead letter then.
        is_gone = all(place.is_proven for place in of_sinks)

        def is_rejected(topic: str, of: bytes, tag: str) -> bool:
            # A later tag belongs to a row that was inserted since. Only the table's own topic has such tags.
            is_own = topic == self._topic and tag < gone_at and (of == key or of in earlier.of_the_row)
            return is_own or any(eraser.is_rejected(topic, of) for eraser in erasers.values())

        close = not dry_run and is_gone
        closing = partial(close_rejections, erasers.values())
        places += self._dead_letters(is_rejected, views.dead_letters_of(), closing, close=close, only_look=dry_run)
        places += self._dead_letters_of_others(earlier)
        places += chain.from_iterable(of_extensions)
        places += self._local([key, *earlier.of_the_row])
        unchecked = self._unchecked(views, erasers.values())
        if not records and not any(place.found for place in places):
            unchecked.insert(0, "Nothing of this key was found anywhere. Check how it is written: as events have it.")
        return Report(str(self._name), tuple(places), tuple(unchecked), dry_run)

    def _in_sinks(self, row: DeletedRow, *, only_look: bool) -> Iterator[Place]:
        erasing = SinkErasing(self._config, row, timeout_s=self._timeout_s, check=self._check)
        for sink, settings in self._config.sinks.items():
            if settings.view is not None:
                continue
            if not only_look:
                self._say(f"sink {sink}")
            yield from erasing.places(sink, only_look=only_look)

    def _erasers(self, row: DeletedRow) -> dict[str, Eraser]:
        means = Means(self._topics, self._timeout_s, self._check, self._say)
        made = {each.name: each.eraser(self._config, row, means) for each in installed() if each.eraser is not None}
        return {name: eraser for name, eraser in made.items() if eraser is not None}

    def _check(self) -> None:
        if self._stopping():
            raise stopped()

    def _published(self) -> str:
        """A tag greater than that of everything committed by now, once capture has published all of that. A later event
        could bring the row back. Raises LockstepError if capture takes too long.
        """
        lsn, deadline = lsn_now(self._config), time.monotonic() + self._timeout_s
        while True:
            state = read_state(self._client, self._pipeline, self._config.slot)
            if state is not None and state.end_lsn >= lsn:
                return str(Tag(state.epoch, lsn, 0))
            if time.monotonic() > deadline:
                raise LockstepError(
                    f"capture hasn't published what is committed up to {format_lsn(lsn)} within"
                    f" {self._timeout_s:.0f} s: an event of the row may still come",
                    hint="start `lockstep capture`; `lockstep lag` says how far it is. Then run the command again",
                )
            self._check()
            time.sleep(_LOOK_EVERY_S)

    def _deletion_tag(self, records: list[KeyRecord]) -> str:
        """The tag of the key's newest event; "" if the topic has none. Raises LockstepError if that event is a row."""
        if not records:
            return ""
        newest = max(records, key=lambda record: (record.tag, record.offset))
        if not newest.is_deletion:
            raise LockstepError(
                f"topic {self._topic} has a row of this key that the source doesn't have, and no deletion after it",
                hint=f"lockstep snapshot table '{self._name}' has capture copy the table, which deletes such rows."
                " Then run this command again; nothing was changed",
            )
        return newest.tag

    def _dead_letters(
        self,
        is_rejected: Callable[[str, bytes, str], bool],
        of_views: set[str],
        closing: Callable[[Iterable[bytes], _Closing], str | None],
        *,
        close: bool,
        only_look: bool,
    ) -> list[Place]:
        name = control_topic(self._pipeline, DEAD_LETTERS)
        if not TopicAdmin(self._client).exists(name):
            return []

        def is_wanted(record_key: bytes) -> bool:
            event = event_of(record_key)
            return event is not None and is_rejected(*event)

        def is_of_a_view(record_key: bytes) -> bool:
            event = event_of(record_key)
            return event is not None and event[0] in of_views

        if not close:
            return [self._topics.look(name, is_wanted), *self._of_views(name, is_of_a_view, of_views, only_look)]
        dead_letters = DeadLetterTopic(self._client, self._pipeline)
        readable, unreadable = dead_letters.read()
        keys = [record.record_key for record in readable] + [record.record_key for record in unreadable]
        why = closing(
            filter(is_wanted, keys), lambda those: dead_letters.send((record_key, None) for record_key in those)
        )
        place = self._topics.erase(name, is_wanted)
        if why is not None:
            place = place.unproven(why)
        return [place, *self._of_views(name, is_of_a_view, of_views, only_look)]

    def _of_views(
        self, name: str, is_wanted: Callable[[bytes], bool], of_views: set[str], only_look: bool
    ) -> list[Place]:
        """Dead letters of views that read the table: an open one may be of any row."""
        if not of_views:
            return []
        work = self._topics.look if only_look else self._topics.erase
        place = replace(work(name, is_wanted, _OF_VIEWS), name=f"topic {name}, rows of views")
        if place.is_proven or only_look or place.why is not None:
            return [place]
        why = "`lockstep rejections list` shows what views have refused: retry or discard it, then run this again"
        return [replace(place, why=why)]

    def _has_had(self, views: ViewErasing, topic: str) -> bool:
        """Whether a topic has, or has had, values of the row, as far as Lockstep wrote them."""
        own = {self._topic, *(control_topic(self._pipeline, name) for name in (DEAD_LETTERS, MATCHES))}
        return topic in own or views.may_have_written(topic)

    def _by_earlier_keys(self, earlier: EarlierKeys, work: Callable[..., Place]) -> Iterator[Place]:
        """Events from before the table's key was changed. They stay if no deletion by that key follows them."""
        looks = [
            (work, "by an earlier key of the row", earlier.of_the_row.__contains__, None),
            (self._topics.look, "by earlier keys of the table", earlier.is_of_others, _BY_OTHERS),
        ]
        for look, what, is_wanted, words in looks:
            if not earlier:
                continue
            place = replace(look(self._topic, is_wanted, words), name=f"topic {self._topic}, {what}")
            if place.found and not place.is_proven and place.why is None:
                why = (
                    f"the table had another key. `lockstep snapshot table '{self._name}'` has capture copy the table,"
                    " which deletes what it doesn't have by that key. Then run this command again"
                )
                place = replace(place, why=why)
            if place.found:
                yield place

    def _dead_letters_of_others(self, earlier: EarlierKeys) -> Iterator[Place]:
        """Open dead letters by earlier keys of the table that can't be assigned to rows."""
        name = control_topic(self._pipeline, DEAD_LETTERS)
        if not earlier or not TopicAdmin(self._client).exists(name):
            return

        def is_wanted(record_key: bytes) -> bool:
            event = event_of(record_key)
            return event is not None and event[0] == self._topic and earlier.is_of_others(event[1])

        place = self._topics.look(name, is_wanted, _BY_OTHERS)
        if place.found:
            why = "`lockstep rejections list` shows what sinks have refused: discard it, then run this again"
            yield replace(place.unproven(why), name=f"topic {name}, by earlier keys of the table")

    def _local(self, keys: Sequence[bytes]) -> list[Place]:
        """The store of large values, if it is on this machine."""
        directory = self._config.as_pipeline().values_directory / self._config.slot
        place = "store of large values, on this machine"
        try:
            answers = [holds_values(directory, self._topic, key) for key in keys]
        except LockstepError as error:
            return [Place(place, unasked=error.message)]
        if None in answers:
            return []
        left = (Leftover("large values of the row", has_values=True),) if any(answers) else ()
        why = "capture removes them with the deletion: run the command again once it has come by"
        return [Place(place, left, left, why)]

    def _unchecked(self, views: ViewErasing, erasers: Iterable[Eraser]) -> list[str]:
        """What this command never looks at, in sentences."""
        wal = kept_wal(self._config)
        sentences = [
            "the source: dead rows until VACUUM, "
            + ("WAL" if wal is None else f"WAL (the slot keeps it from {wal} on)")
            + ", archived WAL, replicas, backups; other tables with the same data.",
            "capture's machine: its store of large values, where that is elsewhere, and the free pages of its file.",
            f"topic {control_topic(self._pipeline, STATE)}: copies of tables note there how far they are, with keys of"
            " rows and no other values. It is compacted by itself.",
        ]
        kinds = {settings.type for settings in self._config.sinks.values()}
        sentences += [kind.backups_keep for name, kind in KINDS.items() if name in kinds and kind.backups_keep]
        sentences.append("sinks and views that aren't in this configuration, and copies that readers have made.")
        topics = TopicAdmin(self._client).all_partition_counts()
        others = [
            topic
            for topic in sorted(topics)
            if topic in (control_topic(self._pipeline, MESSAGES), shared_outbox_topic(self._pipeline))
            or is_outbox_topic(self._pipeline, topic)
        ]
        configs = TopicAdmin(self._client).configs(others)
        for topic in others:
            retention_ms = int(configs[topic]["retention.ms"])
            kept = "for ever" if retention_ms < 0 else f"for {retention_ms / 3_600_000:.0f} h"
            sentences.append(f"topic {topic}: its records have keys of their own. It keeps them {kept}.")
        looked_at = {
            view_topic(self._pipeline, view, generation.number)
            for view, generations in views.reading
            if not isinstance(generations, LockstepError)
            for generation in generations
        }
        sentences += [
            f"topic {topic}: rows of a view that doesn't read the table, or isn't in this configuration. It goes with"
            " the view's generation."
            for topic in sorted(topics)
            if is_view_topic(self._pipeline, topic) and topic not in looked_at
        ]
        sentences += [sentence for eraser in erasers for sentence in eraser.unchecked(topics)]
        if views.reading:
            sentences.append(
                "states of views, where their jobs keep them: free pages of their files. A view that is built again"
                " has a new file."
            )
        return sentences
