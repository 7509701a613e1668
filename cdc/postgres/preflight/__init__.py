"""Finds what would make capture fail or lose changes, before it starts. Only reads. ``catalogue_facts`` reads the
catalogue's facts about the captured tables. ``server``, ``privileges``, ``slots``, ``tables``, ``publication`` and
``locks`` judge their part. ``endpoint`` checks that a replication connection reaches the same server."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import psycopg

from cdc.model.finding import Finding
from cdc.model.table import TableName
from cdc.postgres.preflight.catalogue_facts import load_relations
from cdc.postgres.preflight.locks import load_lock_table, lock_findings
from cdc.postgres.preflight.privileges import role_findings
from cdc.postgres.preflight.publication import load_publication, missing_publication, publication_findings
from cdc.postgres.preflight.server import server_findings
from cdc.postgres.preflight.slots import slot_findings
from cdc.postgres.preflight.tables import table_findings

_NO_KEYS: Final[Mapping[TableName, tuple[str, ...]]] = {}


def check_source(
    connection: psycopg.Connection[Any],
    *,
    tables: Sequence[TableName],
    publication: str,
    slot: str,
    create_publication: str,
    keys: Mapping[TableName, tuple[str, ...]] = _NO_KEYS,
    append_only: Collection[TableName] = (),
) -> list[Finding]:
    """Every finding about the source database. Raises as ``connect`` if another connection to it fails.
    ``create_publication`` is the SQL that would create the publication, ``keys`` are the configured ones, and
    ``append_only`` the tables that may have none."""
    relations = load_relations(connection, tables)
    source_publication = load_publication(connection, publication, relations)
    capturable = [
        relations[name]
        for name in tables
        if name in relations
        and relations[name].is_table
        and not any(leaf.kind == "f" for leaf in relations[name].leaves)
    ]
    row = connection.execute(
        "select current_user, current_database(), has_database_privilege(current_database(), 'create')"
    ).fetchone()
    assert row is not None
    user, database, may_create = row
    return [
        *server_findings(connection),
        *role_findings(
            connection, capturable, {relation.name: source_publication.published(relation) for relation in capturable}
        ),
        *slot_findings(connection, slot),
        *table_findings(
            tables,
            relations,
            keys=keys,
            append_only=append_only,
            similar=_similar(connection, [name for name in tables if name not in relations]),
        ),
        *missing_publication(
            source_publication,
            capturable,
            database=database,
            user=user,
            may_create=may_create,
            create_sql=create_publication,
        ),
        *publication_findings(source_publication, capturable, keys=keys, version=connection.info.server_version),
        *lock_findings(capturable, load_lock_table(connection)),
    ]


def _similar(connection: psycopg.Connection[Any], missing: Sequence[TableName]) -> dict[TableName, list[TableName]]:
    """Tables that a misspelt name may mean: other capitals, or another schema."""
    return {
        name: [
            TableName(row[0], row[1])
            for row in connection.execute(
                "select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace"
                " where c.relkind in ('r', 'p') and lower(c.relname) = lower(%s) and n.nspname !~ '^pg_'"
                " order by 1, 2 limit 5",
                (name.name,),
            ).fetchall()
        ]
        for name in missing
    }
