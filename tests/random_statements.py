"""Random statements against capture: DDL and DML over several tables and sessions, with savepoints and restarts.

    python -m tests.random_statements --minutes 30 [--seed N] --stack DIRECTORY

Each round has a database, a pipeline and a seed of its own. When its sessions have ended, what a new reader makes of
the topics must be what the tables hold. The slot is lost now and then, and the source taken back, and `recover` is the
way back. A round is repeated by its seed, as far as the servers' own timing allows.
"""

import argparse
import contextlib
import itertools
import random
import shutil
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg

from lockstep.capture.recover import recover
from stack.stack import Stack
from tests.captured import Captured
from tests.databases import Database
from tests.dying_publisher import Killed, dying
from tests.services import KAFKA_OVERRIDES, temporary_directory

_RESTORE_EVERY = 4
"""One in so many rounds, by its seed, has a source that is taken back to an earlier moment."""

_SETUP = (
    "create function noise(length int, seed int) returns text language sql immutable return"
    " (select left(string_agg(md5(seed::text || n), ''), length) from generate_series(0, length / 32) n)",
    "create type mood as enum ('sad', 'fine')",
    "create table a (id int primary key, n int, words text, list int[])",
    "create table b (x int, y text, n int, primary key (y, x) deferrable initially immediate)",
    "alter table b replica identity full",
    "create table p (id int, n int, words text, primary key (id, n)) partition by range (n)",
    "create table p_1 partition of p for values from (minvalue) to (50)",
    "create table p_2 partition of p for values from (50) to (1000)",
    "create table p_default partition of p default",
    "create unlogged table fast (id int primary key)",
    "create table aside (id int primary key, words text)",
    *(
        f"insert into {table} (id, n, words) select n, n, noise(10 * n * n, n) from generate_series(1, 20) n"
        for table in "ap"
    ),
    "insert into b select n, 'y' || n % 3, n from generate_series(1, 20) n",
)


_UNTOLD_SETUP = (
    "create type label as enum ('l0', 'l1', 'l2', 'l3')",
    "create type pair as (x int, y int)",
    "create table k (id label, number int, v pair, words text, primary key (id, number))",
    "insert into k select ('l' || n % 4)::label, n, row(n, n)::pair, noise(200 * n * n, n)"
    " from generate_series(1, 12) n",
)


class OwnServer:
    """A PostgreSQL that nobody else uses, whose files are kept and taken back."""

    def __init__(self, directory: Path) -> None:
        self._stack = Stack(directory, light=True, durable=False)
        self._kept = directory / "kept"
        self.dsn = self._stack.up(["postgres"]).source_dsn
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute("show data_directory").fetchone()
        assert row is not None
        self._files = Path(row[0])

    def keep(self) -> None:
        """Keep the files as they are now."""
        self._stack.stop("postgres")
        _copy(self._files, self._kept)
        self._stack.start("postgres")

    def take_back(self) -> None:
        """Begin again with the files that were kept."""
        self._stack.stop("postgres")
        shutil.rmtree(self._files)
        _copy(self._kept, self._files)
        self._stack.start("postgres")

    def remove(self) -> None:
        self._stack.remove()


def _copy(files: Path, to: Path) -> None:
    subprocess.run(["cp", "-a", str(files), str(to)], check=True)  # with their owner, which PostgreSQL insists on


class Round:
    """One database, one pipeline, three sessions. ``untold`` adds statements of which the stream tells nothing."""

    def __init__(self, seed: int, database: Database, captured: Captured, *, untold: bool) -> None:
        self.seed = seed
        self._untold = untold
        self.random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.log: list[str] = []
        self._database = database
        self._captured = captured
        self._names = (f"c{number}" for number in itertools.count(1))
        self._partitions = itertools.count(1)
        self._loose: list[tuple[str, int]] = []
        self._used: list[str] = []
        self._moods = itertools.count(1)
        self._labels = itertools.count(4)
        self._attributes = itertools.count(1)

    def _session(self) -> psycopg.Connection[Any]:
        connection = psycopg.connect(self._database.dsn, autocommit=True)
        # One thread serves all sessions: whoever would wait for another fails.
        connection.execute("set lock_timeout = '30ms'")
        connection.execute("set statement_timeout = '5s'")
        return connection

    def run(self, statements: int) -> None:
        """Run so many statements. Raises AssertionError when topics and tables differ."""
        self._captured.start()
        self._work(statements)
        self._captured.wait_quiet()
        self._captured.assert_equal()

    def run_over_a_restore(self, statements: int, server: "OwnServer") -> None:
        """The same, with a source that is taken back to an earlier moment in between. ``server`` is the database's."""
        self._captured.start()
        self._work(statements // 3)
        self._captured.settle()
        self._captured.stop()
        server.keep()
        self._database.reconnect()
        self._captured.start()
        self._work(statements // 3)
        if self.random.random() < 0.7:
            self._captured.settle()
        self._captured.stop()
        self.log.append("-- the source is taken back")
        server.take_back()
        self._database.reconnect()
        for _ in range(self.random.choice([0, 1])):
            self._work(10)
        recovered(self._captured)
        self._captured.start()
        self._work(statements // 3)
        self._captured.wait_quiet()
        self._captured.assert_equal()

    def _work(self, statements: int) -> None:
        sessions = [self._session() for _ in range(3)]
        for _ in range(statements):
            self._step(self.random.choice(sessions))
            if self.random.random() < 0.02:
                self._restart(sessions)
        for session in sessions:
            self._execute(session, self.random.choice(["commit", "rollback"]))
            session.close()

    def _step(self, session: psycopg.Connection[Any]) -> None:
        status = session.info.transaction_status
        if status == psycopg.pq.TransactionStatus.INERROR:
            self._execute(session, self.random.choice(["rollback", "rollback to savepoint s"]))
            return None
        if status == psycopg.pq.TransactionStatus.INTRANS:
            chance = self.random.random()
            if chance < 0.15:
                return self._execute(session, "commit")
            if chance < 0.19:
                return self._execute(session, "rollback")
            if chance < 0.26:
                return self._execute(session, self.random.choice(["savepoint s", "rollback to savepoint s"]))
        elif self.random.random() < 0.4:
            return self._execute(session, "begin")
        make = self.random.choices(*zip(*self._statements(), strict=True))[0]
        return self._execute(session, make())

    def _execute(self, session: psycopg.Connection[Any], statement: str) -> None:
        try:
            session.execute(statement.encode())
        except psycopg.Error as error:
            self.log.append(f"-- {type(error).__name__}: {statement}")
            return
        self.log.append(statement)
        words = statement.split()
        self.done[" ".join(words[:2]) if words[0] in ("alter", "create", "drop") else words[0]] += 1

    def _statements(self) -> list[tuple[Callable[[], str], int]]:
        return [
            (self._insert, 20),
            (self._update, 25),
            (self._update_key, 8),
            (self._delete, 8),
            (self._upsert, 4),
            (self._truncate, 2),
            (self._add_column, 3),
            (self._drop_column, 2),
            (self._rename_column, 2),
            (self._alter_type, 2),
            (self._identity, 1),
            (self._partition, 3),
            (self._elsewhere, 3),
            (self._publication, 1),
            (self._key, 1),
            *([(self._row_of_types, 12), (self._type, 2), (self._bypass, 2)] if self._untold else []),
        ]  # fmt: skip

    def _id(self) -> int:
        return self.random.randrange(30)

    def _text(self) -> str:
        length = self.random.choice([0, 5, 300, 2500, 9000])
        return self.random.choice(["null", f"noise({length}, {self._id()})", "'quo\"te''s \\ , {}'"])

    def _insert(self) -> str:
        table = self.random.choice("aabp")
        if table == "b":
            return f"insert into b (x, y, n) values ({self._id()}, 'y{self._id() % 3}', {self._id()})"
        many = self.random.choice([1, 1, 1, 5])
        first = self.random.randrange(20, 5000)
        return (
            f"insert into {table} (id, n, words) select n, n % 100, {self._text()} from"
            f" generate_series({first}, {first + many - 1}) n"
        )

    def _update(self) -> str:
        table = self.random.choice("aaabp")
        if table == "b":
            return f"update b set n = n + 1 where x < {self._id()}"
        changes = {
            "n = n + 1": 3,
            f"words = {self._text()}": 2,
            "words = words || '!'": 1,
            "list = array[1, null, 3]" if table == "a" else "n = n + 40": 1,
        }
        change = self.random.choices(list(changes), list(changes.values()))[0]
        return f"update {table} set {change} where id {self.random.choice(['=', '<', '>'])} {self._id()}"

    def _update_key(self) -> str:
        return self.random.choice(
            [
                f"update a set id = id + 10000 where id = {self._id()}",
                f"update a set id = {self._id()} where id = {self._id()}",
                f"update a set id = 29 - id where id < {self._id()}",
                f"update b set x = x + 1 where y = 'y{self._id() % 3}'",
                f"update b set x = 30 - x where y = 'y{self._id() % 3}'",
                f"update b set y = 'y{self._id() % 3}' where x = {self._id()}",
                f"update p set n = n + 60 where id = {self._id()}",
            ]
        )

    def _delete(self) -> str:
        return self.random.choice(
            [
                f"delete from a where id = {self._id()}",
                f"delete from b where x = {self._id()}",
                f"delete from p where id < {self._id() // 4}",
            ]
        )

    def _upsert(self) -> str:
        return f"insert into a (id, n) values ({self._id()}, 7) on conflict (id) do update set n = excluded.n"

    def _truncate(self) -> str:
        return f"truncate {self.random.choice(['a', 'b', 'p', 'p_1', 'a, b', 'aside'])}"

    def _table(self) -> str:
        return self.random.choice("abp")

    def _extra(self, table: str) -> str:
        """A column that this round has added, or one that doesn't exist."""
        row = self._database.connection.execute(
            "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0 and not attisdropped"
            " and attname like 'c%%' order by random() limit 1",
            (table,),
        ).fetchone()
        return str(row[0]) if row else "none"

    def _name(self) -> str:
        """Of a column: a new one, or one that was there before and may be again."""
        if self._used and self.random.random() < 0.3:
            return self.random.choice(self._used)
        self._used.append(next(self._names))
        return self._used[-1]

    def _add_column(self) -> str:
        kind = self.random.choice(
            [
                "int",
                "int default 7",
                "text default 'd' not null",
                "float8 default random()",
                "numeric(8,2)[] default '{1.5}'",
                "mood default 'sad'",
                "timestamptz default now()",
            ]
        )
        return f"alter table {self._table()} add {self._name()} {kind}"

    def _drop_column(self) -> str:
        table = self._table()
        return f"alter table {table} drop {self._extra(table)}"

    def _rename_column(self) -> str:
        table = self._table()
        return f"alter table {table} rename {self._extra(table)} to {self._name()}"

    def _alter_type(self) -> str:
        table = self._table()
        column = self._extra(table)
        return self.random.choice(
            [
                f"alter table {table} alter {column} type text using 'x' || {column}::text",
                f"alter table {table} alter {column} type mood using 'fine'",
                "alter table a alter id type bigint",
                "alter table a alter id type int",
                f"alter table {table} alter {column} type varchar(30) using left({column}::text, 3)",
                "alter table a alter n type bigint",
                "alter table a alter n type int",
                "alter table a alter words type text using upper(words)",
            ]
        )

    def _identity(self) -> str:
        return f"alter table a replica identity {self.random.choice(['full', 'default'])}"

    def _partition(self) -> str:
        if self._loose and self.random.random() < 0.6:
            name, low = self._loose.pop()
            return f"alter table p attach partition {name} for values from ({low}) to ({low + 10})"
        number = next(self._partitions)
        low = 2000 + number * 10
        if self.random.random() < 0.3:
            return f"alter table p detach partition {self.random.choice(['p_2', 'p_1'])}"
        if self.random.random() < 0.3:
            return f"create table q{number} partition of p for values from ({low}) to ({low + 10})"
        self._loose.append((f"q{number}", low))
        return (
            f"create table q{number} as select id, {low} as n, words from a where id < 5;"
            f" alter table q{number} alter id set not null, alter n set not null, add primary key (id, n)"
        )

    def _elsewhere(self) -> str:
        return self.random.choice(
            [
                f"insert into fast values ({self.random.randrange(100000)})",
                f"insert into aside values ({self.random.randrange(100000)}, 'x')",
                "create temp table if not exists mine (id int)",
                "select pg_logical_emit_message(true, 'other', 'content')",
                "select pg_logical_emit_message(false, 'other', 'content')",
                f"alter type mood add value 'mood {next(self._moods)}'",
                "vacuum full a",
                "analyze",
            ]
        )

    def _publication(self) -> str:
        name = self._captured.config.publication
        return f"alter publication {name} drop table a; alter publication {name} add table a"

    def _key(self) -> str:
        return self.random.choice(
            [
                "alter table a drop constraint a_pkey, add primary key (id)",
                "alter table a drop constraint a_pkey, add primary key (id) deferrable",
                "alter table a drop constraint a_pkey, add primary key (id) deferrable initially deferred",
                "begin; alter table a rename id to ident; update a set n = n + 1 where ident < 9;"
                " alter table a rename ident to id; commit",
            ]
        )

    def _label(self) -> str:
        row = self._database.connection.execute(
            "select enumlabel from pg_enum where enumtypid = 'label'::regtype order by random() limit 1"
        ).fetchone()
        assert row is not None
        return str(row[0])

    def _row_of_types(self) -> str:
        number = self._id()
        return self.random.choice(
            [
                f"insert into k (id, number, v) values ('{self._label()}', {number}, row({number}, 1)::text::pair)",
                f"update k set words = {self._text()} where number = {number}",
                f"update k set v = null where number = {number}",
                f"update k set id = '{self._label()}' where number < {number}",
                f"delete from k where id = '{self._label()}' and number > {number}",
            ]
        )

    def _type(self) -> str:
        label, other = self._label(), f"l{next(self._labels)}"
        attribute = f"z{next(self._attributes)}"
        return self.random.choice(
            [
                f"alter type label rename value '{label}' to '{other}'",
                f"alter type label rename value '{label}' to '{other}'; update k set words = '!' where number < 5;"
                f" alter type label rename value '{other}' to '{label}'",
                f"alter type label add value '{other}' before '{label}'",
                f"alter type pair add attribute {attribute} int",
                f"alter type pair add attribute {attribute} int; update k set number = number + 100 where number < 4;"
                f" alter type pair drop attribute {attribute}",
            ]
        )

    def _bypass(self) -> str:
        name = self._captured.config.publication
        return self.random.choice(
            [
                f"alter publication {name} set (publish = 'insert'); update k set words = 'bypassed' where number < 9;"
                f" delete from b where x = {self._id()};"
                f" alter publication {name} set (publish = 'insert, update, delete, truncate')",
                "alter table p detach partition p_2; update p_2 set words = 'bypassed';"
                " alter table p attach partition p_2 for values from (50) to (1000)",
                "alter table a alter id type int using 40 - id; update a set n = n + 1",
                "create table a_new (like a including all); insert into a_new select * from a;"
                f" alter table a rename to a_{next(self._attributes)}; alter table a_new rename to a;"
                f" alter publication {name} add table a",
            ]
        )

    def _restart(self, sessions: Sequence[psycopg.Connection[Any]]) -> None:
        captured = self._captured
        how = self.random.random()
        if how < 0.15:
            self.log.append("-- the slot is lost")
            captured.stop()
            self._database.drop_slot(captured.config.slot)
            for _ in range(self.random.choice([0, 3, 10])):
                self._step(self.random.choice(sessions))
            # A new slot waits for transactions that write, and this thread has their sessions.
            for session in sessions:
                self._execute(session, self.random.choice(["commit", "rollback"]))
            recovered(captured)
        elif how < 0.55:
            self.log.append("-- capture stops")
            captured.stop()
            for _ in range(self.random.choice([0, 3, 10, 30])):
                self._step(self.random.choice(sessions))
        else:
            at, before = self.random.randrange(1, 4), self.random.random() < 0.5
            self.log.append(f"-- capture is killed {'before' if before else 'after'} commit {at}")
            captured.stop()
            captured.start(wrap_publisher=dying(lambda commit: commit.number == at, before=before))
            deadline = time.monotonic() + 3
            while captured.error is None and time.monotonic() < deadline:
                time.sleep(0.05)
            if captured.error is None:
                captured.stop()
            elif not isinstance(captured.error, Killed):
                raise captured.error
        captured.start()


def recovered(captured: Captured) -> None:
    """What an operator does after a stop for good."""
    agreed = recover(
        captured.config.as_pipeline(), (), agreed=lambda _: True, stopping=lambda: False, say=captured.said.append
    )
    assert agreed is not None


@contextlib.contextmanager
def prepared(seed: int, source_dsn: str, kafka: str, directory: Path, *, untold: bool = False) -> Iterator[Round]:
    """A round, ready to run. Without what is ``untold``, the same seed gives other statements."""
    database = Database(source_dsn)
    try:
        database.execute(*_SETUP, *(_UNTOLD_SETUP if untold else ()))
        tables = ["public.a", "public.b", "public.p", *(["public.k"] if untold else [])]
        captured = Captured(database, kafka, directory, tables, partitions=2)
        try:
            yield Round(seed, database, captured, untold=untold)
        finally:
            captured.stop()
    finally:
        database.drop()


def main() -> int:
    """Rounds until the time is over or one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, help="run this one round")
    parser.add_argument("--told", action="store_true", help="only statements of which the stream tells something")
    parser.add_argument("--statements", type=int, default=150, help="statements of a round")
    parser.add_argument("--stack", type=Path, required=True, help="where the servers' data is")
    options = parser.parse_args()
    stack = Stack(options.stack, durable=False, light=True, kafka_overrides=KAFKA_OVERRIDES)
    stack.up()
    endpoints = stack.endpoints()
    total: Counter[str] = Counter()
    seeds = [options.seed] if options.seed is not None else itertools.count(int(time.time()))
    deadline = time.monotonic() + 60 * options.minutes
    failed = rounds = 0
    for seed in seeds:
        if time.monotonic() > deadline:
            break
        with contextlib.ExitStack() as closing:
            directory = closing.enter_context(temporary_directory())
            server = None
            if seed % _RESTORE_EVERY == 0:
                server = OwnServer(directory / "server")
                closing.callback(server.remove)
            source_dsn = endpoints.source_dsn if server is None else server.dsn
            made = closing.enter_context(
                prepared(seed, source_dsn, endpoints.kafka_bootstrap, directory, untold=not options.told)
            )
            rounds += 1
            try:
                if server is None:
                    made.run(options.statements)
                else:
                    made.run_over_a_restore(options.statements, server)
            except (Exception, AssertionError) as error:
                failed += 1
                print(f"seed {seed} FAILED: {type(error).__name__}: {str(error)[:1500]}", flush=True)
                traceback.print_exc(limit=-4)
                Path(f"/tmp/round-{seed}.sql").write_text("\n".join([*made.log, *captured_words(made)]))
            total += made.done
        print(f"seed {seed}: {sum(made.done.values())} statements; so far {rounds} rounds, {failed} failed", flush=True)
    print(
        f"{sum(total.values())} statements that did something in {rounds} rounds, {failed} failed:"
        f" {dict(total.most_common())}"
    )
    return 1 if failed else 0


def captured_words(made: Round) -> list[str]:
    """What capture said, as comments."""
    return [f"-- said: {line}" for line in made._captured.said]


if __name__ == "__main__":
    sys.exit(main())
