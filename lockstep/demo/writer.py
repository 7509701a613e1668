"""The shop's application: ``python -m lockstep.demo.writer --dsn ... --rate-file rate --seed 1``.

It knows nothing of the pipeline. It writes what applications write: inserts, updates, deletes, changed primary keys,
large values. There are transactions over several tables, rollbacks and savepoints. Now and then one has some 200 rows,
or stays open for a second while others commit. The file of ``--rate-file`` says how many transactions a second are to
be written; it is read once a second. As often, and at the end, the writer prints its counts as a line of JSON. SIGTERM
and SIGINT end it after the transactions at hand.
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

from lockstep.demo import samples, timeline
from lockstep.demo.shop import insert

APPLICATION = "lockstep demo writer"

CLIENTS = 3
"""Connections that write at the same time, so that transactions overlap and finish in another order than they began."""

_BULK_ROWS = 200
_ORDERS_MIN = 500
"""Fewer orders than that aren't archived: something must be left to change."""

_LOCK_TIMEOUT_MS = 3000
_REPORT_EVERY_S = 1.0
_RECONNECT_S = 1.0

# Another client was faster, or two waited for each other: the transaction is rolled back and the next one begins.
_CONFLICTS = (
    psycopg.errors.IntegrityError,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.LockNotAvailable,
)


@dataclass(slots=True)
class Counts:
    """What was committed; rows that a foreign key's cascade touched come on top."""

    transactions: int = 0
    rolled_back: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    keys_changed: int = 0

    def add(self, other: "Counts") -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class _RollBack(Exception):
    """Ends a transaction that the application decides against."""


class Client:
    """One connection's worth of traffic. ``transact`` runs one random transaction; ``counts`` says what came of all."""

    def __init__(
        self, connection: psycopg.Connection[Any], rng: random.Random, *, pause: Callable[[float], object]
    ) -> None:
        self._connection = connection
        self._rng = rng
        self._pause = pause
        self._at_hand = Counts()
        self.counts = Counts()

    def transact(self) -> None:
        """Run one transaction, chosen by weight. Raises psycopg.OperationalError when the server is gone."""
        (work,) = self._rng.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()))
        self.run(work)

    def run(self, work: "Callable[[Client], None]") -> None:
        """Run this transaction."""
        self._at_hand = Counts(transactions=1)
        try:
            with self._connection.transaction():
                work(self)
        except (_RollBack, *_CONFLICTS):
            self.counts.rolled_back += 1
        else:
            self.counts.add(self._at_hand)

    # Transactions.

    def place_order(self) -> None:
        number = self._new_order()
        if number is not None:
            self._new_items(number, self._rng.randint(1, 5))

    def advance_order(self) -> None:
        self._update(
            "update orders set status = case status when 'cart' then 'paid' when 'paid' then 'packed'"
            " when 'packed' then 'shipped' else 'delivered' end::order_status,"
            " delivered_on = case when status = 'shipped' then current_date else delivered_on end where id = %s",
            self._order(),
        )

    def change_quantity(self) -> None:
        number = self._order()
        self._update(
            "update order_items set quantity = %s, gift = not gift where order_id = %s and line = 1",
            self._rng.randint(1, 20),
            number,
        )
        self._sum_up(number)

    def remove_line(self) -> None:
        """The lines after it move up, one primary key after the other."""
        number = self._order()
        lines = [row[0] for row in self._rows("select line from order_items where order_id = %s order by line", number)]
        if len(lines) > 1:
            removed_line = self._rng.choice(lines)
            self._delete("delete from order_items where order_id = %s and line = %s", number, removed_line)
            for line in lines:
                if line > removed_line:
                    self._change_key(
                        "update order_items set line = line - 1 where order_id = %s and line = %s", number, line
                    )
            self._sum_up(number)

    def replace_line(self) -> None:
        """The same key, deleted and made again in one transaction."""
        number = self._order()
        if self._delete("delete from order_items where order_id = %s and line = 1", number):
            self._new_item(number, 1)
            self._sum_up(number)

    def cancel_order(self) -> None:
        self._delete("delete from orders where id = %s", self._order())

    def annotate_order(self) -> None:
        self._update(
            "update orders set note = %s, ship_to = %s where id = %s",
            samples.note(self._rng),
            samples.address(self._rng),
            self._order(),
        )

    def touch_order(self) -> None:
        """An update that changes nothing."""
        self._update("update orders set note = note where id = %s", self._order())

    def sign_up(self) -> None:
        self._insert("customers", [samples.customer(self._rng)])

    def edit_customer(self) -> None:
        self._update(
            "update customers set profile = %s, newsletter = not newsletter, credit = credit + %s where id = %s",
            samples.profile(self._rng),
            samples.money(self._rng, 50),
            self._customer(),
        )

    def forget_customer(self) -> None:
        self._delete(
            "delete from customers c where id = %s and not exists (select from orders o where o.customer_id = c.id)",
            self._customer(),
        )

    def move_customer(self) -> None:
        """Another primary key, with all orders of the customer following."""
        self._change_key("update customers set id = %s where id = %s", samples.new_uuid(self._rng), self._customer())

    def add_product(self) -> None:
        self._insert("products", [samples.product(self._rng)])

    def reprice(self) -> None:
        """Leaves a long description untouched."""
        self._update(
            "update products set price = %s, updated_at = clock_timestamp() where sku = %s",
            samples.price(self._rng),
            self._product(),
        )

    def describe(self) -> None:
        self._update(
            "update products set description = %s, attributes = %s where sku = %s",
            samples.long_text(self._rng),
            samples.attributes(self._rng),
            self._product(),
        )

    def renumber_product(self) -> None:
        """Another primary key, with all order lines of the product following."""
        self._change_key("update products set sku = %s where sku = %s", samples.new_sku(self._rng), self._product())

    def discontinue(self) -> None:
        self._delete(
            "delete from products p where sku = %s and not exists (select from order_items i where i.sku = p.sku)",
            self._product(),
        )

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
                self.edit_customer()
                raise psycopg.Rollback(savepoint)
            self._at_hand = counts_before
            self._new_items(number, 1)

    def take_time(self) -> None:
        """Stays open while others commit."""
        number = self._new_order()
        if number is not None:
            self._pause(self._rng.uniform(0.3, 1.2))
            self._new_items(number, 2)

    def send_tweet(self) -> None:
        self._insert("tweets", [{"user_id": self._user(), "body": samples.tweet(self._rng)}])

    def delete_tweet(self) -> None:
        self._delete("delete from tweets where id = %s and user_id > %s", self._random("tweets"), timeline.VISITOR)

    def follow_somebody(self) -> None:
        self._at_hand.inserted += self._execute(
            "insert into follows values (%s, %s) on conflict do nothing", (self._user(), self._user())
        )

    def unfollow_somebody(self) -> None:
        self._delete(
            "delete from follows where follower_id = %s and followee_id = %s and follower_id <> followee_id",
            self._user(),
            self._user(),
        )

    def bulk(self) -> None:
        kind = self._rng.randrange(3)
        if kind == 0:
            self._insert("customers", [samples.customer(self._rng) for _ in range(_BULK_ROWS)])
        elif kind == 1:
            self._update(
                "update products set price = round(price * 1.01, 2) where sku in"
                " (select sku from products where sku >= %s order by sku limit %s)",
                samples.new_sku(self._rng),
                _BULK_ROWS,
            )
        else:
            self._archive()

    def _archive(self) -> None:
        self._delete(
            "delete from orders where id in (select id from orders order by id"
            " limit least(%s, greatest(0, (select count(*) from orders) - %s)))",
            _BULK_ROWS,
            _ORDERS_MIN,
        )

    # What transactions are made of.

    def _new_order(self) -> int | None:
        customer = self._customer()
        if customer is None:
            return None
        numbers = insert(self._connection, "orders", [samples.order(self._rng, customer)], returning="id")
        self._at_hand.inserted += 1
        return int(numbers[0])

    def _new_items(self, number: int, count: int) -> None:
        for line in range(1, count + 1):
            self._new_item(number, line)
        self._sum_up(number)

    def _new_item(self, number: int | None, line: int) -> None:
        sku = self._product()
        if sku is not None and number is not None:
            self._insert("order_items", [samples.item(self._rng, number, line, sku)])

    def _sum_up(self, number: int | None) -> None:
        self._update(
            "update orders set total = coalesce("
            "(select sum(quantity * unit_price) from order_items where order_id = orders.id), 0) where id = %s",
            number,
        )

    def _insert(self, table: str, rows: Sequence[samples.Row]) -> None:
        insert(self._connection, table, rows)
        self._at_hand.inserted += len(rows)

    def _update(self, statement: str, *parameters: object) -> None:
        self._at_hand.updated += self._execute(statement, parameters)

    def _change_key(self, statement: str, *parameters: object) -> None:
        self._at_hand.keys_changed += self._execute(statement, parameters)

    def _delete(self, statement: str, *parameters: object) -> int:
        deleted = self._execute(statement, parameters)
        self._at_hand.deleted += deleted
        return deleted

    def _execute(self, statement: str, parameters: Sequence[object]) -> int:
        return self._connection.execute(statement.encode(), parameters).rowcount

    def _rows(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement.encode(), parameters).fetchall()

    # Some row that is there: the next one after a random place, else the first.

    def _customer(self) -> Any:
        return self._pick("customers", "id", samples.new_uuid(self._rng))

    def _product(self) -> Any:
        return self._pick("products", "sku", samples.new_sku(self._rng))

    def _order(self) -> Any:
        return self._random("orders")

    def _user(self) -> int:
        """Not the visitor of the page, of whom nobody else decides."""
        return self._rng.randint(timeline.VISITOR + 1, timeline.USERS)

    def _random(self, table: str) -> Any:
        rows = self._rows(
            f"select id from {table} where id >="
            f" (select min(id) + ((max(id) - min(id)) * %s::float8)::bigint from {table}) order by id limit 1",
            self._rng.random(),
        )
        return rows[0][0] if rows else None

    def _pick(self, table: str, column: str, position: object) -> Any:
        first = f"select {column} from {table} order by {column} limit 1"
        next_row = f"select {column} from {table} where {column} >= %s order by {column} limit 1"
        rows = self._rows(next_row, position) or self._rows(first)
        return rows[0][0] if rows else None


_WEIGHTS: dict[Callable[[Client], None], float] = {
    Client.place_order: 28,
    Client.advance_order: 20,
    Client.change_quantity: 8,
    Client.remove_line: 4,
    Client.replace_line: 1,
    Client.cancel_order: 6,
    Client.annotate_order: 4,
    Client.touch_order: 1,
    Client.sign_up: 5,
    Client.edit_customer: 6,
    Client.forget_customer: 2,
    Client.move_customer: 1,
    Client.add_product: 2,
    Client.reprice: 4,
    Client.describe: 1.5,
    Client.renumber_product: 1.5,
    Client.discontinue: 1,
    Client.think_better_of_it: 2,
    Client.try_twice: 2,
    Client.take_time: 0.5,
    Client.send_tweet: 1.5,
    Client.delete_tweet: 0.5,
    Client.follow_somebody: 0.5,
    Client.unfollow_somebody: 0.3,
    Client.bulk: 0.3,
}


class Writer:
    """Several clients at a common rate, until told to stop. ``rate`` returns the transactions a second."""

    def __init__(self, *, dsn: str, rate: Callable[[], float], seed: int, stop: threading.Event) -> None:
        self._dsn = dsn
        self._rate = rate
        self._interval_s = CLIENTS / rate()
        self._seed = seed
        self._stop = stop
        self._clients: list[Client] = []
        self._failure: BaseException | None = None

    def run(self, report: Callable[[Counts], None]) -> None:
        """Write, and report once a second. Raises what ended a client, unless it was a lost connection."""
        threads = [threading.Thread(target=self._work, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        while not self._stop.wait(_REPORT_EVERY_S):
            with contextlib.suppress(OSError):  # whoever says it has gone, or its directory has
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
                # A schedule, not a pause: slow transactions are caught up with, though not after a long stall.
                due = max(due + self._interval_s, time.monotonic() - 1.0)
                self._stop.wait(due - time.monotonic())


def main(arguments: Sequence[str] | None = None) -> int:
    """Write until SIGTERM or SIGINT; 0 then."""
    parser = argparse.ArgumentParser(
        prog="python -m lockstep.demo.writer", description="live traffic for the sample shop"
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
