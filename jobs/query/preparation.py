"""Prepares the destination before a query: makes tables and columns, and checks that known tables are the same ones."""

from collections.abc import Collection
from dataclasses import replace

from cdc.model.append_only import stored_table
from cdc.model.errors import Fenced, LockstepError, NeedsRebuild, Unavailable
from cdc.model.table import TableName
from jobs.generations.batch_gate import BatchGate
from jobs.generations.columns import Columns, load_columns, save_columns
from jobs.generations.held_tables import Orders
from jobs.generations.identities import (
    Identities,
    dump_identities,
    identities_name,
    identities_of,
    known_of,
    load_identities,
    lost_of,
    lost_rows,
)
from jobs.generations.lease import GenerationLease
from jobs.query.column_backfill import BackfillReporter, backfill_tables, next_columns
from jobs.query.consistency import claim_and_keep
from jobs.query.log_facts import LogFacts
from jobs.query.sink_tables import SinkTables
from jobs.report import Reporter
from sinks.contract import AddedValues, OpenedSink, Progress, TablesRefused
from sinks.registry import projection_of


class Preparation:
    """The preparation of one query. If single tables are to blame, they are held."""

    def __init__(
        self, tables: SinkTables, opened: OpenedSink, lease: GenerationLease, orders: Orders, *, report: Reporter
    ) -> None:
        """``orders`` are those that the query obeys."""
        self._plan = tables.plan
        self._tables = tables
        self._opened = opened
        self._lease = lease
        self._orders = orders
        self._report = report
        # The columns that rows of unread tables lack.
        self._lacking_of_held: AddedValues = {}

    def hold_refused(self, refused: TablesRefused) -> None:
        """Go on without the tables that the destination refused. Raises NewlyHeld; if no others are left, their error.
        A destination that accepts nothing fails here too: then single tables aren't to blame."""
        if not self._tables.go_on_without(refused.errors) or self._opened.generations.load_progress() is None:
            raise LockstepError(refused.message, hint=refused.hint)
        # A table that was removed is refused for that reason. A table that was never made is no loss.
        known = self.known_identities()
        lost = lost_of(self._opened, {name: known[name] for name in refused.errors if name in known})
        self._tables.held.fail(self._lease, {**refused.errors, **lost_rows(self._plan.name, lost)}, self._orders)

    def claim(self) -> None:
        """Become the writer of the generation. Raises as ``GenerationLease.claim``."""
        claim_and_keep(self._opened, self._plan.generation, lambda: self._lease.claim(self._opened.sink.claim))

    def still_there(self, tables: Collection[TableName], log: LogFacts, stored: Progress | None) -> Identities:
        """The present identities of those ``tables`` that have rows, as far as the destination has identities. Raises
        NewlyHeld if single tables were removed: made anew, they would lack what had been applied and still count as
        complete. Raises NeedsRebuild if all are gone, or one of a generation that can't go on without it."""
        if stored is None:
            return {}
        begun = self._begun_tables(tables, log, stored)
        # Before the comparison: the next look finds what is removed after this one.
        now = identities_of(self._opened, begun)
        known = self.known_identities()
        errors = lost_rows(self._plan.name, lost_of(self._opened, known_of(known, begun)))
        if errors:
            if self._tables.go_on_without(errors):
                self._tables.held.fail(self._lease, errors, self._orders)
            first = next(iter(errors.values()))
            raise NeedsRebuild("; ".join(error.message for error in errors.values()), hint=first.hint)
        return now

    def _begun_tables(self, tables: Collection[TableName], log: LogFacts, stored: Progress) -> list[TableName]:
        """The tables with anything applied."""
        topics = {topic for at in (stored.next_offsets, stored.skipped) for (topic, _), offset in at.items() if offset}
        if self._plan.settings.view is not None:
            return list(tables) if topics & log.topics.keys() else []
        return [name for name in tables if self._tables.topic(name) in topics]

    def known_identities(self) -> Identities:
        """The stored identities. Empty in a bulk load: its end may make tables anew, and it has no readers."""
        return {} if self._plan.bulk else load_identities(self._opened.records, self._plan.generation)

    def keep_identities(self, tables: Collection[TableName], kept: Identities) -> Identities:
        """Store the identities of the prepared ``tables``. ``kept`` are those of tables that were there before."""
        record = identities_name(self._plan.generation)
        before = load_identities(self._opened.records, self._plan.generation)
        if self._plan.bulk:
            if before:
                self._lease.save_record(record, None)
            return {}
        new = [name for name in tables if name not in kept]
        identities = {**kept, **identities_of(self._opened, new)}
        if before | identities != before:  # others may be held
            self._lease.save_record(record, dump_identities(before | identities))
        return identities

    def prepare(self, log: LogFacts, *, may_hold: bool) -> tuple[Columns, AddedValues]:
        """Prepare the sink for the tables. Returns its columns, and the values that its rows still lack. Raises
        NewlyHeld if only some tables can't be prepared. At a sink's first start there are no rows yet and the settings
        may be untested, so only tables that the destination can't hold are held then."""
        try:
            return self._prepare_all(log)
        except (Unavailable, Fenced):
            raise
        except TablesRefused as refused:
            if self._tables.go_on_without(refused.errors):
                unfit = {name: self._unfit(error) for name, error in refused.errors.items()}
                self._tables.held.fail(self._lease, unfit, self._orders)
            raise
        except LockstepError:
            errors = self._unprepared(log) if may_hold and self._plan.go_live else {}
            if not self._tables.held.are_single(errors, log.tables):
                raise
            self._tables.held.fail(self._lease, errors, self._orders)
            raise

    def _unfit(self, error: LockstepError) -> LockstepError:
        """Why the sink can't hold a table. Corrected settings for it take effect in a new generation."""
        if error.hint is None or isinstance(error, NeedsRebuild):
            return error
        rebuild = f"`lockstep rebuild {self._plan.name} --switch`"
        return LockstepError(
            error.message, hint=f"{error.hint}, and run {rebuild}; or mend the table itself at the source"
        )

    def _unprepared(self, log: LogFacts) -> dict[TableName, LockstepError]:
        """The tables that can't be prepared on their own, with the reasons."""
        known = load_columns(self._opened.records, self._plan.generation)
        projection = projection_of(self._plan.settings)
        errors: dict[TableName, LockstepError] = {}
        for name, table in log.tables.items():
            try:
                added = next_columns(known, [table], log.records, projection=projection, has_rows=True).lacking
                self._opened.sink.prepare([stored_table(table)], go_live=False, added=added)
            except (Unavailable, Fenced):
                raise
            except LockstepError as error:
                errors[name] = error
        return errors

    def _prepare_all(self, log: LogFacts) -> tuple[Columns, AddedValues]:
        plan = self._plan
        known = load_columns(self._opened.records, plan.generation)
        has_rows = plan.generation in self._opened.generations.numbers()
        projection = projection_of(plan.settings)
        columns = next_columns(known, log.tables.values(), log.records, projection=projection, has_rows=has_rows)
        self._lacking_of_held = (
            {}
            if known is None
            else {table: values for table, values in known.lacking.items() if table not in log.tables}
        )
        kept = _with_lacking(columns, self._lacking_of_held)
        if kept != known:
            save_columns(self._opened.records, plan.generation, kept)
        if columns.lacking and has_rows:
            # If the destination can refuse another writer, no row of the earlier shape arrives after this.
            self.claim()
        lacking = self._opened.sink.prepare(
            list(map(stored_table, log.tables.values())), go_live=plan.go_live, added=columns.lacking
        )
        return columns, lacking

    def backfill(self, log: LogFacts, columns: Columns, lacking: AddedValues, fence: int, gate: BatchGate) -> bool:
        """Give rows that lack a column the value that the source shows. False if the gate closed first."""
        plan = self._plan
        opened = plan.opened()  # for a thread of its own
        try:
            left = backfill_tables(
                opened.sink,
                log.tables,
                columns,
                lacking,
                fence=fence,
                gate=gate,
                report=BackfillReporter(plan.name, plan.generation, self._report),
            )
            if left is not None:
                save_columns(opened.records, plan.generation, _with_lacking(left, self._lacking_of_held))
        finally:
            opened.sink.close()
        return left is not None


def _with_lacking(columns: Columns, held: AddedValues) -> Columns:
    """The same columns, with what rows of unread tables lack."""
    return replace(columns, lacking={**columns.lacking, **held})
