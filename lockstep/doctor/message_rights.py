"""Who may write logical messages, by which capture can be asked to copy a table again."""

from typing import Any

import psycopg

from cdc.model.finding import Finding, warning
from cdc.postgres.slot import emit_functions
from migrations.source import messages_sql


def message_findings(connection: psycopg.Connection[Any]) -> list[Finding]:
    """A finding if every role may write them, as by PostgreSQL's default."""
    functions = emit_functions(connection)
    row = connection.execute(
        "select current_user, exists (select from unnest(%s::regprocedure[]) as f(oid)"
        " where has_function_privilege('public', f.oid, 'execute'))",
        (functions,),
    ).fetchone()
    assert row is not None
    user, may_everybody = row
    if not may_everybody:
        return []
    return [
        warning(
            "logical messages",
            "every role may write them",
            "one of them is how capture is asked to copy a table again, which holds up others",
            messages_sql(user, functions),
        )
    ]
