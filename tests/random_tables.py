"""The tables of a round of random statements: what they are, how they are published, and how they are put back."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from tests.databases import Database

_T = TypeVar("_T")

KEYED = ("a", "b", "p", "k", "m", "one", "two", "said")
LOG = "log"
"""A table without a key: its topic has each of its changes."""

TABLES = (*KEYED, LOG)

_PUBLISH_ALL = "publish = 'insert, update, delete, truncate'"

TWIN = "(id int primary key, words text, note text)"

SETUP = (
    "create function noise(length int, seed int) returns text language sql immutable return"
    " (select left(string_agg(md5(seed::text || n), ''), length) from generate_series(0, length / 32) n)",
    "create schema away",
    "create type mood as enum ('sad', 'fine')",
    "create type label as enum ('l0', 'l1', 'l2', 'l3')",
    "create type pair as (x int, y int)",
    "create table a (id int primary key, n int, words text, list int[])",
    "create table b (x int, y text, n int, primary key (y, x) deferrable initially immediate)",
    "alter table b replica identity full",
    "create table p (id int, n int, words text, primary key (id, n)) partition by range (n)",
    "create table p_1 partition of p for values from (minvalue) to (50)",
    "create table p_2 partition of p for values from (50) to (1000)",
    "create table p_default partition of p default",
    "create table k (id label, number int, v pair, words text, primary key (id, number))",
    "create table m (id int primary key, code int not null unique, part int not null default 0, words text)",
    f"create table one {TWIN}",
    f"create table two {TWIN}",
    "create table said (id serial primary key)",
    "create table log (n int, words text)",
    "alter table log replica identity full",
    "create unlogged table fast (id int primary key)",
    "create table aside (id int primary key, words text)",
    *(
        f"insert into {table} (id, n, words) select n, n, noise(10 * n * n, n) from generate_series(1, 20) n"
        for table in "ap"
    ),
    "insert into b select n, 'y' || n % 3, n from generate_series(1, 20) n",
    "insert into k select ('l' || n % 4)::label, n, row(n, n)::pair, noise(200 * n * n, n)"
    " from generate_series(1, 12) n",
    "insert into m select n, 100 - n, n % 2, noise(300 * n, n) from generate_series(1, 20) n",
    *(
        f"insert into {table} select n, noise(250 * n, n), '{table}' from generate_series(1, 12) n"
        for table in ("one", "two")
    ),
    "insert into log select n % 100, noise(n % 7 * 100, n) from generate_series(1, 400) n",
)


@dataclass(frozen=True)
class Publication:
    """How a round's tables are published: each by an entry of its own, with all tables, or with its schema."""

    name: str
    kind: Literal["listed", "all", "schemas"]

    @property
    def create(self) -> str:
        tables = ", ".join(f"public.{table}" for table in TABLES)
        what = {"listed": f"table {tables}", "all": "all tables", "schemas": "tables in schema public"}[self.kind]
        return f"create publication {self.name} for {what} with (publish_via_partition_root = true, {_PUBLISH_ALL})"

    @property
    def put_back(self) -> str:
        """Restores its settings."""
        return f"alter publication {self.name} set (publish_via_partition_root = true, {_PUBLISH_ALL})"

    def entry(self, table: str) -> str:
        if self.kind == "schemas":
            return f"alter publication {self.name} add tables in schema public"
        return f"alter publication {self.name} add table {table}"


class Picks:
    """Random choices: numbers, texts, and names as the catalogue has them now."""

    def __init__(self, chance: random.Random, database: Database) -> None:
        self.chance = chance
        self._database = database
        self._numbers = itertools.count(1)

    def one_of(self, choices: Sequence[_T]) -> _T:
        return self.chance.choice(choices)

    def number(self) -> int:
        return next(self._numbers)

    def id(self) -> int:
        return self.chance.randrange(30)

    def text(self) -> str:
        length = self.chance.choice([0, 5, 300, 2500, 9000, 60_000])
        return self.one_of(["null", f"noise({length}, {self.id()})", "'quo\"te''s \\ , {}'"])

    def _look(self, query: str) -> str | None:
        row = self._database.connection.execute(query.encode()).fetchone()
        return None if row is None else str(row[0])

    def label(self) -> str:
        """A label of k's key's enum."""
        labels = "select enumlabel from pg_enum where enumtypid = 'label'::regtype order by random() limit 1"
        return str(self._look(labels))

    def column(self, number: int) -> str:
        """The present name of a column of m, whose columns take each other's names."""
        query = f"select attname from pg_attribute where attrelid = to_regclass('m') and attnum = {number}"
        return str(self._look(query))

    def extra(self, table: str) -> str:
        """A column that this round has added, or one that doesn't exist."""
        found = self._look(
            f"select attname from pg_attribute where attrelid = to_regclass('{table}') and attnum > 0"
            " and not attisdropped and attname like 'c%' order by random() limit 1"
        )
        return found or "none"

    def row_of_moved_key(self) -> str:
        """A statement about rows of m, whose key may have changed."""
        first, second, words = self.column(1), self.column(2), self.column(4)
        number = self.id()
        return self.one_of(
            [
                f"insert into m ({first}, {second}, {words}) values ({number}, {self.id()}, {self.text()})",
                f"update m set {words} = {self.text()} where {second} < {number}",
                f"update m set {first} = {first} + 7 where {second} = {number}",
                f"update m set {second} = -{second} where {first} < {number}",
                f"update m set {first} = 40 - {first} where {second} > {number}",
                f"delete from m where {self.one_of([first, second])} = {number}",
            ]
        )


def put_back(database: Database, publication: Publication, names: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Statements after which every table exists, logged, published, and with a key that its changes deliver. ``names``
    are those under which each may be found now. Run each statement before asking for the next."""
    for table in TABLES:
        if _oid(database, f"public.{table}") is None:
            yield from _found(database, table, names[table])
    yield publication.create if _publication(database, publication) is None else publication.put_back
    for table in TABLES:
        if _fact(database, table, "relpersistence = 'u'"):
            yield f"alter table {table} set logged"
        if table in KEYED:
            yield from _with_key(database, table)
        if not _is_published(database, publication, table):
            yield publication.entry(table)


def _found(database: Database, table: str, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        if _oid(database, name) is not None:
            schema, _, base = name.partition(".")
            yield (
                f"alter table {name} set schema public"
                if schema != "public"
                else f"alter table {name} rename to {table}"
            )
            if schema != "public" and base != table:
                yield f"alter table public.{base} rename to {table}"
            return
    yield f"create table {table} {TWIN}"


def _with_key(database: Database, table: str) -> Iterator[str]:
    query = "select count(*) from pg_constraint where contype = 'p' and conrelid = %s::regclass"
    if not database.value(query, f"public.{table}"):
        first = database.value(
            "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0 and not attisdropped"
            " order by attnum limit 1",
            f"public.{table}",
        )
        yield f"alter table {table} replica identity full"
        yield f"delete from {table} where {first} is null"
        yield f"delete from {table} t where ctid <> (select min(ctid) from {table} u where u.{first} = t.{first})"
        yield f"alter table {table} add primary key ({first})"
    if _fact(database, table, "relreplident in ('n', 'i')"):
        yield f"alter table {table} replica identity full"


def _oid(database: Database, name: str) -> object:
    return database.value("select to_regclass(%s)::oid", name)


def _fact(database: Database, table: str, condition: str) -> bool:
    return bool(database.value(f"select {condition} from pg_class where oid = %s::regclass", f"public.{table}"))


def _publication(database: Database, publication: Publication) -> object:
    return database.value("select max(oid::text) from pg_publication where pubname = %s", publication.name)


def _is_published(database: Database, publication: Publication, table: str) -> bool:
    query = "select count(*) from pg_publication_tables where pubname = %s and schemaname = 'public' and tablename = %s"
    return bool(database.value(query, publication.name, table))
