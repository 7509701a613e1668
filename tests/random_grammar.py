"""Random DDL and DML over the tables of a round, with changes that are undone at once, later or never.

Nothing is run here. Some changes don't show in the stream, and some are left out by a publication.
"""

import itertools
import random
from collections.abc import Callable

from tests.databases import Database
from tests.random_detours import Detours
from tests.random_tables import Picks, Publication


class Grammar:
    """Makes statements: the same seed gives the same ones, as long as the tables are the same."""

    def __init__(self, chance: random.Random, database: Database, publication: Publication) -> None:
        self._picks = Picks(chance, database)
        self.detours = Detours(self._picks, publication)
        self._names = (f"c{number}" for number in itertools.count(1))
        self._loose: list[tuple[str, int]] = []
        self._used: list[str] = []

    def statement(self) -> str:
        makes: list[tuple[Callable[[], str], int]] = [
            (self._insert, 20),
            (self._update, 25),
            (self._update_key, 8),
            (self._delete, 8),
            (self._upsert, 4),
            (self._row_of_types, 10),
            (self._picks.row_of_moved_key, 10),
            (self._row_of_twins, 10),
            (self._row_of_log, 10),
            (self._truncate, 2),
            (self._message, 3),
            (self._add_column, 3),
            (self._drop_column, 2),
            (self._rename_column, 2),
            (self._alter_type, 2),
            (self._partition, 3),
            (self._elsewhere, 3),
            *self.detours.makes(),
        ]
        make = self._picks.chance.choices(*zip(*makes, strict=True))[0]
        return make()

    # Rows.

    def _insert(self) -> str:
        table = self._picks.one_of("aabp")
        if table == "b":
            return f"insert into b (x, y, n) values ({self._picks.id()}, 'y{self._picks.id() % 3}', {self._picks.id()})"
        many = self._picks.one_of([1, 1, 1, 5, 400])
        first = self._picks.chance.randrange(20, 5000)
        words = self._picks.text() if many < 10 else "'many'"
        return (
            f"insert into {table} (id, n, words) select n, n % 100, {words} from"
            f" generate_series({first}, {first + many - 1}) n"
        )

    def _update(self) -> str:
        table = self._picks.one_of("aaabp")
        if table == "b":
            return f"update b set n = n + 1 where x < {self._picks.id()}"
        changes = {
            "n = n + 1": 3,
            f"words = {self._picks.text()}": 2,
            "words = words || '!'": 1,
            "list = array[1, null, 3]" if table == "a" else "n = n + 40": 1,
        }
        change = self._picks.chance.choices(list(changes), list(changes.values()))[0]
        return f"update {table} set {change} where id {self._picks.one_of(['=', '<', '>'])} {self._picks.id()}"

    def _update_key(self) -> str:
        return self._picks.one_of(
            [
                f"update a set id = id + 10000 where id = {self._picks.id()}",
                f"update a set id = {self._picks.id()} where id = {self._picks.id()}",
                f"update a set id = 29 - id where id < {self._picks.id()}",
                f"update b set x = x + 1 where y = 'y{self._picks.id() % 3}'",
                f"update b set x = 30 - x where y = 'y{self._picks.id() % 3}'",
                f"update b set y = 'y{self._picks.id() % 3}' where x = {self._picks.id()}",
                f"update p set n = n + 60 where id = {self._picks.id()}",
            ]
        )

    def _delete(self) -> str:
        return self._picks.one_of(
            [
                f"delete from a where id = {self._picks.id()}",
                f"delete from a where id > {1000 + 100 * self._picks.id()}",
                f"delete from b where x = {self._picks.id()}",
                f"delete from p where id < {self._picks.id() // 4}",
            ]
        )

    def _upsert(self) -> str:
        return f"insert into a (id, n) values ({self._picks.id()}, 7) on conflict (id) do update set n = excluded.n"

    def _row_of_types(self) -> str:
        number, label = self._picks.id(), self._picks.label()
        return self._picks.one_of(
            [
                f"insert into k (id, number, v) values ('{label}', {number}, row({number}, 1)::text::pair)",
                f"update k set words = {self._picks.text()} where number = {number}",
                f"update k set v = null where number = {number}",
                f"update k set id = '{self._picks.label()}' where number < {number}",
                f"delete from k where id = '{self._picks.label()}' and number > {number}",
            ]
        )

    def _row_of_twins(self, table: str = "") -> str:
        table = table or self._picks.one_of(["one", "two"])
        number = self._picks.id()
        return self._picks.one_of(
            [
                f"insert into {table} values ({number}, {self._picks.text()}, 'new')",
                f"insert into {table} values ({number}, 'x', 'y') on conflict (id) do update set note = 'again'",
                f"update {table} set note = note || '!' where id > {number}",
                f"update {table} set words = {self._picks.text()} where id < {number}",
                f"update {table} set id = 30 - id where id = {number}",
                f"delete from {table} where id = {number}",
            ]
        )

    def _row_of_log(self) -> str:
        number = self._picks.id()
        return self._picks.one_of(
            [
                f"insert into log (n, words) values ({number}, {self._picks.text()})",
                f"insert into log (n) select n from generate_series({number}, {number + 30}) n",
                f"update log set words = {self._picks.text()} where n = {number}",
                f"update log set n = n + 1 where n > {90 - number}",
                f"delete from log where n = {number}",
            ]
        )

    def _truncate(self) -> str:
        tables = ["a", "b", "p", "p_1", "a, b", "aside", "one", "k, m", "log", "log, two"]
        return f"truncate {self._picks.one_of(tables)}"

    def _message(self) -> str:
        """Each message has a row beside it; outside a transaction, the statement has its number."""
        if self._picks.chance.random() < 0.3:
            return f"select pg_logical_emit_message(false, 'audit', 'at once {self._picks.number()}', true)"
        size = self._picks.one_of([0, 0, 20_000])
        return (
            "with new as (insert into said default values returning id)"
            f" select pg_logical_emit_message(true, 'audit', id || ' ' || noise({size}, 1)) from new"
        )

    # Columns.

    def _table(self) -> str:
        return self._picks.one_of(["a", "b", "p", "k", "one", "log"])

    def _name(self) -> str:
        """A column's name: a new one, or one that existed before and may again."""
        if self._used and self._picks.chance.random() < 0.4:
            return self._picks.one_of(self._used)
        self._used.append(next(self._names))
        return self._used[-1]

    def _add_column(self) -> str:
        kind = self._picks.one_of(
            [
                "int",
                "int default 7",
                "text default 'd' not null",
                "float8 default random()",
                "numeric(8,2)[] default '{1.5}'",
                "mood default 'sad'",
                "timestamptz default now()",
                "text default noise(5000, 3)",
                "int generated always as (1 + 1) stored",
                "bigint generated by default as identity",
                "pair",
            ]
        )
        return f"alter table {self._table()} add {self._name()} {kind}"

    def _drop_column(self) -> str:
        table = self._table()
        column = self._picks.extra(table)
        again = self._picks.one_of(["", f"; alter table {table} add {column} text", f", add {column} int default 3"])
        return f"alter table {table} drop {column}{again}"

    def _rename_column(self) -> str:
        table = self._table()
        first, second = self._picks.extra(table), self._picks.extra(table)
        chain = (
            f"alter table {table} rename {first} to between; alter table {table} rename {second} to {first};"
            f" alter table {table} rename between to {second}"
        )
        return self._picks.one_of([f"alter table {table} rename {first} to {self._name()}", chain])

    def _alter_type(self) -> str:
        table = self._table()
        column = self._picks.extra(table)
        return self._picks.one_of(
            [
                f"alter table {table} alter {column} type text using 'x' || {column}::text",
                f"alter table {table} alter {column} type mood using 'fine'",
                f"alter table {table} alter {column} type varchar(30) using left({column}::text, 3)",
                *(f"alter table a alter {name} type {kind}" for name in ("id", "n") for kind in ("int", "bigint")),
                f"alter table m alter {self._picks.column(1)} type {self._picks.one_of(['int', 'bigint', 'text'])}",
                "alter table a alter words type text using upper(words)",
                f"alter table a alter words set storage {self._picks.one_of(['main', 'external', 'extended'])}",
                "alter table a alter id type int using 40 - id; update a set n = n + 1",
            ]
        )

    def _partition(self) -> str:
        if self._loose and self._picks.chance.random() < 0.6:
            name, low = self._loose.pop()
            return f"alter table p attach partition {name} for values from ({low}) to ({low + 10})"
        number = self._picks.number()
        low = 2000 + number * 10
        if self._picks.chance.random() < 0.3:
            kind = self._picks.one_of(["", f" partition by list (id); create table q{number}_0 partition of q{number}"
            " default"])  # fmt: skip
            return f"create table q{number} partition of p for values from ({low}) to ({low + 10}){kind}"
        self._loose.append((f"q{number}", low))
        return (
            f"create table q{number} as select id, {low} as n, words from a where id < 5;"
            f" alter table q{number} alter id set not null, alter n set not null, add primary key (id, n)"
        )

    def _elsewhere(self) -> str:
        return self._picks.one_of(
            [
                f"insert into fast values ({self._picks.chance.randrange(100000)})",
                f"insert into aside values ({self._picks.chance.randrange(100000)}, 'x')",
                "create temp table if not exists mine (id int)",
                "select pg_logical_emit_message(true, 'other', 'content')",
                "select pg_logical_emit_message(false, 'other', 'content')",
                f"alter type mood add value 'mood {self._picks.number()}'",
                f"vacuum full {self._table()}",
                "reindex table a",
                "analyze",
            ]
        )
