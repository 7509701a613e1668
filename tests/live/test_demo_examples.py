"""The demo's example queries, over the connection that the demo has."""

import contextlib

import pytest

from cdc.model.table import TableName
from cdc.postgres.connection import connect
from lockstep.demo.examples import some_order
from tests.databases import Database

pytestmark = [pytest.mark.live, pytest.mark.soak]


def test_an_order_is_found_over_a_session_that_searches_no_schema(database: Database) -> None:
    database.execute("create table orders (id int primary key)", "insert into orders select generate_series(11, 15)")
    with contextlib.closing(connect(database.source(TableName("public", "orders")), application="test")) as source:
        assert some_order(source) == 13
