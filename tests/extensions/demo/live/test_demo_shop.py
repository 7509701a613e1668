"""The shop and its writer against a real server: every kind of transaction keeps the shop's own rules."""

import random

import pytest

from cdc.model.finding import Severity
from cdc.postgres.preflight import check_source
from extensions.demo.shop import TABLES, create_shop
from extensions.demo.writer import FORGET_CUSTOMER, SIGN_UP, Client
from migrations.source import publication_sql

pytestmark = pytest.mark.live

SEED = 11


@pytest.fixture
def shop(database):
    create_shop(database.connection, seed=SEED)
    return database


@pytest.fixture
def client(shop):
    return Client(shop.connection, random.Random(SEED), pause=lambda _: None)


def test_preflight_finds_nothing_that_would_stop_capture(shop):
    findings = check_source(
        shop.connection,
        tables=TABLES,
        publication="shop",
        slot="shop",
        create_publication=publication_sql("shop", TABLES, version=shop.connection.info.server_version),
    )

    wrong = [
        (finding.severity, finding.subject)
        for finding in findings
        if finding.severity is not Severity.OK and "public." in finding.subject
    ]
    assert wrong == []


def test_counts_are_what_was_committed(shop, client):
    before = shop.value("select count(*) from customers")
    for _ in range(30):
        client.run(SIGN_UP)
        client.run(FORGET_CUSTOMER)
    after = shop.value("select count(*) from customers")

    assert after - before == client.counts.inserted - client.counts.deleted
