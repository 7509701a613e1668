"""Standing searches over what a sink's live generation holds: other generations, other fields, other names, a sink that
was put back. The job's part is done by hand, so that each moment can be looked at."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest
from opensearchpy import OpenSearch

from cdc.kafka.topic_admin import TopicAdmin, partitions_of
from cdc.kafka.topic_names import MATCHES, control_topic
from cdc.kafka.topic_reader import TopicReader
from cdc.model.errors import Fenced, LockstepError, Unavailable
from cdc.model.event import Position, RowEvent
from cdc.model.table import Table, TableName
from cdc.model.tag import tag_prefix, tag_text
from extensions.searches.commands import add, listed, parse_search
from extensions.searches.follower import Follower
from extensions.searches.stored import Search
from extensions.searches.topic import match_topic_plan
from lockstep.config import Config, load
from sinks.contract import Batch, Progress, TopicPartition
from sinks.opensearch.bookkeeping import Bookkeeping
from sinks.opensearch.client import OpenSearchClient
from sinks.progress_json import dump_progress
from sinks.registry import open_sink
from stack.stack import Endpoints
from tests.builders import column, table
from tests.databases import until
from tests.events import EPOCH, Change, Delete, Log, Put, kafka_settings
from tests.extensions.searches.searched_sink import SINK, events, report_all

pytestmark = pytest.mark.live

PROFILE = table(
    column("id", "int8"), column("city"), column("age", "int4"), name=TableName("public", "profile"), key=("id",)
)
IN_BERN = {"term": {"city.keyword": "Bern"}}
YOUNG = {"range": {"age": {"lt": 30}}}


class AppliedByHand:
    """A pipeline whose topic and whose sink a test writes."""

    def __init__(self, endpoints: Endpoints, directory: Path) -> None:
        self.pipeline = f"t{uuid4().hex[:10]}"
        kafka = kafka_settings(endpoints.kafka_bootstrap)
        self.log = Log(kafka, self.pipeline, [PROFILE])
        path = directory / "lockstep.toml"
        path.write_text(
            f"[pipeline]\nname = '{self.pipeline}'\n"
            f"[kafka]\nbootstrap_servers = '{endpoints.kafka_bootstrap}'\n"
            "topics = { replication_factor = 1 }\n"
            "[source]\ndsn = 'host=nowhere'\ntables = ['public.profile']\n"
            f"[sinks.{SINK}]\ntype = 'opensearch'\nurls = ['{endpoints.opensearch_url}']\nreplicas = 0\n"
            f"prefix = '{self.pipeline}'\n"
        )
        self.config: Config = load(path)
        self.search = OpenSearch(endpoints.opensearch_url)
        self._seen = 0

    def prepare(self, generation: int = 1, shape: Table = PROFILE, *, go_live: bool = True) -> None:
        opened = open_sink(SINK, self.config.sinks[SINK], generation)
        opened.sink.prepare([shape], go_live=go_live)
        opened.sink.close()

    def publish(self, *changes: Change) -> list[RowEvent]:
        """One transaction on the topic, as the sink gets it."""
        lsn = self.log.lsn
        self.log.commit(changes)
        found = []
        for seq, change in enumerate(changes, start=1):
            assert isinstance(change, Put | Delete)
            row = dict(change.row) if isinstance(change, Put) else None
            key = {"id": change.row["id"]} if isinstance(change, Put) else dict(change.key)
            tag = tag_text(tag_prefix(EPOCH, lsn), seq).decode()
            found.append(RowEvent(PROFILE.name, key, tag, row, Position(self.log.topic(PROFILE), 0, seq)))
        return found

    def ends(self) -> Mapping[TopicPartition, int]:
        cluster = TopicAdmin(self.log.kafka.client())
        return cluster.end_offsets(partitions_of([self.log.topic(PROFILE)], cluster.all_partition_counts()))

    def apply(self, applied: Sequence[RowEvent], generation: int = 1, **progress: Any) -> None:
        """Apply these, and store that all of the topic is applied."""
        opened = open_sink(SINK, self.config.sinks[SINK], generation)
        outcome = opened.sink.apply(Batch(applied))
        assert not outcome.rejections
        opened.generations.load_progress()
        now = Progress(self.ends(), self.log.lsn, 1, 1, {})
        opened.generations.save_progress(replace(now, **progress))
        opened.sink.close()

    def write(self, *changes: Change, generation: int = 1) -> None:
        self.apply(self.publish(*changes), generation)

    def switch(self, generation: int) -> None:
        opened = open_sink(SINK, self.config.sinks[SINK], generation)
        opened.generations.switch()
        opened.sink.close()

    def put_back(self, progress: Progress, generation: int = 1) -> None:
        """As a snapshot of the index would."""
        client = OpenSearchClient(self.config.sinks[SINK])
        Bookkeeping(client, SINK, prefix=self.pipeline, replicas=0).save(
            f"progress.g{generation}", orjson.loads(dump_progress(progress))
        )
        client.close()

    def add(self, name: str, query: Mapping[str, Any]) -> None:
        add(self.config, SINK, parse_search(name, "public.profile", orjson.dumps(query).decode()), say=lambda _: None)

    def query_indexes(self) -> set[str]:
        """The indexes of queries that there are."""
        return set(self.search.indices.get(index=f"{self.pipeline}.lockstep_searches.*"))

    def problems(self) -> dict[str, str | None]:
        return {each.search.name: each.problem for each in listed(self.config, [SINK])}

    def news(self, follower: Follower) -> list[dict[str, Any]]:
        """What is told now."""
        report_all(follower)
        records = TopicReader(self.log.kafka.client()).records(control_topic(self.pipeline, MATCHES))
        reported = [orjson.loads(record.value) for record in records if record.value is not None]
        new, self._seen = reported[self._seen :], len(reported)
        return new

    def close(self) -> None:
        self.log.close()
        for index in self.search.indices.get(index=f"{self.pipeline}.*", params={"expand_wildcards": "all"}):
            self.search.indices.delete(index=index)
        self.search.close()


@pytest.fixture
def by_hand(endpoints: Endpoints, tmp_path: Path) -> Iterator[AppliedByHand]:
    made = AppliedByHand(endpoints, tmp_path)
    made.prepare()
    yield made
    made.close()


def profile(key: int, city: str, age: int = 40) -> Put:
    return Put(PROFILE, {"id": key, "city": city, "age": age})


def test_nothing_is_told_of_an_event_before_it_is_applied(by_hand: AppliedByHand) -> None:
    by_hand.write(profile(1, "Thun"))
    by_hand.add("bern", IN_BERN)
    follower = Follower(by_hand.config, SINK)
    published = by_hand.publish(profile(1, "Bern"))
    assert by_hand.news(follower) == []
    by_hand.apply(published)
    assert events(by_hand.news(follower)) == [("begins", "bern", "1")]
    follower.close()


@pytest.mark.soak
def test_the_generation_that_readers_see_counts_and_a_query_that_it_cannot_take_waits(by_hand: AppliedByHand) -> None:
    by_hand.write(profile(1, "Bern", 20), profile(2, "Bern", 20))
    by_hand.add("bern", IN_BERN)
    by_hand.add("young", YOUNG)
    follower = Follower(by_hand.config, SINK)
    assert len(by_hand.news(follower)) == 4
    # It lacks a column, and a row.
    without_city = table(*(each for each in PROFILE.columns if each.name != "city"), name=PROFILE.name, key=("id",))
    by_hand.prepare(2, without_city, go_live=False)
    (kept,) = by_hand.publish(profile(1, "Bern", 21))
    by_hand.apply([kept])
    assert kept.row is not None
    by_hand.apply([replace(kept, row={name: kept.row[name] for name in ("id", "age")})], generation=2)
    assert by_hand.news(follower) == []
    by_hand.switch(2)
    assert events(by_hand.news(follower)) == [("ceases", "young", "2")]
    problems = by_hand.problems()
    assert "No field mapping can be found for the field with name [city.keyword]" in str(problems["bern"])
    assert problems["young"] is None
    by_hand.switch(1)
    assert events(by_hand.news(follower)) == [("begins", "young", "2")]
    assert by_hand.problems() == {"bern": None, "young": None}
    follower.close()


def test_of_a_sink_that_was_put_back_what_it_lacks_ceases_until_it_is_applied_again(by_hand: AppliedByHand) -> None:
    by_hand.write(profile(1, "Bern"))
    before = Progress(by_hand.ends(), by_hand.log.lsn, 1, 1, {})
    by_hand.add("bern", IN_BERN)
    follower = Follower(by_hand.config, SINK)
    later = by_hand.publish(profile(2, "Bern"))
    by_hand.apply(later)
    reported = by_hand.news(follower)
    assert events(reported) == [("begins", "bern", "1"), ("begins", "bern", "2")]
    by_hand.put_back(before)
    by_hand.search.delete(index=f"{by_hand.pipeline}.public.profile", id="2")
    ceased = by_hand.news(follower)
    assert events(ceased) == [("ceases", "bern", "2")]
    by_hand.search.index(
        index=f"{by_hand.pipeline}.public.profile_g1_W",
        id="2",
        body={"_tag": later[0].tag, "id": 2, "city": "Bern", "age": 40},
        params={"version_type": "external_gte", "version": str(2**62)},
    )
    by_hand.put_back(Progress(by_hand.ends(), by_hand.log.lsn, 1, 1, {}))
    begun = by_hand.news(follower)
    assert events(begun) == [("begins", "bern", "2")]
    assert reported[1]["tag"] == ceased[0]["tag"] == begun[0]["tag"] == later[0].tag
    follower.close()


@pytest.mark.soak
def test_one_who_hung_spoils_nothing_of_the_newer_one_and_what_he_leaves_goes(by_hand: AppliedByHand) -> None:
    seconds = [0.0]
    by_hand.write(profile(1, "Bern"))
    by_hand.add("bern", IN_BERN)
    older = Follower(by_hand.config, SINK)
    assert len(by_hand.news(older)) == 1
    (left_over,) = by_hand.query_indexes()
    newer = Follower(by_hand.config, SINK, monotonic=lambda: seconds[0])
    assert by_hand.news(newer) == []
    (index,) = by_hand.query_indexes()
    assert index != left_over

    # He wakes up where he has all queries stored anew.
    assert older.live is not None
    older.live.begin_anew()
    assert older.take(older.live, Search("bern", PROFILE.name, YOUNG))
    assert by_hand.query_indexes() == {index, left_over}
    by_hand.write(profile(2, "Bern"))
    assert events(by_hand.news(newer)) == [("begins", "bern", "2")]
    with pytest.raises(LockstepError):
        report_all(older)
    with pytest.raises(Fenced):
        older.check_claim()
    older.close()
    seconds[0] += 601
    assert by_hand.news(newer) == []
    assert by_hand.query_indexes() == {index}
    newer.remove_queries()
    assert by_hand.query_indexes() == set()
    newer.close()


@pytest.mark.soak
def test_a_topic_that_was_made_anew_is_found_out_and_is_told_all_that_matches(by_hand: AppliedByHand) -> None:
    seconds = [0.0]
    by_hand.write(profile(1, "Bern"))
    by_hand.add("bern", IN_BERN)
    follower = Follower(by_hand.config, SINK, monotonic=lambda: seconds[0])
    assert events(by_hand.news(follower)) == [("begins", "bern", "1")]
    cluster = TopicAdmin(by_hand.log.kafka.client())
    plan = match_topic_plan(by_hand.pipeline, by_hand.config.kafka.topics)
    cluster.remove([plan.name])
    until(lambda: not cluster.exists(plan.name))
    cluster.create([plan])
    seconds[0] += 601
    with pytest.raises(Unavailable, match="was deleted and created again"):
        follower.step()
    assert "was deleted and created again" in str(by_hand.problems()["bern"])
    follower.close()
    by_hand._seen = 0
    follower = Follower(by_hand.config, SINK)
    assert events(by_hand.news(follower)) == [("begins", "bern", "1")]
    assert by_hand.problems() == {"bern": None}
    follower.close()
