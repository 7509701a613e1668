"""The shop and its writer against a real server: every kind of transaction keeps the shop's own rules."""

import random

import pytest

from cdc.postgres.preflight import check_source
from cdc.postgres.preflight.finding import Severity
from lockstep.demo.shop import TABLES, count_rows, create_shop
from lockstep.demo.writer import _WEIGHTS, Client, Counts
from lockstep.verify.full_comparison import by_key, compare_table, open_source
from migrations.source import publication_sql
from sinks.contract import StoredRow

pytestmark = pytest.mark.live

SEED = 11


@pytest.fixture
def shop(database):
    create_shop(database.connection, seed=SEED)
    return database


@pytest.fixture
def client(shop):
    return Client(shop.connection, random.Random(SEED), pause=lambda _: None)


def broken_rules(shop) -> dict[str, int]:
    """What no committed transaction may leave behind: rows that break a rule which no constraint keeps."""
    return {
        "totals": shop.value(
            "select count(*) from orders o where total <>"
            " coalesce((select sum(quantity * unit_price) from order_items i where i.order_id = o.id), 0)"
        ),
        "gaps between lines": shop.value(
            "select count(*) from (select order_id from order_items group by order_id"
            " having max(line) <> count(*) or min(line) <> 1) gaps"
        ),
    }


@pytest.mark.soak
def test_the_shop_begins_with_a_few_thousand_rows(shop):
    counts = count_rows(shop.connection)

    assert counts["public.orders"] == 1500
    assert sum(counts.values()) > 5000


@pytest.mark.soak
def test_values_are_long_enough_to_be_stored_out_of_line(shop):
    assert shop.value("select count(*) from products where length(description) > 8192") > 10


@pytest.mark.soak
def test_the_same_seed_makes_the_same_shop(shop, database):
    digest = "select md5(string_agg(p::text, '' order by sku)) from products p"
    before = shop.value(digest)
    shop.execute("drop schema public cascade", "create schema public")
    create_shop(shop.connection, seed=SEED)

    assert shop.value(digest) == before


def test_preflight_finds_nothing_that_would_stop_capture(shop):
    findings = check_source(
        shop.connection,
        tables=TABLES,
        publication="shop",
        slot="shop",
        create_publication=publication_sql("shop", TABLES),
    )

    wrong = [
        (finding.severity, finding.subject)
        for finding in findings
        if finding.severity is not Severity.OK and "public." in finding.subject
    ]
    assert wrong == []


@pytest.mark.parametrize("work", _WEIGHTS, ids=lambda work: work.__name__)
@pytest.mark.soak
def test_every_kind_of_transaction_keeps_the_rules(shop, client, work):
    for _ in range(5):
        client.run(work)

    assert broken_rules(shop) == {"totals": 0, "gaps between lines": 0}
    assert client.counts.transactions + client.counts.rolled_back == 5


def test_counts_are_what_was_committed(shop, client):
    before = shop.value("select count(*) from customers")
    for _ in range(30):
        client.run(Client.sign_up)
        client.run(Client.forget_customer)
    after = shop.value("select count(*) from customers")

    assert after - before == client.counts.inserted - client.counts.deleted


@pytest.mark.soak
def test_what_was_rolled_back_is_not_counted(shop, client):
    before = count_rows(shop.connection)
    client.run(Client.think_better_of_it)

    assert client.counts == Counts(rolled_back=1)
    assert count_rows(shop.connection) == before


@pytest.mark.soak
def test_a_rolled_back_part_is_not_counted(shop, client):
    before = count_rows(shop.connection)
    client.run(Client.try_twice)
    after = count_rows(shop.connection)

    assert client.counts.inserted == sum(after.values()) - sum(before.values()) == 2


@pytest.mark.soak
def test_primary_keys_change_and_what_refers_to_them_follows(shop, client):
    items = shop.value("select count(*) from order_items")
    client.run(Client.renumber_product)
    client.run(Client.move_customer)

    assert client.counts.keys_changed == 2
    assert shop.value("select count(*) from order_items") == items


@pytest.mark.soak
def test_the_source_is_read_in_the_form_that_sinks_give_back(shop):
    names = TABLES
    with open_source(shop.source(*names), names=names, publication="none", application="test") as source:
        for table in source.tables.values():
            rows = list(source.rows(table))
            stored = [StoredRow({name: row[name] for name in table.key}, row, "") for row in rows]

            assert compare_table(table, by_key(table, rows), stored).is_equal
            assert len(rows) == shop.value(f"select count(*) from {table.name.sql}")


@pytest.mark.soak
def test_the_source_does_not_move_while_it_is_compared(shop, client):
    with open_source(shop.source(*TABLES), names=TABLES, publication="none", application="test") as source:
        customers = source.tables[TABLES[0]]
        before = len(list(source.rows(customers)))
        client.run(Client.sign_up)

        assert len(list(source.rows(customers))) == before
