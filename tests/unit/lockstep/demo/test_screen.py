"""What the demo shows: stages, traffic, and commands that can be copied whole."""

import io
from pathlib import Path

from rich.console import Console

from cdc.model.table import TableName
from lockstep.demo.examples import examples
from lockstep.demo.screen import Facts, comparison_table, links, queries, screen
from lockstep.demo.writer import Counts
from lockstep.terminal import WholeTexts
from lockstep.verify.full_comparison import Differences, TableComparison
from monitor.lag import LagReport, Stage
from tests.builders import ORDERS
from tests.unit.lockstep.demo.test_settings import ENDPOINTS

NONE = Differences(0, ())


def shown(renderable) -> str:
    text = io.StringIO()
    Console(width=300, file=text).print(renderable)
    return text.getvalue()


def facts(**changes) -> Facts:
    values = {
        "elapsed_s": 12.0,
        "remaining_s": None,
        "lag": None,
        "waiting": "",
        "counts": Counts(transactions=1234, keys_changed=5),
        "transactions_per_s": 49.6,
    }
    return Facts(**{**values, **changes})


def test_every_stage_is_there():
    lag = LagReport((Stage("WAL end", 0x20, 0, 0.0, None), Stage("applied: cache", 0x10, 16, 0.4, 3)), True, 0, {})

    text = shown(screen(facts(lag=lag)))

    assert "applied: cache" in text
    assert "0/10" in text


def test_rejections_are_reported_when_there_are_some():
    report = LagReport((), True, 0, {"search": 2, "cache": 0})

    assert "rejected: search 2" in shown(screen(facts(lag=report)))
    assert "rejected" not in shown(screen(facts(lag=LagReport((), True, 0, {"search": 0}))))


def test_traffic_and_the_time_that_is_left():
    text = shown(screen(facts(remaining_s=7.2)))

    assert "1,234 transactions (50/s)" in text
    assert "5 primary keys changed" in text
    assert "the writer stops in 7 s" in text


def test_one_query_per_sink_can_be_copied():
    text = shown(queries(examples(ENDPOINTS, order=17), directory=Path("here")))

    assert "http://127.0.0.1:4/shop.public.products/_search?q=" in text
    assert "valkey-cli -p 5 HGETALL shop:g1:public.orders:17" in text
    assert "from shop.orders o join shop.customers c on c.id = o.customer_id" in text


def test_every_address_and_the_configuration_are_shown():
    text = shown(links({"Kafka": "127.0.0.1:3"}, directory=Path("here"), config=Path("here/lockstep.toml")))

    assert "127.0.0.1:3" in text
    assert "lockstep lag --config here/lockstep.toml" in text


def test_it_fits_a_small_terminal():
    stages = tuple(Stage(name, 1, 0, 0.0, 0) for name in ("WAL end", "received", "in Kafka", "a", "b", "c"))

    text = shown(screen(facts(lag=LagReport(stages, True, 0, {"a": 1}), waiting="something")))

    assert len(text.splitlines()) < 20


def test_what_is_waited_for_is_said():
    assert "starting Spark" in shown(screen(facts(waiting="starting Spark")))


def test_the_result_says_which_table_is_not_equal():
    good = TableComparison(ORDERS, 3, 3, NONE, NONE, NONE, ())
    bad = TableComparison(ORDERS, 3, 3, NONE, NONE, Differences(1, ('{"id":1}',)), ("note",))

    text = shown(comparison_table({"search": [good], "cache": [bad]}))

    assert "NOT EQUAL: 1 different (note)" in text


def test_the_result_is_a_table_on_a_terminal_of_80_characters():
    table = TableName("public", "a_table_of_a_long_name")
    equal = TableComparison(table, 12_345_678, 12_345_678, NONE, NONE, NONE, ())
    text = io.StringIO()

    WholeTexts(width=80, height=24, file=text, force_terminal=True, color_system=None).print(
        comparison_table({"warehouse": [equal]})
    )

    (row,) = [line for line in text.getvalue().splitlines() if "warehouse" in line]
    assert row.split("│")[1].strip() == "warehouse"
    assert row.split("│")[-2].strip() == "equal"
    assert len(row) <= 80
