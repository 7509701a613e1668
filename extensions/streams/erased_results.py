"""Erases rows from the results of stream queries, in their store. A row is deleted with its own tag, which leaves a
mark; then the mark is removed too. It has to stay until the row's batch is done: the sink remembers the tag of removed
marks, and would keep out the batch's other rows, which have the same tag.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

from cdc.model.errors import Fenced, LockstepError
from cdc.model.event import JsonValue, Position, RowEvent
from cdc.model.table import Table
from extensions.streams.jobs.plan import StreamQueryPlan
from extensions.streams.jobs.records import result_name
from extensions.streams.jobs.resume import Figures, load_figures
from jobs.generations.record import Generation, Phase
from lockstep.erasing import Place, Stopped, Waiting, without_erasing
from sinks.capabilities.erasing import Leftover
from sinks.columns.shape import Shape
from sinks.contract import Batch, OpenedSink
from sinks.wrappers.retrying import retrying

_AT_ONCE: Final = 1_000
"""How many rows are deleted in one batch, and read between two checks whether to stop."""

_IN_A_BATCH: Final = (
    "they are of a batch that its job hasn't ended: run the command again once it has, as `lockstep streams list` shows"
)


_MAY_COME: Final = (
    "its checkpoint keeps {rows:,} rows, unchecked, and may write results of this row from them. Run the command"
    " again once the query's watermark has passed the end of each window, session, join and pattern that an event of"
    " the row was in, as `lockstep streams list` shows"
)


class ResultErasing:
    def __init__(self, plan: StreamQueryPlan, *, check: Callable[[], None]) -> None:
        self._plan = plan
        self._waiting = Waiting(check)
        self._check = check

    def places(
        self, columns: Sequence[str], is_of_row: Callable[[Mapping[str, JsonValue]], bool], *, only_look: bool
    ) -> Iterator[Place]:
        """Every build, oldest first. ``is_of_row`` tests a key of the result, by these columns."""
        query = self._plan.name
        try:
            with closing((opened := self._plan.opened(1)).sink):
                generations = self._plan.builds(opened)
        except LockstepError as error:
            yield Place(f"stream query {query}, its result", unasked=error.message)
            return
        for each in generations:
            name = f"stream query {query}, generation {each.number}" + (" (live)" if each.is_live else "")
            try:
                yield self._place(name, each, columns, is_of_row, only_look=only_look)
            except Stopped:
                raise
            except LockstepError as error:
                yield Place(name, unasked=error.message)

    def _place(
        self,
        name: str,
        generation: Generation,
        columns: Sequence[str],
        is_of_row: Callable[[Mapping[str, JsonValue]], bool],
        *,
        only_look: bool,
    ) -> Place:
        query, number = self._plan.name, generation.number
        if generation.phase is Phase.RETIRED:
            return Place(name, unasked="it is about to be dropped by the query's job: let that run")
        opened = retrying(self._plan.opened(number), self._waiting.retries())
        with closing(opened.sink):
            figures = load_figures(opened.records.load, number)
            shape = opened.records.load(result_name(number))
            if shape is None:
                return Place(name)  # its job hasn't begun
            table = Shape.from_json(shape).table
            if unknown := [column for column in columns if column not in table.key]:
                rebuild = f"delete its rows by hand, or have it built again: `lockstep streams rebuild {query}`"
                return Place(name, unasked=f"it was built without {', '.join(unknown)} in its key: {rebuild}")
            place = self._erased(name, opened, table, figures, is_of_row, only_look=only_look)
            rows = figures.state_rows
            return replace(place, note=_MAY_COME.format(rows=rows)) if rows else place

    def _erased(
        self,
        name: str,
        opened: OpenedSink,
        table: Table,
        figures: Figures,
        is_of_row: Callable[[Mapping[str, JsonValue]], bool],
        *,
        only_look: bool,
    ) -> Place:
        rows = self._rows(opened, table, is_of_row)
        erasing = opened.erasing
        if erasing is None:
            return without_erasing(name, self._plan.settings.type)
        marks = erasing.leftovers(table, None)  # of an earlier run that was interrupted or found a batch under way
        counted = Leftover(f"{len(rows):,} row{'s' * (len(rows) != 1)} of the result", has_values=True)
        found = (*([counted] if rows else []), *marks)
        if only_look:
            return Place(name, found, found)
        for start in range(0, len(rows), _AT_ONCE):
            self._check()
            self._delete(opened, rows[start : start + _AT_ONCE])
        if found and figures.batch >= 0:
            erasing.erase(table, None, below=_tag_after(figures))
        left = tuple(erasing.leftovers(table, None)) if found else ()
        return Place(name, found, left, _IN_A_BATCH if left else None)

    def _rows(
        self, opened: OpenedSink, table: Table, is_of_row: Callable[[Mapping[str, JsonValue]], bool]
    ) -> list[RowEvent]:
        """Deletions of the rows that exist."""
        found = list[RowEvent]()
        only_keys = replace(table, columns=table.key_columns)
        for place, row in enumerate(opened.sink.scan(only_keys)):
            if place % _AT_ONCE == 0:
                self._check()
            if is_of_row(row.key):
                found.append(RowEvent(table.name, row.key, row.tag, None, Position(str(table.name), 0, len(found))))
        return found

    def _delete(self, opened: OpenedSink, deletions: Sequence[RowEvent]) -> None:
        batch = Batch(deletions, overwrite_equal_tags=True)
        try:
            opened.sink.apply(replace(batch, fence=opened.sink.fence()))
        except Fenced:  # a job has begun between the two calls
            opened.sink.apply(replace(batch, fence=opened.sink.fence()))


def _tag_after(figures: Figures) -> str:
    """The smallest tag that no finished batch has."""
    from extensions.streams.executor.results import batch_tag  # it imports PyArrow

    return batch_tag(figures.batch + 1)
