"""How a job recognizes that a generation's tables are still those that it prepared: the record ``g<n>.identities``.

If a table is removed from the destination, or put back alone to an earlier moment, the sink's progress stays as it is.
A job that went on from there would lack what had been applied, and count as complete. So a job compares identities when
it begins, and now and then while it runs. Identities that aren't recorded yet, since an earlier version applied, are
taken from the first look.
"""

from collections.abc import Collection, Mapping

import orjson

from cdc.model.errors import NeedsRebuild
from cdc.model.table import TableName
from sinks.contract import CoordinationRecords, OpenedSink

Identities = Mapping[TableName, str]
"""Table -> its identity by ``TableIdentities``."""


def load_identities(records: CoordinationRecords, generation: int) -> dict[TableName, str]:
    """The recorded identities of a generation's tables. Raises what the destination raises."""
    text = records.load(identities_name(generation))
    entries: list[list[str]] = [] if text is None else orjson.loads(text)
    return {TableName(schema, name): identity for schema, name, identity in entries}


def dump_identities(identities: Identities) -> str:
    return orjson.dumps([[name.schema, name.name, text] for name, text in sorted(identities.items())]).decode()


def identities_name(generation: int) -> str:
    return f"g{generation}.identities"


def identities_of(opened: OpenedSink, tables: Collection[TableName]) -> Identities:
    """The present identities of these tables, empty if the destination has none. Raises what it raises."""
    return {} if opened.identities is None else opened.identities.identities(tables)


def lost_of(opened: OpenedSink, known: Identities) -> Mapping[TableName, str]:
    """The lost tables and what has happened to each, as far as the destination can tell. Raises what it raises."""
    return {} if opened.identities is None else opened.identities.lost(known)


def known_of(identities: Identities, tables: Collection[TableName]) -> dict[TableName, str]:
    """The known identity of each of these tables, "" if unknown. Pure."""
    return {name: identities.get(name, "") for name in tables}


def lost_rows(sink: str, lost: Mapping[TableName, str]) -> dict[TableName, NeedsRebuild]:
    """The errors for ``lost`` tables, each with what has happened to it. Pure."""
    return {
        name: NeedsRebuild(
            f"the sink has lost rows of table {name}: its data was removed ({what})",
            hint=f"build the sink again from the log: lockstep rebuild {sink} --switch",
        )
        for name, what in sorted(lost.items())
    }
