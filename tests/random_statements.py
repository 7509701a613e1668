"""Random statements against capture: DDL and DML over several tables and sessions, with faults in between.

    python -m tests.random_statements --minutes 30 [--seed N] --stack DIRECTORY

Each round has a database, a pipeline and a seed of its own. `tests/random_grammar.py` has the statements,
`tests/random_faults.py` what happens to capture and its servers. At the end what a new reader makes of the topics, and
what a sink has that was there from the beginning, must be what the tables hold. Where capture stops by design, the
round does what its message says. A round is repeated by its seed, as far as the servers' own timing allows.
"""

import argparse
import base64
import contextlib
import itertools
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import orjson
import psycopg

from cdc.capture.batch_size import BatchSize
from cdc.kafka.control_topics import read_state
from cdc.kafka.topic_names import MESSAGES, control_topic
from cdc.kafka.topic_reader import TopicReader
from cdc.model.errors import LockstepError
from migrations.source import ddl_messages_sql
from stack.stack import Stack
from tests.captured import Captured, assert_same_rows, carried
from tests.databases import Database, until
from tests.dying_publisher import dying
from tests.followers import Follower
from tests.own_server import OwnServer
from tests.random_faults import Faults, Servers
from tests.random_grammar import Grammar
from tests.random_operator import Operator
from tests.random_tables import KEYED, LOG, SETUP, TABLES, Publication
from tests.services import KAFKA_OVERRIDES, temporary_directory

_RESTORE_EVERY = 4
"""One round in this many, by its seed, has a source that is taken back to an earlier moment."""

_FAULT_SHARE = 0.04
_READ_EVERY = 40
"""After this many statements the sink in memory reads on."""


class Round:
    """One database, one pipeline, three sessions. ``servers`` may be restarted, if there are any."""

    def __init__(
        self,
        seed: int,
        database: Database,
        captured: Captured,
        publication: Publication,
        *,
        servers: Servers | None = None,
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.log: list[str] = []
        self._at_once: set[str] = set()
        self._database = database
        self._captured = captured
        self._follower = Follower(captured)
        self._grammar = Grammar(self.random, database, publication)
        self.operator = Operator(
            database, captured, publication, self._grammar.detours.names, rest=self._rest, note=self.log.append
        )
        self._faults = Faults(self.random, database, captured, self.operator, servers=servers, work=self._work)
        self._sessions = [self._session() for _ in range(3)]

    def _session(self) -> psycopg.Connection[Any]:
        connection = psycopg.connect(self._database.dsn, autocommit=True)
        # One thread serves all sessions, so a session that would wait for another one fails.
        connection.execute("set lock_timeout = '30ms'")
        connection.execute("set statement_timeout = '5s'")
        return connection

    def run(self, statements: int) -> None:
        """Run this many statements. Raises AssertionError if topics and tables differ."""
        self._begin()
        self._work_with_faults(statements)
        self._judge()

    def run_over_a_restore(self, statements: int, server: OwnServer) -> None:
        """The same, with a source that is taken back to an earlier moment in between. ``server`` is the database's."""
        self._begin()
        self._work_with_faults(statements // 3)
        self._settle()
        self._captured.stop()
        self._while_away(server.keep)
        self.operator.go_on()
        self._work_with_faults(statements // 3)
        if self.random.random() < 0.7:
            self._settle()
        self._captured.stop()
        self.log.append("-- the source is taken back")
        self._while_away(server.take_back)
        self.operator.lost = True
        self._work(self.random.choice([0, 10]))
        self.operator.go_on()
        self._work_with_faults(statements // 3)
        self._judge()

    def _while_away(self, what: Any) -> None:
        self._rest()
        what()
        self._database.reconnect()

    def _begin(self) -> None:
        while self.random.random() < 0.4:
            number, before = self.random.randrange(1, 16), self.random.random() < 0.5
            self.log.append(f"-- the first snapshot is killed {'before' if before else 'after'} commit {number}")
            self._captured.stop()
            self._captured.begin(
                wrap_publisher=dying(lambda commit, number=number: commit.number == number, before=before)
            )
            # Earlier messages are no part of it.
            until(lambda: self._captured.error is not None or self._has_begun())
            if self._has_begun():
                self._work(self.random.choice([5, 15]))
            self._rest()  # the slot waits for transactions that write
            time.sleep(0.5)
        self.operator.go_on()
        self._follower.read()

    def _has_begun(self) -> bool:
        """Whether there is a slot from which the stream will begin."""
        try:
            state = read_state(self._captured.client, self._captured.name, self._captured.config.slot)
        except LockstepError:
            return False  # it has no topic yet
        return state is not None and state.handoff > 0

    def _work_with_faults(self, statements: int) -> None:
        for number in range(statements):
            self._work(1)
            if self._captured.error is not None:
                self.operator.mend(self._captured.error)
                self.operator.go_on()
            if self.random.random() < _FAULT_SHARE:
                self._faults.strike()
            if number % _READ_EVERY == 0:
                self._follower.read()

    def _work(self, statements: int) -> None:
        for _ in range(statements):
            self._step(self.random.randrange(len(self._sessions)))

    def _rest(self) -> None:
        """End every transaction: new slots wait for those that write."""
        for index, session in enumerate(self._sessions):
            if session.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                self._execute(index, self.random.choice(["commit", "rollback"]))

    def _step(self, index: int) -> None:
        status = self._sessions[index].info.transaction_status
        if status == psycopg.pq.TransactionStatus.INERROR:
            self._execute(index, self.random.choice(["rollback", "rollback to savepoint s"]))
            return None
        if status == psycopg.pq.TransactionStatus.INTRANS:
            chance = self.random.random()
            if chance < 0.15:
                return self._execute(index, "commit")
            if chance < 0.19:
                return self._execute(index, "rollback")
            if chance < 0.26:
                return self._execute(index, self.random.choice(["savepoint s", "rollback to savepoint s"]))
        elif self.random.random() < 0.4:
            return self._execute(index, "begin")
        return self._execute(index, self._grammar.statement())

    def _execute(self, index: int, statement: str) -> None:
        session = self._sessions[index]
        try:
            session.execute(statement.encode())
        except psycopg.Error as error:
            self.log.append(f"-- {type(error).__name__}: {statement}")
            if session.closed:
                session.close()
                self._sessions[index] = self._session()
            return
        self.log.append(f"{statement} -- {index}")
        if "'at once" in statement:
            self._at_once.add(statement.split("'")[3])
        words = statement.split()
        self.done[" ".join(words[:2]) if words[0] in ("alter", "create", "drop") else words[0]] += 1

    # The judge.

    def _settle(self) -> None:
        """Wait until capture has done everything. If it stops, or waits for a table, do what it says."""
        self._rest()
        self.operator.put_missing_back()
        for _ in range(10):
            try:
                self._captured.wait_quiet()
            except Exception as error:  # including the one that capture has ended with
                self.operator.mend(error)
                self.operator.go_on()
            else:
                return
        raise AssertionError("capture doesn't come to rest")

    def _judge(self) -> None:
        self._rest()
        self.operator.put_back()
        self._settle()
        self._follower.read()
        for table in KEYED:
            name = f"public.{table}"
            expected = self._captured.source_rows(name)
            assert_same_rows(name, self._captured.rows(name), expected, "to a new reader")
            assert_same_rows(name, self._captured.rows(name, by_tag=True), expected, "to a new sink")
            assert_same_rows(name, self._follower.rows(name), expected, "in a sink that was there from the beginning")
        self._judge_log()
        if not self.operator.lost:
            self._judge_messages()

    def _judge_log(self) -> None:
        """The changes of the table without a key lead to its rows, and each is there once."""
        name = f"public.{LOG}"
        records = self._captured.schemas(name)
        indexes = {record.table.schema_id: index for index, record in enumerate(records)}
        rows: Counter[bytes] = Counter()
        tags: set[str] = set()
        for event in self._captured.events(name):
            if event.op == "t":
                rows.clear()
            elif event.op != "r":
                assert event.tag not in tags, f"{name}: {event.tag} was published twice"
                tags.add(event.tag)
            later = records[indexes[event.schema_id] + 1 :]
            for row, change in ((event.parsed["before"], -1), (event.parsed["after"], 1)):
                if row is not None:
                    rows[orjson.dumps(reduce(carried, later, row), option=orjson.OPT_SORT_KEYS)] += change
        expected = Counter(
            orjson.dumps(row, option=orjson.OPT_SORT_KEYS) for row in self._captured.source_row_list(name)
        )
        wrong = {row: (rows[row], expected[row]) for row in rows.keys() | expected.keys() if rows[row] != expected[row]}
        shown = [(row[:200], count) for row, count in sorted(wrong.items())[:3]]
        assert not wrong, f"{name}: {len(wrong)} rows differ in number, on the topic and in the source: {shown}"

    def _judge_messages(self) -> None:
        topic = control_topic(self._captured.name, MESSAGES)
        found = Counter(
            base64.b64decode(orjson.loads(record.value or b"")["message"]["content"]).decode()
            for record in TopicReader(self._captured.client).records(topic)
        )
        transactional = Counter(text.split(" ")[0] for text in found.elements() if not text.startswith("at once"))
        said = {str(row[0]) for row in self._database.connection.execute("select id from said").fetchall()}
        assert transactional == Counter(said), "messages of transactions"
        assert {text for text in found if text.startswith("at once")} == self._at_once, "messages outside of them"
        assert set(found.values()) <= {1}, "a message was published twice"

    def close(self) -> None:
        for session in self._sessions:
            session.close()


@contextlib.contextmanager
def prepared(
    seed: int, source_dsn: str, kafka: str, directory: Path, *, servers: Servers | None = None
) -> Iterator[Round]:
    chance = random.Random(-seed)
    database = Database(source_dsn)
    try:
        publication = Publication("p", chance.choice(["listed", "listed", "all", "schemas"]))
        database.execute(*SETUP, *([ddl_messages_sql()] if chance.random() < 0.5 else []), publication.create)
        sections = f"[snapshot]\nworkers = {chance.choice([0, 0, 2])}"
        batch = BatchSize(chance.choice([20_000, 7]), 1 << 24)
        captured = Captured(
            database,
            kafka,
            directory,
            [f"public.{table}" for table in TABLES],
            partitions=2,
            source=f"publication = 'p'\nmessages = ['audit']\n[source.options.'public.{LOG}']\nappend_only = true",
            sections=sections,
            batch=batch,
            copy_batch=batch,
        )
        try:
            made = Round(seed, database, captured, publication, servers=servers)
            made.log += [f"-- {line}" for line in (publication.create, *sections.splitlines(), str(batch))]
            try:
                yield made
            finally:
                made.close()
        finally:
            captured.stop()
    finally:
        database.drop()


def rounds(minutes: float, stack: Stack, seeds: Iterator[int], statements: int) -> int:
    """Run rounds until the time is over, on servers that nobody else uses; returns how many failed."""
    endpoints = stack.up(["postgres", "kafka"])
    total: Counter[str] = Counter()
    deadline = time.monotonic() + 60 * minutes
    failed = count = 0
    for seed in seeds:
        if time.monotonic() > deadline:
            break
        began = time.monotonic()
        with contextlib.ExitStack() as closing:
            directory = closing.enter_context(temporary_directory())
            server = None
            if seed % _RESTORE_EVERY == 0:
                server = OwnServer(directory / "server")
                closing.callback(server.remove)
            source_dsn = endpoints.source_dsn if server is None else server.dsn
            servers = stack if server is None else None
            made = closing.enter_context(
                prepared(seed, source_dsn, endpoints.kafka_bootstrap, directory, servers=servers)
            )
            count += 1
            try:
                if server is None:
                    made.run(statements)
                else:
                    made.run_over_a_restore(statements, server)
            except (Exception, AssertionError) as error:
                failed += 1
                print(f"seed {seed} FAILED: {type(error).__name__}: {str(error)[:1500]}", flush=True)
                traceback.print_exc(limit=-4)
                log = stack.directory / f"round-{seed}.sql"
                log.write_text("\n".join([*made.log, *(f"-- said: {line}" for line in made._captured.said)]))
            total += made.done + made.operator.done
        print(
            f"seed {seed}: {made.done.total()} statements, {time.monotonic() - began:.0f} s,"
            f" {dict(made.operator.done)}; so far {count} rounds, {failed} failed",
            flush=True,
        )
    print(f"{count} rounds, {failed} failed: {dict(total.most_common())}")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, help="run this one round")
    parser.add_argument("--from-seed", type=int, default=int(time.time()), help="the seed of the first round")
    parser.add_argument("--statements", type=int, default=150, help="statements of a round")
    parser.add_argument("--stack", type=Path, required=True, help="where the servers' data is; nobody else uses them")
    options = parser.parse_args()
    stack = Stack(options.stack, durable=False, light=True, kafka_overrides=KAFKA_OVERRIDES)
    seeds = itertools.count(options.from_seed) if options.seed is None else iter([options.seed])
    return 1 if rounds(options.minutes, stack, seeds, options.statements) else 0


if __name__ == "__main__":
    sys.exit(main())
