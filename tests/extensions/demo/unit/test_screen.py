"""What the demo shows: stages, traffic, and commands that can be copied whole."""

import io
from pathlib import Path

import pytest

from cdc.model.table import TableName
from extensions.demo.examples import examples
from extensions.demo.screen import Facts, comparison_table, links, queries, screen
from extensions.demo.writer import Counts
from lockstep.terminal import WholeTexts
from lockstep.verify.full_comparison import Differences, TableComparison
from monitor.lag import LagReport, SinkFacts, SourceFacts, report
from monitor.visible import Visible
from tests.builders import ORDERS
from tests.extensions.demo.unit.test_settings import ENDPOINTS

NONE = Differences(0, ())


def shown(renderable, width: int = 300) -> str:
    text = io.StringIO()
    console = WholeTexts(width=width, height=24, file=text, force_terminal=True, color_system=None)
    console.print(renderable)
    return text.getvalue()


def facts(**changes) -> Facts:
    values = {
        "elapsed_s": 12.0,
        "lag": None,
        "next": "something",
        "trouble": "",
        "counts": Counts(transactions=1234, keys_changed=5),
        "transactions_per_s": 49.6,
    }
    return Facts(**{**values, **changes})


def lag_of_the_demo() -> LagReport:
    """As it is while the search index is rebuilt."""
    visible = Visible(is_all=False, lsn=0x300, commit_time_ms=7_000, unseen=12)
    sinks = [
        SinkFacts("search", 1, True, 0x300, 9_000, 104, 0, read_lsn=0x380, read_commit_time_ms=9_800, visible=visible),
        SinkFacts("search", 2, False, 0, 0, 10_252, 0),
        *(SinkFacts(name, 1, True, 0x400, 9_000, 0, 0) for name in ("cache", "warehouse", "timeline")),
    ]
    return report(SourceFacts(0x400, 0x400, 0x400, 9_900, True, 0), sinks, now_ms=10_000)


ADDRESSES = links(
    {
        "web page": "http://127.0.0.1:8642/",
        "live timeline": "http://127.0.0.1:8642/demo/timeline",
        "source": ENDPOINTS.source_dsn,
        "Kafka": ENDPOINTS.kafka_bootstrap,
        "OpenSearch": ENDPOINTS.opensearch_url,
        "Valkey": ENDPOINTS.redis_url,
        "warehouse": ENDPOINTS.warehouse_dsn,
    },
    directory=Path("here"),
    config=Path("here/lockstep.toml"),
)


@pytest.mark.parametrize("width", [80, 110])
def test_the_screen_has_a_drawing_what_comes_next_and_addresses_and_fits(width):
    text = shown(screen(facts(lag=lag_of_the_demo()), ADDRESSES, width=width), width)

    lines = text.splitlines()
    assert len(lines) <= 22, "of the 24 of a small terminal, since passwords' files may be further away"
    assert max(map(len, lines)) <= width
    (first,) = [line for line in lines if line.startswith("PostgreSQL")]
    sinks = [line.split("─ ")[-1] for line in lines[lines.index(first) :][:5]]
    assert [line.split()[0] for line in sinks] == ["search", "search", "cache", "warehouse", "timeline"]
    assert sinks[1].startswith("search g2")
    assert text.index("timeline") < text.index("next: something") < text.index("http://127.0.0.1:8642/")
    assert "lockstep lag --config here/lockstep.toml" in text


def test_a_wide_screen_has_each_stage_of_a_sink():
    text = shown(screen(facts(lag=lag_of_the_demo()), ADDRESSES, width=110), 110)

    assert " ".join(next(line for line in text.splitlines() if " state " in line).split()) == (
        "state read applied visible events"
    )
    (search,) = [line for line in text.splitlines() if line.startswith("PostgreSQL")]
    assert search.split("search")[1].split()[1:] == ["0.2", "s", "1.0", "s", "3.0", "s", "104"]


def test_what_needs_somebody_is_said_below_the_drawing():
    reached = LagReport((), True, 0, {}, broken=("the slot is gone",))

    assert "the slot is gone" in shown(screen(facts(lag=reached), "", width=80))


def test_rejections_are_reported_when_there_are_some():
    report = LagReport((), True, 0, {"search": 2, "cache": 0})

    assert "rejected: search 2" in shown(screen(facts(lag=report), "", width=80))
    assert "rejected" not in shown(screen(facts(lag=LagReport((), True, 0, {"search": 0})), "", width=80))


def test_how_much_is_written():
    text = shown(screen(facts(), "", width=80))

    assert "1,234 transactions (50/s), 5 primary keys changed" in text


def test_a_server_that_does_not_answer_is_named():
    assert "the source is silent" in shown(screen(facts(trouble="the source is silent"), "", width=80))


def test_one_query_per_sink_can_be_copied():
    text = shown(queries(examples(ENDPOINTS, order=17), directory=Path("here")))

    assert "http://127.0.0.1:4/shop.public.products/_search?q=" in text
    assert "valkey-cli -p 5 HGETALL shop:g1:public.orders:17" in text
    assert "from shop.orders o join shop.customers c on c.id = o.customer_id" in text


def test_the_result_says_which_table_is_not_equal():
    good = TableComparison(ORDERS, 3, 3, NONE, NONE, NONE, ())
    bad = TableComparison(ORDERS, 3, 3, NONE, NONE, Differences(1, ('{"id":1}',)), ("note",))

    text = shown(comparison_table({"search": [good], "cache": [bad]}))

    assert "NOT EQUAL: 1 different (note)" in text


def test_the_result_is_a_table_on_a_terminal_of_80_characters():
    table = TableName("public", "a_table_of_a_long_name")
    equal = TableComparison(table, 12_345_678, 12_345_678, NONE, NONE, NONE, ())
    text = shown(comparison_table({"warehouse": [equal]}), 80)

    (row,) = [line for line in text.splitlines() if "warehouse" in line]
    assert row.split("│")[1].strip() == "warehouse"
    assert row.split("│")[-2].strip() == "equal"
    assert len(row) <= 80
