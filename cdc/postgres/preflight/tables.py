"""Findings about the tables: what they are, their key, what the WAL holds of old rows, large values. Pure."""

from collections.abc import Callable, Collection, Mapping, Sequence

from cdc.model.finding import Finding, error, ok, quoted_list, warning
from cdc.model.printable import toml_key, toml_text
from cdc.model.table import ReplicaIdentity, TableName, sql_identifier
from cdc.postgres.preflight.catalogue_facts import PARTITIONED, Index, Relation

_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "S": "a sequence",
    "i": "an index",
    "I": "an index",
    "c": "a composite type",
    "t": "a TOAST table",
}
_SYSTEM_SCHEMAS = frozenset({"pg_catalog", "information_schema", "pg_toast"})


def table_findings(
    names: Sequence[TableName],
    relations: Mapping[TableName, Relation],
    *,
    keys: Mapping[TableName, tuple[str, ...]],
    append_only: Collection[TableName],
    similar: Mapping[TableName, Sequence[TableName]],
) -> list[Finding]:
    """``keys`` are configured; ``similar`` are tables of nearly the same name as one that doesn't exist."""
    findings = []
    large: list[str] = []
    for name in names:
        relation = relations.get(name)
        if relation is None:
            findings.append(_missing(name, similar.get(name, ())))
            continue
        problem = _not_capturable(relation)
        if problem is not None:
            findings.append(problem)
            continue
        problems = _partitions(relation)
        problems += _append_only(relation) if name in append_only else _keyed(relation, keys.get(name))
        problems += _fits_root(relation, is_keyed=name not in append_only)
        problems += _heirs(relation)
        findings += problems or [ok(relation.subject, _described(relation, keys.get(name), name in append_only))]
        # PostgreSQL refuses any update of a table without identity, so none leaves a large value out.
        if any(member.identity_columns() for member in (relation, *relation.leaves)):
            large += _large_values(relation)
        findings += _opaque_types(relation)
    if large:
        findings.append(
            ok("large values", f"updates leave them out, and capture keeps them itself: {', '.join(large)}")
        )
    return findings


def key_of(relation: Relation, configured: tuple[str, ...] | None) -> tuple[str, ...]:
    """The columns that key the events: the configured ones, else the primary key; empty if there is neither."""
    if configured:
        return configured
    return relation.primary.columns if relation.primary is not None else ()


def identity_sql(relation: Relation, key: Sequence[str]) -> str:
    """The cheapest replica identity that delivers the key: the primary key, another index, else the whole row."""
    primary = relation.primary
    if primary is not None and primary.is_immediate and set(key) <= set(primary.columns):
        return f"alter table {relation.name.sql} replica identity default;"
    for index in relation.indexes:
        if _can_be_identity(relation, index) and set(key) <= set(index.columns):
            return f"alter table {relation.name.sql} replica identity using index {sql_identifier(index.name)};"
    return full_identity_sql(relation)


def full_identity_sql(relation: Relation) -> str:
    return f"alter table {relation.name.sql} replica identity full;"


def _can_be_identity(relation: Relation, index: Index) -> bool:
    return index.is_distinct and index.is_immediate and relation.not_null(index.columns)


def _described(relation: Relation, configured: tuple[str, ...] | None, append_only: bool) -> str:
    count = len(relation.leaves)
    partitions = f", {count} partition{'s' if count != 1 else ''}" if relation.kind == PARTITIONED else ""
    if append_only:
        return f"append-only: its topic keeps every event{partitions}"
    return f"key {', '.join(key_of(relation, configured))}{' (configured)' if configured else ''}{partitions}"


def _missing(name: TableName, similar: Sequence[TableName]) -> Finding:
    nearby = f"; there is {', '.join(str(other) for other in similar)}" if similar else ""
    return error(
        f"table {name}",
        "doesn't exist",
        "source.tables names it",
        f"correct source.tables (names are case-sensitive){nearby}",
    )


def _not_capturable(relation: Relation) -> Finding | None:
    out = "take it out of source.tables"
    if relation.name.schema in _SYSTEM_SCHEMAS:
        return error(relation.subject, "belongs to the system", "PostgreSQL doesn't publish its own tables", out)
    if relation.kind in _KINDS:
        derived = relation.kind in ("v", "m")
        return error(
            relation.subject,
            f"is {_KINDS[relation.kind]}",
            "only tables have changes of their own in the WAL",
            f"{out}, and name the tables that it is made from" if derived else out,
        )
    if relation.persistence == "t":
        return error(
            relation.subject,
            "is a temporary table",
            "its changes aren't in the WAL, and it ends with its session",
            f"{out}, or create it as an ordinary table",
        )
    if relation.persistence == "u":
        return error(
            relation.subject,
            "is unlogged",
            "its changes aren't in the WAL",
            relation.as_owner(f"alter table {relation.name.sql} set logged;"),
        )
    return None


def _partitions(relation: Relation) -> list[Finding]:
    """Partitions whose changes never reach the WAL."""
    foreign = [leaf for leaf in relation.leaves if leaf.kind == "f"]
    unlogged = [leaf for leaf in relation.leaves if leaf.kind == "r" and leaf.persistence == "u"]
    findings = []
    if foreign:
        findings.append(
            error(
                relation.subject,
                f"has foreign tables as partitions: {_listed(foreign)}",
                "their rows change on another server, whose WAL isn't ours; PostgreSQL can't publish such a table",
                "\n".join(
                    f"alter table {relation.name.sql} detach partition {leaf.name.sql};"
                    "  -- and capture it on its own server"
                    for leaf in foreign
                )
                if all(leaf.ancestors[:1] == (relation.name,) for leaf in foreign)
                else "detach them, and capture them on their own server",
                hides_changes=True,
            )
        )
    if unlogged:
        findings.append(
            error(
                relation.subject,
                f"has unlogged partitions: {_listed(unlogged)}",
                "their changes aren't in the WAL",
                "\n".join(leaf.as_owner(f"alter table {leaf.name.sql} set logged;") for leaf in unlogged),
                hides_changes=True,
            )
        )
    return findings


def _listed(relations: Sequence[Relation]) -> str:
    return ", ".join(str(relation.name) for relation in relations)


def _append_only(relation: Relation) -> list[Finding]:
    if relation.primary is not None:
        return [
            error(
                relation.subject,
                "is configured as append_only, and it has a primary key",
                "a topic that keeps every event grows for ever; with the key, the newest event of each row is enough",
                f"take append_only out of [source.options.{toml_key(str(relation.name))}]",
            )
        ]
    if any(member.identity_columns() for member in (relation, *relation.leaves)):
        return []
    # Configuring append_only states that the application never does that.
    return [_no_identity(relation, _all_full(relation), "it has no key and no replica identity", finding_of=warning)]


def _all_full(relation: Relation) -> str:
    """REPLICA IDENTITY FULL for a table and its partitions, which ALTER TABLE doesn't reach through the table."""
    return "\n".join(
        member.as_owner(full_identity_sql(member))
        for member in (relation, *(leaf for leaf in relation.leaves if leaf.is_table))
        if member.identity is not ReplicaIdentity.FULL
    )


def _no_identity(relation: Relation, fix: str, because: str, finding_of: Callable[..., Finding] = error) -> Finding:
    return finding_of(
        relation.subject,
        f"{because}: PostgreSQL refuses UPDATE and DELETE",
        "the application itself gets the error, from the moment on that the table is published",
        fix,
    )


def _keyed(relation: Relation, configured: tuple[str, ...] | None) -> list[Finding]:
    key = key_of(relation, configured)
    if not key:
        return [_no_key(relation)]
    index = _index_over(relation, key)
    findings = _configured_key(relation, configured, index) if configured else []
    if relation.column_names.issuperset(key):
        # The fixes of the earlier findings will exist by then.
        name = index.name if index is not None else _index_name(relation, key)
        findings += _delivered(relation, key, index=index, identity_index=name if findings else None)
    return findings


def _index_name(relation: Relation, key: Sequence[str]) -> str:
    """What PostgreSQL would call a new unique index, so that the next statement can name it."""
    taken = {index.name for index in relation.indexes}
    name = f"{relation.name.name}_{'_'.join(key)}_key"
    while name in taken:
        name += "1"
    return name


def _index_over(relation: Relation, key: Sequence[str]) -> Index | None:
    """The unique index over exactly the key, preferably an immediate one."""
    candidates = [index for index in relation.indexes if index.is_distinct and set(index.columns) == set(key)]
    return next((index for index in candidates if index.is_immediate), candidates[0] if candidates else None)


def _no_key(relation: Relation) -> Finding:
    candidates = [index for index in relation.indexes if index.is_distinct and relation.not_null(index.columns)]
    ways = []
    if candidates:
        columns = candidates[0].columns
        ways.append(f"alter table {relation.name.sql} add primary key ({quoted_list(columns)});")
        listed = ", ".join(map(toml_text, columns))
        ways.append(f"-- or in lockstep.toml: [source.options.{toml_key(str(relation.name))}] key = [{listed}]")
    elif relation.kind == PARTITIONED:
        ways.append(
            f"alter table {relation.name.sql} add primary key (...);  -- columns of the partition key among them"
        )
    elif "id" not in relation.column_names:
        ways.append(f"alter table {relation.name.sql} add column id bigint generated always as identity primary key;")
    else:
        ways.append(f"alter table {relation.name.sql} add primary key (id);  -- if id is unique and never null")
    section = f"[source.options.{toml_key(str(relation.name))}]"
    ways.append(f"-- or, if its rows only come and never change: {section} append_only = true")
    return error(
        relation.subject,
        "has no primary key",
        "events are keyed by it; without a key, nothing identifies a row",
        relation.as_owner(*ways[:1]) + "\n" + "\n".join(ways[1:]),
    )


def _configured_key(relation: Relation, key: tuple[str, ...], index: Index | None) -> list[Finding]:
    """Whether the columns can be a key: they exist, are unique together and are never null."""
    table = relation.name.sql
    missing = [column for column in key if column not in relation.column_names]
    if missing:
        have = ", ".join(attribute.name for attribute in relation.attributes)
        return [
            error(
                relation.subject,
                f"the configured key names columns that it doesn't have: {', '.join(missing)}",
                "events are keyed by them",
                f"correct [source.options.{toml_key(str(relation.name))}] key; the columns are {have}",
            )
        ]
    findings = []
    nullable = [column for column in key if not relation.not_null([column])]
    if nullable:
        findings.append(
            error(
                relation.subject,
                f"the configured key can be null: {', '.join(nullable)}",
                "a null key identifies no row, not even with a unique index",
                relation.as_owner(
                    f"alter table {table} "
                    + ", ".join(f"alter column {sql_identifier(column)} set not null" for column in nullable)
                    + ";"
                ),
            )
        )
    if index is None:
        near = [
            f"{index.name} is "
            + (
                "not unique"
                if not index.is_unique
                else "invalid"
                if not index.is_valid
                else "partial or over expressions"
            )
            for index in relation.indexes
            if set(index.columns) - {""} == set(key)
        ]
        concurrently = "" if relation.kind == PARTITIONED else " concurrently"
        findings.append(
            error(
                relation.subject,
                f"no unique index covers exactly the configured key {', '.join(key)}"
                + (f" ({'; '.join(near)})" if near else ""),
                "two rows could have the same key, and one would overwrite the other everywhere",
                relation.as_owner(
                    f"create unique index{concurrently} {sql_identifier(_index_name(relation, key))}"
                    f" on {table} ({quoted_list(key)});"
                ),
                hides_changes=True,
            )
        )
    return findings


def _delivered(
    relation: Relation, key: Sequence[str], *, index: Index | None, identity_index: str | None
) -> list[Finding]:
    """Whether the replica identity delivers the key of the old row. ``identity_index`` is the one to use, if known."""
    if relation.identity is ReplicaIdentity.FULL:
        return []

    def fix(sql: str) -> str:
        return relation.as_owner(sql)

    mended = identity_sql(relation, key)
    if identity_index is not None:
        mended = f"alter table {relation.name.sql} replica identity using index {sql_identifier(identity_index)};"
    if index is not None and not index.is_immediate:
        return [
            error(
                relation.subject,
                f"has a deferrable {'primary key' if index.is_primary else f'unique constraint over {_columns(key)}'}",
                "one statement can swap the keys of two rows, which only the whole old row shows; PostgreSQL doesn't"
                " use such a key as replica identity either, and refuses UPDATE and DELETE",
                fix(full_identity_sql(relation)),
            )
        ]
    delivered = relation.identity_columns()
    # PostgreSQL uses the partitions' identities; the partitioned table's own says how the stream describes old rows.
    if not delivered and relation.kind != PARTITIONED:
        what = {
            ReplicaIdentity.NOTHING: "has replica identity NOTHING",
            ReplicaIdentity.INDEX: "has lost the index that was its replica identity",
        }.get(relation.identity, "has no primary key to be its replica identity")
        return [_no_identity(relation, fix(mended), what)]
    lacking = [column for column in key if column not in delivered]
    if not lacking:
        return []
    return [
        error(
            relation.subject,
            f"its replica identity ({relation.identity.name}) doesn't deliver {_columns(lacking)} of the key"
            f" {_columns(key)}",
            "updates and deletes then don't identify their row",
            fix(mended),
        )
    ]


def _columns(names: Sequence[str]) -> str:
    return ", ".join(names)


def _fits_root(relation: Relation, *, is_keyed: bool) -> list[Finding]:
    """Partitions whose old rows differ from the root's: the stream describes them as the root's."""
    root_columns = relation.identity_columns()
    if not relation.leaves or (is_keyed and not root_columns):  # the root's own lack is a finding already
        return []
    full = relation.identity is ReplicaIdentity.FULL
    wrong = [
        leaf
        for leaf in relation.leaves
        if leaf.is_table
        and ((leaf.identity is ReplicaIdentity.FULL) != full or (not full and leaf.identity_columns() != root_columns))
    ]
    if not wrong:
        return []
    if full or not root_columns:
        fix = _all_full(relation)
    else:
        fix = "\n".join(leaf.as_owner(identity_sql(leaf, sorted(root_columns))) for leaf in wrong)
    return [
        error(
            relation.subject,
            f"partitions have another replica identity than the table: {_listed(wrong)}",
            "their changes are sent as the table's: the old row would be misread, or its UPDATE refused",
            fix,
        )
    ]


def _large_values(relation: Relation) -> list[str]:
    """The columns whose large values an update leaves out if it doesn't change them."""
    columns = relation.large_columns()
    return (
        [f"{relation.name} ({', '.join(columns)})"] if columns and relation.identity is not ReplicaIdentity.FULL else []
    )


def _heirs(relation: Relation) -> list[Finding]:
    if not relation.has_heirs:
        return []
    return [
        warning(
            relation.subject,
            "other tables inherit from it",
            "their rows are theirs: a query of this table shows them, its topic doesn't",
            "add the tables that inherit to source.tables where their rows are wanted",
        )
    ]


def _opaque_types(relation: Relation) -> list[Finding]:
    opaque = [f"{a.name} ({a.type_name})" for a in relation.attributes if a.is_opaque]
    if not opaque:
        return []
    return [ok(relation.subject, f"values travel as PostgreSQL's own text: {', '.join(opaque)}")]
