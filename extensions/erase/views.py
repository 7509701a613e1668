"""Erases what views have made from a row. Since its keys are unknown, everything replaced or deleted is removed as a
whole. A view's result as of an LSN after the deletion has nothing of the row. Anything else may have: marks of
deletions in its sink, and on its topic each record that a later one replaces, and each tombstone.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path
from typing import Final

from cdc.kafka.control_topics import read_compacted
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import VIEWS, control_topic, is_view_topic, table_topic, view_topic
from cdc.model.errors import LockstepError
from cdc.model.table import Column, ReplicaIdentity, Table
from cdc.model.tag import Tag
from cdc.protocol.view_steps import ViewStep, step_key
from extensions.erase.key_records import KeyRecord, replaced_records
from extensions.erase.sinks import NOT_YET
from extensions.erase.topics import TopicErasing
from jobs.generations.record import Generation, Phase
from lockstep.config import Config
from lockstep.erasing import DeletedRow, Place, RecordWords, Stopped, Waiting, without_erasing
from lockstep.generations import list_of, settings_of_generation
from sinks.contract import OpenedSink
from sinks.registry import open_sink
from sinks.stored_progress import applied_below
from sinks.view_settings import ViewSettings
from sinks.wrappers.retrying import retrying

_WORDS: Final = RecordWords(with_what="of earlier rows of the view", of_many=True)
_BEHIND: Final = (
    "the view isn't as of a time after the deletion yet: `lockstep lag` says how far it is. Let its job go on, or drop"
    " the generation with `lockstep generations {view} --drop {number}`; then run the command again"
)


class ViewErasing:
    """Erases from views. ``timeout_s`` is the longest wait for one place."""

    def __init__(
        self,
        config: Config,
        row: DeletedRow,
        topics: TopicErasing,
        *,
        published: Callable[[], str],
        timeout_s: float,
        check: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        """``published`` returns a tag that is greater than those of everything published when it is called."""
        self._config = config
        self._client = config.kafka.client()
        self._published = published
        self._row = row
        self._topics = topics
        self._timeout_s = timeout_s
        self._waiting = Waiting(check)
        self._say = say

    @cached_property
    def reading(self) -> list[tuple[str, Sequence[Generation] | LockstepError]]:
        """The views that read the table, each with its generations that do, or the error that prevents an answer. A
        generation may have been built with another query than today's. Each store is asked once.
        """
        return list(self._reading())

    def _reading(self) -> Iterator[tuple[str, Sequence[Generation] | LockstepError]]:
        for name, settings in self._config.sinks.items():
            if settings.view is None:
                continue
            try:
                generations = [each for each in list_of(self._config, name) if self._reads(name, each)]
            except LockstepError as error:
                yield name, error
                continue
            if generations or self._row.table.name in self._config.sink_tables(settings):
                yield name, generations

    def _reads(self, name: str, generation: Generation) -> bool:
        return self._row.table.name in self._config.sink_tables(settings_of_generation(self._config, name, generation))

    def may_have_written(self, topic: str) -> bool:
        """Whether it is a topic of a view's rows, unless its generation is known not to read the table. A dropped
        generation, or one of a view that isn't configured any more, may have read the table.
        """
        pipeline = self._config.pipeline.name
        if not is_view_topic(pipeline, topic):
            return False
        for name, settings in self._config.sinks.items():
            if settings.view is None:
                continue
            try:
                for generation in list_of(self._config, name):
                    if view_topic(pipeline, name, generation.number) == topic:
                        return self._reads(name, generation)
            except LockstepError:
                continue  # unknown, so it may
        return True

    def places(self, *, only_look: bool) -> Iterator[Place]:
        """The generations of each view that reads the table, and their topics."""
        for view, generations in self.reading:
            if isinstance(generations, LockstepError):
                yield Place(f"view {view}", unasked=generations.message)
                continue
            if not only_look:
                self._say(f"view {view}")
            for generation in generations:
                name = f"view {view}, generation {generation.number}" + (" (live)" if generation.is_live else "")
                if generation.phase is Phase.RETIRED:
                    drop = f"`lockstep generations {view} --drop {generation.number}` drops it for good"
                    yield Place(name, unasked=f"it is about to be dropped: {drop}")
                    continue
                if generation.phase is not Phase.READY and not only_look:
                    again = "run this command again once that has ended"
                    yield Place(name, unasked=f"it is {generation.phase.value}: {again}")
                    continue
                try:
                    yield self._in_sink(name, view, generation, only_look=only_look)
                    yield from self._on_topic(view, generation.number, only_look=only_look)
                except Stopped:
                    raise
                except LockstepError as error:
                    yield Place(name, unasked=error.message)

    def dead_letters_of(self) -> set[str]:
        """The names in dead letters for the topics of these views' rows."""
        pipeline = self._config.pipeline.name
        return {
            table_topic(pipeline, view.table) for name, view in self._config.views.items() if name in dict(self.reading)
        }

    def _in_sink(self, name: str, view: str, generation: Generation, *, only_look: bool) -> Place:
        settings = settings_of_generation(self._config, view, generation)
        assert settings.view is not None
        table = _table_of(settings.view)
        opened = retrying(open_sink(view, settings, generation.number), self._waiting.retries())
        with closing(opened.sink):
            erasing = opened.erasing
            if erasing is None:
                return without_erasing(name, settings.type)
            found = tuple(erasing.leftovers(table, None))
            if only_look:
                return Place(name, found, found)
            below = self._reached(opened, self._row.gone_at)
            if below is not None:
                # The deletion is in the sink with the tag of the progress record at which the task ended its step. If
                # the driver doesn't know that record yet, its watermark is of an earlier one.
                below = self._reached(opened, self._published())
            if below is None:
                behind = _BEHIND.format(view=view, number=generation.number)
                return Place(name, found, (*found, NOT_YET), behind)
            found = tuple(erasing.leftovers(table, None))  # including marks that the deletion has left
            deadline = time.monotonic() + self._timeout_s
            while True:
                left = erasing.erase(table, None, below=below)
                is_known = all(leftover.until_ms is not None for leftover in left)
                if is_known or time.monotonic() > deadline:
                    later = None if is_known else "run the command again later, with a longer --timeout"
                    return Place(name, found, tuple(left), later)
                self._waiting.wait()

    def _reached(self, opened: OpenedSink, tag: str) -> str | None:
        """The watermark's tag once it has reached this tag; None if that takes too long."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            progress = opened.generations.load_progress()
            below = None if progress is None else applied_below(progress)
            if below is not None and below >= tag:
                return below
            if time.monotonic() > deadline:
                return None
            self._waiting.wait()

    def _on_topic(self, view: str, number: int, *, only_look: bool) -> Iterator[Place]:
        topic = view_topic(self._config.pipeline.name, view, number)
        if not TopicAdmin(self._client).exists(topic):
            return
        step = self._step(view, number, waits=not only_look)
        if step is None:
            yield Place(f"topic {topic}", unasked=_BEHIND.format(view=view, number=number))
            return
        read: Callable[[], list[KeyRecord]] = partial(
            replaced_records,
            self._client,
            topic,
            below=step.end,
            directory=Path(tempfile.gettempdir()),
            while_waiting=self._waiting.check,
        )
        if only_look:
            yield self._topics.look_at(topic, read, _WORDS)
        else:
            yield self._topics.erase_those(topic, read, _WORDS)

    def _step(self, view: str, number: int, *, waits: bool) -> ViewStep | None:
        """The newest whole step; with ``waits``, one from after the deletion. None if there is none in time."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            stored = read_compacted(self._client, control_topic(self._config.pipeline.name, VIEWS))
            record = stored.get(step_key(view, number))
            step = None if record is None else ViewStep.from_bytes(record.value, record.what)
            if step is not None and step.is_complete:
                is_after = str(Tag(step.epoch, step.lsn, 0)) >= self._row.gone_at
                if is_after or not waits:
                    return step
            if not waits or time.monotonic() > deadline:
                return None
            self._waiting.wait()


def _table_of(view: ViewSettings) -> Table:
    """The view's result, with its key columns only."""
    columns = tuple(Column(name, "text", "text", False, 25, -1) for name in view.key)
    return Table(view.table, columns, view.key, ReplicaIdentity.DEFAULT)
