"""Prometheus scrapes a running pipeline, and answers with what was written."""

import contextlib
import json
import os
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monitor.collector import LagCollector
from monitor.metrics.endpoint import exposition
from monitor.metrics.pipeline import gauges_of
from stack.ports import pick
from tests.metrics_files import FILES
from tests.pipeline import Pipeline, wait_until
from tests.programs import needs

pytestmark = [pytest.mark.live, pytest.mark.busy]

_ROWS = 25
_COPIED = 7


@pytest.fixture
def pipeline(stack: Any, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(stack.endpoints(), tmp_path, f"met{os.getpid()}", sinks=True)
    yield made
    made.close()


@contextlib.contextmanager
def _prometheus(directory: Path, targets: list[str]) -> Iterator[str]:
    program = needs("prometheus")
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(FILES / "rules.yml")],
        "scrape_configs": [{"job_name": "lockstep", "static_configs": [{"targets": targets}]}],
    }
    path = directory / "prometheus.yml"
    path.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    address = f"127.0.0.1:{pick(None, taken=())}"
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={path}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait()


def _asked(url: str, expression: str) -> list[float]:
    """The values of an instant query; none while nobody answers."""
    query = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=10) as answer:
            return [float(result["value"][1]) for result in json.load(answer)["data"]["result"]]
    except OSError:
        return []


@pytest.mark.soak
def test_prometheus_finds_what_was_written(pipeline: Pipeline, tmp_path: Path) -> None:
    needs("prometheus")
    capture_at, apply_at = (f"127.0.0.1:{pick(None, taken=())}" for _ in range(2))
    with pipeline.path.open("a", encoding="utf-8") as file:
        file.write(f'[metrics]\ncapture = "{capture_at}"\napply = "{apply_at}"\n')
    sink = f"{pipeline.name}_cache"
    insert = f"insert into {pipeline.name}.account (id, owner) select n, 'x' from generate_series(%s::int, %s::int) n"
    with pipeline.sql() as connection:
        connection.execute(insert.encode(), (1, _COPIED))
    capture = pipeline.start("lockstep", "capture", "--config", str(pipeline.path))
    pipeline.wait_streaming(capture)
    apply = pipeline.start("lockstep", "apply", sink, "--config", str(pipeline.path))
    with pipeline.sql() as connection:
        connection.execute(insert.encode(), (_COPIED + 1, _ROWS))
    topic = f"{pipeline.name}.{pipeline.name}.account"
    with _prometheus(tmp_path, [capture_at, apply_at]) as url:

        def says(expression: str, value: float) -> None:
            wait_until(lambda: _asked(url, expression) == [value], what=expression)

        says(f'lockstep_capture_records_published_total{{topic="{topic}"}}', _ROWS)
        says(f'lockstep_capture_copied_rows_total{{table="{pipeline.name}.account"}}', _COPIED)
        says(f'lockstep_sink_rows_applied_total{{sink="{sink}"}}', _ROWS)
        says(f'lockstep_sink_running{{sink="{sink}",generation="1"}}', 1)
        says("count(lockstep_capture_commits_total > 0)", 1)
        says("count(lockstep_capture_commit_seconds_count > 0)", 1)
        says("count(lockstep_sink_watermark_lsn > 0)", 1)
        says("count(process_resident_memory_bytes > 1e7)", 2)
        with urllib.request.urlopen(f"{url}/api/v1/rules", timeout=10) as answer:
            (group,) = json.load(answer)["data"]["groups"]
        assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
    config = pipeline.config
    with contextlib.closing(LagCollector(config.as_pipeline(), {sink: config.sinks[sink]})) as collector:
        text = exposition(gauges_of(collector.collect(), now_s=1.0)).decode()
    assert f'lockstep_stage_behind_events{{generation="1",sink="{sink}",stage="applied"}} 0.0' in text
    assert "lockstep_slot_active 1.0" in text
    assert pipeline.stop(apply) == 0, apply.output()
    assert pipeline.stop(capture) == 0, capture.output()
