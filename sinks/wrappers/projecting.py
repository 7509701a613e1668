"""A sink whose destination sees other columns than the source has: some left out, masked, computed or renamed."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.event import Events, JsonValue
from cdc.model.table import Table, TableName
from sinks.capabilities.erasing import Erasing, Leftover
from sinks.contract import NOTHING_ADDED, AddedValues, Batch, OpenedSink, Outcome, Rejection, StoredRow
from sinks.wrappers.column_names import keep_names, load_names, save_names
from sinks.wrappers.projection import Projection, column_text
from sinks.wrappers.renaming import Renaming


class ProjectingSink:
    """Wraps the sink of ``opened``, bound to ``generation``. Callers always use the source's full tables and events.

    Columns are left out and masked by name. A column that the source renames must not reach the destination under its
    new name, so a coordination record stores the column's number (``Column.number``) to recognise it. Another record
    stores the destination's name of each number: with ``keeps_names``, a renamed column keeps its former name.
    """

    def __init__(
        self,
        opened: OpenedSink,
        projection: Projection,
        generation: int,
        *,
        renaming: Renaming | None = None,
        keeps_names: bool = False,
    ) -> None:
        self._sink = opened.sink
        self._generations = opened.generations
        self._records = opened.records
        self._projection = projection
        self._generation = generation
        self._hidden_record = f"g{generation}.hidden_columns"
        self._salt_record = f"g{generation}.salt"
        self._configured = renaming or Renaming()
        self._keeps_names = keeps_names
        self._known_renaming = None if keeps_names else self._configured
        self._salt_is_known = False

    def prepare(
        self, tables: Sequence[Table], *, go_live: bool = True, added: AddedValues = NOTHING_ADDED
    ) -> AddedValues:
        """Also raises ConfigurationError for columns that can't be hidden or never existed; dropped ones are fine."""
        problems = self._projection.key_problems(tables) + self._projection.clash_problems(tables)
        seen = [self._projection.table(table) for table in tables]
        is_new = self._generation not in self._generations.numbers()
        if is_new:
            problems += self._projection.unknown_problems(tables) + self._configured.unknown_problems(seen)
        kept = None
        renaming = self._configured
        if self._keeps_names:
            kept = keep_names(self._configured, seen, load_names(self._records, self._generation))
            renaming = kept.renaming
        problems += renaming.clash_problems(seen)
        if problems:
            raise ConfigurationError(
                "columns of this sink can't be as they are configured",
                problems=problems,
                hint="mend exclude, mask, computed and rename of this sink",
            )
        salt = self._projection.salt
        if salt is not None and is_new:
            self._records.save(self._salt_record, salt.mark)
        elif salt is not None:
            self._records.create(self._salt_record, salt.mark)
        self._check_salt()
        self._remember(tables)
        hidden = {name: self._projection.row(name, values) for name, values in added.items()}
        here = {name: renaming.row(name, values) for name, values in hidden.items()}
        left = self._sink.prepare([renaming.table(table) for table in seen], go_live=go_live, added=here)
        if kept is not None:
            # Only after the destination has agreed: a change that it refuses may be undone at the source.
            save_names(self._records, self._generation, kept)
        self._known_renaming = renaming
        return {name: renaming.back_row(name, values) for name, values in left.items()}

    def _renaming(self) -> Renaming:
        if self._known_renaming is None:
            kept = load_names(self._records, self._generation)
            self._known_renaming = self._configured if kept is None else kept.renaming
        return self._known_renaming

    def _check_salt(self) -> None:
        """Raise LockstepError if the salt has changed: the same value would have two hashes.

        Every writer checks, since each reads the salt on its own machine, perhaps an executor's.
        """
        salt = self._projection.salt
        if salt is None or self._salt_is_known:
            return
        known = self._records.load(self._salt_record)
        self._salt_is_known = known == salt.mark
        if known is not None and known != salt.mark:
            raise LockstepError(
                "this generation was built with another salt of this sink's hashes",
                hint="put the earlier one back, or rebuild the sink from the log: lockstep rebuild",
            )

    def claim(self) -> int:
        return self._sink.claim()

    def fence(self) -> int:
        if self._keeps_names:
            self._known_renaming = None  # a writer beside a job uses the names that the job has given by now
        return self._sink.fence()

    def apply(self, batch: Batch) -> Outcome:
        self._check_salt()
        given = Events.of(batch.events)
        renaming = self._renaming()
        seen = given.tables if batch.as_stored else map(self._projection.events, given.tables)
        versions = [
            replace(history, events=renaming.events(self._projection.events(history.events)))
            for history in batch.versions
        ]
        outcome = self._sink.apply(replace(batch, events=Events(map(renaming.events, seen)), versions=versions))
        if not outcome.rejections:
            return outcome
        # A rejection holds the caller's own event, so that it can be recognised and retried. Keys are unique in a
        # batch.
        by_key = {
            (events.table, str(values)): events[index]
            for events in given.tables
            for index, values in enumerate(events.key_values())
        }
        return replace(
            outcome,
            rejections=[
                Rejection(by_key[refused.event.table, str(list(refused.event.key.values()))], refused.reason)
                for refused in outcome.rejections
            ],
        )

    def plan_scans(self, tables: Sequence[Table]) -> None:
        self._sink.plan_scans(list(map(self.there, tables)))

    def scan(self, table: Table) -> Iterator[StoredRow]:
        renaming = self._renaming()
        for stored in self._sink.scan(self.there(table)):
            yield renaming.back(table.name, stored)

    def rows(self, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        renaming = self._renaming()
        asked = [renaming.row(table.name, key) for key in keys]
        for stored in self._sink.rows(self.there(table), asked):
            yield renaming.back(table.name, stored)

    def there(self, table: Table) -> Table:
        return self._renaming().table(self._projection.table(table))

    def key_there(self, table: TableName, key: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
        return self._renaming().row(table, key)

    def close(self) -> None:
        self._sink.close()

    def _remember(self, tables: Sequence[Table]) -> None:
        """Store hidden columns' numbers. Raises LockstepError for renamed, ConfigurationError for unknown columns."""
        text = self._records.load(self._hidden_record)
        known: dict[str, list[int]] = {} if text is None else json.loads(text)
        now = dict(known)
        unknown = []
        for table in tables:
            columns = (*table.columns, *self._projection.computed.get(table.name, ()))
            named = {column.name: column.number for column in columns}
            masked = set(self._projection.masks.get(table.name, ()))
            hidden = self._projection.excluded.get(table.name, frozenset()) | masked
            for name in sorted(hidden):
                identity = column_text(table.name, name)
                number, oid = known.get(identity, [0, 0])
                # If false, the table was dropped and created again. After a recovery the number may be another
                # column's, or this column's under another name: a person has to decide whether its values may be shown.
                is_same = not oid or not table.oid or oid == table.oid
                renamed = [
                    other for other, held in named.items() if is_same and held and held == number and other != name
                ]
                if renamed and renamed[0] not in hidden:
                    setting, what = ("mask", "masks") if name in masked else ("exclude", "leaves out")
                    raise LockstepError(
                        f"column {identity}, which this sink {what}, has the name {renamed[0]!r} now",
                        hint=f"put {column_text(table.name, renamed[0])} into {setting} of this sink and rebuild it "
                        "from the log",
                    )
                if name in named:
                    now[identity] = [named[name], table.oid]
                elif identity not in known:
                    unknown.append(identity)
        if unknown:
            raise ConfigurationError(
                "this sink hides columns that its tables don't have",
                problems=[f"no such column: {identity}" for identity in unknown],
                hint="mend exclude and mask of this sink",
            )
        if now != known:
            self._records.save(self._hidden_record, json.dumps(now))


class ProjectingErasing(Erasing):
    """Erases in the destination of a ``ProjectingSink``, with the destination's names."""

    def __init__(self, sink: ProjectingSink, erasing: Erasing) -> None:
        self._sink = sink
        self._erasing = erasing

    def leftovers(self, table: Table, key: Mapping[str, JsonValue] | None) -> Sequence[Leftover]:
        return self._erasing.leftovers(self._sink.there(table), self._key(table, key))

    def erase(self, table: Table, key: Mapping[str, JsonValue] | None, *, below: str | None) -> Sequence[Leftover]:
        return self._erasing.erase(self._sink.there(table), self._key(table, key), below=below)

    def erased(self, tables: Collection[TableName]) -> Mapping[TableName, str]:
        return self._erasing.erased(tables)

    def _key(self, table: Table, key: Mapping[str, JsonValue] | None) -> Mapping[str, JsonValue] | None:
        return None if key is None else self._sink.key_there(table.name, key)
