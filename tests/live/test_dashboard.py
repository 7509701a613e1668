"""The API of ``lockstep dashboard`` over real servers."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cdc.kafka.control_topics import read_tables
from cdc.kafka.topic_admin import TopicAdmin, view_topic_plans
from cdc.kafka.topic_names import view_topic
from cdc.model.tag import Tag
from jobs.executor.task_input import ViewTopicInput
from jobs.executor.view_topic import ViewTopic
from jobs.query.view_plan import planned_view
from lockstep.cli.main import exit_code
from lockstep.config import load
from lockstep.dashboard.model import FollowedKey, PipelineState
from lockstep.dashboard_settings import TOKEN_VARIABLE
from sinks.registry import open_sink
from stack.stack import Endpoints
from tests.captured import Captured
from tests.databases import Database, until
from tests.examples import examples

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
SECRET = "recognisable-value-of-a-row"
"""A row's value: no log may hold it."""


class Dashboard:
    """The page's server as a process, and a client that has loaded the page."""

    def __init__(self, path: Path, directory: Path, *, token: str | None = None) -> None:
        self.messages = directory / "dashboard.log"
        environment = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
        self.token = token
        with self.messages.open("a") as file:
            began = self.messages.stat().st_size
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lockstep", "dashboard", "--config", str(path)],
                stderr=file,
                cwd=ROOT,
                env=environment if token is None else environment | {TOKEN_VARIABLE: token},
            )
        until(lambda: self._said(began) is not None or self.process.poll() is not None)
        said = self._said(began)
        assert said is not None, self.messages.read_text()
        self.port = int(said[1])
        self.cookie = ""
        until(lambda: self.status("GET", "/healthz") == 200)

    def _said(self, began: int) -> re.Match[str] | None:
        return re.search(r"dashboard: http://\S+:(\d+)/", self.messages.read_text()[began:])

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, dict[str, str]]:
        """Status, document (or text) and headers of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        given = {"Cookie": self.cookie, **(headers or {})}
        if self.token is not None:
            given.setdefault("Authorization", f"Bearer {self.token}")
        text = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, text, {**given, "Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
        except OSError:
            return 0, None, {}
        finally:
            connection.close()
        is_json = answer.headers.get_content_type() == "application/json"
        return answer.status, json.loads(content) if is_json else content.decode(), dict(answer.headers)

    def status(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> int:
        return self.ask(method, path, body, headers)[0]

    def get(self, path: str) -> Any:
        code, document, _ = self.ask("GET", path)
        assert code == 200, document
        return document

    def load_page(self) -> None:
        """As a browser does: from then on it sends the cookie."""
        code, _, headers = self.ask("GET", "/")
        assert code == 200
        self.cookie = headers["set-cookie"].partition(";")[0]

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(300) == 0, self.messages.read_text()


@pytest.fixture
def captured(database: Database, endpoints: Endpoints, tmp_path: Path) -> Iterator[Captured]:
    """A capture of one table, and a sink that no job applies to yet."""
    database.execute(
        "create table t (id int primary key, word text)", f"insert into t values (1, 'one'), (2, '{SECRET}')"
    )
    name = f"page{os.getpid()}_{tmp_path.name[-2:].strip('_')}"
    cache = f"type = 'redis'\nurl = '{endpoints.redis_url}'\nprefix = '{name}'"
    sections = f"[dashboard]\nlisten = '127.0.0.1:0'\n[sinks.cache]\n{cache}"
    with Captured(database, endpoints.kafka_bootstrap, tmp_path, ["public.t"], sections=sections) as captured:
        yield captured


@pytest.fixture
def dashboard(captured: Captured, tmp_path: Path) -> Iterator[Dashboard]:
    captured.start().settle()
    dashboard = Dashboard(captured.path, tmp_path)
    yield dashboard
    dashboard.stop()
    assert SECRET not in dashboard.messages.read_text()


def _state(dashboard: Dashboard) -> PipelineState:
    return PipelineState.model_validate(dashboard.get("/api/pipeline"))


def _has_looked(dashboard: Dashboard) -> bool:
    return dashboard.status("GET", "/api/pipeline") == 200


def test_figures_are_those_of_the_lag_command(
    captured: Captured, dashboard: Dashboard, capsys: pytest.CaptureFixture[str]
) -> None:
    until(lambda: _has_looked(dashboard))
    captured.stop()  # so that nothing moves any more

    def agree() -> bool:
        exit_code(["lag", "--json", "--config", str(captured.path)])
        said, lag = json.loads(capsys.readouterr().out), dashboard.get("/api/lag")
        state = _state(dashboard)
        # The WAL's end moves on: other tests write to the same server.
        stages, shown = (
            [{name: stage[name] for name in ("stage", "lsn", "events_behind")} for stage in document["stages"][1:]]
            for document in (said, lag)
        )
        return (
            shown == stages
            and lag["slot_active"] is said["slot_active"] is False
            and state.capture.lsn == said["stages"][2]["lsn"]
            and state.sinks[0].events_behind == said["stages"][4]["events_behind"]
        )

    until(agree)


def test_a_row_is_followed_to_where_it_lacks(captured: Captured, dashboard: Dashboard) -> None:
    assert dashboard.status("GET", "/api/key?table=public.t&key=2") == 401, "its values are for who has the page"
    dashboard.load_page()
    captured.database.execute(f"update t set word = '{SECRET}!' where id = 2")
    captured.settle()
    for key in ("2", "%7B%22id%22:2%7D"):
        code, document, _ = dashboard.ask("GET", f"/api/key?table=public.t&key={key}")
        assert code == 200, document
        followed = FollowedKey.model_validate(document)
        assert followed.source.row == {"id": 2, "word": f"{SECRET}!"}
        assert [event.op for event in followed.events] == ["u", "r"], "newest first"
    code, document, _ = dashboard.ask("GET", f"/api/key?table=public.t&key={SECRET}")
    assert code == 400
    assert SECRET not in document["message"]


@contextmanager
def _stream(
    dashboard: Dashboard, path: str, headers: dict[str, str] | None = None
) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", dashboard.port, timeout=60)
    connection.request("GET", path, headers={"Cookie": dashboard.cookie, **(headers or {})})
    answer = connection.getresponse()
    try:
        assert answer.status == 200
        yield answer
    finally:
        answer.close()
        connection.close()


def _frames(dashboard: Dashboard, count: int, headers: dict[str, str] | None = None) -> list[tuple[int, PipelineState]]:
    frames: list[tuple[int, PipelineState]] = []
    number = 0
    with _stream(dashboard, "/api/events", headers) as answer:
        while len(frames) < count:
            line = answer.readline().decode()
            assert line, "the stream ended"
            if line.startswith("id: "):
                number = int(line.removeprefix("id: "))
            elif line.startswith("data: "):
                frames.append((number, PipelineState.model_validate_json(line.removeprefix("data: "))))
    return frames


@pytest.mark.soak
def test_a_stream_begins_with_the_newest_state_and_goes_on(dashboard: Dashboard) -> None:
    first = _frames(dashboard, 2)
    assert first[0][0] < first[1][0]
    again = _frames(dashboard, 1, {"Last-Event-ID": str(first[1][0])})
    assert again[0][0] >= first[1][0], "who comes back gets the newest state, whatever it had"


@pytest.mark.parametrize(
    "sent", [[signal.SIGTERM], *(pytest.param([signal.SIGINT] * times, marks=pytest.mark.soak) for times in (1, 2))]
)
def test_a_stop_ends_open_streams_at_once_and_a_new_server_goes_on(
    captured: Captured, dashboard: Dashboard, tmp_path: Path, sent: list[signal.Signals]
) -> None:
    with (
        _stream(dashboard, "/api/events") as events,
        _stream(dashboard, "/api/tail") as tail,
        _stream(dashboard, "/api/events"),  # a page in a window that takes nothing
    ):
        assert events.readline()
        assert tail.readline()
        for number in sent:
            dashboard.process.send_signal(number)
        assert dashboard.process.wait(300) == 0, "nobody has to end the streams"
    assert "Traceback" not in dashboard.messages.read_text()
    again = Dashboard(captured.path, tmp_path)
    until(lambda: _has_looked(again))
    again.stop()


@pytest.mark.parametrize(
    "what", [*(pytest.param(each, marks=pytest.mark.soak) for each in ("source", "kafka")), "store"]
)
def test_a_server_that_is_down_is_shown_as_such(captured: Captured, tmp_path: Path, what: str) -> None:
    captured.start().settle()
    captured.stop()
    text = captured.path.read_text()
    broken = {
        "source": text.replace(f"dsn = '{captured.database.dsn}'", "dsn = 'host=127.0.0.1 port=1 dbname=x user=x'"),
        "kafka": text.replace("bootstrap_servers = '", "bootstrap_servers = '127.0.0.1:1' #"),
        "store": re.sub("url = '.*'", "url = 'redis://127.0.0.1:1/0'", text),
    }[what]
    assert broken != text
    captured.path.write_text(broken)
    dashboard = Dashboard(captured.path, tmp_path)
    until(lambda: _has_looked(dashboard))
    state = _state(dashboard)
    problem = next(problem for problem in state.problems if problem.state == "unanswered")
    assert problem.where in (("cache",) if what == "store" else ("pipeline", what))
    assert problem.next_step is not None
    assert dashboard.status("GET", "/readyz") == 503
    assert dashboard.status("GET", "/") == 200
    shown = {line.partition(" ")[0] for line in dashboard.get("/metrics").splitlines()}
    assert ("lockstep_broken" in shown) is (what == "store"), "a silent server says nothing of that"
    condition = {"store": "sink-unreachable"}.get(what, "unreachable")
    assert any(f'condition="{condition}"' in each and 'severity="critical"' in each for each in shown)
    if what != "store":
        code, refusal, _ = dashboard.ask("GET", "/api/copies")
        assert (code, list(refusal)) == (503, ["message"])
    if what == "kafka":
        with _stream(dashboard, "/api/tail") as tail:
            until(lambda: tail.readline().startswith(b"event: trouble"))
            assert json.loads(tail.readline().removeprefix(b"data: "))["message"]
    dashboard.stop()


@pytest.mark.soak
def test_beyond_loopback_nothing_is_had_without_the_token(captured: Captured, tmp_path: Path) -> None:
    captured.path.write_text(captured.path.read_text().replace("'127.0.0.1:0'", "'0.0.0.0:0'"))
    refused = subprocess.run(
        [sys.executable, "-m", "lockstep", "dashboard", "--config", str(captured.path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE},
        check=False,
    )
    assert refused.returncode == 2
    assert f"set {TOKEN_VARIABLE}" in refused.stderr
    dashboard = Dashboard(captured.path, tmp_path, token="right")
    for path in ("/", "/api/alerts", "/api/events", "/api/openapi.json", "/static/page.css"):
        assert dashboard.status("GET", path, headers={"Authorization": "Bearer wrong"}) == 401
    code, _, headers = dashboard.ask("GET", "/", headers={"Authorization": "Bearer wrong"})
    assert (code, headers["www-authenticate"].split()[0]) == (401, "Basic"), "so that a browser asks for it"
    assert "set-cookie" not in headers
    assert dashboard.status("GET", "/api/alerts") in (200, 503)
    assert "right" not in dashboard.messages.read_text().replace("rights", "")
    dashboard.stop()


@pytest.mark.soak
def test_every_answer_has_the_headers_that_bind_a_browser(dashboard: Dashboard) -> None:
    for path in ("/", "/api/verify", "/nosuch", "/static/page.css", "/api/key?table=a&key=1"):
        headers = dashboard.ask("GET", path)[2]
        assert headers["content-security-policy"].startswith("default-src 'self'; frame-ancestors 'none'")
        assert headers["x-content-type-options"] == "nosniff"
    assert dashboard.status("GET", "/static/../server.py") == 404
    assert dashboard.status("GET", "/static/%2e%2e/server.py") == 404


@pytest.mark.soak
def test_half_requests_without_end_keep_nobody_from_the_probes(dashboard: Dashboard) -> None:
    with ExitStack() as closing:
        for _ in range(510):
            closing.enter_context(socket.create_connection(("127.0.0.1", dashboard.port))).sendall(b"GET / HT")
        assert dashboard.status("GET", "/healthz") == 200
        assert dashboard.status("GET", "/") == 200


@pytest.mark.soak
def test_a_body_whose_length_is_not_said_is_refused_before_it_comes(dashboard: Dashboard) -> None:
    dashboard.load_page()
    with socket.create_connection(("127.0.0.1", dashboard.port), timeout=60) as wire:
        head = f"POST /api/wait HTTP/1.1\r\nhost: localhost:{dashboard.port}\r\ncookie: {dashboard.cookie}\r\n"
        wire.sendall(f"{head}transfer-encoding: chunked\r\n\r\n4000\r\n".encode())
        assert wire.recv(100).startswith(b"HTTP/1.1 411")


def test_the_api_is_as_it_is_described(dashboard: Dashboard) -> None:
    """Whatever is asked, no answer is a failure of ours, and each is of the described kind."""
    until(lambda: _has_looked(dashboard))
    dashboard.load_page()
    schema = schemathesis.openapi.from_dict(dashboard.get("/api/openapi.json"))
    streams = ("/api/events", "/api/tail")
    operations = [found.ok() for found in schema.get_all_operations() if found.ok().path not in streams]
    assert len(operations) > 15
    checks = [
        schemathesis.checks.not_a_server_error,
        schemathesis.specs.openapi.checks.response_schema_conformance,
    ]

    @given(data=st.data())
    @settings(
        max_examples=examples(20),
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def fuzz(data: st.DataObject) -> None:
        operation = data.draw(st.sampled_from(operations))
        if operation.path == "/api/findings":
            return  # it asks doctor
        case = data.draw(operation.as_strategy())
        case.headers = {**(case.headers or {}), "Cookie": dashboard.cookie}
        answer = case.call(base_url=f"http://127.0.0.1:{dashboard.port}", session=session)
        if answer.status_code != 503:
            case.validate_response(answer, checks=checks)

    with requests.Session() as session:
        fuzz()


@pytest.mark.soak
def test_a_page_gets_the_rows_of_a_view_and_then_its_changes(captured: Captured, tmp_path: Path) -> None:
    query = "select word, count(*) as n from t where word is not null group by word"
    view = f"[views.words]\nsink = 'cache'\nkey = ['word']\nsql = '{query}'\ntopic = true\n"
    view += "[views.ids]\nsink = 'cache'\nkey = ['id']\nsql = 'select id from t'\n"
    captured.path.write_text(captured.path.read_text() + view)
    captured.start().settle()
    config = load(captured.path)
    shapes = read_tables(captured.client, captured.name)
    settings = config.sinks["words"]
    assert settings.view is not None
    opened = open_sink("words", settings, 1)
    opened.sink.prepare([planned_view(settings.view, shapes).table])
    opened.sink.close()
    topic, cluster = view_topic(captured.name, "words", 1), TopicAdmin(captured.client)
    cluster.create(cluster.missing(view_topic_plans(captured.name, topic, config.kafka.topics)))
    writer = ViewTopic(captured.client, ViewTopicInput(captured.name, "words", 1, topic, 1 << 20))

    def write(lsn: int, word: str, n: int) -> None:
        tag = Tag(0, lsn, 0)
        writer.write(orjson.dumps({"word": word}), orjson.dumps({"word": word, "n": n}), tag)
        writer.commit(tag=tag, offsets={}, run="run", is_complete=True)

    write(0x100, SECRET, 1)
    dashboard = Dashboard(captured.path, tmp_path)
    path = f"/views/words/changes?word={SECRET}"
    assert dashboard.status("GET", path) == 401, "its values are for who has the page"
    dashboard.load_page()
    for other, refused in (
        ("/views/cache/changes", 400),
        ("/views/nosuch/changes", 400),
        ("/views/ids/changes", 409),
        ("/views/words/changes?n=1", 400),
        ("/views/words/changes?word=a&word=b", 400),
    ):
        code, document, _ = dashboard.ask("GET", other)
        assert (code, other) == (refused, other)
        assert document["message"]
    until(lambda: _has_looked(dashboard))
    with _stream(dashboard, path) as answer:
        assert answer.headers["cache-control"] == "no-store"
        _until_line(answer, "event: synced")
        write(0x200, SECRET, 2)
        write(0x300, "other", 1)
        assert '"n":2' in _until_line(answer, "event: upsert", more=1)
        last_id = _until_line(answer, "event: commit", more=1).removeprefix("id: ")
    write(0x400, SECRET, 3)
    with _stream(dashboard, path, {"Last-Event-ID": last_id}) as answer:
        assert '"n":3' in _until_line(answer, "event: upsert", more=1)
        dashboard.stop()  # which ends the stream
        while answer.readline():
            pass
    writer.close()
    assert SECRET not in dashboard.messages.read_text()


def _until_line(answer: http.client.HTTPResponse, begin: str, *, more: int = 0) -> str:
    """A stream's first line with this beginning, or the one this many lines later."""
    while not (line := answer.readline().decode()).startswith(begin):
        assert line, "the stream ended"
    for _ in range(more):
        line = answer.readline().decode()
    return line.rstrip("\n")
