"""``lockstep state`` and ``lockstep bundle``: what they report, and that neither reveals values or secrets."""

import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import SparkSession

from cdc.model.lsn import parse_lsn
from lockstep.bundle import write_bundle
from lockstep.config import load, sink_password_variable, sink_salt_variable
from lockstep.state import read_pipeline_state
from stack.stack import Endpoints
from tests.pipeline import Pipeline

pytestmark = [pytest.mark.live, pytest.mark.busy]

VALUE = "recognisable-value-7f3a"
KEY = 73519246
SECRETS = {name: f"recognisable-secret-{name}" for name in ("search", "salt")}


@pytest.fixture
def pipeline(stack: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    """A search that refuses text of ``account.owner``. It goes on without that table within a second."""
    name = f"bundle{os.getpid()}"
    monkeypatch.setenv("LOCKSTEP_SOURCE_PASSWORD", _source_password(stack.endpoints()))
    monkeypatch.setenv(sink_password_variable(f"{name}_search"), SECRETS["search"])
    monkeypatch.setenv(sink_salt_variable(f"{name}_cache"), SECRETS["salt"])
    search = f'login = {{ user = "reader" }}\nfields = {{ "{name}.account.owner" = {{ type = "long" }} }}'
    more = {
        "search": f"{search}\nmax_open_rejections = 1",
        "cache": f'mask = {{ "{name}.account.owner" = "hash" }}',
    }
    made = Pipeline(stack.endpoints(), tmp_path, name, sinks=True, more=more)
    yield made
    made.close()


def _source_password(endpoints: Endpoints) -> str:
    """The server's own: it would refuse an unknown one."""
    entry = Path(str(conninfo_to_dict(endpoints.source_dsn)["passfile"])).read_text().strip()
    return entry.rpartition(":")[2]


def _insert(pipeline: Pipeline, key: int) -> None:
    with pipeline.sql() as connection:
        connection.execute(
            f"insert into {pipeline.name}.account (id, owner, tags) values (%s, %s, %s)".encode(), (key, VALUE, [VALUE])
        )
        connection.execute(
            f"insert into {pipeline.name}.entry values (%s, 1, %s, %s)".encode(), (key, VALUE, json.dumps([VALUE]))
        )


@pytest.mark.soak
def test_state_and_bundle_tell_positions_and_neither_values_nor_secrets(
    pipeline: Pipeline, spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    search = f"{pipeline.name}_search"
    capture = pipeline.start_capture()
    pipeline.wait_streaming(capture)
    _insert(pipeline, KEY)
    job = pipeline.apply(spark)
    pipeline.wait_applied(job)
    _insert(pipeline, KEY + 1)
    job.wait_until(lambda report: report["report"] == "TablesHeld" and report["has_failed"])
    assert job.stop() == 0, job.output()
    assert pipeline.stop(capture) == 0

    config = load(pipeline.path)
    state = read_pipeline_state(config)
    assert state.is_whole
    document = state.to_json()
    assert document["progress"]["lsn"] == document["capture"]["end_lsn"]
    for generations in document["sinks"].values():
        (generation,) = generations
        assert generation["live"]
        # Heartbeats may have come after the job was stopped.
        assert 0 < parse_lsn(generation["watermark"]) <= parse_lsn(document["progress"]["lsn"])
        assert generation["claim"] >= 1
        assert generation["job"]["state"] == "absent"
    lines = list(state.lines())

    file = tmp_path / "bundle.tar.gz"
    write_bundle(config, file, say=lambda _: None)
    texts = {}
    with tarfile.open(file) as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            texts[member.name.removeprefix("lockstep-bundle/")] = content.read().decode()
    parts = {name: json.loads(text) for name, text in texts.items() if name.endswith(".json")}
    assert not [name for name, part in parts.items() if isinstance(part, dict) and "error" in part]
    topic = next(iter(pipeline.config.topics().values()))
    assert parts["topics.json"][topic]["settings"]["cleanup.policy"] == "compact"
    assert parts["lag.json"]["open_rejections"][search] == 1
    assert "max_open_rejections" in texts["lag.json"], "why the search goes on without a table"

    told = "\n".join([*texts.values(), *lines, json.dumps(document), *capfd.readouterr()])
    for hidden in (VALUE, str(KEY), f"{KEY:,}", str(KEY + 1), *SECRETS.values(), _source_password(pipeline.endpoints)):
        assert hidden not in told
