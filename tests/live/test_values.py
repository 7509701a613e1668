"""PostgreSQL judges every value: snapshot and stream give the same bytes, and PostgreSQL reads the same value."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import psycopg
import pytest

from cdc.capture.published_table import PublishedTable
from cdc.capture.questions import Event
from cdc.event_format.column_types import has_form, json_encoder
from cdc.event_format.encode import TableEncoder
from cdc.model.lsn import Lsn
from cdc.model.table import Table, TableName
from cdc.postgres.replication import ReplicationConnection
from snapshot.table_reader import SnapshotReader
from stack import versions
from tests import history
from tests.copy_lines import snapshot_rows
from tests.databases import Database
from tests.values import ARRAYS, EXTENSIONS, SCALARS, TYPES, known, literal

pytestmark = pytest.mark.live

ALL = known(SCALARS | ARRAYS, versions.POSTGRES_MAJOR)


@dataclass(frozen=True)
class Recorded:
    """The rows as both paths give them, numbered from 1. There is one more than there are values: the last is NULL."""

    database: Database
    tables: dict[str, Table]
    slot: str
    start: Lsn
    copied: dict[str, dict[int, bytes]]
    streamed: dict[str, dict[int, bytes]]

    def events(self, *, user: str | None = None) -> list[Event]:
        return _events(self.database, self.tables, self.slot, self.start, user)


def _published(tables: dict[str, Table]) -> dict[TableName, PublishedTable]:
    return {
        table.name: PublishedTable(table.name.name, TableEncoder(table, server="t", database="t", version="1"))
        for table in tables.values()
    }


def _events(
    database: Database, tables: dict[str, Table], slot: str, start: Lsn, user: str | None = None
) -> list[Event]:
    follower = history.assembler(tables=_published(tables), at=history.state(commit_lsn=start, end_lsn=start))
    return [*history.events(follower, database.stream(slot, start, user=user))]


@pytest.fixture(scope="module")
def recorded(shared_database: Database) -> Recorded:
    database = shared_database
    # The roles of the tests below change defaults; this session fixed what the values mean before.
    extensions = [f"create extension {name}" for name in EXTENSIONS]
    database.execute(*extensions, TYPES, "set timezone = 'America/New_York'", "set lc_monetary = 'C'")
    names = {kind: TableName("public", f"t{number}") for number, kind in enumerate(ALL)}
    for kind, name in names.items():
        database.execute(f"create table {name} (id int primary key, v {kind})")
    database.publish_all()
    slot, start = database.create_slot()
    for kind, values in ALL.items():
        for number, value in enumerate((*values, "null"), start=1):
            database.execute(f"insert into {names[kind]} values ({number}, {value})")
    tables = {kind: database.shape(name) for kind, name in names.items()}
    copied = _copied(database, tables)
    streamed: dict[str, dict[int, bytes]] = {kind: {} for kind in ALL}
    kinds = {name.name: kind for kind, name in names.items()}
    for topic, key, value, _ in _events(database, tables, slot, start):
        assert value is not None
        streamed[kinds[topic]][json.loads(key)["id"]] = _after(value)
    return Recorded(database, tables, slot, start, copied, streamed)


def _after(value: bytes) -> bytes:
    return value.split(b'"after":', 1)[1].split(b',"source":{"version":', 1)[0]


def _copied(database: Database, tables: dict[str, Table], user: str | None = None) -> dict[str, dict[int, bytes]]:
    """Every table as the snapshot copies it."""
    source = database.source(user=user)
    with ReplicationConnection(source) as holder:
        created = holder.create_slot(database.slot_name(), temporary=True)
        with SnapshotReader(source, created.snapshot_name) as reader:
            encoders = {
                kind: published_table.encoder
                for kind, published_table in zip(tables, _published(tables).values(), strict=True)
            }
            return {
                kind: {int(fields[0]): encoders[kind].row(fields) for fields in snapshot_rows(reader, table)}  # type: ignore[arg-type]
                for kind, table in tables.items()
            }


def test_snapshot_and_stream_give_the_same_bytes(recorded: Recorded) -> None:
    assert recorded.copied == recorded.streamed


def test_every_row_came(recorded: Recorded) -> None:
    assert {kind: sorted(rows) for kind, rows in recorded.streamed.items()} == {
        kind: list(range(1, len(values) + 2)) for kind, values in ALL.items()
    }


@pytest.mark.parametrize("kind", ALL)
def test_every_value_has_the_form_of_its_type(recorded: Recorded, kind: str) -> None:
    """Otherwise a row with such a key would be taken for one from before the key's type was altered."""
    column = recorded.tables[kind].columns[1]
    values = [json.loads(row)["v"] for row in recorded.streamed[kind].values()]
    others = [
        value for value in values if value is not None and not has_form(value, column.value_type, column.is_array)
    ]
    assert others == []


@pytest.mark.parametrize("kind", ALL)
def test_postgresql_reads_the_same_value_out_of_the_event(recorded: Recorded, kind: str) -> None:
    delimiter = ";" if kind.endswith("box[]") else ","
    # Images are compared bit by bit: to equality -0 is 0 and 1.10 is 1.1, and some types have none.
    query = f"select record_image_eq(row(%s::text::{kind}), row(v)) from {recorded.tables[kind].name} where id = %s"
    with closing(recorded.database.reading()) as judge:
        for number, row in recorded.streamed[kind].items():
            value = json.loads(row, parse_int=str, parse_float=str)["v"]
            verdict = judge.execute(query.encode(), (literal(value, delimiter), number)).fetchone()
            assert verdict == (True,), f"value {number}: {str(value)[:200]}"


def test_null_is_null(recorded: Recorded) -> None:
    nulls = {kind: json.loads(rows[len(ALL[kind]) + 1])["v"] for kind, rows in recorded.streamed.items()}
    assert nulls == dict.fromkeys(ALL)


@pytest.mark.parametrize(
    ("kind", "number", "expected"),
    [
        ("bigint", 3, b"9007199254740993"),
        ("double precision", 2, b"0.30000000000000004"),
        ("double precision", 6, b"-0.0"),
        ("numeric", 2, b'"1.10"'),
        ("time", 3, b'"24:00:00"'),
        ("timestamptz", 1, b'"2016-11-04T11:51:30.123456Z"'),
        ("timestamptz", 2, b'"21016-11-04T06:51:30Z"'),
        ("timestamptz", 4, b'"0044-02-01T10:00:00Z BC"'),
        ("interval", 1, b'"1 year 2 mons 3 days 04:05:06.78"'),
        ("money", 1, b'"$1,234.11"'),
        ("char(4)", 1, b'"ab  "'),
        ("bytea", 2, rb'"\\x0102ff"'),
        ("int4range", 1, b'"[1,11)"'),
        ("int[]", 1, b"[5,null,3]"),
        ("int[]", 3, b'"[0:1]={7,8}"'),
        ("positive", 1, b"5"),
        ("positive[]", 1, b"[1,null,3]"),
        ("moment", 1, b'"2016-11-04T11:51:30.123456Z"'),
        ("mood", 3, b'"with, comma"'),
        ("pair", 1, b'"(,,)"'),
        ("int_list", 1, b"[1,null]"),
    ],
)
def test_values_look_as_the_documentation_says(recorded: Recorded, kind: str, number: int, expected: bytes) -> None:
    assert recorded.streamed[kind][number] == b'{"id":%d,"v":%b}' % (number, expected)


_DEFAULTS = {
    "timezone": "'Asia/Kathmandu'",
    "datestyle": "'SQL, DMY'",
    "intervalstyle": "'iso_8601'",
    "extra_float_digits": "-5",
    "bytea_output": "'escape'",
    "xmloption": "'document'",
    "client_encoding": "'LATIN1'",
    "lc_monetary": "'C.UTF-8'",
}


@pytest.fixture
def other_defaults(recorded: Recorded) -> Iterator[str]:
    """A role with other defaults than everybody else, in a database that has other ones, too."""
    database = recorded.database
    role = database.role(login="login superuser replication")
    for name, value in _DEFAULTS.items():
        database.execute(
            f"alter role {role} set {name} = {value}", f"alter database {database.name} set {name} = {value}"
        )
    yield role
    database.execute(f"alter database {database.name} reset all")


def test_the_same_wal_gives_the_same_bytes_under_other_defaults(recorded: Recorded, other_defaults: str) -> None:
    assert recorded.events(user=other_defaults) == recorded.events()


def test_the_copy_gives_the_same_bytes_under_other_defaults(recorded: Recorded, other_defaults: str) -> None:
    assert _copied(recorded.database, recorded.tables, other_defaults) == recorded.copied


def test_the_other_defaults_would_change_what_an_ordinary_session_reads(
    recorded: Recorded, other_defaults: str
) -> None:
    dsn = psycopg.conninfo.make_conninfo(recorded.database.dsn, user=other_defaults)
    table = recorded.tables["timestamptz"].name
    with closing(psycopg.connect(dsn)) as ordinary:
        row = ordinary.execute(f"select v::text from {table} where id = 1".encode()).fetchone()
    assert row == ("04/11/2016 17:36:30.123456 +0545",)


@pytest.mark.parametrize("kind", ["timestamp", "timestamptz"])
def test_years_of_every_length_come_back(shared_database: Database, kind: str) -> None:
    # From the year 4700 BC to 294000, through the years without a fifth digit and the missing year zero.
    texts_of = f"""
        select (make_timestamp(case y when 0 then 1 else y end, 2, 28, 23, 59, 59.5)::{kind})::text
        from generate_series(-4700, 294000, 97) as y"""
    back_of = f"select array_agg(form::{kind}::text order by n) from unnest(%s::text[]) with ordinality as t(form, n)"
    encode = json_encoder(kind, False)
    with closing(shared_database.pinned()) as judge:
        texts = [row[0] for row in judge.execute(texts_of.encode()).fetchall()]
        forms = [json.loads(encode(text.encode())) for text in texts]
        back = judge.execute(back_of.encode(), (forms,)).fetchone()
    assert back == (texts,)
