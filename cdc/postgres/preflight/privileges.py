"""Findings about missing privileges of our role, with the grants."""

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from cdc.model.finding import Finding, error, ok, one_per_statement, quoted_list, warning
from cdc.model.table import TableName, sql_identifier
from cdc.postgres.preflight.catalogue_facts import Relation

_MANAGED_REPLICATION = "rds_replication"
"""Managed services don't give out the attribute REPLICATION; membership in this role replaces it."""


def role_findings(
    connection: psycopg.Connection[Any],
    relations: Sequence[Relation],
    published: Mapping[TableName, frozenset[str]],
) -> list[Finding]:
    """``published`` are the columns that the publication sends of each table: only those are read."""
    row = connection.execute(
        "select current_user, rolreplication or rolsuper, exists (select from pg_roles m where m.rolname = %s),"
        " exists (select from pg_roles m where m.rolname = %s and pg_has_role(m.oid, 'member'))"
        " from pg_roles where rolname = current_user",
        (_MANAGED_REPLICATION, _MANAGED_REPLICATION),
    ).fetchone()
    assert row is not None
    user, has_attribute, is_managed, is_member = row
    quoted = sql_identifier(user)
    findings = []
    if has_attribute or is_member:
        findings.append(ok(f"role {user}", "has REPLICATION"))
    else:
        findings.append(
            error(
                f"role {user}",
                "lacks REPLICATION",
                "it can't open a replication connection",
                f"grant {_MANAGED_REPLICATION} to {quoted};" if is_managed else f"alter role {quoted} replication;",
            )
        )
    tables = [relation for relation in relations if relation.is_table]
    findings += readable(tables, published, user=user)
    for relation in tables:
        findings += partitions_readable(relation, user=user) + row_security(relation, user=user)
    return findings


def readable(
    relations: Sequence[Relation], published: Mapping[TableName, frozenset[str]], *, user: str
) -> list[Finding]:
    """One finding for all of these tables that our role can't read, with as few statements as possible."""
    whole: list[Relation] = []
    in_part: list[tuple[Relation, list[str]]] = []
    unreadable: list[Relation] = []
    for relation in relations:
        columns = published.get(relation.name, relation.column_names)
        unread = [a.name for a in relation.attributes if a.name in columns and not a.is_readable]
        if relation.may_select or not unread:
            if not relation.may_use_schema:
                unreadable.append(relation)
            continue
        unreadable.append(relation)
        if columns >= {a.name for a in relation.attributes if not a.generated}:
            whole.append(relation)
        else:
            in_part.append((relation, unread))
    if not unreadable:
        return []
    role = sql_identifier(user)
    grants = _schema_grants(unreadable, user)
    if whole:
        grants.append(f"grant select on {', '.join(relation.name.sql for relation in whole)} to {role};")
    grants += [
        f"grant select ({quoted_list(unread)}) on {relation.name.sql} to {role};" for relation, unread in in_part
    ]
    if len(unreadable) == 1:
        subject, what, them = unreadable[0].subject, f"role {user} can't read it", "it"
    else:
        names = ", ".join(str(relation.name) for relation in unreadable)
        subject, what, them = f"role {user}", f"can't read {len(unreadable)} of the tables: {names}", "them"
    return [error(subject, what, f"the snapshot copies {them} with SELECT privilege", one_per_statement(grants))]


def partitions_readable(relation: Relation, *, user: str) -> list[Finding]:
    leaves = [leaf for leaf in relation.leaves if leaf.is_table and not (leaf.may_use_schema and leaf.may_select)]
    if not leaves:
        return []
    grants = _schema_grants(leaves, user)
    names = ", ".join(leaf.name.sql for leaf in leaves if not leaf.may_select)
    if names:
        grants.append(f"grant select on {names} to {sql_identifier(user)};")
    owners = sorted({(leaf.owner, leaf.name.schema) for leaf in leaves})
    grants += [
        f"-- and for partitions to come: alter default privileges for role {sql_identifier(owner)}"
        f" in schema {sql_identifier(schema)} grant select on tables to {sql_identifier(user)};"
        for owner, schema in owners
    ]
    return [
        warning(
            relation.subject,
            f"role {user} can't read {len(leaves)} of {len(relation.leaves)} partitions by themselves",
            "the rows of a partition that is attached while capture runs are copied from the partition itself",
            one_per_statement(grants),
        )
    ]


def row_security(relation: Relation, *, user: str) -> list[Finding]:
    hiding = [member.name for member in (relation, *relation.leaves) if member.hides_rows]
    if not hiding:
        return []
    where = "" if hiding == [relation.name] else f" ({', '.join(str(name) for name in hiding)})"
    return [
        error(
            relation.subject,
            f"row level security hides rows of it from role {user}{where}",
            "the snapshot would lack them, while the stream sends every row",
            f"alter role {sql_identifier(user)} bypassrls;",
        )
    ]


def _schema_grants(relations: Sequence[Relation], user: str) -> list[str]:
    schemas = sorted({relation.name.schema for relation in relations if not relation.may_use_schema})
    return [f"grant usage on schema {quoted_list(schemas)} to {sql_identifier(user)};"] if schemas else []
