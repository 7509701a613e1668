"""Findings about the publication: whether it sends every change of every captured table, as capture needs it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from cdc.model.finding import Finding, Severity, as_owner, error, ok, quoted_list, warning
from cdc.model.printable import toml_key, visible
from cdc.model.table import ReplicaIdentity, TableName, sql_identifier
from cdc.postgres.preflight.catalogue_facts import PARTITIONED, Relation
from cdc.postgres.preflight.tables import full_identity_sql, identity_sql, key_of
from cdc.postgres.versions import GENERATED_COLUMNS, PUBLICATION_LISTS

_KINDS = ("insert", "update", "delete", "truncate")
_REFUSED = (
    "PostgreSQL itself refuses UPDATE and DELETE of the table then (SQLSTATE 42P10): the application gets the error"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A table's own entry in the publication; ``columns`` is None without a column list."""

    columns: tuple[str, ...] | None
    filter: str | None
    filter_columns: frozenset[str]


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication as in the catalogue. ``columns`` are the published ones of each table that it sends. ``entries``
    are the tables that it lists, by oid; others come through their schema, their root or FOR ALL TABLES."""

    name: str
    exists: bool
    owner: str
    is_ours: bool
    has_all_tables: bool
    has_schemas: bool
    sends: frozenset[str]
    via_root: bool
    sends_generated: bool
    columns: Mapping[TableName, frozenset[str]]
    entries: Mapping[int, Entry]
    schemas: frozenset[str]

    @property
    def sql(self) -> str:
        return sql_identifier(self.name)

    @property
    def subject(self) -> str:
        return f"publication {self.name}"

    @property
    def sends_old_rows(self) -> bool:
        return bool(self.sends & {"update", "delete"})

    def fix(self, *statements: str) -> str:
        return as_owner(statements, owner=self.owner, is_ours=self.is_ours)

    def published(self, relation: Relation) -> frozenset[str]:
        """The columns that it sends of a table, or would send if the table were in it."""
        listed = self.columns.get(relation.name)
        if listed is None:
            return frozenset(
                a.name for a in relation.attributes if not a.generated or (a.generated == "s" and self.sends_generated)
            )
        return listed


def planned(name: str, version: int) -> Publication:
    """The publication that capture would create: every kind of change, partitions as their root, no lists or filters,
    and all columns that a server of this version can send."""
    return Publication(
        name,
        exists=False,
        owner="",
        is_ours=True,
        has_all_tables=False,
        has_schemas=False,
        sends=frozenset(_KINDS),
        via_root=True,
        sends_generated=version >= GENERATED_COLUMNS,
        columns={},
        entries={},
        schemas=frozenset(),
    )


def load_publication(
    connection: psycopg.Connection[Any], name: str, relations: Mapping[TableName, Relation]
) -> Publication:
    """The publication, or the one that capture would create if it doesn't exist."""
    version = connection.info.server_version
    generated = "pubgencols::text = 's'" if version >= GENERATED_COLUMNS else "false"
    row = connection.execute(
        "select oid, pg_get_userbyid(pubowner), pg_has_role(pubowner, 'usage'), puballtables, pubviaroot,"
        f" {generated}, pubinsert, pubupdate, pubdelete, pubtruncate from pg_publication where pubname = %s",
        (name,),
    ).fetchone()
    if row is None:
        return planned(name, version)
    oid, owner, is_ours, has_all_tables, via_root, sends_generated, *kinds = row
    lists = version >= PUBLICATION_LISTS
    schemas = (
        connection.execute(
            "select n.nspname from pg_publication_namespace p join pg_namespace n on n.oid = p.pnnspid"
            " where p.pnpubid = %s",
            (oid,),
        ).fetchall()
        if lists
        else []
    )
    return Publication(
        name,
        exists=True,
        owner=owner,
        is_ours=is_ours,
        has_all_tables=has_all_tables,
        has_schemas=bool(schemas),
        sends=frozenset(kind for kind, is_sent in zip(_KINDS, kinds, strict=True) if is_sent),
        via_root=via_root,
        sends_generated=sends_generated,
        columns=_columns(connection, name, relations, with_lists=lists),
        entries=_entries(connection, oid, with_lists=lists),
        schemas=frozenset(row[0] for row in schemas),
    )


def _columns(
    connection: psycopg.Connection[Any], name: str, relations: Mapping[TableName, Relation], *, with_lists: bool
) -> dict[TableName, frozenset[str]]:
    rows = connection.execute(
        f"select schemaname, tablename, {'attnames::text[]' if with_lists else 'null'}"
        " from pg_publication_tables where pubname = %s",
        (name,),
    ).fetchall()
    columns = {}
    for schema, table, names in rows:
        table_name = TableName(schema, table)
        relation = relations.get(table_name)
        ordinary = frozenset(a.name for a in relation.attributes if not a.generated) if relation else frozenset()
        columns[table_name] = frozenset(names) if names is not None else ordinary
        if connection.info.server_version < GENERATED_COLUMNS and relation is not None:
            columns[table_name] &= ordinary  # PostgreSQL 15 lists generated columns, but doesn't send them either
    return columns


def _entries(connection: psycopg.Connection[Any], oid: int, *, with_lists: bool) -> dict[int, Entry]:
    # The parsed condition names its columns by number; nothing else in the catalogue separates them from the list's.
    parts = (
        "case when r.prattrs is not null then array(select a.attname::text from pg_attribute a"
        " where a.attrelid = r.prrelid and a.attnum = any(r.prattrs::int2[]) order by a.attnum) end,"
        " pg_get_expr(r.prqual, r.prrelid), array(select a.attname::text from pg_attribute a"
        " where a.attrelid = r.prrelid and a.attnum in"
        " (select m[1]::int2 from regexp_matches(r.prqual::text, ':varattno (\\d+)', 'g') as m))"
        if with_lists
        else "null, null, '{}'::text[]"
    )
    rows = connection.execute(
        f"select r.prrelid::bigint, {parts} from pg_publication_rel r where r.prpubid = %s", (oid,)
    ).fetchall()
    return {row[0]: Entry(tuple(row[1]) if row[1] is not None else None, row[2], frozenset(row[3])) for row in rows}


def publication_findings(
    publication: Publication,
    relations: Sequence[Relation],
    *,
    keys: Mapping[TableName, tuple[str, ...]],
    version: int,
) -> list[Finding]:
    """``relations`` are the captured ones that can be published at all."""
    findings = _kinds(publication) + _membership(publication, relations) + _extra(publication, relations)
    for relation in relations:
        if relation.name in publication.columns or not publication.exists:
            findings += _sent(publication, relation, key_of(relation, keys.get(relation.name)), version)
    if publication.exists and not any(finding.severity is not Severity.OK for finding in findings):
        findings.append(ok(publication.subject, f"publishes {len(relations)} tables"))
    if publication.exists and not publication.is_ours:
        findings.append(
            ok(publication.subject, f"belongs to {publication.owner}", "changes to it are for that role to make")
        )
    return findings


def entry_findings(
    publication: Publication, relation: Relation, *, configured_key: tuple[str, ...] | None, version: int
) -> list[Finding]:
    """Whether an existing publication sends all changes of this one table, with its key."""
    findings = _membership(publication, [relation])
    if relation.name in publication.columns:
        findings += _sent(publication, relation, key_of(relation, configured_key), version)
    return findings


def _sent(publication: Publication, relation: Relation, key: Sequence[str], version: int) -> list[Finding]:
    return [
        *_filter(publication, relation),
        *_key_published(publication, relation, key, version),
        *_generated(publication, relation, key, version),
    ]


def missing_publication(
    publication: Publication,
    relations: Sequence[Relation],
    *,
    database: str,
    user: str,
    may_create: bool,
    create_sql: str,
) -> list[Finding]:
    """Whether capture can create it. ``may_create``: our role has CREATE on the database."""
    if publication.exists:
        return []
    foreign = [relation for relation in relations if not relation.is_ours]
    if not foreign and may_create:
        return [ok(publication.subject, f"doesn't exist yet; capture creates it: {create_sql}")]
    reasons = [] if may_create else [f"CREATE on database {database}"]
    reasons += [f"to own {', '.join(str(relation.name) for relation in foreign)}"] if foreign else []
    if not foreign:
        fix = f"grant create on database {sql_identifier(database)} to {sql_identifier(user)};"
    else:
        owners = sorted({relation.owner for relation in relations})
        who = visible(owners[0]) if len(owners) == 1 else "a superuser, since the tables have several owners"
        fix = f"{create_sql}  -- as {who}"
    return [
        error(
            publication.subject,
            "doesn't exist",
            f"role {user} can't create it: it lacks {' and '.join(reasons)}",
            fix,
        )
    ]


def _kinds(publication: Publication) -> list[Finding]:
    if publication.sends == set(_KINDS):
        return []
    return [
        error(
            publication.subject,
            "leaves out some kinds of changes",
            f"{', '.join(kind for kind in _KINDS if kind not in publication.sends)} would be lost without a word",
            publication.fix(f"alter publication {publication.sql} set (publish = '{', '.join(_KINDS)}');"),
        )
    ]


def _membership(publication: Publication, relations: Sequence[Relation]) -> list[Finding]:
    """Tables whose changes it doesn't send, or sends under another table's name."""
    if not publication.exists:
        return []
    findings = []
    as_leaves = [relation for relation in relations if relation.kind == PARTITIONED] if not publication.via_root else []
    if as_leaves:
        findings.append(
            error(
                publication.subject,
                f"sends changes of {_listed(as_leaves)} under the names of the partitions",
                "partitions come and go; the table is what is captured",
                publication.fix(f"alter publication {publication.sql} set (publish_via_partition_root = true);"),
            )
        )
    absent = [relation for relation in relations if relation.name not in publication.columns]
    as_root = [
        relation
        for relation in absent
        if publication.via_root and any(ancestor in publication.columns for ancestor in relation.ancestors)
    ]
    for relation in as_root:
        root = next(ancestor for ancestor in reversed(relation.ancestors) if ancestor in publication.columns)
        switch = f"alter publication {publication.sql} set (publish_via_partition_root = false);"
        findings.append(
            error(
                publication.subject,
                f"sends changes of {relation.name} under the name of {root}",
                f"it is a partition of {root}, and publish_via_partition_root is on: its own topic would get nothing",
                f"put {root} into source.tables in its place"
                if any(other.kind == PARTITIONED for other in relations)
                else publication.fix(switch) + f"\n-- or put {root} into source.tables in its place",
            )
        )
    missing = [
        relation
        for relation in absent
        if relation not in as_root and not (relation in as_leaves and _is_member(publication, relation))
    ]
    if missing:
        tables = ", ".join(relation.name.sql for relation in missing)
        findings.append(
            error(
                publication.subject,
                f"lacks {_listed(missing)}",
                "their changes aren't in the stream",
                publication.fix(f"alter publication {publication.sql} add table {tables};"),
            )
        )
    return findings


def _is_member(publication: Publication, relation: Relation) -> bool:
    """Whether it is in the publication, even if its changes are sent under other names."""
    return (
        publication.has_all_tables or relation.oid in publication.entries or relation.name.schema in publication.schemas
    )


def _listed(relations: Sequence[Relation]) -> str:
    return ", ".join(str(relation.name) for relation in relations)


def _extra(publication: Publication, relations: Sequence[Relation]) -> list[Finding]:
    wanted_names = {relation.name for relation in relations}
    if not publication.via_root:
        wanted_names |= {leaf.name for relation in relations for leaf in relation.leaves}
    extra = sorted(name for name in publication.columns if name not in wanted_names)
    if not extra:
        return []
    shown = ", ".join(str(name) for name in extra[:10]) + (f" and {len(extra) - 10} more" if len(extra) > 10 else "")
    by_list = not publication.has_all_tables and not publication.has_schemas
    return [
        warning(
            publication.subject,
            f"holds tables that aren't captured: {shown}",
            "capture passes over their changes, but PostgreSQL decodes and sends them; and where such a table has no"
            " replica identity, PostgreSQL refuses its UPDATE and DELETE",
            publication.fix(f"alter publication {publication.sql} drop table {', '.join(name.sql for name in extra)};")
            if by_list
            else "add them to source.tables, or create a publication of the captured tables: source.publication",
        )
    ]


def _filter(publication: Publication, relation: Relation) -> list[Finding]:
    entry = publication.entries.get(relation.oid)
    if entry is None or entry.filter is None:
        return []
    findings = [
        ok(
            publication.subject,
            f"sends only rows of {relation.name} with {entry.filter}",
            "others are neither copied nor captured",
        )
    ]
    lacking = sorted({c for member in _stored(relation) for c in entry.filter_columns - member.identity_columns()})
    if lacking and publication.sends_old_rows:
        findings.append(
            warning(
                publication.subject,
                f"filters the rows of {relation.name} by {', '.join(lacking)}, which its replica identity doesn't hold",
                _REFUSED,
                "\n".join(
                    member.as_owner(full_identity_sql(member))
                    for member in _with_root(relation)
                    if entry.filter_columns - member.identity_columns()
                )
                if entry.columns is None
                else _relisted(publication, relation, entry.columns, None)
                + "\n-- or, to keep the filter: publish it without the column list, and give it REPLICA IDENTITY FULL",
            )
        )
    return findings


def _stored(relation: Relation) -> Sequence[Relation]:
    """The relations with the rows, whose replica identities count."""
    return relation.leaves or (relation,)


def _with_root(relation: Relation) -> Sequence[Relation]:
    return (relation, *relation.leaves)


def _relisted(
    publication: Publication, relation: Relation, columns: Sequence[str] | None, condition: str | None
) -> str:
    """Replace an entry by dropping and adding it, in one transaction, so that no change is lost in between."""
    listed = f" ({quoted_list(columns)})" if columns is not None else ""
    where = f" where ({condition})" if condition else ""
    return publication.fix(
        "begin;",
        f"alter publication {publication.sql} drop table {relation.name.sql};",
        f"alter publication {publication.sql} add table {relation.name.sql}{listed}{where};",
        "commit;",
    )


def _key_published(publication: Publication, relation: Relation, key: Sequence[str], version: int) -> list[Finding]:
    """Column lists that leave out what capture, or PostgreSQL itself, needs."""
    entry = publication.entries.get(relation.oid)
    if entry is None or entry.columns is None:
        return []
    findings = []
    # Before generated columns could be published, no list may name one.
    possible = {
        a.name for a in relation.attributes if not a.generated or (a.generated == "s" and version >= GENERATED_COLUMNS)
    }
    lacking = [column for column in key if column not in entry.columns]
    full = relation.identity is ReplicaIdentity.FULL
    delivered = frozenset(column for member in _stored(relation) for column in member.identity_columns())
    wanted_columns = {*entry.columns, *key, *(() if full else delivered)} & possible
    listed = [a.name for a in relation.attributes if a.name in wanted_columns]
    if lacking:
        findings.append(
            error(
                publication.subject,
                f"leaves out key columns of {relation.name}: {', '.join(lacking)}",
                "events are keyed by them",
                _relisted(publication, relation, listed, entry.filter),
            )
        )
    if not publication.sends_old_rows:
        return findings
    if any(member.identity is ReplicaIdentity.FULL for member in _stored(relation)):
        smaller = [identity_sql(member, key) for member in _with_root(relation)]
        findings.append(
            error(
                publication.subject,
                f"has a column list for {relation.name}, whose replica identity is FULL",
                _REFUSED,
                _relisted(publication, relation, None, entry.filter)
                if lacking or any(sql.endswith(" full;") for sql in smaller)
                else relation.as_owner(*smaller),
            )
        )
        return findings
    hidden = sorted(column for column in delivered if column not in entry.columns and column not in lacking)
    if hidden:
        findings.append(
            error(
                publication.subject,
                f"leaves out columns of the replica identity of {relation.name}: {', '.join(hidden)}",
                _REFUSED,
                _relisted(publication, relation, listed, entry.filter),
            )
        )
    return findings


def _generated(publication: Publication, relation: Relation, key: Sequence[str], version: int) -> list[Finding]:
    """Generated columns that aren't sent: for information, but an error in a key or a replica identity."""
    entry = publication.entries.get(relation.oid)
    listed = entry is not None and entry.columns is not None
    published = publication.published(relation)
    hidden = [a for a in relation.generated if a.name not in published]
    if not hidden:
        return []
    names = {a.name for a in hidden}
    findings = []
    in_key = [column for column in key if column in names]
    knows = version >= GENERATED_COLUMNS and all(a.generated == "s" for a in hidden)
    publish = publication.fix(f"alter publication {publication.sql} set (publish_generated_columns = stored);")
    if in_key and not listed:
        findings.append(
            error(
                relation.subject,
                f"its key holds generated columns that aren't published: {', '.join(in_key)}",
                "events are keyed by them",
                publish
                if knows and publication.exists
                else f"configure a key without them: [source.options.{toml_key(str(relation.name))}] key = [...]",
            )
        )
    in_identity = sorted({c for member in _stored(relation) for c in member.identity_columns() if c in names})
    # With a column list, that finding reports it already.
    if in_identity and not in_key and not listed and version >= GENERATED_COLUMNS and publication.sends_old_rows:
        findings.append(
            error(
                relation.subject,
                f"its replica identity holds generated columns that aren't published: {', '.join(in_identity)}",
                _REFUSED,
                publish
                if knows and publication.exists
                else "\n".join(
                    member.as_owner(_identity_without(member, key, names)) for member in _with_root(relation)
                ),
            )
        )
    if not findings:
        what = f"generated columns that aren't published: {', '.join(a.name for a in hidden)}"
        may_be_sent = knows and publication.exists and not listed
        findings.append(
            Finding(Severity.OK, relation.subject, what, "to have them, too, which copies the tables again", publish)
            if may_be_sent
            else ok(relation.subject, what)
        )
    return findings


def _identity_without(relation: Relation, key: Sequence[str], columns: frozenset[str] | set[str]) -> str:
    """The replica identity to set if it must not hold these columns."""
    sql = identity_sql(relation, key)
    if sql.endswith(" full;") or columns & set(key):
        return f"-- {relation.name} needs a unique index over columns that aren't generated, and it as replica identity"
    return sql
