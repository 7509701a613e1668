"""PostgreSQL judges the rule over large values: it never says that a value is in line which is not."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from cdc.event_format.column_types import json_encoder
from cdc.model.lsn import Lsn
from cdc.model.table import TableName
from cdc.postgres.column_storage import load_rule
from cdc.protocol.pgoutput import UNCHANGED, Delete, Field, Insert, Update
from cdc.toast.memory import MemoryStore
from cdc.toast.rule import ToastRule
from tests.databases import Database

pytestmark = pytest.mark.live

T = TableName("public", "t")

_SETUP = """
create extension hstore;
create extension citext;
create extension ltree;
create type mood as enum ('a', 'calm');
create domain words as text;
create domain more_words as words;
create domain list_of_words as words[];
create domain document as jsonb;
create type pair as (a int, b text);
create function dense(item text, separator text, items int) returns text language sql immutable
    return coalesce((select string_agg(item, separator) from generate_series(1, items)), '');
create function noise(length int) returns text language sql volatile
    return coalesce(
        (select left(string_agg(md5(random()::text), ''), length) from generate_series(0, length / 32)), '');
"""

# This many items, so that headers, padding and the items themselves weigh in turn.
_COUNTS = "select generate_series(0, 9) union select generate_series(10, 300, 29)"


def _lists(start: str, items: Sequence[str], end: str, separator: str = ",") -> tuple[str, ...]:
    quoted = [item.replace("'", "''") for item in items]
    return tuple(f"'{start}' || dense('{item}', '{separator}', n) || '{end}'" for item in quoted)


# Type -> SQL of the densest texts that we know of, each for n items. Types that refuse n = 0 skip it.
SHAPES: dict[str, tuple[str, ...]] = {
    "text": ("dense('x', '', n)", "dense('é', '', n)", "dense('𝄞', '', n)", "dense(E'\\n', '', n)"),
    "varchar(500)": ("dense('x', '', n)",),
    "char(40)": ("dense('x', '', least(n, 40))",),
    "more_words": ("dense('\"', '', n)",),
    "json": _lists("[", ["1", "{}", '""'], "]"),
    "bytea": (r"'\x' || dense('00', '', n)",),
    "bit varying": ("dense('1', '', n)",),
    "numeric": (
        "dense('1', '', n + 1)", "dense('1', '', n + 1) || '.' || dense('1', '', n + 1)", "'-0.' || dense('0', '', n)"
        " || '1'",
        "'1' || dense('0', '', n) || '.1'", "'NaN'", "'-Infinity'", "'10000.00001'", "'0'", "dense('9', '', n + 1) ||"
        " '.9'",
    ),
    "inet": ("'::1'", "'1.2.3.4'", "'ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/64'"),
    "cidr": ("'::1'", "'1.2.3.4'"),
    "int4range": ("'[1,2)'", "'(,)'", "'empty'"),
    "int8range": ("'[1,2)'", "'(,)'", "'[-9223372036854775808,9)'"),
    "numrange": ("'[1,2)'", "'[1.1,)'", "'[' || dense('1', '', n + 1) || ',' || dense('2', '', n + 1) || ')'"),
    "tstzrange": ("'[2020-01-01,2021-01-01)'", "'(,infinity)'"),
    "daterange": ("'(,)'", "'[2020-01-01,2021-01-01)'"),
    "int4multirange": ("(select '{' || string_agg(format('[%s,%s)', i * 3, i * 3 + 1), ',') || '}' from"
    " generate_series(1, n) i)",),
    "int8multirange": ("(select '{' || string_agg(format('[%s,%s)', i * 3, i * 3 + 1), ',') || '}' from"
    " generate_series(1, n) i)",
                       "'{(,1)}'", "'{(,1),(5,)}'", "'{}'"),
    "nummultirange": (
        "(select '{' || string_agg(format('[%s,%s)', i * 3, i * 3 + 1), ',') || '}' from generate_series(1, n) i)",
        "(select '{' || string_agg(format('[%s.1,%s.1)', i * 3, i * 3 + 1), ',') || '}' from generate_series(1, n) i)",
    ),
    "tstzmultirange": ("'{(,)}'", "'{[2020-01-01,2021-01-01)}'"),
    "jsonb": (
        *_lists("[", ["0", "1", "10", "1.1", "1.11", "100.1", "12345678", "null", "true", "[]", "{}", "[1]", "[[1]]",
            '""', '"a"',
                      '"ab"', '"abc"', '"a",1', '"a",1.1', '[1,"a"]', '{"":0}', '{"a":[]}', '{"a":[1]}',
                      '{"a":{"b":1}}',
                      '{"a":1,"b":"x","c":1.1}', '"\\u00e9"', "1e-100", "1e100"], "]"),
        "'1'", "'\"a\"'", "'1.1'", "'null'", "'[' || dense('[', '', n) || '1' || dense(']', '', n) || ']'",
        "(select '{' || string_agg(format('\"%s\":1', i), ',') || '}' from generate_series(1, n) i)",
        "(select '{' || string_agg(format('\"%s\":\"x\"', chr(33 + i)), ',') || '}' from generate_series(2, 50) i)",
        "(select '{' || string_agg(format('\"%s\":[1.1]', i), ',') || '}' from generate_series(1, n) i)",
    ),
    "document": _lists("[", ["1"], "]"),
    "tsvector": (
        "(select string_agg(format('''%s''', chr(96 + i)), ' ') from generate_series(1, least(n, 26)) i)",
        "(select string_agg(format('''%s'':1', i), ' ') from generate_series(1, n) i)",
        "(select string_agg(format('''%s'':1,2,3,4A', i), ' ') from generate_series(1, n) i)",
    ),
    "path": _lists("[", ["(0,0)"], "]"),
    "polygon": _lists("(", ["(0,0)"], ")"),
    "hstore": (
        "(select string_agg(format('\"%s\"=>NULL', i), ',') from generate_series(1, n) i)",
        "(select string_agg(format('%s=>\"\"', chr(96 + i)), ',') from generate_series(1, least(n, 26)) i)",
        "'\"\"=>\"\"'",
    ),
    "ltree": ("dense('a', '.', n)", "dense('abcdef', '.', n)", "dense('abcdefg', '.', n)"),
    "citext": ("dense('x', '', n)",),
    "pg_snapshot": ("(select '1:900:' || string_agg(i::text, ',') from generate_series(1, least(n, 9)) i)", "'1:1:'"),
    "bool[]": _lists("{", ["t", "NULL"], "}"),
    "int2[]": _lists("{", ["1", "NULL"], "}"),
    "int4[]": (*_lists("{", ["1", "NULL", "{1}", "{{{{{1}}}}}", "{1,2}"], "}"), "'[5:6]={1,2}'"),
    "int8[]": _lists("{", ["1", "NULL", "{1}"], "}"),
    "float4[]": _lists("{", ["1", "NaN"], "}"),
    "float8[]": _lists("{", ["1", "NaN", "-0", "1e300"], "}"),
    "mood[]": _lists("{", ["a"], "}"),
    "uuid[]": _lists("{", ["00000000-0000-0000-0000-000000000000"], "}"),
    "name[]": _lists("{", ["a"], "}"),
    '"char"[]': _lists("{", ["a", '""'], "}"),
    "date[]": _lists("{", ["2020-01-01", "infinity"], "}"),
    "timestamptz[]": _lists("{", ["2020-01-01 00:00:00+00", "infinity", "2020-01-01 00:00:00+00 BC"], "}"),
    "interval[]": _lists("{", ["0", "1 day"], "}"),
    "timetz[]": _lists("{", ["00:00:00+00"], "}"),
    "money[]": _lists("{", ["1"], "}"),
    "point[]": _lists("{", ['"(0,0)"'], "}"),
    "box[]": _lists("{", ["(0,0),(1,1)"], "}", ";"),
    "numeric[]": _lists("{", ["1", "0", "10", "1.1", "1.11", "10000.1", "NaN", "NULL"], "}"),
    "text[]": _lists("{", ["a", '""', "NULL", "{a}", "ab", "abcde", "é", '","'], "}"),
    "list_of_words": _lists("{", ["a"], "}"),
    "bytea[]": _lists("{", ['"\\\\x"', '"\\\\x00"'], "}"),
    "varbit[]": _lists("{", ["1"], "}"),
    "inet[]": _lists("{", ["::1", "1.2.3.4"], "}"),
    "jsonb[]": _lists("{", ["1", "[]", '"[1]"', '"[1, 1, 1]"', '"{}"'], "}"),
    "int4range[]": _lists("{", ["empty", '"[1,2)"'], "}"),
    "int4multirange[]": _lists("{", ['"{[1,2)}"', '"{}"'], "}"),
    "hstore[]": _lists("{", ['""', '"\\"a\\"=>NULL"'], "}"),
}  # fmt: skip

UNKNOWN = ("pair", "pair[]", "xml", "jsonpath", "tsquery")


def texts(database: Database, type_name: str, shape: str) -> list[tuple[bytes, int]]:
    """The texts of a shape as PostgreSQL prints them, and the size of the uncompressed value in memory."""
    with database.reading() as connection:
        cursor = connection.execute(
            f"""select value, pg_column_size(value) from (
                select case when pg_input_is_valid(shape, '{type_name}') then cast(shape as {type_name}) end as value
                from (select {shape} from ({_COUNTS}) as counts(n)) as shapes(shape)
            ) as found where value is not null""".encode()
        )
        result = cursor.pgresult
        assert result is not None
        sizes = []
        for row in range(result.ntuples):
            text, size = result.get_value(row, 0), result.get_value(row, 1)
            assert text is not None
            assert size is not None
            sizes.append((text, int(size)))
        return sizes


def rule_of(database: Database, published: frozenset[str] | None = None) -> ToastRule:
    shape = database.shape(T)
    columns = tuple(column for column in shape.columns if published is None or column.name in published)
    return load_rule(database.connection, replace(shape, columns=columns))


@pytest.fixture(scope="module")
def typed(shared_database: Database) -> Database:
    shared_database.execute(*_SETUP.strip().split(";\n"))
    return shared_database


@pytest.mark.parametrize("type_name", SHAPES)
def test_no_value_is_larger_than_its_bound(typed: Database, type_name: str) -> None:
    typed.execute("drop table if exists t", f"create table t (value {type_name})")
    (column,) = typed.shape(T).columns
    encode = json_encoder(column.value_type, column.is_array)
    bound = rule_of(typed).bounds[0]
    assert bound is not None
    judged = 0
    for shape in SHAPES[type_name]:
        for text, size in texts(typed, type_name, shape):
            judged += 1
            assert size <= bound.size(text), (shape, len(text))
            assert size <= bound.size(encode(text)), (shape, len(text))
            assert size <= bound.weight * len(text) + bound.constant, (shape, len(text))
    assert judged


@pytest.mark.parametrize("type_name", UNKNOWN)
def test_of_other_types_nothing_is_said(typed: Database, type_name: str) -> None:
    typed.execute("drop table if exists t", f"create table t (value {type_name})")
    assert rule_of(typed).out_of_line([b"x"]) == (0,)


def moved(database: Database, columns: Sequence[str]) -> dict[str, tuple[bool, ...]]:
    """Row by row, which values are out of line."""
    chunks = ", ".join(f"pg_column_toast_chunk_id({column}) is not null" for column in columns)
    return {row[0]: tuple(row[1:]) for row in database.connection.execute(f"select id, {chunks} from t".encode())}


def rows(database: Database) -> dict[Any, list[bytes | None]]:
    with database.reading() as connection:
        result = connection.execute("select * from t").pgresult
        assert result is not None
        count = result.nfields
        values = [[result.get_value(row, field) for field in range(count)] for row in range(result.ntuples)]
        return {int(row[0] or b""): row for row in values}


TABLES: dict[str, tuple[str, str, str]] = {
    "one text": ("a text", "", "noise({n})"),
    "text in line of varchar": ("a text, b varchar", "", "noise({n} / 2), noise({n} / 2)"),
    "compressed": ("a text, b text", "", "repeat('x', {n} * 10), noise({n} - 200)"),
    "main": ("a text storage main, b text storage external", "", "noise({n} / 2), noise({n} / 2)"),
    "plain": ("a text storage plain, b text", "", "noise(least({n}, 7000) - 100), noise(100)"),
    "small columns": (
        ", ".join(f"c{i} text" for i in range(100)), "", ", ".join(f"noise({{n}} / 100 - {i} % 5)" for i in range(100)),
    ),
    "many numbers": (
        "a text, " + ", ".join(f"c{i} {('int2', 'int8', 'bool', 'int4')[i % 4]}" for i in range(100)), "",
        "noise({n} - 500), " + ", ".join(("1", "2", "null" if i % 8 == 2 else "true", "4")[i % 4] for i in range(100)),
    ),
    "integers": ("a int[] storage external, b text", "", "array_fill(7, array[{n} / 5]), noise({n} / 5)"),
    "document": (
        "a jsonb storage external, b text", "", "(select jsonb_agg(i % 10) from generate_series(1, {n} / 13) i),"
        " noise(30)",
    ),
    "numerics": ("a numeric[] storage external, b text", "", "array_fill(1.5::numeric, array[{n} / 18]), noise(30)"),
    "low target": ("a text, b text", "with (toast_tuple_target = 128)", "noise({n} - 1000), noise({n} / 2)"),
    "high target": ("a text, b text", "with (toast_tuple_target = 4000)", "noise({n} / 2), noise({n} * 3 / 2)"),
    "partitioned": ("a text, b text", "partition by hash (id)", "noise({n} - 1000), noise({n} / 2)"),
    "generated": ("a text, b text generated always as (a || a) stored", "", "noise({n} / 3)"),
}  # fmt: skip

_AT_EACH_CHANGE = ("one text", "main", "document", "low target", "partitioned")
ALWAYS_LONG = ("compressed", "low target", "high target", "partitioned", "generated")
"""Tables for which the rule can't say no for any of these rows."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in _AT_EACH_CHANGE else pytest.mark.soak) for name in TABLES]
)
def test_no_value_is_out_of_line_unless_the_rule_says_so(database: Database, name: str) -> None:
    columns, options, values = TABLES[name]
    database.execute(
        *_SETUP.strip().split(";\n"), f"create table t (id int, {columns}) {options}", "create table other (like t)"
    )
    if options.startswith("partition"):
        # A value that is out of line in another table takes a row of any length to the toaster.
        database.execute(
            "create table t_0 partition of t for values with (modulus 2, remainder 0) with (toast_tuple_target = 200)",
            "create table t_1 partition of t for values with (modulus 2, remainder 1)",
        )
    shape = database.shape(T)
    names = [column.name for column in shape.columns][1:]
    generated = frozenset({"b"}) if name == "generated" else frozenset()
    listed = "id, " + ", ".join(column for column in names if column not in generated)
    for number, length in enumerate([*range(1850, 2150, 3), 3000, 9000]):
        database.execute(f"insert into t ({listed}) select {number}, {values.format(n=length)}")
        database.execute(f"insert into other ({listed}) select {1000 + number}, {values.format(n=length * 3)}")
    database.execute(f"insert into t ({listed}) select {listed} from other")
    for column in names:
        if column not in generated and name in ("low target", "partitioned", "main"):
            database.execute(
                f"insert into t (id, {column}) select id + 1000, {column} from other",
                f"insert into t (id, {column}) select id + 2000, left({column}, 190) from other",
            )
    rule = rule_of(database)
    out_of_line = moved(database, names)
    verdicts: Counter[tuple[bool, bool]] = Counter()
    for row, fields in rows(database).items():
        said = rule.out_of_line(fields)
        suspects = rule.suspects(fields)
        for position, is_moved in enumerate(out_of_line[row], start=1):
            verdicts[is_moved, position in said] += 1
            assert position in said or not is_moved, (row, [len(field or b"") for field in fields])
            assert position in suspects or not is_moved
    assert verdicts[True, True]
    assert verdicts[False, False] or name in ALWAYS_LONG


@pytest.mark.soak
def test_a_column_that_isnt_published_may_push_others_out(database: Database) -> None:
    database.execute(*_SETUP.strip().split(";\n"), "create table t (id int, a text, b text storage plain)")
    database.execute("insert into t select 1, noise(300), noise(1900)")
    assert moved(database, ["a"]) == {1: (True,)}
    fields = rows(database)[1]
    assert rule_of(database, frozenset({"id", "a"})).out_of_line(fields[:2]) == (1,)


class Follower:
    """What capture does with the stream: resolve what wasn't sent, and remember what may not be sent next time."""

    def __init__(self, rule: ToastRule) -> None:
        self.rule = rule
        self.memory = MemoryStore()
        self.current: dict[bytes, list[bytes | None]] = {}
        self.resolved = 0

    def insert(self, fields: Sequence[Field]) -> None:
        self._write(fields, {})

    def update(self, fields: Sequence[Field], old_key: Field) -> None:
        key = fields[0] if old_key is None else old_key
        assert isinstance(key, bytes)
        known = self.memory.get("t", key) or {}
        self.delete(key)
        self._write(fields, known)

    def delete(self, key: Field) -> None:
        assert isinstance(key, bytes)
        self.memory.forget("t", key)
        del self.current[key]

    def _write(self, fields: Sequence[Field], known: Mapping[str, bytes]) -> None:
        key = fields[0]
        assert isinstance(key, bytes)
        names = dict(zip(self.rule.positions, self.rule.columns, strict=True))
        unchanged = {position for position, value in enumerate(fields) if value is UNCHANGED}
        self.resolved += len(unchanged)
        row = [
            known[names[position]] if value is UNCHANGED else value for position, value in enumerate(fields)
        ]  # a KeyError here is the wrong no
        self.current[key] = row
        kept = self.rule.out_of_line(row, unchanged)
        if kept:
            self.memory.put("t", key, {names[position]: row[position] or b"" for position in kept})


_UPDATES = (
    "update t set n = n + 1 where id = {id}",
    "update t set n = n + 1 where id = {id}",
    "update t set n = n + 1",
    "update t set a = null where id = {id}",
    "update t set b = null where id = {id}",
    "update t set b = noise({length}) where id = {id}",
    "update t set a = noise({length}), b = left(b, 100) where id = {id}",
    "update t set c = (select jsonb_agg(i % 7) from generate_series(1, {length} / 12) i) where id = {id}",
    "update t set d = array_fill(1, array[{length} / 4]) where id = {id}",
    "update t set a = b, b = a where id = {id}",
    "update t set id = id + 1000 where id = {id}",
    "delete from t where id = {id}",
    "insert into t select {id} + 100, 0, noise({length} / 2), noise({length} / 3), null, null on conflict do nothing",
    "insert into t select id + 10000, 0, a, b, c, d from t where id = {id} on conflict do nothing",
    "vacuum full t",
    "cluster t using t_pkey",
)


def followed(database: Database, slot: str, start: Lsn) -> Follower:
    """Follow everything in the slot; its rows must be the table's."""
    follower = Follower(rule_of(database))
    for _, message in database.stream(slot, start):
        match message:
            case Insert():
                follower.insert(message.new)
            case Update():
                follower.update(message.new, None if message.old is None else message.old.fields[0])
            case Delete():
                follower.delete(message.old.fields[0])
            case _:
                pass
    assert {int(key): row for key, row in follower.current.items()} == rows(database)
    return follower


def test_a_value_stays_out_of_line_when_the_rest_of_its_row_is_gone(database: Database) -> None:
    database.execute(*_SETUP.strip().split(";\n"), "create table t (id int primary key, n int, a text, b text, c text)")
    database.publish_all()
    slot, start = database.create_slot()
    database.execute(
        "insert into t select 1, 0, noise(1500), noise(1400)",
        "update t set b = null",
        "update t set n = 1",
        "update t set n = 2",
        "update t set id = 2",
        "update t set n = 3",
    )
    assert moved(database, ["a"]) == {2: (True,)}
    assert followed(database, slot, start).resolved == 5


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("target", [2032, 128, 4000])
@pytest.mark.soak
def test_what_the_stream_leaves_out_was_remembered(database: Database, seed: int, target: int) -> None:
    database.execute(
        *_SETUP.strip().split(";\n"),
        "create table t (id int primary key, n int, a text, b text storage external, c jsonb, d int[])"
        f" with (toast_tuple_target = {target})",
    )
    database.publish_all()
    slot, start = database.create_slot()
    chosen = random.Random(seed * 10_000 + target)
    database.execute(f"select setseed(0.{seed + 1})")
    for number in range(20):
        database.execute(f"insert into t select {number}, 0, noise({chosen.randrange(2500)}), noise(500)")
    for _ in range(250):
        statement = chosen.choice(_UPDATES)
        database.execute(
            statement.format(id=chosen.randrange(20), length=chosen.choice((50, 900, 1990, 2100, 3000, 5000)))
        )
    assert followed(database, slot, start).resolved
