"""A stream query's job is killed again and again, and its result is what its events say."""

from pathlib import Path

import psycopg
import pytest

from jobs.streams.settings import StreamQuerySettings
from sinks.warehouse.settings import WarehouseSettings
from stack.stack import Endpoints
from tests.databases import Database, url_of
from tests.job_process import JobProcess
from tests.streams import Streams, at

pytestmark = [pytest.mark.live, pytest.mark.crash, pytest.mark.alone]

_KILLS = 2
_SEARCHES = 40
_EVENT = {"time": "at", "late": "10 minutes", "id": ["id"]}


def test_kill_9_of_a_stream_query_loses_and_repeats_nothing(endpoints: Endpoints, tmp_path: Path) -> None:
    database = Database(endpoints.warehouse_dsn)
    streams = Streams(
        endpoints.kafka_bootstrap,
        tmp_path,
        {
            "searches": {**_EVENT, "columns": {"id": "text", "at": "timestamptz"}},
            "clicks": {**_EVENT, "columns": {"id": "text", "search_id": "text", "at": "timestamptz"}},
        },
        StreamQuerySettings(
            key=("search_id",),
            sql="select s.id as search_id, c.id as click_id from searches s left join clicks c on c.search_id = s.id"
            " and c.at between s.at and s.at + interval '5 minutes'",
        ),
        WarehouseSettings.model_validate({"url": url_of(endpoints.warehouse_url, database.name), "schema": "result"}),
    )
    expected = dict[str, str | None]()
    sent = 0

    def send() -> None:
        """A round of searches, of which every third has a click, and each once more as a repetition."""
        nonlocal sent
        for number in range(sent, sent + _SEARCHES):
            name, clicked = f"s{number}", number % 3 == 0
            event = {"id": name, "at": at(number)}
            streams.send("searches", event, event)
            click = {"id": f"c{number}", "search_id": name if clicked else "none", "at": at(number + 1)}
            streams.send("clicks", click, click)
            expected[name] = f"c{number}" if clicked else None
        sent += _SEARCHES

    try:
        for _ in range(_KILLS):
            with JobProcess(**streams.arguments(once=False)) as job:
                job.wait_for("SinkStarted")
                send()
                job.wait_for("StreamReport")
                job.kill()
        # What ends the time of all searches: everything before it is final then.
        streams.send("searches", {"id": "end", "at": at(sent + 60)})
        streams.send("clicks", {"id": "end", "search_id": "none", "at": at(sent + 60)})
        with JobProcess(**streams.arguments(once=True)) as job:
            assert job.finish() == 0, job.told()
        with psycopg.connect(database.dsn) as connection:
            (name,) = connection.execute(
                "select table_name from information_schema.tables where table_schema = 'result' and table_name not"
                " like '\\_%'"
            ).fetchall()
            rows = connection.execute(f"select search_id, click_id from result.{name[0]}").fetchall()
        assert sorted(rows) == sorted(expected.items())
        figures = streams.figures()
        assert (figures.late, figures.malformed, figures.refused) == (0, 0, 0)
    finally:
        database.drop()
