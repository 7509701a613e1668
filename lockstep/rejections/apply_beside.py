"""Applies rejected events beside their generation's job, in the shapes that the job has prepared."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cdc.model.errors import Fenced, LockstepError, Overtaken, Unavailable
from cdc.model.table import TableName
from cdc.protocol.control_records import SchemaRecord
from jobs.dead_letters.record import DeadLetter
from jobs.executor.shape_history import TableHistory
from jobs.generations.prepared import Prepared, load_prepared
from jobs.generations.record import Phase, load_record, require_in_use
from lockstep.rejections.events import (
    Evaluate,
    RetryEvents,
    prepared_histories,
    result_histories,
    retry_events,
    stored,
    versions_of,
)
from lockstep.rejections.output import Tables
from sinks.contract import Batch, OpenedSink, Outcome
from sinks.view_settings import ViewSettings

_TRIES: Final = 5
"""How often a batch is begun again because a job has started, or has prepared other shapes, meanwhile."""

_LOOK_S: Final = 0.5

Portion = Sequence[tuple[DeadLetter, bytes | None]]
"""Dead letters with their events' values."""


@dataclass(frozen=True, slots=True)
class Beside:
    opened: OpenedSink
    name: str
    generation: int
    tables: Tables

    records: Callable[[], Iterable[SchemaRecord]]
    """Reads all shapes, in the order of the topic."""

    still_open: Callable[[Portion], Portion] = lambda portion: portion
    """Returns those still open. A row that was erased after its rejection was read isn't brought back."""

    evaluate: Evaluate = lambda events: events

    keeps: Collection[TableName] = ()
    """The tables of which the sink keeps all versions."""

    view: ViewSettings | None = None
    """Set for a view. Its rows are as they were refused: a row that has changed since was given to the sink again."""

    sleep: Callable[[float], None] = time.sleep

    def apply(self, portion: Portion) -> tuple[Portion, RetryEvents, Outcome]:
        """Apply what is still open. Returns that, its events, and what became of them. Raises LockstepError."""
        erasing = self.opened.erasing
        was_erased, label = False, f"generation {self.generation} of sink {self.name!r}"
        for _ in range(_TRIES):
            require_in_use(self.opened.records, self.name, self.generation)
            record = load_record(self.opened.records, self.generation)
            if record is not None and record.phase is not Phase.READY:
                raise LockstepError(
                    f"{label} is {record.phase.value} by now",
                    hint="nothing was closed that the sink doesn't have; retry when that has ended",
                )
            prepared = load_prepared(self.opened.records, self.generation)
            if prepared is None:
                self.sleep(_LOOK_S)
                continue
            table_histories = self._histories(prepared)
            of_portion = {self.tables.get(dead_letter.position.topic) for dead_letter, _ in portion}
            of_these = [table for table in of_portion if table is not None]
            erased = None if erasing is None else erasing.erased(of_these)
            portion = self.still_open(portion)
            append_only = {table for table, history in table_histories.items() if not history.key}
            events = stored(self.evaluate(retry_events(portion, self.tables, table_histories)), append_only)
            try:
                # A row in the same version is written again: an earlier try may have left it in an earlier shape.
                outcome = self.opened.sink.apply(
                    Batch(
                        [event for _, event in events.events],
                        fence=self.opened.sink.fence(),
                        overwrite_equal_tags=True,
                        never_applied=True,
                        erased=erased,
                        versions=versions_of(events, self.keeps),
                    )
                )
            except Overtaken:  # something was erased since
                was_erased = True
                self.sleep(_LOOK_S)
                continue
            except Fenced:  # a job has begun between the two calls
                self.sleep(_LOOK_S)
                continue
            if load_prepared(self.opened.records, self.generation) == prepared:
                return portion, events, outcome
            # What was written just now may lack a column that all other rows have got meanwhile.
        if was_erased:
            raise Unavailable(
                f"deleted rows are removed for good from {label} again and again",
                hint="rejections that the sink lacks stay open; run the same command again in a moment",
            )
        raise LockstepError(
            f"{label} is being prepared for the tables' shapes, or never was",
            hint=f"let `lockstep apply {self.name}` start, then try again; rejections that the sink lacks stay open",
        )

    def _histories(self, prepared: Prepared) -> dict[TableName, TableHistory]:
        return prepared_histories(self.records(), prepared) if self.view is None else result_histories(self.view)
