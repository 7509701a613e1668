"""A row that a query's webhook refuses becomes a rejection, and holds up none behind it."""

import contextlib
import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from cdc.capture.settings import CaptureSettings
from cdc.kafka.tombstones import write_tombstones
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import Fenced
from cdc.model.tag import TAG_HEADER
from cdc.pipeline_settings import Pipeline
from cdc.postgres.settings import SourceSettings
from cdc.webhook import WebhookSettings
from extensions.streams.executor.results import batch_tag
from extensions.streams.jobs.posted import Posted
from extensions.streams.jobs.posting import RowPoster
from extensions.streams.jobs.posting_progress import PostingProgress
from extensions.streams.jobs.records import erased_name, posted_name
from extensions.streams.jobs.refused_rows import REFUSED_IN_A_ROW_MAX, TooManyRefused
from extensions.streams.settings import StreamQuerySettings
from jobs.dead_letters.record import DeadLetter
from jobs.dead_letters.topic import DeadLetterTopic
from jobs.generations.lease import GenerationLease
from monitor.open_rejections import OpenRejections
from sinks.memory import MemoryStore, open_memory
from sinks.redis.settings import RedisSettings
from stack.stack import Endpoints
from tests.databases import Database, url_of
from tests.extensions.streams.streams import Streams
from tests.generations import prepared_store
from tests.receivers import Receiver

pytestmark = [pytest.mark.live, pytest.mark.busy]

LOGINS = {
    "time": "at",
    "late": "10 minutes",
    "id": ["id"],
    "columns": {"id": "text", "user_id": "int8", "at": "timestamptz"},
}
SECRET = "zq7secret"


class Rows:
    """A query whose rows are on its topic, posted by posters of the test's own. ``store`` keeps how far they are."""

    def __init__(self, bootstrap: str, directory: Path, port: int, *generations: int, max_open: int = 10_000) -> None:
        webhook = WebhookSettings(url=f"http://127.0.0.1:{port}/rows")
        query = StreamQuerySettings(key=("id",), sql="x", webhook=webhook)
        settings = RedisSettings(max_open_rejections=max_open)
        self.streams = Streams(bootstrap, directory, {"logins": LOGINS}, query, settings)
        self.store: MemoryStore = prepared_store(*generations)
        self.generations = list(generations)
        for number in generations:
            TopicAdmin(self.streams.client).create([self._topic(number)])
        self.letters = DeadLetterTopic(self.streams.client, self.streams.pipeline)

    def _topic(self, generation: int) -> Any:
        topic = self.streams.plan().result_topic(generation)
        assert topic is not None
        return topic

    def write(self, *numbers: int, generation: int = 1, note: str = SECRET) -> None:
        """Write rows, each as one of a batch of its own."""
        producer = Producer(self.streams.client)
        for number in numbers:
            row = json.dumps({"id": number, "note": note}).encode()
            headers = [(TAG_HEADER, batch_tag(number).encode())]
            producer.produce(self._topic(generation).name, row, b'{"id":%d}' % number, headers=headers)
        assert producer.flush(60) == 0

    def post(self) -> RowPoster:
        """Post to the end of the topics, or until it can't go on."""
        lease = GenerationLease(open_memory(self.store, self.generations[-1]), self.generations[-1])
        poster = RowPoster(
            self.streams.plan(), lease, generations=lambda: self.generations, said=lambda *_: None, wait_first_s=0.001
        )
        with contextlib.closing(poster), contextlib.suppress(TooManyRefused):
            poster.finish(threading.Event(), while_waiting=lambda: None)
        return poster

    def posted(self, generation: int = 1) -> Posted:
        return Posted.parse(self.store.records.get(posted_name(generation)))

    def open(self) -> list[DeadLetter]:
        readable, unreadable = self.letters.read()
        assert unreadable == []
        return readable

    def open_ids(self) -> list[int]:
        return sorted(json.loads(each.key)["id"] for each in self.open())

    def counted(self) -> dict[str, int]:
        """What the lag says of them."""
        source = SourceSettings(dsn="host=none", tables=("public.t",))
        pipeline = Pipeline(self.streams.pipeline, source, self.streams.kafka, CaptureSettings())
        counter = OpenRejections(pipeline, TopicAdmin(self.streams.client))
        counter.counts()
        return dict(counter.of([self.streams.name]))


def ids_of(receiver: Receiver) -> list[int]:
    return [document["row"]["id"] for document in receiver.documents]


def refused(*numbers: int, status: int = 422) -> Callable[[dict[str, Any]], int | None]:
    return lambda document: status if document["row"]["id"] in numbers else None


@pytest.mark.soak
def test_a_row_that_is_refused_is_kept_and_those_behind_it_are_posted_in_order(
    endpoints: Endpoints, receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = Rows(endpoints.kafka_bootstrap, tmp_path, receiver.port, 1)
    rows.write(*range(6))
    receiver.refuses = refused(1, 4)
    assert rows.post().failure is None
    assert ids_of(receiver) == [0, 2, 3, 5]
    assert receiver.asked == 4 + 2 * 3, "each is tried three times"
    first, second = rows.open()
    name, topic = rows.streams.name, rows._topic(1).name
    assert [(each.sink, each.generation, each.position.topic, each.position.offset) for each in (first, second)] == [
        (name, 1, topic, 1),
        (name, 1, topic, 4),
    ]
    assert (first.key, first.tag) == (b'{"id":1}', batch_tag(1))
    assert first.reason.startswith("422 Unprocessable")
    assert [row for _, row in rows.letters.values([first])] == [b'{"id":1,"note":"%s"}' % SECRET.encode()]
    at = rows.posted()
    assert (at.posted, at.rejected, at.waiting, at.reason) == (4, 2, 0, "")
    assert rows.counted() == {name: 2}
    told = [record.getMessage() for record in caplog.records]
    assert sum("row is rejected" in text for text in told) == 2
    assert SECRET not in " ".join(told)


@pytest.mark.soak
def test_with_too_many_refusals_in_a_row_it_stops_and_goes_on_with_that_row(
    endpoints: Endpoints, receiver: Receiver, tmp_path: Path
) -> None:
    rows = Rows(endpoints.kafka_bootstrap, tmp_path, receiver.port, 1)
    rows.write(*range(REFUSED_IN_A_ROW_MAX + 3))
    receiver.status = 400
    failure = rows.post().failure
    assert failure is not None
    assert f"has refused {REFUSED_IN_A_ROW_MAX} rows in a row" in failure.message
    assert "400 Bad Request" in failure.message
    assert f"`lockstep rejections retry {rows.streams.name} --all`" in (failure.hint or "")
    assert rows.open_ids() == list(range(REFUSED_IN_A_ROW_MAX))
    assert rows.posted().reason == failure.message
    assert rows.posted().waiting == 3
    receiver.status = 204
    assert rows.post().failure is None
    assert ids_of(receiver) == [REFUSED_IN_A_ROW_MAX + number for number in range(3)]
    assert len(rows.open()) == REFUSED_IN_A_ROW_MAX


@pytest.mark.parametrize("status", [422, pytest.param(404, marks=pytest.mark.soak)])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 6))])
def test_wherever_it_is_cut_each_row_is_received_or_open_by_its_last_answer(
    endpoints: Endpoints, receiver: Receiver, tmp_path: Path, seed: int, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    rows = Rows(endpoints.kafka_bootstrap, tmp_path, receiver.port, 1)
    numbers = list(range(30))
    rows.write(*numbers)
    answers = dict[int, list[bool]]()
    cuts_left = 12

    def answered(document: dict[str, Any]) -> int | None:
        number = document["row"]["id"]
        is_refused = number % 2 == 0 and chance.random() < 0.8
        answers.setdefault(number, []).append(is_refused)
        return status if is_refused else None

    receiver.refuses = answered

    def cut() -> None:
        """As if the process was killed here: what it has is gone, and nobody notes anything more."""
        nonlocal cuts_left
        if cuts_left and chance.random() < 0.3:
            cuts_left -= 1
            raise Fenced("cut")

    def torn(work: Callable[..., None]) -> Callable[..., None]:
        def done(*arguments: Any) -> None:
            cut()
            work(*arguments)
            cut()

        return done

    monkeypatch.setattr("extensions.streams.jobs.posting_progress.SAVE_EVERY_S", 0.01)
    with monkeypatch.context() as torn_up:
        torn_up.setattr(DeadLetterTopic, "send", torn(DeadLetterTopic.send))
        torn_up.setattr(PostingProgress, "save", torn(PostingProgress.save))
        while cuts_left:
            begun = len(receiver.documents)
            rows.post()
            # Of those that are refused in between, one behind may be taken first.
            told = [number for number in ids_of(receiver)[begun:] if status == 422 or number % 2]
            assert told == sorted(told), "in order"
            if rows.posted().offset == len(numbers):
                break
    assert rows.post().failure is None
    assert answers.keys() == set(numbers)
    assert rows.open_ids() == [number for number in numbers if answers[number][-1]]
    assert set(ids_of(receiver)) == {number for number in numbers if not all(answers[number])}
    assert rows.posted().waiting == 0


# -- the command

_FILE = """
[pipeline]
name = "{pipeline}"
[source]
dsn = "host=none dbname=none user=none"
tables = ["public.t"]
[kafka]
bootstrap_servers = "{bootstrap}"
[sinks.warehouse]
type = "warehouse"
url = "{url}"
[streams.logins]
topic = "web.logins"
columns = {{ id = "text", at = "timestamptz" }}
time = "at"
late = "10 minutes"
[stream_queries.{name}]
sink = "warehouse"
key = ["id"]
sql = "select id, at from logins"
webhook = {{ url = "http://127.0.0.1:{port}/rows" }}
"""


class Commands:
    """Commands of rejections for these rows."""

    def __init__(self, rows: Rows, port: int, endpoints: Endpoints, directory: Path, warehouse: Database) -> None:
        self.file = directory / "lockstep.toml"
        self._query = rows.streams.name
        names = {"pipeline": rows.streams.pipeline, "name": rows.streams.name}
        url = url_of(endpoints.warehouse_url, warehouse.name)
        self.file.write_text(_FILE.format(bootstrap=endpoints.kafka_bootstrap, port=port, url=url, **names))

    def line(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "lockstep", "rejections", *arguments, "--config", str(self.file)]

    def __call__(self, *arguments: str) -> tuple[int, str]:
        done = subprocess.run(self.line(*arguments), capture_output=True, text=True, timeout=300, check=False)
        return done.returncode, done.stdout + done.stderr


@pytest.mark.soak
def test_a_row_that_was_erased_before_it_was_posted_never_is(
    endpoints: Endpoints, receiver: Receiver, tmp_path: Path
) -> None:
    """The topic holds it until compaction. The erased one is refused here, and those behind it are posted ahead."""
    rows = Rows(endpoints.kafka_bootstrap, tmp_path, receiver.port, 1)
    rows.write(*range(4))
    topic = rows._topic(1).name

    def erase(number: int) -> None:
        key = b'{"id":%d}' % number
        write_tombstones(rows.streams.client, topic, {key: batch_tag(number)})
        end = TopicAdmin(rows.streams.client).end_offsets([(topic, 0)])[topic, 0]
        rows.store.records[erased_name(1)] = str(end)

    erase(1)

    def refuses(document: dict[str, Any]) -> int | None:
        number = document["row"]["id"]
        if number == 2 and receiver.asked < 4:
            erase(2)
            erase(3)
        return 422 if number == 2 else None

    receiver.refuses = refuses
    assert rows.post().failure is None
    assert ids_of(receiver) == [0]
    assert rows.open() == [], "it isn't kept as a rejection either"
    assert rows.posted().waiting == 0
    rows.write(1, note="new")
    assert rows.post().failure is None
    assert [document["row"] for document in receiver.documents][1:] == [{"id": 1, "note": "new"}]


@pytest.mark.soak
def test_they_are_listed_shown_posted_again_and_given_up_by_the_commands_of_rejections(
    endpoints: Endpoints, warehouse_database: Database, receiver: Receiver, tmp_path: Path
) -> None:
    rows = Rows(endpoints.kafka_bootstrap, tmp_path, receiver.port, 1)
    name = rows.streams.name
    rows.write(*range(5))
    rows.post()
    posted = {document["row"]["id"]: document for document in receiver.documents}
    rows.store.records.clear()
    receiver.refuses = refused(1, 2, 3)
    rows.post()
    command = Commands(rows, receiver.port, endpoints, tmp_path, warehouse_database)
    code, told = command("list", name)
    assert code == 0, told
    assert '{"id":1}' in told
    assert "422 Unprocessable" in told
    assert SECRET not in told
    code, told = command("show", name, "1", "--value", "--json")
    assert code == 0, told
    assert json.loads(told)["value"] == {"id": 1, "note": SECRET}
    receiver.documents.clear()
    receiver.refuses = refused(2)
    code, told = command("retry", name, "--all", "--json")
    assert code == 1, told
    assert SECRET not in told
    assert json.loads(told)["taken"] == 2
    assert [each["key"] for each in json.loads(told)["refused"]] == [{"id": 2}]
    assert receiver.documents == [posted[1], posted[3]]
    assert rows.open_ids() == [2]
    receiver.status = 503
    code, told = command("retry", name, "--key", "2")
    assert code == 1
    assert "422 Unprocessable" in told
    receiver.refuses = refused()
    code, told = command("retry", name, "--key", "2")
    assert code == 1
    assert "answered with status 503" in told
    assert rows.open_ids() == [2]
    code, told = command("discard", name, "--all", "--yes")
    assert code == 0, told
    assert rows.open_ids() == []
