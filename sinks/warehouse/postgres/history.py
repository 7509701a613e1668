"""The table of a history: DDL, lines of COPY, and the statements that add versions (pure)."""

from collections.abc import Iterable, Iterator
from datetime import timedelta

from cdc.model.table import quote_identifier
from sinks.columns.copy_text import copy_line
from sinks.columns.shape import Shape
from sinks.contract import TableVersions
from sinks.warehouse.history import COMMITTED, EPOCH, OPERATION, aside_name, check_history_columns
from sinks.warehouse.names import TAG_COLUMN, listed
from sinks.warehouse.postgres.staging import Staging
from sinks.warehouse.postgres.tables import Rows, assignments, column_definitions


def create_history_sql(target: str, shape: Shape) -> str:
    """DDL of a history's table. Raises LockstepError for a column with the name of one of ours."""
    check_history_columns(shape)
    lines = column_definitions(shape)
    lines.append(f'{quote_identifier(TAG_COLUMN)} char(28) collate "C" not null')
    lines.append(f"{quote_identifier(COMMITTED)} timestamptz not null")
    lines.append(f"{quote_identifier(OPERATION)} text not null")
    lines.append(f"primary key ({listed([*shape.table.key, TAG_COLUMN])})")
    return f"create table if not exists {target} (\n  " + ",\n  ".join(lines) + "\n)"


def set_aside_sql(target: str, name: str, number: int) -> str:
    """Rename a column that the source has dropped to a unique name. ``number`` is the column's own in the table."""
    return (
        f"alter table {target} rename column {quote_identifier(name)} to {quote_identifier(aside_name(name, number))}"
    )


def trim_sql(target: str, shape: Shape, *, complete_from_ms: int, below: str, first_block: int, end_block: int) -> str:
    """Delete the versions in these blocks, with tags less than ``below``, that no reader at that time or later finds.

    These are versions that were replaced by that time, and deletions from before it once all that they end is gone. The
    query returns the greatest deleted tag, '' for none.
    """
    tag, committed, operation = map(quote_identifier, (TAG_COLUMN, COMMITTED, OPERATION))
    until = f"'{(EPOCH + timedelta(milliseconds=complete_from_ms)).isoformat()}'"
    same_row = " and ".join(f"other.{name} = known.{name}" for name in map(quote_identifier, shape.table.key))
    other = f"select from {target} as other where {same_row} and other.{tag}"
    # A version begins no earlier than the one before it, whatever the clock said.
    later = (
        f"select from {target} as late where {same_row.replace('other.', 'late.')} and late.{tag} < other.{tag} "
        f"and late.{committed} > {until}"
    )
    return (
        f"with gone as (delete from {target} as known "
        f"where ctid >= '({first_block},0)' and ctid < '({end_block},0)' and {tag} < '{below}' and ("
        f"exists ({other} > known.{tag} and other.{committed} <= {until} and not exists ({later})) "
        f"or {operation} = 'd' and {committed} <= {until} and not exists ({other} < known.{tag})"
        f") returning {tag} as tag) select coalesce(max(tag), '') from gone"
    )


class HistoryStatements(Rows):
    """The SQL of one table's history, created once per connection and shape."""

    def __init__(self, target: str, shape: Shape, staging: Staging) -> None:
        super().__init__(shape)
        self.target = target
        self.staging = staging
        stage = staging.relation
        identity = [*shape.table.key, TAG_COLUMN]
        columns = [*self.columns, TAG_COLUMN, COMMITTED, OPERATION]
        stored = listed(columns)
        self.copy = f"copy {stage} ({stored}) from stdin"
        committed, operation = quote_identifier(COMMITTED), quote_identifier(OPERATION)
        # In one order, so that two writers of the same versions can't deadlock. A version may be staged twice. The time
        # of a tombstone whose event is gone is the record's, which is later, so the earliest time counts. All rows of a
        # copy have one tag: the deletion of a key's former text may come beside the row with the new text, which wins.
        self._into = (
            f"insert into {target} as known ({stored})\nselect distinct on ({listed(identity)}) {stored} from {stage}"
        )
        same = " and ".join(f"held.{name} = given.{name}" for name in map(quote_identifier, identity))
        self._kept_out = f"from {stage} as given where not exists (select from {target} as held where {same})"
        # Columns that the source has dropped stay unchanged: a version that comes again lacks them.
        others = assignments([*(column.name for column in shape.table.columns), OPERATION])
        self._merge = (
            f"order by {listed(identity)}, {operation} = 'd', {committed}\n"
            f"on conflict ({listed(identity)}) do update\n"
            f"set {others}, {committed} = least(known.{committed}, excluded.{committed})"
        )
        self._if_better = (
            f"\nwhere known.{operation} = 'd' and excluded.{operation} <> 'd'"
            f" or known.{operation} = excluded.{operation} and excluded.{committed} < known.{committed}"
        )

    def keep(self, purged: str, *, overwrite_equal_tags: bool) -> str:
        """Adds the staged versions, except those up to the tag ``purged`` ("": none), which are repetitions."""
        newer = f"where {quote_identifier(TAG_COLUMN)} > '{purged}'\n" if purged else ""
        return f"{self._into} {newer}{self._merge}{'' if overwrite_equal_tags else self._if_better}"

    def kept_out(self, purged: str) -> str:
        """Whether ``keep`` failed to add a staged version."""
        newer = f" and given.{quote_identifier(TAG_COLUMN)} > '{purged}'" if purged else ""
        return f"select exists (select {self._kept_out}{newer})"

    def version_blocks(self, versions: TableVersions) -> Iterator[bytes]:
        """Versions as lines of COPY, many at a time. Raises UnknownColumn."""
        operations = {operation: copy_line([operation])[:-1] for operation in set(versions.operations)}
        times = _times(versions.commit_times_ms)
        ends = [f"{time}\t{operations[each]}" for time, each in zip(times, versions.operations, strict=True)]
        return self.blocks_ending(versions.events, ends)


def _times(times_ms: Iterable[int]) -> Iterator[str]:
    """Timestamps as text. Consecutive ones are often equal: they belong to one transaction."""
    known_ms, text = 0, EPOCH.isoformat()
    for time_ms in times_ms:
        if time_ms != known_ms:
            known_ms, text = time_ms, (EPOCH + timedelta(milliseconds=time_ms)).isoformat()
        yield text
