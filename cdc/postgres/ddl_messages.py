"""Messages of the source's optional event trigger: a statement has altered a table, a type or a publication. They don't
say what was altered: the catalogue shows that, and anybody may write such messages."""

from typing import Any, Final

import psycopg

DDL_PREFIX: Final = "lockstep.ddl"
"""Prefix of the messages. They are never published, whatever prefixes are configured."""

EVENT_TRIGGER: Final = "lockstep_ddl"


def are_sent(connection: psycopg.Connection[Any]) -> bool:
    """Whether the event trigger exists and is enabled."""
    row = connection.execute(
        "select evtenabled in ('O', 'A') from pg_event_trigger where evtname = %s", (EVENT_TRIGGER,)
    ).fetchone()
    return bool(row and row[0])
