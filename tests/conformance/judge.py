"""Folds topics and lets PostgreSQL compare the result with the source.

The fold becomes temporary tables of the same names and types in the source's own database. PostgreSQL reads every
value out of the event's text and compares images, bit by bit. Equality would take -0 for 0 and 1.10 for 1.1, and some
types have none.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from cdc.capture.questions import Event
from tests.conformance.case import Case, Way
from tests.values import literal

_TAG_LENGTH = 28
_EXAMPLES = 3

Fold = dict[bytes, "Change"]
"""Key -> its last event, for keys whose last event isn't a delete."""

Row = dict[str, Any]
"""Column -> value, numbers as their text."""


@dataclass(frozen=True)
class Change:
    """One event, parsed: numbers as their text. ``after`` is the row's own bytes, None for deletes and tombstones."""

    table: str
    key: bytes
    op: str
    tag: str
    after: bytes | None
    schema_id: str = ""

    @property
    def lsn(self) -> int:
        return int(self.tag[4:20], 16)

    @property
    def seq(self) -> int:
        return int(self.tag[20:], 16)

    def __str__(self) -> str:
        values = _parsed(self.key).values()
        return " ".join((self.table, self.op, *map(str, values)))


TOMBSTONE = "tombstone"


def parse(table: str, event: Event) -> Change:
    """Raises an error for what isn't an event."""
    _, key, value, tag = event
    if value is None:
        return Change(table, key, TOMBSTONE, (tag or b"").decode(), None)
    document = json.loads(value)
    assert len(document["tag"]) == _TAG_LENGTH
    row = value.split(b'"after":', 1)[1].rsplit(b',"source":', 1)[0]
    schema_id = document["source"]["schema_id"]
    return Change(table, key, document["op"], document["tag"], None if document["after"] is None else row, schema_id)


def fold(changes: Sequence[Change]) -> Fold:
    """What compaction leaves."""
    rows: Fold = {}
    for change in changes:
        # A key that comes again is where it came last.
        rows.pop(change.key, None)
        if change.after is not None:
            rows[change.key] = change
    return rows


def shapes(events: Sequence[Event]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The compacted topic of shapes as a new reader finds it: (schema, table) -> its records, oldest first."""
    newest: dict[bytes, dict[str, Any]] = {}
    for _, key, value, _ in events:
        newest.pop(key, None)
        if value is not None:
            newest[key] = _parsed(value)
    shapes_of_table: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in newest.values():
        shapes_of_table.setdefault((record["schema"], record["table"]), []).append(record)
    return shapes_of_table


def row_of(change: Change, history: Sequence[Mapping[str, Any]]) -> Row:
    """An event's row in its table's newest shape, by nothing but the records of shapes since."""
    assert change.after is not None
    row: Row = _parsed(change.after)
    indexes = {record["schema_id"]: index for index, record in enumerate(history)}
    for record in history[indexes[change.schema_id] + 1 :]:
        renamed, defaults = record.get("renamed", {}), record.get("defaults", {})
        names = [column["name"] for column in record["columns"]]
        row = {
            name: row[renamed.get(name, name)]
            if renamed.get(name, name) in row and (name in renamed or name not in defaults)
            else defaults.get(name)
            for name in names
        }
    return row


def _parsed(document: bytes) -> Any:
    return json.loads(document, parse_int=str, parse_float=str)


def message(event: Event) -> tuple[str, str]:
    """Prefix and content of a logical message, in Debezium's form: the content in base64."""
    value = _parsed(event[2] or b"{}")["message"]
    return value["prefix"], base64.b64decode(value["content"]).decode()


def complaints_about_log(changes: Sequence[Change], *, unseen: bool = False) -> list[str]:
    """What holds for any topic: tags grow per key, each delete has its tombstone, only live keys change.

    ``Case.unseen`` is the exception.
    """
    complaints = []
    newest: dict[bytes, Change] = {}
    for before, change in zip((None, *changes), changes, strict=False):
        known = newest.get(change.key)
        if change.op == TOMBSTONE:
            if before is None or (before.op, before.key, before.tag) != ("d", change.key, change.tag):
                complaints.append(f"{change}: not right after its delete")
            continue
        if before is not None and before.op == "d":
            complaints.append(f"{before}: no tombstone after it")
        if known is not None and change.tag <= known.tag:
            complaints.append(f"{change}: its tag isn't newer than that of the key's last event")
        if change.op in "ud" and (known is None or known.op == "d") and not unseen:
            complaints.append(f"{change}: the key isn't live")
        if (change.after is None) != (change.op == "d"):
            complaints.append(f"{change}: a row or no row, against its operation")
        newest[change.key] = change
    if changes and changes[-1].op == "d":
        complaints.append(f"{changes[-1]}: no tombstone after it")
    return complaints


def complaints_about_transactions(case: Case, changes: Sequence[Change]) -> list[str]:
    """The stream's events in the order of their tags, against the case's list."""
    by_lsn: dict[int, list[Change]] = {}
    for change in sorted(changes, key=lambda change: change.tag):
        if change.op not in ("r", TOMBSTONE):
            by_lsn.setdefault(change.lsn, []).append(change)
    transactions = tuple(tuple(map(str, transaction)) for transaction in by_lsn.values())
    if transactions != case.transactions:
        return [f"its transactions are {transactions}, not {case.transactions}"]
    return [
        f"transaction {number} is numbered {[change.seq for change in transaction]}"
        for number, transaction in enumerate(by_lsn.values(), start=1)
        if [change.seq for change in transaction] != list(range(1, len(transaction) + 1))
    ]


class Judge:
    """A session for the tables of one case in one way."""

    def __init__(self, connection: psycopg.Connection[Any], case: Case, way: Way) -> None:
        self._connection = connection
        self._case = case
        self._schema = case.schema(way)
        connection.execute(sql.SQL("set search_path to pg_temp, {}, public").format(sql.Identifier(self._schema)))

    def complaints(self, folds: Mapping[str, Sequence[Row]]) -> list[str]:
        """How the folded tables differ from the source, and from what the case expects on top."""
        try:
            complaints = [complaint for table, rows in folds.items() for complaint in self._compare(table, rows)]
        except psycopg.Error as error:
            return [f"PostgreSQL can't read it: {error}"]
        for query, expected in self._case.expect.items() if not complaints else ():
            row = self._connection.execute(query.encode()).fetchone()
            if row != expected:
                complaints.append(f"{query}: {row}, not {expected}")
        return complaints

    def _compare(self, table: str, rows: Sequence[Row]) -> list[str]:
        source = sql.Identifier(self._schema, table)
        types = self._types(table)
        wrong = {tuple(row) for row in rows if set(row) != set(types)}
        if wrong:
            return [f"{table}: rows have the columns {sorted(wrong)}, not {tuple(types)}"]
        # In the other order, so that nothing goes by place.
        names = sql.SQL(", ").join(map(sql.Identifier, reversed(types)))
        copy = sql.Identifier("pg_temp", table)
        self._connection.execute(
            sql.SQL("create temp table {} as select {} from {} with no data").format(
                sql.Identifier(table), names, source
            )
        )
        if rows:
            casts = [
                sql.SQL(f"${number}::text::{kind}")  # type: ignore[arg-type]
                for number, (kind, _) in enumerate(types.values(), start=1)
            ]
            insert = sql.SQL("insert into {} ({}) values ({})").format(
                copy, sql.SQL(", ").join(map(sql.Identifier, types)), sql.SQL(", ").join(casts)
            )
            # A column may have the name "%s".
            with psycopg.RawCursor(self._connection) as cursor:
                cursor.executemany(
                    insert,
                    [[literal(row[name], delimiter) for name, (_, delimiter) in types.items()] for row in rows],
                )
        return self._differences(table, source, copy, self._key(table) or list(types)[:1], list(types))

    def _key(self, table: str) -> list[str]:
        """The columns of some unique index over columns that are never null."""
        row = self._connection.execute(
            "select array_agg(a.attname::text) from pg_index i"
            " join pg_class c on c.oid = i.indrelid join pg_namespace n on n.oid = c.relnamespace"
            " join pg_attribute a on a.attrelid = c.oid and a.attnum = any(i.indkey)"
            " where n.nspname = %s and c.relname = %s and i.indisunique"
            " group by i.indexrelid having bool_and(a.attnotnull) order by i.indisprimary desc",
            (self._schema, table),
        ).fetchone()
        return row[0] if row else []

    def _types(self, table: str) -> dict[str, tuple[str, str]]:
        """Published column -> its type, and what separates elements where it is an array."""
        rows = self._connection.execute(
            "select a.attname, format_type(a.atttypid, a.atttypmod),"
            " coalesce((select e.typdelim::text from pg_type e where e.oid = t.typelem), ',')"
            " from pg_attribute a join pg_type t on t.oid = a.atttypid"
            " join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace"
            " where n.nspname = %s and c.relname = %s and a.attnum > 0 and not a.attisdropped order by a.attnum",
            (self._schema, table),
        ).fetchall()
        listed = self._case.columns.get(table)
        return {name: (kind, delimiter) for name, kind, delimiter in rows if listed is None or name in listed}

    def _differences(
        self, table: str, source: sql.Identifier, copy: sql.Identifier, key: Sequence[str], columns: Sequence[str]
    ) -> list[str]:
        def each(template: str, names: Sequence[str], between: str = ", ") -> sql.Composed:
            return sql.SQL(between).join(
                sql.SQL(template).format(sql.Identifier("s", name), sql.Identifier("c", name))  # type: ignore[arg-type]
                for name in names
            )

        first = sql.Identifier(key[0])
        query = sql.SQL(
            "select row({key})::text, s.{first} is null, c.{first} is null, array[{same}]"
            " from (select * from {source} where {visible}) s full join {copy} c on {on}"
            " where not record_image_eq(row({source_row}), row({copy_row}))"
        ).format(
            key=each("coalesce({0}, {1})", key),
            first=first,
            same=each("record_image_eq(row({0}), row({1}))", columns),
            source=source,
            visible=sql.SQL(self._case.visible.get(table, "true")),  # type: ignore[arg-type]
            copy=copy,
            on=each("{0} = {1}", key, " and "),
            source_row=each("{0}", columns),
            copy_row=each("{1}", columns),
        )
        complaints = []
        rows = self._connection.execute(query).fetchall()
        for text, is_extra, is_missing, same in rows[:_EXAMPLES]:
            if is_extra or is_missing:
                complaints.append(f"{table}: row {text} is only {'on the topic' if is_extra else 'in the source'}")
            else:
                differing = [name for name, is_same in zip(columns, same, strict=True) if not is_same]
                complaints.append(f"{table}: row {text} differs in {', '.join(differing)}")
        if len(rows) > _EXAMPLES:
            complaints.append(f"{table}: {len(rows) - _EXAMPLES} more rows differ")
        return complaints
