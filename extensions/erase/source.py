"""The source: how it writes a key, and proof that it has no row with this key."""

from contextlib import closing
from dataclasses import replace

import psycopg
from psycopg import sql

from cdc.event_format.encode import TableEncoder
from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.lsn import Lsn, format_lsn, parse_lsn
from cdc.model.table import Table, TableName
from cdc.postgres.connection import connect
from cdc.postgres.slot import emit_heartbeat
from cdc.protocol.copy_text import split_row
from lockstep.config import Config
from lockstep.verify.canonical import Key, key_of_text, key_values
from lockstep.verify.sides.sink_view import SinkView
from lockstep.verify.sides.source import SourceSide
from lockstep.verify.source_load import Load
from lockstep.verify.waiting import Waiting
from sinks.columns.copy_text import array_literal, plain_text
from sinks.wrappers.projection import Projection


def deleted_at_source(config: Config, name: TableName, text: str, waiting: Waiting) -> Key:
    """The key in the form of events, of a row that doesn't exist. Raises ConfigurationError for a text that isn't a key
    of the table. Raises LockstepError if the source has the row.
    """
    side = SourceSide(
        config.source,
        names=[name],
        publication=config.publication,
        epoch=0,
        load=Load(pause_ratio=0),
        waiting=waiting,
        view=SinkView(Projection()),
        with_filters=False,
    )
    with closing(side):
        table = side.tables().get(name)
        if table is None:
            raise LockstepError(f"{name} isn't in the source any more", hint="`lockstep doctor` says what to do")
        key = _as_published(config, table, key_of_text(table, text))
        if side.rows(table, [key]):
            raise LockstepError(
                f"the source has this row of {name}",
                hint="delete it there first, then run the command again; nothing was changed",
            )
    return key


def lsn_now(config: Config) -> Lsn:
    """An LSN after everything committed. Capture reaches it even if nobody else writes."""
    with closing(connect(config.source, application="lockstep erase")) as connection:
        return emit_heartbeat(connection)


def kept_wal(config: Config) -> str | None:
    """The LSN from which on the slot holds WAL; None if there is no slot."""
    with closing(connect(config.source, application="lockstep erase")) as connection:
        row = connection.execute(
            "select restart_lsn::text from pg_replication_slots where slot_name = %s", (config.slot,)
        ).fetchone()
    return None if row is None or row[0] is None else format_lsn(parse_lsn(row[0]))


def _as_published(config: Config, table: Table, key: Key) -> Key:
    """A key in the text of the source's types, as in events: another text would be another key."""
    values = key_values(key)
    literals = []
    for column in table.key_columns:
        value = values[column.name]
        text = array_literal(value) if isinstance(value, list) else plain_text(value)
        literals.append(sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(column.type_name)))
    encoder = TableEncoder(replace(table, columns=table.key_columns), server="", database="", version="")
    with closing(connect(config.source, application="lockstep erase")) as connection:
        query = sql.SQL("copy (select {}) to stdout").format(sql.SQL(", ").join(literals))
        try:
            with connection.cursor() as cursor, cursor.copy(query) as copy:
                lines = [bytes(line) for line in copy]
        except psycopg.DataError:
            raise ConfigurationError(
                f"that is no key of {table.name}", hint="write it as events have it: `lockstep tail` shows them"
            ) from None
    return bytes(encoder.key(split_row(b"".join(lines)[:-1])))
