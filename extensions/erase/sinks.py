"""Erases a row from every generation of a sink."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

from cdc.model.errors import Fenced, LockstepError
from cdc.model.event import Position, RowEvent
from jobs.generations.held_tables import Wish, load_held_tables, load_orders
from jobs.generations.record import Generation, Phase
from lockstep.config import Config
from lockstep.erasing import DeletedRow, Place, Stopped, Waiting, without_erasing
from lockstep.generations import list_of, settings_of_generation
from sinks.capabilities.erasing import Erasing, Leftover
from sinks.contract import Batch, OpenedSink
from sinks.registry import open_sink
from sinks.stored_progress import applied_below
from sinks.wrappers.retrying import retrying

NOT_YET: Final = Leftover("rows that its job has read, and may write after this look", has_values=True)


class SinkErasing:
    """Erases from the sinks of a configuration. ``timeout_s`` is the longest wait for one generation."""

    def __init__(self, config: Config, row: DeletedRow, *, timeout_s: float, check: Callable[[], None]) -> None:
        self._config = config
        self._row = row
        self._timeout_s = timeout_s
        self._waiting = Waiting(check)

    def places(self, sink: str, *, only_look: bool) -> Iterator[Place]:
        """Every generation of a sink, oldest first. One that can't be asked is a place too."""
        try:
            generations = list_of(self._config, sink)
        except LockstepError as error:
            yield Place(f"sink {sink}", unasked=error.message)
            return
        for generation in generations:
            if generation.phase is Phase.RETIRED:
                yield Place(
                    f"sink {sink}, generation {generation.number}",
                    unasked=f"it is about to be dropped: `lockstep generations {sink} --drop {generation.number}`"
                    " drops it for good",
                )
                continue
            yield self._place(sink, generation, only_look=only_look)

    def _place(self, sink: str, generation: Generation, *, only_look: bool) -> Place:
        name = f"sink {sink}, generation {generation.number}" + (" (live)" if generation.is_live else "")
        try:
            settings = settings_of_generation(self._config, sink, generation)
            opened = retrying(open_sink(sink, settings, generation.number), self._waiting.retries())
            with closing(opened.sink):
                erasing = opened.erasing
                if erasing is None:
                    return without_erasing(name, settings.type)
                found = tuple(erasing.leftovers(self._row.table, self._row.key))
                if only_look:
                    return Place(name, found, found)
                if generation.phase is not Phase.READY:
                    unasked = f"it is {generation.phase.value}: run this command again once that has ended"
                    return Place(name, found, unasked=unasked)
                if not found and self._row.table.name not in self._config.sink_tables(settings):
                    return Place(name)  # however far it is, it never gets the row
                left, why = self._erased(sink, generation.number, opened, erasing)
                return Place(name, found, tuple(left), why)
        except LockstepError as error:
            if isinstance(error, Stopped):
                raise
            return Place(name, unasked=error.message)

    def _erased(
        self, sink: str, number: int, opened: OpenedSink, erasing: Erasing
    ) -> tuple[Sequence[Leftover], str | None]:
        row = self._row
        below, why = self._below(sink, number, opened)
        if row.tag and any(leftover.has_values for leftover in erasing.leftovers(row.table, row.key)):
            # The job may hold the table, or may have lacked the deletion. The deletion's tag decides, as always.
            self._delete(opened)
        deadline = time.monotonic() + self._timeout_s
        while True:
            left = erasing.erase(row.table, row.key, below=below)
            is_known = all(leftover.until_ms is not None for leftover in left)
            if is_known or time.monotonic() > deadline or why is not None:
                break
            self._waiting.wait()
        if why is not None:
            left = left or [NOT_YET]
        elif left:
            why = f"run the command again later; `lockstep verify {sink}` says whether the sink is right"
        return left, why

    def _below(self, sink: str, number: int, opened: OpenedSink) -> tuple[str | None, str | None]:
        """The tag below which this generation has all of the table; and the reason if it lacks the deletion."""
        table = str(self._row.table.name)
        held_tables, orders = load_held_tables(opened.records, number), load_orders(opened.records, number)
        order = orders.get(self._row.table.name)
        if self._row.table.name in held_tables or (order is not None and order.wish is not Wish.APPLY):
            return None, f"{table} is held in it: `lockstep resume {sink} {table}`, then run the command again"
        deadline = time.monotonic() + self._timeout_s
        while True:
            progress = opened.generations.load_progress()
            below = None if progress is None else applied_below(progress, self._row.topic)
            if below is not None and below > self._row.tag:
                return below, None
            if time.monotonic() > deadline:
                return below, (
                    "it hasn't applied all up to the deletion, or has left out a part of the log: `lockstep lag` shows"
                    f" how far it is. `lockstep rebuild {sink}` builds a generation that leaves out nothing"
                )
            self._waiting.wait()

    def _delete(self, opened: OpenedSink) -> None:
        row = self._row
        event = RowEvent(row.table.name, row.key, row.tag, None, Position(row.topic, 0, 0))
        batch = Batch([event], overwrite_equal_tags=True)
        try:
            opened.sink.apply(replace(batch, fence=opened.sink.fence()))
        except Fenced:  # a job has begun between the two calls
            opened.sink.apply(replace(batch, fence=opened.sink.fence()))
