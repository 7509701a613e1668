"""Commands that look at a pipeline while Kafka is away, which alone knows the tables that patterns take in."""

import contextlib
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stack.stack import Endpoints
from tests.captured import Captured
from tests.databases import Database, until
from tests.faulty_proxy import FaultyProxy
from tests.live.test_dashboard import Dashboard
from tests.pipeline import Process
from tests.receivers import Receiver

pytestmark = [pytest.mark.live, pytest.mark.soak]

_PATIENCE_S = 300.0


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with contextlib.closing(Receiver()) as receiver:
        yield receiver


@pytest.fixture
def captured(database: Database, endpoints: Endpoints, receiver: Receiver, tmp_path: Path) -> Iterator[Captured]:
    """A capture that streams, of one table and a sink that nobody has begun to apply to."""
    database.execute("create table t (id int primary key)", "insert into t values (1)")
    sections = (
        "[dashboard]\nlisten = '127.0.0.1:0'\n[alerts]\nopen_after_s = 0\nclear_after_s = 0\n"
        f"webhook = {{ url = 'http://127.0.0.1:{receiver.port}/' }}\n"
        f"[sinks.cache]\ntype = 'redis'\nurl = '{endpoints.redis_url}'\nprefix = '{tmp_path.name}'"
    )
    with Captured(database, endpoints.kafka_bootstrap, tmp_path, ["public.*"], sections=sections) as captured:
        captured.start().settle()
        yield captured


@pytest.fixture
def away(captured: Captured, endpoints: Endpoints) -> Iterator[FaultyProxy]:
    """Where the configuration file says that Kafka is: nobody is let in there before it is well."""
    host, _, port = endpoints.kafka_bootstrap.rpartition(":")
    with FaultyProxy(host, int(port)) as proxy:
        proxy.refuse(503)
        text = re.sub("bootstrap_servers = '.*'", f"bootstrap_servers = '127.0.0.1:{proxy.port}'", _text(captured))
        captured.path.write_text(text)
        yield proxy


def _text(captured: Captured) -> str:
    return captured.path.read_text()


@pytest.mark.usefixtures("away")
def test_lag_and_a_bundle_have_what_the_other_servers_say(captured: Captured, tmp_path: Path) -> None:
    code, text = _run("lag", "--json", "--config", str(captured.path))
    assert code == 1
    lag = json.loads(text)
    assert list(lag["silent_servers"]) == ["kafka"]
    assert lag["retained_bytes"] is not None
    assert [stage["lsn"] is not None for stage in lag["stages"]][:2] == [True, True]
    archive = tmp_path / "bundle.tar.gz"
    assert _run("bundle", str(archive), "--config", str(captured.path))[0] == 0
    found = _parts(archive)
    assert list(found["lag.json"]["silent_servers"]) == ["kafka"]
    assert found["configuration.json"]["source"]["tables"] == ["public.*"]
    assert found["topics.json"].keys() == {"error"}
    assert "error" in found["state.json"]["capture"]
    assert found["doctor.json"]


def _run(*arguments: str) -> tuple[int, str]:
    """A process of its own, whose end doesn't wait for what still waits for Kafka: its exit code and output."""
    command = [sys.executable, "-m", "lockstep", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout


def _parts(archive: Path) -> dict[str, Any]:
    with tarfile.open(archive) as opened:
        names = [name for name in opened.getnames() if name.endswith(".json")]
        texts = {name: opened.extractfile(name) for name in names}
        return {name.rpartition("/")[2]: json.loads(text.read()) for name, text in texts.items() if text is not None}


def test_who_watches_tells_that_it_is_away_and_goes_on_once_it_is_back(
    captured: Captured, away: FaultyProxy, receiver: Receiver, tmp_path: Path
) -> None:
    watch = Process(tmp_path / "watch.log", "lockstep", "alerts", "watch", "--config", str(captured.path))
    try:
        until(lambda: ("opened", "unreachable") in receiver.told, seconds=_PATIENCE_S)
        away.be_well()
        until(lambda: ("cleared", "unreachable") in receiver.told, seconds=_PATIENCE_S)
    finally:
        watch.terminate()
        assert watch.wait(300) == 0


def test_a_page_says_that_it_is_away_and_learns_later_which_tables_there_are(
    captured: Captured, away: FaultyProxy, tmp_path: Path
) -> None:
    page = Dashboard(captured.path, tmp_path)
    until(lambda: page.status("GET", "/api/pipeline") == 200, seconds=_PATIENCE_S)
    assert page.get("/api/pipeline")["topics"]["count"] is None
    until(lambda: "unreachable" in [one["condition"] for one in page.get("/api/alerts")["open"]], seconds=_PATIENCE_S)
    for question in ("/api/tables", "/api/copies", "/api/schemas?table=public.t", "/api/rejections"):
        code, refusal, _ = page.ask("GET", question)
        assert (code, list(refusal)) == (503, ["message"]), question

    def count() -> Any:
        return page.get("/api/pipeline")["topics"]["count"]

    def tables() -> list[str]:
        return [table["table"] for table in page.get("/api/tables")["tables"]]

    away.be_well()
    until(lambda: count() == 1, seconds=_PATIENCE_S)
    assert tables() == ["public.t"]
    captured.database.execute("create table u (id int primary key)")
    captured.database.execute(f'alter publication "{captured.config.publication}" add table u')
    until(lambda: count() == 2, seconds=_PATIENCE_S)
    assert tables() == ["public.t", "public.u"]
    page.stop()
