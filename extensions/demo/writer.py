"""The shop's application: ``python -m extensions.demo.writer --dsn ... --rate-file rate --seed 1``.

It knows nothing of the pipeline. It writes what applications write: inserts, updates, deletes, changed primary keys,
large values. There are transactions over several tables, rollbacks and savepoints. Now and then one has some 200 rows,
or stays open for a second while others commit. The file of ``--rate-file`` has the transactions per second, and is read
once a second. As often, and at the end, the writer prints its counts as a line of JSON. SIGTERM and SIGINT end it after
the current transactions.
"""

import argparse
import contextlib
import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import FrameType
from typing import Any

import psycopg

from extensions.demo import samples, timeline
from extensions.demo.shop import insert

APPLICATION = "lockstep demo writer"

CLIENTS = 3
"""Concurrent connections, so that transactions overlap and finish in another order than they began."""

_BULK_ROWS = 200
_ORDERS_MIN = 500
"""Fewer orders than this aren't archived: something must be left to change."""

_LOCK_TIMEOUT_MS = 3000
_REPORT_EVERY_S = 1.0
_RECONNECT_S = 1.0

# Another client was faster, or two waited for each other. The transaction is rolled back, and the next one begins.
_CONFLICTS = (
    psycopg.errors.IntegrityError,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.LockNotAvailable,
)


@dataclass(slots=True)
class Counts:
    """What was committed, without rows that a foreign key's cascade changed."""

    transactions: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    keys_changed: int = 0

    def add(self, other: "Counts") -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class _RollBack(Exception):
    """Ends a transaction that the application decides against."""


class SomeRow:
    """Picks some existing row: the next one after a random position, or the first."""

    def __init__(self, connection: psycopg.Connection[Any], rng: random.Random) -> None:
        self._connection = connection
        self.rng = rng

    def customer(self) -> Any:
        return self._pick("customers", "id", samples.new_uuid(self.rng))

    def product(self) -> Any:
        return self._pick("products", "sku", samples.new_sku(self.rng))

    def order(self) -> Any:
        return self.numbered("orders")

    def user(self) -> int:
        """Never the visitor of the page, for whom only the user of the page decides."""
        return self.rng.randint(timeline.VISITOR + 1, timeline.USERS)

    def numbered(self, table: str) -> Any:
        rows = self.rows(
            f"select id from {table} where id >="
            f" (select min(id) + ((max(id) - min(id)) * %s::float8)::bigint from {table}) order by id limit 1",
            self.rng.random(),
        )
        return rows[0][0] if rows else None

    def rows(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement.encode(), parameters).fetchall()

    def _pick(self, table: str, column: str, position: object) -> Any:
        first = f"select {column} from {table} order by {column} limit 1"
        next_row = f"select {column} from {table} where {column} >= %s order by {column} limit 1"
        rows = self.rows(next_row, position) or self.rows(first)
        return rows[0][0] if rows else None


class Client:
    """The traffic of one connection. ``transact`` runs one random transaction; ``counts`` covers all of them."""

    def __init__(
        self, connection: psycopg.Connection[Any], rng: random.Random, *, pause: Callable[[float], object]
    ) -> None:
        self._connection = connection
        self._some = SomeRow(connection, rng)
        self._pause = pause
        self._at_hand = Counts()
        self.counts = Counts()

    def transact(self) -> None:
        """Run one transaction, chosen by weight. Raises psycopg.OperationalError when the server is gone."""
        (work,) = self._some.rng.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()))
        self.run(work)

    def run(self, work: "Callable[[Client], object] | Statement | NewRow") -> None:
        self._at_hand = Counts(transactions=1)
        try:
            with self._connection.transaction():
                match work:
                    case Statement():
                        self._change(work.counts_as, work.sql, *work.parameters(self._some))
                    case NewRow():
                        self._insert(work.table, [work.row(self._some)])
                    case _:
                        work(self)
        except (_RollBack, *_CONFLICTS):
            return
        self.counts.add(self._at_hand)

    # --- transactions ---

    def place_order(self) -> None:
        number = self._new_order()
        if number is not None:
            self._new_items(number, self._some.rng.randint(1, 5))

    def change_quantity(self) -> None:
        number = self._some.order()
        self._change(
            "updated",
            "update order_items set quantity = %s, gift = not gift where order_id = %s and line = 1",
            self._some.rng.randint(1, 20),
            number,
        )
        self._sum_up(number)

    def remove_line(self) -> None:
        """The lines after it move up, one primary key after the other."""
        number = self._some.order()
        lines = [
            row[0] for row in self._some.rows("select line from order_items where order_id = %s order by line", number)
        ]
        if len(lines) > 1:
            removed_line = self._some.rng.choice(lines)
            self._change("deleted", "delete from order_items where order_id = %s and line = %s", number, removed_line)
            for line in lines:
                if line > removed_line:
                    self._change(
                        "keys_changed",
                        "update order_items set line = line - 1 where order_id = %s and line = %s",
                        number,
                        line,
                    )
            self._sum_up(number)

    def replace_line(self) -> None:
        """The same key, deleted and inserted again in one transaction."""
        number = self._some.order()
        if self._change("deleted", "delete from order_items where order_id = %s and line = 1", number):
            self._new_item(number, 1)
            self._sum_up(number)

    def think_better_of_it(self) -> None:
        self.place_order()
        raise _RollBack

    def try_twice(self) -> None:
        """A part is rolled back, the rest is committed."""
        number = self._new_order()
        if number is not None:
            counts_before = Counts(**asdict(self._at_hand))
            with self._connection.transaction() as savepoint:
                self._new_items(number, 3)
                self._change(EDIT_CUSTOMER.counts_as, EDIT_CUSTOMER.sql, *EDIT_CUSTOMER.parameters(self._some))
                raise psycopg.Rollback(savepoint)
            self._at_hand = counts_before
            self._new_items(number, 1)

    def take_time(self) -> None:
        number = self._new_order()
        if number is not None:
            self._pause(self._some.rng.uniform(0.3, 1.2))
            self._new_items(number, 2)

    def bulk(self) -> None:
        kind = self._some.rng.randrange(3)
        if kind == 0:
            self._insert("customers", [samples.customer(self._some.rng) for _ in range(_BULK_ROWS)])
        elif kind == 1:
            self._change(
                "updated",
                "update products set price = round(price * 1.01, 2) where sku in"
                " (select sku from products where sku >= %s order by sku limit %s)",
                samples.new_sku(self._some.rng),
                _BULK_ROWS,
            )
        else:
            self._change(
                "deleted",
                "delete from orders where id in (select id from orders order by id"
                " limit least(%s, greatest(0, (select count(*) from orders) - %s)))",
                _BULK_ROWS,
                _ORDERS_MIN,
            )

    # --- parts of transactions ---

    def _new_order(self) -> int | None:
        customer = self._some.customer()
        if customer is None:
            return None
        numbers = insert(self._connection, "orders", [samples.order(self._some.rng, customer)], returning="id")
        self._at_hand.inserted += 1
        return int(numbers[0])

    def _new_items(self, number: int, count: int) -> None:
        for line in range(1, count + 1):
            self._new_item(number, line)
        self._sum_up(number)

    def _new_item(self, number: int | None, line: int) -> None:
        sku = self._some.product()
        if sku is not None and number is not None:
            self._insert("order_items", [samples.item(self._some.rng, number, line, sku)])

    def _sum_up(self, number: int | None) -> None:
        self._change(
            "updated",
            "update orders set total = coalesce("
            "(select sum(quantity * unit_price) from order_items where order_id = orders.id), 0) where id = %s",
            number,
        )

    def _insert(self, table: str, rows: Sequence[samples.Row]) -> None:
        insert(self._connection, table, rows)
        self._at_hand.inserted += len(rows)

    def _change(self, counts_as: str, statement: str, *parameters: object) -> int:
        rows = self._connection.execute(statement.encode(), parameters).rowcount
        setattr(self._at_hand, counts_as, getattr(self._at_hand, counts_as) + rows)
        return rows


@dataclass(frozen=True, eq=False)
class Statement:
    """A transaction of one statement. ``counts_as`` is the field of the counts."""

    counts_as: str
    sql: str
    parameters: Callable[[SomeRow], tuple[object, ...]]


@dataclass(frozen=True, eq=False)
class NewRow:
    table: str
    row: Callable[[SomeRow], samples.Row]


SIGN_UP = NewRow("customers", lambda some: samples.customer(some.rng))
EDIT_CUSTOMER = Statement(
    "updated",
    "update customers set profile = %s, newsletter = not newsletter, credit = credit + %s where id = %s",
    lambda some: (samples.profile(some.rng), samples.money(some.rng, 50), some.customer()),
)
FORGET_CUSTOMER = Statement(
    "deleted",
    "delete from customers c where id = %s and not exists (select from orders o where o.customer_id = c.id)",
    lambda some: (some.customer(),),
)
_WEIGHTS: dict[Callable[[Client], object] | Statement | NewRow, float] = {
    Client.place_order: 28,
    Statement(
        "updated",
        "update orders set status = case status when 'cart' then 'paid' when 'paid' then 'packed'"
        " when 'packed' then 'shipped' else 'delivered' end::order_status,"
        " delivered_on = case when status = 'shipped' then current_date else delivered_on end where id = %s",
        lambda some: (some.order(),),
    ): 20,
    Client.change_quantity: 8,
    Client.remove_line: 4,
    Client.replace_line: 1,
    Statement("deleted", "delete from orders where id = %s", lambda some: (some.order(),)): 6,
    Statement(
        "updated",
        "update orders set note = %s, ship_to = %s where id = %s",
        lambda some: (samples.note(some.rng), samples.address(some.rng), some.order()),
    ): 4,
    # An update that changes nothing.
    Statement("updated", "update orders set note = note where id = %s", lambda some: (some.order(),)): 1,
    SIGN_UP: 5,
    EDIT_CUSTOMER: 6,
    FORGET_CUSTOMER: 2,
    # Another primary key, with all orders of the customer following; likewise for a product.
    Statement(
        "keys_changed",
        "update customers set id = %s where id = %s",
        lambda some: (samples.new_uuid(some.rng), some.customer()),
    ): 1,
    Statement(
        "keys_changed",
        "update products set sku = %s where sku = %s",
        lambda some: (samples.new_sku(some.rng), some.product()),
    ): 1.5,
    NewRow("products", lambda some: samples.product(some.rng)): 2,
    # Leaves a long description untouched.
    Statement(
        "updated",
        "update products set price = %s, updated_at = clock_timestamp() where sku = %s",
        lambda some: (samples.price(some.rng), some.product()),
    ): 4,
    Statement(
        "updated",
        "update products set description = %s, attributes = %s where sku = %s",
        lambda some: (samples.long_text(some.rng), samples.attributes(some.rng), some.product()),
    ): 1.5,
    Statement(
        "deleted",
        "delete from products p where sku = %s and not exists (select from order_items i where i.sku = p.sku)",
        lambda some: (some.product(),),
    ): 1,
    Client.think_better_of_it: 2,
    Client.try_twice: 2,
    Client.take_time: 0.5,
    NewRow("tweets", lambda some: {"user_id": some.user(), "body": samples.tweet(some.rng)}): 1.5,
    Statement(
        "deleted",
        "delete from tweets where id = %s and user_id > %s",
        lambda some: (some.numbered("tweets"), timeline.VISITOR),
    ): 0.5,
    Statement(
        "inserted",
        "insert into follows values (%s, %s) on conflict do nothing",
        lambda some: (some.user(), some.user()),
    ): 0.5,
    Statement(
        "deleted",
        "delete from follows where follower_id = %s and followee_id = %s and follower_id <> followee_id",
        lambda some: (some.user(), some.user()),
    ): 0.3,
    Client.bulk: 0.3,
}


class Writer:
    """Several clients at a common rate, until stopped. ``rate`` returns the transactions a second."""

    def __init__(self, *, dsn: str, rate: Callable[[], float], seed: int, stop: threading.Event) -> None:
        self._dsn = dsn
        self._rate = rate
        self._interval_s = CLIENTS / rate()
        self._seed = seed
        self._stop = stop
        self._clients: list[Client] = []
        self._failure: BaseException | None = None

    def run(self, report: Callable[[Counts], None]) -> None:
        """Write, and report once a second. Raises what ended a client, except a lost connection."""
        threads = [threading.Thread(target=self._work, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        while not self._stop.wait(_REPORT_EVERY_S):
            with contextlib.suppress(OSError):  # the program that sets the rate has ended, or its directory is gone
                self._interval_s = CLIENTS / self._rate()
            report(self.counts())
        for thread in threads:
            thread.join()
        report(self.counts())
        if self._failure is not None:
            raise self._failure

    def counts(self) -> Counts:
        total = Counts()
        for client in list(self._clients):
            total.add(client.counts)
        return total

    def _work(self, number: int) -> None:
        try:
            connections = 0
            while not self._stop.is_set():
                try:
                    # Another seed after a lost connection: the same keys again would only collide.
                    self._serve(random.Random(f"{self._seed}/{number}/{connections}"))  # noqa: S311  sample data
                except psycopg.OperationalError:
                    connections += 1
                    self._stop.wait(_RECONNECT_S)
        except BaseException as error:
            self._failure = error
            self._stop.set()

    def _serve(self, rng: random.Random) -> None:
        options = f"-c lock_timeout={_LOCK_TIMEOUT_MS}"
        with psycopg.connect(
            self._dsn, autocommit=True, application_name=APPLICATION, options=options, connect_timeout=10
        ) as connection:
            client = Client(connection, rng, pause=self._stop.wait)
            self._clients.append(client)
            due = time.monotonic()
            while not self._stop.is_set():
                client.transact()
                # A schedule, not a pause: slow transactions are made up for, but not a long stall.
                due = max(due + self._interval_s, time.monotonic() - 1.0)
                self._stop.wait(due - time.monotonic())


def main(arguments: Sequence[str] | None = None) -> int:
    """Write until SIGTERM or SIGINT; returns 0."""
    parser = argparse.ArgumentParser(
        prog="python -m extensions.demo.writer", description="live traffic for the sample shop"
    )
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--rate-file", type=Path, required=True, help="has the transactions per second")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    stop = threading.Event()

    def request(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, request)
    writer = Writer(
        dsn=options.dsn, rate=lambda: float(options.rate_file.read_text(encoding="utf-8")), seed=options.seed, stop=stop
    )
    writer.run(lambda counts: _print(asdict(counts)))
    return 0


def _print(document: dict[str, int]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
