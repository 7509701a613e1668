"""`lockstep snapshot table` where no capture reads, or none ever did."""

from pathlib import Path

import pytest

from lockstep.cli.main import exit_code
from stack.stack import Endpoints
from tests.captured import Captured
from tests.databases import Database

pytestmark = pytest.mark.live


def test_a_request_says_who_will_read_it(
    database: Database, endpoints: Endpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database.execute("create table t (id int primary key)", "insert into t values (1)")
    captured = Captured(database, endpoints.kafka_bootstrap, tmp_path, ("public.t",))
    ask = ["snapshot", "table", "public.t", "--config", str(captured.path)]

    assert exit_code(ask) == 1
    refused = capsys.readouterr().err
    assert f"slot {captured.config.slot} doesn't exist: capture has never run here" in refused
    assert "lockstep capture" in refused

    captured.start()
    assert exit_code(ask) == 0
    assert "doesn't run" not in capsys.readouterr().err
    captured.stop()
    assert exit_code(ask) == 0
    assert "capture doesn't run now; it copies when it is started" in capsys.readouterr().err
