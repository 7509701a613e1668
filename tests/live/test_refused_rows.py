"""A row that a query's webhook refuses becomes a rejection, and holds up none behind it."""

import contextlib
import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from cdc.capture.settings import CaptureSettings
from cdc.kafka.tombstones import write_tombstones
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import Fenced, Unavailable
from cdc.model.event import Position
from cdc.pipeline import Pipeline
from cdc.postgres.settings import SourceSettings
from cdc.protocol.envelope import TAG_HEADER
from cdc.webhook import WebhookSettings
from jobs.dead_letters.record import DeadLetter, dead_letter_key, dead_letter_value
from jobs.dead_letters.topic import DeadLetterTopic
from jobs.executor.result import RejectedEvent
from jobs.executor.stream_results import batch_tag
from jobs.generations.lease import GenerationLease
from jobs.generations.record import Record, begin_generation
from jobs.streams.posted import Posted
from jobs.streams.posting import RowPoster
from jobs.streams.posting_turn import PostingTurn, posting_turns
from jobs.streams.records import POSTING_PAUSE, erased_name, posted_name
from jobs.streams.refused_rows import REFUSED_IN_A_ROW_MAX, TooManyRefused
from jobs.streams.settings import StreamQuerySettings
from lockstep.config import read
from lockstep.stream_queries import stream_query_plan
from monitor.open_rejections import OpenRejections
from sinks.memory import MemoryStore, open_memory
from sinks.redis.settings import RedisSettings
from stack.stack import Endpoints
from tests.databases import Database, until, url_of
from tests.generations import prepared_store
from tests.receivers import Receiver
from tests.streams import Streams

pytestmark = [pytest.mark.live, pytest.mark.busy]

LOGINS = {
    "time": "at",
    "late": "10 minutes",
    "id": ["id"],
    "columns": {"id": "text", "user_id": "int8", "at": "timestamptz"},
}
SECRET = "zq7secret"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with contextlib.closing(Receiver()) as receiver:
        yield receiver


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
        return dict(counter.of_webhooks)


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


@pytest.mark.parametrize(
    "status", [401, 503, *(pytest.param(status, marks=pytest.mark.soak) for status in (404, 408, 429))]
)
@pytest.mark.soak
def test_what_is_not_said_of_a_row_holds_it_up_without_end(
    endpoints: Endpoints, receiver: Receiver, tmp_path: Path, status: int
) -> None:
    rows = Rows(endpoints.kafka_bootstrap, tmp_path, receiver.port, 1)
    rows.write(0, 1)
    answers = iter([status] * 12)
    receiver.refuses = lambda _: next(answers, None)
    assert rows.post().failure is None
    assert ids_of(receiver) == [0, 1]
    assert rows.open() == []


@pytest.mark.soak
def test_a_row_that_gets_what_any_might_is_a_rejection_once_one_behind_it_is_taken(
    endpoints: Endpoints, receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = Rows(endpoints.kafka_bootstrap, tmp_path, receiver.port, 1)
    rows.write(*range(8))
    receiver.refuses = refused(1, 4, 5, status=404)
    assert rows.post().failure is None
    assert ids_of(receiver) == [0, 2, 3, 6, 7], "each once, in order"
    assert rows.open_ids() == [1, 4, 5]
    assert {each.reason for each in rows.open()} == {"404 Not Found: the webhook refuses the row"}
    at = rows.posted()
    assert (at.posted, at.rejected, at.waiting, at.reason) == (5, 3, 0, "")
    assert rows.counted() == {rows.streams.name: 3}
    assert SECRET not in " ".join(record.getMessage() for record in caplog.records)


@pytest.mark.soak
def test_a_row_alone_waits_for_another_one_and_says_so(
    endpoints: Endpoints, receiver: Receiver, tmp_path: Path
) -> None:
    rows = Rows(endpoints.kafka_bootstrap, tmp_path, receiver.port, 1)
    rows.write(1)
    receiver.refuses = refused(1, status=403)
    lease, said = GenerationLease(open_memory(rows.store, 1), 1), list[str]()
    poster = RowPoster(
        rows.streams.plan(), lease, generations=lambda: [1], said=lambda why, _: said.append(why), wait_first_s=0.001
    )
    with contextlib.closing(poster):
        until(lambda: rows.posted().reason)
        assert "answered with status 403, and has taken no other row since" in rows.posted().reason
        assert "mend the receiver" in said[0]
        assert (rows.posted().waiting, rows.open()) == (1, [])
        rows.write(2)
        until(lambda: rows.posted().offset == 2)
    assert (ids_of(receiver), rows.open_ids()) == ([2], [1])


@pytest.mark.soak
def test_a_row_that_is_taken_later_is_no_rejection_any_more_of_whatever_build(
    endpoints: Endpoints, receiver: Receiver, tmp_path: Path
) -> None:
    rows = Rows(endpoints.kafka_bootstrap, tmp_path, receiver.port, 1, 2)
    rows.write(0, 1, 2)
    rows.write(1, generation=2)
    receiver.refuses = refused(0, 1, 2)
    rows.generations = [1]
    rows.post()
    assert rows.open_ids() == [0, 1, 2]
    rows.generations = [1, 2]
    rows.post()
    assert [each.generation for each in rows.open()] == [1, 1, 2], "of a key the newest build's counts"
    assert rows.counted() == {rows.streams.name: 3}
    rows.write(1, 2, generation=2)  # as where a batch is done again
    receiver.refuses = refused(2)
    rows.post()
    assert rows.open_ids() == [0, 2]
    assert ids_of(receiver) == [1]


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


@pytest.mark.soak
def test_before_more_are_open_than_may_be_it_stops(endpoints: Endpoints, receiver: Receiver, tmp_path: Path) -> None:
    rows = Rows(endpoints.kafka_bootstrap, tmp_path, receiver.port, 1, max_open=2)
    rows.write(*range(8))
    receiver.refuses = refused(1, 3, 5)
    failure = rows.post().failure
    assert failure is not None
    assert "max_open_rejections allows, 3 of 2: 3 x 422 Unprocessable" in failure.message
    assert (ids_of(receiver), rows.open_ids()) == ([0, 2, 4], [1, 3])
    rows.letters.send([(rows.open()[0].record_key, None)])  # as `lockstep rejections discard` does
    assert rows.post().failure is None
    assert (ids_of(receiver), rows.open_ids()) == ([0, 2, 4, 6, 7], [3, 5])


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

    monkeypatch.setattr("jobs.streams.posting._SAVE_EVERY_S", 0.01)
    with monkeypatch.context() as torn_up:
        torn_up.setattr(DeadLetterTopic, "send", torn(DeadLetterTopic.send))
        torn_up.setattr(RowPoster, "_save", torn(RowPoster._save))
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

    @contextlib.contextmanager
    def turn(self) -> Iterator[PostingTurn]:
        """Turns to post, as a command has them."""
        plan = stream_query_plan(read(self.file), self._query)
        with posting_turns(plan, say=lambda _: None) as turn:
            yield turn

    def __call__(self, *arguments: str) -> tuple[int, str]:
        done = subprocess.run(self.line(*arguments), capture_output=True, text=True, timeout=300, check=False)
        return done.returncode, done.stdout + done.stderr


@pytest.mark.soak
def test_a_row_of_an_older_build_is_not_posted_again_where_a_newer_one_has_another(
    endpoints: Endpoints, warehouse_database: Database, receiver: Receiver, tmp_path: Path
) -> None:
    rows = Rows(endpoints.kafka_bootstrap, tmp_path, receiver.port, 1, 2)
    name = rows.streams.name
    rows.write(*range(4))
    receiver.refuses = refused(*range(4))
    rows.generations = [1]
    rows.post()
    assert rows.open_ids() == [0, 1, 2, 3]
    rows.write(1, generation=2)  # the same row
    rows.write(2, 3, generation=2, note="newer")
    receiver.refuses = refused()
    command = Commands(rows, receiver.port, endpoints, tmp_path, warehouse_database)
    code, told = command("retry", name, "--all", "--json")
    assert code == 1, told
    report = json.loads(told)
    assert report["taken"] == 2
    assert [each["key"] for each in report["refused"]] == [{"id": 2}, {"id": 3}]
    reasons = {each["reason"] for each in report["refused"]}
    assert reasons == {"generation 2 has another row of this key, which its job posts"}
    assert (ids_of(receiver), rows.open_ids()) == ([0, 1], [2, 3])
    receiver.documents.clear()
    rows.generations = [1, 2]
    receiver.refuses = refused(3)
    rows.post()
    assert [(each["row"]["id"], each["row"]["note"]) for each in receiver.documents] == [(1, SECRET), (2, "newer")]
    assert [(each.generation, each.key) for each in rows.open()] == [(2, b'{"id":3}')]
    # As a job leaves them that is killed before it has closed the older one.
    event = RejectedEvent(
        Position(rows._topic(1).name, 0, 3), b'{"id":3}', b'{"id":3,"note":"older"}', batch_tag(3), "x"
    )
    letter = dead_letter_key(name, 1, event.position.topic, event.key, event.tag)
    rows.letters.send([(letter, dead_letter_value(name, 1, event, rejected_at_ms=1))])
    receiver.documents.clear()
    receiver.refuses = refused()
    code, told = command("retry", name, "--generation", "1", "--all", "--json")
    assert code == 1, told
    reasons = {each["reason"] for each in json.loads(told)["refused"]}
    assert reasons == {"generation 2 has a newer row of this key, which was refused too: retry that one"}
    code, told = command("retry", name, "--all", "--json")
    assert code == 0, told
    assert [each["row"]["note"] for each in receiver.documents] == ["newer"]
    assert rows.open() == []


@pytest.mark.soak
def test_a_newer_row_is_not_posted_while_an_older_one_is_posted_again(
    endpoints: Endpoints, warehouse_database: Database, receiver: Receiver, tmp_path: Path
) -> None:
    """The newer one comes when the command has found that there is none, and has begun to post."""
    rows = Rows(endpoints.kafka_bootstrap, tmp_path, receiver.port, 1, 2)
    rows.write(1, note="older")
    receiver.refuses = refused(1)
    rows.generations = [1]
    rows.post()
    assert rows.open_ids() == [1]
    name = rows.streams.name
    command = Commands(rows, receiver.port, endpoints, tmp_path, warehouse_database)
    plan = stream_query_plan(read(command.file), name)
    opened, leased = plan.opened(2), plan.opened(2)
    lease = GenerationLease(leased, 2, pause_request=POSTING_PAUSE)
    with contextlib.closing(opened.sink), contextlib.closing(leased.sink):
        begin_generation(opened, Record(plan.pipeline, {}))
        begin_generation(opened, Record(plan.pipeline, {}))
        poster = RowPoster(rows.streams.plan(), lease, generations=lambda: [2], said=lambda *_: None)
        has_come = threading.Event()

        def refuses(document: dict[str, Any]) -> None:
            if document["row"]["note"] == "older" and not has_come.is_set():
                has_come.set()
                rows.write(1, generation=2, note="newer")
                poster.wake()
                until(lambda: poster.is_held_up or len(receiver.documents) > 0)

        receiver.refuses = refuses
        is_done = threading.Event()

        def beat() -> None:
            while not is_done.wait(0.2):
                lease.heartbeat()

        beating = threading.Thread(target=beat)
        beating.start()
        with contextlib.closing(poster):
            code, told = command("retry", name, "--all")
            until(lambda: len(receiver.documents) == 2)
            is_done.set()
            beating.join()
    assert code == 0, told
    assert [each["row"]["note"] for each in receiver.documents] == ["older", "newer"]
    assert rows.open() == []


@pytest.mark.soak
def test_what_another_command_has_posted_meanwhile_is_not_posted_again(
    endpoints: Endpoints, warehouse_database: Database, receiver: Receiver, tmp_path: Path
) -> None:
    """Both find the same rows open before their turns. The second one has its turn after the first has posted them."""
    rows = Rows(endpoints.kafka_bootstrap, tmp_path, receiver.port, 1)
    rows.write(0, 1)
    receiver.refuses = refused(0, 1)
    rows.post()
    assert rows.open_ids() == [0, 1]
    receiver.refuses = refused()
    command = Commands(rows, receiver.port, endpoints, tmp_path, warehouse_database)
    line = command.line("retry", rows.streams.name, "--all", "--json")
    with command.turn() as turn, contextlib.ExitStack() as started:
        turn.take()
        both = [subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
        for each in both:
            started.enter_context(each)
            started.callback(each.kill)
        for each in both:
            assert each.stderr is not None
            assert any("another command posts rows" in said for said in each.stderr)
        turn.end()
        told = [json.loads(each.communicate(timeout=300)[0]) for each in both]
    assert sorted((each["taken"], each["gone"]) for each in told) == [(0, 2), (2, 0)]
    assert (ids_of(receiver), rows.open()) == ([0, 1], [])


@pytest.mark.soak
def test_what_is_posted_while_somebody_gives_it_up_is_not_said_to_be_given_up(
    endpoints: Endpoints, warehouse_database: Database, receiver: Receiver, tmp_path: Path
) -> None:
    """A retry goes on with what it has found open, for as long as its turn lasts."""
    rows = Rows(endpoints.kafka_bootstrap, tmp_path, receiver.port, 1)
    rows.write(0, 1, 2)
    receiver.refuses = refused(0, 1, 2)
    rows.post()
    command = Commands(rows, receiver.port, endpoints, tmp_path, warehouse_database)
    name = rows.streams.name
    line = command.line("discard", name, "--all", "--yes")
    with command.turn() as retry, contextlib.ExitStack() as started:
        retry.take()
        discard = started.enter_context(subprocess.Popen(line, stderr=subprocess.PIPE, text=True))
        started.callback(discard.kill)
        assert discard.stderr is not None
        assert "another command posts rows" in discard.stderr.readline()
        assert rows.open_ids() == [0, 1, 2]
        rows.letters.send((each.record_key, None) for each in rows.open()[:2])  # they are received
        retry.end()
        _, said = discard.communicate(timeout=300)
    assert "closed meanwhile, by a post or by another command: 2" in said
    assert f"discarded 1 rejection of {name}" in said
    assert (discard.returncode, rows.open()) == (0, [])


@pytest.mark.soak
def test_a_job_of_an_older_build_that_hung_posts_nothing_once_a_newer_one_has_begun(
    endpoints: Endpoints, receiver: Receiver, tmp_path: Path
) -> None:
    """Nobody has claimed the older build since: its job hasn't seen yet that a newer one has begun."""
    rows = Rows(endpoints.kafka_bootstrap, tmp_path, receiver.port, 1, 2)
    rows.write(0, 1, 2, note="older")
    rows.write(0, 1, 2, generation=2, note="newer")
    hangs, wakes_up = threading.Event(), threading.Event()

    def hang(_: dict[str, Any]) -> int | None:
        if hangs.is_set():
            return None
        hangs.set()
        assert wakes_up.wait(300)
        return 503

    receiver.refuses = hang
    lease = GenerationLease(open_memory(rows.store, 1), 1)
    older = RowPoster(rows.streams.plan(), lease, generations=lambda: [1], said=lambda *_: None, wait_first_s=0.001)
    with contextlib.closing(older):
        assert hangs.wait(300)
        assert rows.post().failure is None
        noted = rows.posted()
        wakes_up.set()
        with pytest.raises(Unavailable, match="another job has begun to post rows"):
            older.finish(threading.Event(), while_waiting=lambda: None)
    assert {document["row"]["id"]: document["row"]["note"] for document in receiver.documents} == dict.fromkeys(
        range(3), "newer"
    )
    assert rows.posted() == noted, "nor does it say what the newer one has posted"


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
