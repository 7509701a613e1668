"""A sink whose destination never gets to see some columns.

Columns are left out by name, and a column that is renamed at the source has another name from then on. So that it doesn't
reach the destination under it, a generation's note keeps the column's number (``Column.number``), by which it is known again.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.event import Events, JsonValue
from cdc.model.table import Table, TableName
from sinks.projection import Projection, column_text
from sinks.sink import NOTHING_ADDED, AddedValues, Batch, Outcome, Progress, Rejection, Sink, StoredRow


class ProjectingSink:
    """Wraps a sink bound to ``generation``. Callers speak of the source's full tables and events throughout."""

    def __init__(self, sink: Sink, projection: Projection, generation: int) -> None:
        self._sink = sink
        self._projection = projection
        self._generation = generation
        self._note = f"g{generation}.excluded"

    def prepare(
        self, tables: Sequence[Table], *, go_live: bool = True, added: AddedValues = NOTHING_ADDED
    ) -> AddedValues:
        """See ``Sink.prepare``. Raises ConfigurationError with all columns that can't be left out.

        A column that never was there is one of these. When the source drops one later, that is fine.
        """
        problems = self._projection.key_problems(tables)
        if self._generation not in self._sink.generations():
            problems += self._projection.unknown_problems(tables)
        if problems:
            raise ConfigurationError(
                "columns can't be left out of this sink", problems=problems, hint="mend exclude of this sink"
            )
        self._remember(tables)
        seen = {name: self._projection.row(name, values) for name, values in added.items()}
        return self._sink.prepare([self._projection.table(table) for table in tables], go_live=go_live, added=seen)

    def begin_bulk(self) -> None:
        self._sink.begin_bulk()

    def end_bulk(self) -> None:
        self._sink.end_bulk()

    def claim(self) -> int:
        return self._sink.claim()

    def fence(self) -> int:
        return self._sink.fence()

    def apply(self, batch: Batch) -> Outcome:
        given = Events.of(batch.events)
        outcome = self._sink.apply(replace(batch, events=Events(map(self._projection.events, given.tables))))
        if not outcome.rejections:
            return outcome
        # A rejection is the caller's event, to be known again and retried; a batch has one of a key at most.
        by_key = {
            (events.table, str(values)): events[place]
            for events in given.tables
            for place, values in enumerate(events.key_values())
        }
        return replace(
            outcome,
            rejections=[
                Rejection(by_key[refused.event.table, str(list(refused.event.key.values()))], refused.reason)
                for refused in outcome.rejections
            ],
        )

    def load_progress(self) -> Progress | None:
        return self._sink.load_progress()

    def save_progress(self, progress: Progress) -> None:
        self._sink.save_progress(progress)

    def live_generation(self) -> int | None:
        return self._sink.live_generation()

    def generations(self) -> list[int]:
        return self._sink.generations()

    def switch(self) -> None:
        self._sink.switch()

    def keep_only(self, tables: Collection[TableName]) -> list[TableName]:
        return self._sink.keep_only(tables)

    def drop(self) -> None:
        self._sink.drop()

    def load_note(self, name: str) -> str | None:
        return self._sink.load_note(name)

    def save_note(self, name: str, text: str | None) -> None:
        self._sink.save_note(name, text)

    def create_note(self, name: str, text: str) -> bool:
        return self._sink.create_note(name, text)

    def scan(self, table: Table) -> Iterator[StoredRow]:
        return self._sink.scan(self._projection.table(table))

    def rows(self, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        return self._sink.rows(self._projection.table(table), keys)

    def close(self) -> None:
        self._sink.close()

    def _remember(self, tables: Sequence[Table]) -> None:
        """Note the numbers of the columns that are left out. Raises LockstepError for one that has another name now."""
        text = self._sink.load_note(self._note)
        known: dict[str, int] = {} if text is None else json.loads(text)
        now = dict(known)
        for table in tables:
            named = {column.name: column.number for column in table.columns}
            for name in self._projection.excluded.get(table.name, ()):
                identity = column_text(table.name, name)
                if name in named:
                    now[identity] = named[name]
                    continue
                renamed = [other for other, number in named.items() if number and number == known.get(identity)]
                if renamed and renamed[0] not in self._projection.excluded[table.name]:
                    raise LockstepError(
                        f"column {identity}, which this sink leaves out, is called {renamed[0]!r} now",
                        hint=f"put {column_text(table.name, renamed[0])} into exclude of this sink and build it anew from the log",
                    )
        if now != known:
            self._sink.save_note(self._note, json.dumps(now))
