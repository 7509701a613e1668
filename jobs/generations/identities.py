"""By what a generation's tables are known to be those that its job has prepared: the record ``g<n>.identities``.

A table that is removed from the destination, or put back to an earlier moment by itself, leaves the sink's progress as
it is: going on from there would lack what had been applied, and count as complete. So a job that begins compares, and
so does one that runs, now and then. Where an earlier version has applied, what is found first is noted.
"""

from collections.abc import Collection, Mapping

import orjson

from cdc.model.errors import NeedsRebuild
from cdc.model.table import TableName
from sinks.contract import CoordinationRecords, OpenedSink

Identities = Mapping[TableName, str]
"""Table -> what ``TableIdentities`` has told of it."""


def load_identities(records: CoordinationRecords, generation: int) -> dict[TableName, str]:
    """Those of a generation's tables. Raises what the destination raises."""
    text = records.load(identities_name(generation))
    entries: list[list[str]] = [] if text is None else orjson.loads(text)
    return {TableName(schema, name): identity for schema, name, identity in entries}


def dump_identities(identities: Identities) -> str:
    """The text of their record."""
    return orjson.dumps([[name.schema, name.name, text] for name, text in sorted(identities.items())]).decode()


def identities_name(generation: int) -> str:
    """The coordination record."""
    return f"g{generation}.identities"


def identities_of(opened: OpenedSink, tables: Collection[TableName]) -> Identities:
    """What the destination tells of these tables now: nothing where it can't. Raises what it raises."""
    return {} if opened.identities is None else opened.identities.identities(tables)


def lost_of(opened: OpenedSink, known: Identities) -> Mapping[TableName, str]:
    """What has become of those that are lost, as far as the destination can tell. Raises what it raises."""
    return {} if opened.identities is None else opened.identities.lost(known)


def known_of(identities: Identities, tables: Collection[TableName]) -> dict[TableName, str]:
    """What is known of each of these tables, "" where nothing is. Pure."""
    return {name: identities.get(name, "") for name in tables}


def lost_rows(sink: str, lost: Mapping[TableName, str]) -> dict[TableName, NeedsRebuild]:
    """The errors of tables that are ``lost``, each with what has become of it. Pure."""
    return {
        name: NeedsRebuild(
            f"the sink has lost rows of table {name}: its data was removed ({what})",
            hint=f"build the sink again from the log: lockstep rebuild {sink} --switch",
        )
        for name, what in sorted(lost.items())
    }
