"""The source's side of a comparison: every published row once, in short statements, and by its key of any type."""

import itertools

import pytest

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import Table, TableName
from cdc.postgres.settings import TableOptions
from lockstep.verify.canonical import fingerprint
from lockstep.verify.sides.sink_view import SinkView
from lockstep.verify.sides.source import SourceSide
from lockstep.verify.source_load import Load
from lockstep.verify.waiting import Waiting
from sinks.wrappers.projection import Projection
from tests.databases import Database

pytestmark = pytest.mark.live

T = TableName("public", "t")


UNCHANGED = SinkView(Projection())

KEY_TYPES = {
    "int2": ["-7", "0", "32767"],
    "int8": ["-9007199254740993", "1", "9007199254740993"],
    "oid": ["1", "4000000000"],
    "bool": ["t", "f"],
    "float8": ["-0.5", "1e22", "NaN", "Infinity", "0.1"],
    "float4": ["3.3", "1e10"],
    "numeric": ["1.10", "100", "NaN", "0.000001"],
    "text": ["", "a", "B", "é", "a'b", "a\\b", 'a"b', "tab\tnew\nline", "%s {} %", "NULL", "\\N"],
    "varchar(3)": ["abc", "ab"],
    "char(4)": ["ab", "abcd"],
    '"char"': ["x", "y"],
    "date": ["2016-11-04", "0044-03-15 BC", "infinity"],
    "timestamp": ["2016-11-04 13:51:30.123456", "infinity", "0044-03-15 00:00:00 BC"],
    "timestamptz": ["2016-11-04 13:51:30.123456+02", "-infinity", "0044-02-01 10:00:00+00 BC"],
    "time": ["24:00:00", "01:02:03.000001"],
    "interval": ["1 year 2 mons 3 days", "-00:00:01"],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "00000000-0000-0000-0000-000000000000"],
    "bytea": ["\\x", "\\x0102ff", "\\x00"],
    "bit(3)": ["101", "000"],
    "varbit": ["101", "1"],
    "inet": ["192.168.2.0/12", "::1"],
    "int4[]": ["{}", "{1,2}", "{{1},{NULL}}", "[0:1]={7,8}"],
    "text[]": ['{a,NULL,"b,c"}', '{"NULL","\\"q\\""}'],
    "int4range": ["[1,11)", "empty"],
    "money": ["$1,234.11", "-$5.00"],
    "mood": ["calm", "a 'b' \\ c"],
    "small": ["5", "7"],
    'text collate "C"': ["a", "B"],
}
_AT_EACH_CHANGE = ("int8", "float8", "numeric", "text", "timestamptz", "int4[]", "mood")


def side(database: Database, *names: TableName, load: Load | None = None, publication: str = "none") -> SourceSide:
    return SourceSide(
        database.source(*(names or (T,))),
        names=names or (T,),
        publication=publication,
        epoch=0,
        load=load or Load(pause_ratio=0.0),
        waiting=Waiting(lambda: False),
        view=UNCHANGED,
    )


@pytest.mark.parametrize(("own_share", "paused"), [(1.0, 0.0), (0.25, 0.75), (0.0, 1.0)])
def test_the_source_gets_a_pause_for_what_it_took_itself(database: Database, own_share: float, paused: float) -> None:
    """Each row takes a second of a clock. A share of it is our own work, during which the server waited for us."""
    database.execute("create table t (id int primary key)", "insert into t select generate_series(1, 40)")
    clock, slept = [0.0], [0.0]

    def sleep(seconds: float) -> None:
        slept[0] += seconds
        clock[0] += seconds

    source = SourceSide(
        database.source(T),
        names=[T],
        publication="none",
        epoch=0,
        load=Load(pause_ratio=1.0, first_rows=60),
        waiting=Waiting(
            lambda: False, monotonic=lambda: clock[0], own=lambda: (clock[0] - slept[0]) * own_share, sleep=sleep
        ),
        view=UNCHANGED,
    )
    for _ in source.scan(source.tables()[T]):
        clock[0] += 1
    assert slept[0] == 0  # the last statement has found the table's end

    database.execute("insert into t select generate_series(41, 90)")
    rows = source.scan(source.tables()[T])
    for _ in range(60):
        next(rows)
        clock[0] += 1
    list(rows)  # of the next statement, which is the last
    source.close()
    assert slept[0] == pytest.approx(60 * paused)


def shape_of(source: SourceSide, name: TableName = T) -> Table:
    return source.tables()[name]


def ids(source: SourceSide, name: TableName = T) -> list[bytes]:
    return [key for key, _ in source.scan(shape_of(source, name))]


@pytest.mark.parametrize(
    "key_type",
    [pytest.param(key_type, marks=() if key_type in _AT_EACH_CHANGE else pytest.mark.soak) for key_type in KEY_TYPES],
)
def test_a_key_of_any_type_is_paged_by_and_found_again(database: Database, key_type: str) -> None:
    database.execute(
        "create type mood as enum ('calm', 'a ''b'' \\ c')",
        "create domain small as int4 check (value < 100)",
        f"create table t (a {key_type}, b text, c float8, primary key (a, b))",
    )
    for text, other in itertools.product(KEY_TYPES[key_type], ("x", "y")):
        database.connection.execute(f"insert into t values (%s, '{other}', 1e22)".encode(), (text,))
    with_pages = side(database, load=Load(pause_ratio=0.0, first_rows=1))
    table = shape_of(with_pages)
    scanned = dict(with_pages.scan(table))
    versions = with_pages.rows(table, list(scanned))

    assert len(scanned) == 2 * len(KEY_TYPES[key_type])
    assert {key: version.fingerprint for key, (version, _) in versions.items()} == scanned
    assert {key: fingerprint(table, key, row) for key, (_, row) in versions.items()} == scanned
    with_pages.close()


def test_a_key_is_compared_as_its_index_orders_it(database: Database) -> None:
    """An extension's operators are in no search path of ours, and text's would give another order."""
    database.execute(
        "create schema ext",
        "create extension citext schema ext",
        "create table t (a int, b ext.citext, c ext.citext, primary key (a, b, c))",
        "insert into t select a, b, c from unnest('{1,2}'::int[]) a, unnest('{a,B,c,D}'::text[]) b,"
        " unnest('{X,y,Z}'::text[]) c",
    )
    source = side(database, load=Load(pause_ratio=0.0, first_rows=1))
    scanned = ids(source)
    assert len(scanned) == len(set(scanned)) == 24
    assert len(source.rows(shape_of(source), scanned)) == 24
    source.close()


def test_pages_end_where_the_table_does(database: Database) -> None:
    database.execute("create table t (id int primary key)", "insert into t select generate_series(1, 100)")
    for first_rows in (1, 50, 99, 100, 101):
        source = side(database, load=Load(pause_ratio=0.0, first_rows=first_rows))

        assert ids(source) == [b'{"id":%d}' % n for n in range(1, 101)]
        source.close()


def test_an_empty_table_has_no_rows(database: Database) -> None:
    database.execute("create table t (id int primary key)")
    source = side(database)

    assert ids(source) == []
    assert source.versions(shape_of(source), [b'{"id":1}']) == {}
    source.close()


def test_no_transaction_stays_open_between_the_pages(database: Database) -> None:
    database.execute("create table t (id int primary key)", "insert into t select generate_series(1, 10)")
    source = side(database, load=Load(pause_ratio=0.0, first_rows=1))
    rows = source.scan(shape_of(source))
    next(rows)
    next(rows)  # of the second page, which is the last
    list(rows)
    state = (
        "select state from pg_stat_activity where application_name = 'lockstep verify' and datname = current_database()"
    )

    assert database.value(state) == "idle"
    source.close()


def test_keys_that_the_type_cannot_have_are_no_rows(database: Database) -> None:
    database.execute("create table t (id int2 primary key)", "insert into t values (1), (2)")
    source = side(database)
    table = shape_of(source)
    strange = [b'{"id":"x"}', b'{"id":99999}', b'{"id":null}', b'{"id":{"a":1}}', b'{"id":"\\u0000"}', b'{"id":[1]}']

    assert set(source.versions(table, [b'{"id":1}', *strange, b'{"id":2}'])) == {b'{"id":1}', b'{"id":2}'}
    source.close()


def test_another_text_of_a_key_is_another_key(database: Database) -> None:
    """The sink has it under that text, so a reader who asks for the row doesn't find it there."""
    database.execute("create table t (id int primary key)", "insert into t values (1)")
    source = side(database)

    assert source.versions(shape_of(source), [b'{"id":"1"}']) == {}
    source.close()


def test_a_key_longer_than_its_column_is_not_cut(database: Database) -> None:
    database.execute("create table t (id varchar(3) primary key)", "insert into t values ('abc')")
    source = side(database)

    assert set(source.versions(shape_of(source), [b'{"id":"abcd"}', b'{"id":"abc"}'])) == {b'{"id":"abc"}'}
    source.close()


def test_an_update_that_changes_nothing_is_another_version(database: Database) -> None:
    database.execute("create table t (id int primary key, v int)", "insert into t values (1, 1)")
    source = side(database)
    table = shape_of(source)
    before = source.versions(table, [b'{"id":1}'])
    same = source.versions(table, [b'{"id":1}'])
    database.execute("update t set v = 1")
    after = source.versions(table, [b'{"id":1}'])

    assert before == same != after
    assert before[b'{"id":1}'].fingerprint == after[b'{"id":1}'].fingerprint
    source.close()


def test_rows_and_columns_that_are_not_published_are_not_expected(database: Database) -> None:
    database.execute(
        "create table t (id int primary key, v int, secret text)",
        "insert into t values (1, 1, 'a'), (2, 50, 'b')",
        "create publication p for table t (id, v) where (v < 10)",
    )
    source = side(database, publication="p")
    table = shape_of(source)

    assert [column.name for column in table.columns] == ["id", "v"]
    assert ids(source) == [b'{"id":1}']
    assert set(source.versions(table, [b'{"id":1}', b'{"id":2}'])) == {b'{"id":1}'}
    source.close()


def test_partitions_belong_to_their_table(database: Database) -> None:
    database.execute(
        "create table t (id int primary key, v text) partition by range (id)",
        "create table t1 partition of t for values from (0) to (10)",
        "create table t2 (v text, id int primary key)",  # with its columns in another order
        "alter table t attach partition t2 for values from (10) to (20)",
        "insert into t select n, 'v' from generate_series(1, 19) n",
    )
    source = side(database, load=Load(pause_ratio=0.0, first_rows=3))
    table = shape_of(source)
    scanned = dict(source.scan(table))

    assert list(scanned) == [b'{"id":%d}' % n for n in range(1, 20)]
    versions = source.versions(table, list(scanned))
    assert {key: version.fingerprint for key, version in versions.items()} == scanned
    source.close()


def test_tables_that_inherit_are_tables_of_their_own(database: Database) -> None:
    database.execute(
        "create table t (id int primary key)",
        "create table child () inherits (t)",
        "insert into t values (1)",
        "insert into child values (2)",
    )
    source = side(database)

    assert ids(source) == [b'{"id":1}']
    assert set(source.versions(shape_of(source), [b'{"id":1}', b'{"id":2}'])) == {b'{"id":1}'}
    source.close()


def test_a_configured_key_is_the_key(database: Database) -> None:
    database.execute("create table t (id int primary key, code text not null unique)", "insert into t values (1, 'x')")
    settings = database.source(T).model_copy(update={"options": {"public.t": TableOptions(key=("code",))}})
    source = SourceSide(
        settings, names=[T], publication="none", epoch=0, load=Load(), waiting=Waiting(lambda: False), view=UNCHANGED
    )

    assert ids(source) == [b'{"code":"x"}']
    source.close()


def test_a_missing_grant_says_what_to_grant(database: Database) -> None:
    database.execute("create table t (id int primary key)")
    settings = database.source(T, user=database.role(login="login"))
    source = SourceSide(
        settings, names=[T], publication="none", epoch=0, load=Load(), waiting=Waiting(lambda: False), view=UNCHANGED
    )

    with pytest.raises(LockstepError, match="permission denied") as caught:
        ids(source)
    assert "SELECT" in (caught.value.hint or "")
    source.close()


def test_a_table_that_is_altered_meanwhile_is_to_be_compared_again(database: Database) -> None:
    database.execute("create table t (id int primary key, v int)", "insert into t values (1, 1)")
    source = side(database)
    table = shape_of(source)
    database.execute("alter table t drop column v")

    # Trying again can't help: the rows of this table read so far have the earlier shape.
    with pytest.raises(LockstepError, match="another shape") as raised:
        list(source.scan(table))
    assert not isinstance(raised.value, Unavailable)
    source.close()
