"""Standing searches behind a real sink: what begins and ceases to match is told once, whatever happens between."""

import random
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from cdc.kafka.topic_reader import TopicReader
from extensions.searches.commands import listed, remove
from stack.stack import Endpoints
from tests.extensions.searches.searched_sink import SINK, SearchedSink, events, matching, settle

pytestmark = [pytest.mark.live, pytest.mark.busy]

TABLES = "create table profile (id bigint primary key, city text, skill text, age int);"
IN_BERN = {"term": {"city.keyword": "Bern"}}
RUST = {"match": {"skill": "rust"}}


@pytest.fixture(scope="module")
def shared(
    endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession
) -> Iterator[SearchedSink]:
    made = SearchedSink(endpoints, tmp_path_factory.mktemp("searches"), spark, TABLES)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def sink(shared: SearchedSink) -> SearchedSink:
    """With an empty table and without searches."""
    shared.execute("truncate profile")
    for each in list(listed(shared.config, [SINK])):
        remove(shared.config, SINK, each.search.name)
    shared.wait()
    follower = shared.follower()
    settle(shared, follower)
    follower.close()
    shared.seen = len(shared.reports())
    return shared


def new(sink: SearchedSink) -> list[tuple[str, str, str]]:
    """What was told since the last call."""
    reported = sink.reports()[sink.seen :]
    sink.seen += len(reported)
    return events(reported)


def test_every_kind_of_change_is_told_once(sink: SearchedSink) -> None:
    follower = sink.follower()
    sink.add("bern", IN_BERN)
    for statement, reported in (
        ("insert into profile values (1, 'Bern', 'SQL', 30), (2, 'Basel', 'Go', 20)", [("begins", "bern", "1")]),
        ("update profile set age = 31 where id = 1", []),
        ("update profile set city = 'Bern' where id = 2", [("begins", "bern", "2")]),
        ("update profile set city = 'Thun' where id = 1", [("ceases", "bern", "1")]),
        ("update profile set id = 3 where id = 2", [("begins", "bern", "3"), ("ceases", "bern", "2")]),
        ("delete from profile where id = 3", [("ceases", "bern", "3")]),
        (
            "insert into profile values (4, 'Bern', 'C', 1), (5, 'Bern', 'D', 1)",
            [("begins", "bern", "4"), ("begins", "bern", "5")],
        ),
        ("truncate profile", [("ceases", "bern", "4"), ("ceases", "bern", "5")]),
    ):
        sink.execute(statement)
        settle(sink, follower)
        assert sorted(new(sink)) == reported, statement
    follower.close()


@pytest.mark.soak
def test_what_was_told_has_the_tag_of_the_change_and_the_key_and_no_other_value(sink: SearchedSink) -> None:
    follower = sink.follower()
    sink.add("bern", IN_BERN)
    sink.execute("insert into profile values (7, 'Bern', 'SQL', 30)")
    settle(sink, follower)
    sink.execute("delete from profile where id = 7")
    settle(sink, follower)
    follower.close()
    begins, ceases = sink.reports()[sink.seen :]
    assert begins.keys() == {"format", "event", "tag", "sink", "search", "table", "key", "id", "routing"}
    assert (begins["sink"], begins["table"], begins["key"]) == (SINK, "public.profile", {"id": 7})
    topic = sink.captured.config.topics_of(sink.captured.config.source.table_names)[0]
    tags = [
        record.value[17:45].decode()
        for record in TopicReader(sink.captured.client).records(topic)
        if record.value and record.key == b'{"id":7}'
    ]
    assert [begins["tag"], ceases["tag"]] == tags


@pytest.mark.soak
def test_what_happened_while_nobody_watched_is_told_afterwards(sink: SearchedSink) -> None:
    follower = sink.follower()
    sink.add("bern", IN_BERN)
    sink.execute("insert into profile values (1, 'Bern', 'a', 1), (2, 'Bern', 'b', 1), (3, 'Thun', 'c', 1)")
    settle(sink, follower)
    follower.close()
    new(sink)
    sink.execute("delete from profile where id = 1", "update profile set city = 'Bern' where id = 3")
    sink.wait()
    other = sink.follower()
    settle(sink, other)
    assert sorted(new(sink)) == [("begins", "bern", "3"), ("ceases", "bern", "1")]
    other.close()


@pytest.mark.soak
def test_searches_tell_what_the_source_says_after_traffic_at_random(sink: SearchedSink) -> None:
    chance = random.Random(7)
    sink.add("bern", IN_BERN)
    sink.add("rust", RUST)
    sink.add("young", {"bool": {"must": [{"range": {"age": {"lt": 3}}}], "must_not": [IN_BERN]}})
    follower = sink.follower()
    begin = sink.seen
    for _ in range(12):
        for _ in range(20):
            key = chance.randrange(8)
            row = (chance.choice(["Bern", "Thun"]), chance.choice(["Rust", "Go"]), chance.randrange(6))
            sink.execute(
                chance.choice(
                    (
                        f"delete from profile where id = {key}",
                        f"insert into profile values ({key}, '{row[0]}', '{row[1]}', {row[2]}) on conflict (id) do"
                        f" update set city = excluded.city, skill = excluded.skill, age = excluded.age",
                    )
                )
            )
        if chance.random() < 0.5:
            follower.step()
        elif chance.random() < 0.5:
            follower.close()
            follower = sink.follower()
    settle(sink, follower)
    follower.close()
    wanted = {
        name: {
            str(key) for (key,) in sink.source.connection.execute(f"select id from profile where {condition}".encode())
        }
        for name, condition in (
            ("bern", "city = 'Bern'"),
            ("rust", "skill = 'Rust'"),
            ("young", "age < 3 and city <> 'Bern'"),
        )
    }
    reported = matching(sink.reports()[begin:])
    assert {name: reported.get(name, set()) for name in wanted} == wanted
    assert {each.search.name: each.matching for each in listed(sink.config, [SINK])} == {
        name: len(ids) for name, ids in wanted.items()
    }
