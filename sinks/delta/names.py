"""Names of directories and columns in a lake, and which are refused."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from cdc.model.errors import LockstepError
from cdc.model.table import Table, TableName
from sinks.columns.shape import unfit_column

OWN_COLUMNS: Final = ("_exact", "_tag", "_deleted")
"""The columns that the sink adds to each table."""

SYNCED_COLUMN: Final = "_synced_at"
"""The column with the time of a row's last write, if the settings want it."""

_DIRECTORY_BYTES_MAX: Final = 240
"""The longest name of a table's directory. A file system takes 255 bytes, and a number may follow it."""

_DELTALAKES: Final = "__delta_rs_"
"""The prefix of the columns that deltalake adds during a merge."""


def delta_name(name: TableName) -> str:
    text = name.name if name.schema == "public" else f"{name.schema}__{name.name}"
    return re.sub(r"[^A-Za-z0-9_]", lambda match: "".join(f".{byte:02x}" for byte in match[0].encode()), text)


def quoted(name: str, *, of: str = "") -> str:
    quoted = '"' + name.replace('"', '""') + '"'
    return f"{of}.{quoted}" if of else quoted


def check_columns(table: Table, *, synced_at: bool = False) -> None:
    """Raise LockstepError for columns that a Delta table can't have. ``synced_at``: it has that column of ours, too."""
    taken: dict[str, str] = {}
    ours = {*OWN_COLUMNS, SYNCED_COLUMN} if synced_at else OWN_COLUMNS
    for column in table.columns:
        name = column.name
        if name.lower() in ours:
            raise unfit_column(table.name, name, "a name that the Delta sink needs for itself")
        if name.lower().startswith(_DELTALAKES):
            raise unfit_column(table.name, name, "a name that deltalake needs for itself")
        if "`" in name:
            raise unfit_column(table.name, name, "and deltalake can't merge by names with a backtick")
        other = taken.setdefault(name.lower(), name)
        if other != name:
            raise unfit_column(table.name, name, f"which is the same for Delta as {other!r}")


def check_partitions(table: Table, partitions: Sequence[str]) -> None:
    """Raise LockstepError for columns by which a Delta table can't be partitioned."""
    from sinks.delta.values import may_partition

    columns = {column.name: column for column in table.columns}
    for name in partitions:
        if name not in columns:
            raise LockstepError(
                f"table {table.name} has no column {name!r} to be partitioned by", hint="mend partition_by of this sink"
            )
        if not may_partition(columns[name], is_key=name in table.key):
            raise LockstepError(
                f"table {table.name} can't be partitioned by {name!r}, which is {columns[name].type_name}",
                hint="partition by a boolean, integer, date or text column: mend partition_by of this sink",
            )


def unfit_tables(
    tables: Iterable[Table], *, known: Iterable[TableName] = (), synced_at: bool = False
) -> dict[TableName, LockstepError]:
    """Tables that a lake with the ``known`` ones can't hold, with errors: of two with the same directory, the later."""
    taken = {delta_name(name): name for name in known}
    unfit: dict[TableName, LockstepError] = {}
    for table in tables:
        try:
            check_columns(table, synced_at=synced_at)
            _take_name(table.name, taken)
        except LockstepError as error:
            unfit[table.name] = error
    return unfit


def _take_name(name: TableName, taken: dict[str, TableName]) -> None:
    directory = delta_name(name)
    if len(directory) > _DIRECTORY_BYTES_MAX:
        raise LockstepError(
            f"table {name}: its directory would have a name of {len(directory)} bytes, and a lake's have no more than "
            f"{_DIRECTORY_BYTES_MAX}",
            hint="leave it out of the tables of this sink",
        )
    if (other := taken.setdefault(directory, name)) != name:
        raise LockstepError(
            f"tables {other} and {name} would both have the name {directory!r} in the lake",
            hint="give one of them to another sink with another prefix: set tables of both sinks",
        )
