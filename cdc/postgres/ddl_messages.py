"""Messages of an event trigger that the source may have: some statement has altered a table, a type or a publication.

They say that something was altered, not what: the catalogue says that, and anybody may write such messages.
"""

from typing import Any, Final

import psycopg

DDL_PREFIX: Final = "lockstep.ddl"
"""Prefix of the messages. They are never published, whatever prefixes are configured."""

EVENT_TRIGGER: Final = "lockstep_ddl"


def are_sent(connection: psycopg.Connection[Any]) -> bool:
    """Whether the event trigger is there, and switched on."""
    row = connection.execute(
        "select evtenabled in ('O', 'A') from pg_event_trigger where evtname = %s", (EVENT_TRIGGER,)
    ).fetchone()
    return bool(row and row[0])
