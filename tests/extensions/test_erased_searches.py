"""What the erasing of a row finds where standing searches have told of it: two extensions at once."""

import time
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from extensions.erase.erase import erase
from stack.stack import Endpoints
from tests.extensions.searches.searched_sink import SearchedSink, settle

pytestmark = [pytest.mark.live, pytest.mark.busy, pytest.mark.soak]


def test_a_row_that_is_erased_leaves_what_was_told_of_it(
    endpoints: Endpoints, tmp_path: Path, spark: SparkSession
) -> None:
    """Its records stay as long as any does, and it is known until when."""
    table = "create table profile (id bigint primary key, city text);"
    with closing(SearchedSink(endpoints, tmp_path, spark, table)) as sink:
        sink.execute("insert into profile values (70, 'Bern'), (80, 'Bern')")
        sink.wait()
        with closing(sink.follower()) as follower:
            sink.add("bern", {"term": {"city.keyword": "Bern"}})
            settle(sink, follower)
            sink.execute("delete from profile where id = 70")
            settle(sink, follower)
        report = erase(
            sink.config,
            "public.profile",
            "70",
            dry_run=False,
            timeout_s=120,
            stopping=lambda: False,
            say=lambda _: None,
        )
    (place,) = [place for place in report.places if place.name.endswith("__matches")]
    assert [leftover.what for leftover in place.found] == ["2 records with its key", "a tombstone with the key"]
    assert place.is_proven
    assert [leftover.has_values for leftover in place.left] == [False, False]
    day_ms = 24 * 3_600_000
    assert all((leftover.until_ms or 0) > time.time() * 1000 + day_ms * 0.9 for leftover in place.left)
