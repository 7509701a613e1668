"""The page of ``docs/examples`` on a profile search is run as it is written."""

import shlex
import tomllib
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lockstep.cli.main import exit_code
from stack.stack import Endpoints
from tests.example_pages import EXAMPLES, ExamplePage
from tests.searches import SINK, SearchedSink, settle

pytestmark = [pytest.mark.live, pytest.mark.busy, pytest.mark.soak]


def test_a_profile_search_is_told_of_what_the_page_says(
    endpoints: Endpoints, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ExamplePage.read(EXAMPLES / "profile-search.md")
    section = tomllib.loads(page.view)["sinks"][SINK]
    assert section == {"type": "opensearch", "urls": ["http://search:9200"], "searches": True}
    sink = SearchedSink(endpoints, tmp_path, spark, page.tables, more="searches = true")
    monkeypatch.chdir(tmp_path)
    try:
        sink.wait()  # it reads an index that the job has just made: the shard may be on its way
        follower = sink.follower()

        def save(text: str) -> None:
            Path("rust-in-bern.json").write_text(text, encoding="utf-8")

        def command(text: str) -> None:
            for line in text.splitlines():
                program, *arguments = shlex.split(line)
                assert program == "lockstep"
                assert exit_code([*arguments, "--config", str(sink.captured.path)]) == 0
            settle(sink, follower)

        page.run(
            sink.source.connection,
            {"matches": sink.told},
            lambda: settle(sink, follower),
            {"json": save, "sh": command},
        )
        follower.close()
    finally:
        sink.close()
