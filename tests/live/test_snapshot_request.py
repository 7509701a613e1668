"""`lockstep snapshot`: requests while no capture reads, or before any did, and how far the first copy is."""

import json
from typing import Any

import pytest

from cdc.postgres.slot import is_captured
from lockstep.cli.main import exit_code
from tests.captured import StartCapture
from tests.databases import Database, until

pytestmark = pytest.mark.live


def test_a_request_says_who_will_read_it(
    database: Database, capture: StartCapture, capsys: pytest.CaptureFixture[str]
) -> None:
    database.execute("create table t (id int primary key)", "insert into t values (1)")
    captured = capture("public.t", start=False)
    ask = ["snapshot", "table", "public.t", "--config", str(captured.path)]

    assert exit_code(ask) == 1
    refused = capsys.readouterr().err
    assert f"slot {captured.config.slot} doesn't exist: capture has never run here" in refused
    assert "lockstep capture" in refused

    captured.start()
    assert exit_code(ask) == 0
    assert "doesn't run" not in capsys.readouterr().err
    captured.stop()
    until(lambda: not is_captured(database.connection, captured.config.slot))  # its connection ends a moment later
    assert exit_code(ask) == 0
    assert "capture doesn't run now; it copies when it is started" in capsys.readouterr().err


@pytest.mark.soak
def test_status_is_told_before_during_and_after_the_first_copy(
    database: Database, capture: StartCapture, capsys: pytest.CaptureFixture[str]
) -> None:
    database.execute(
        "create table t (id int primary key, a text)",
        "insert into t select n, repeat('x', 100) from generate_series(1, 3000) n",
        "analyze t",
    )
    slowly = "[snapshot]\nrows_per_s = 1000"
    captured = capture("public.t", sections=slowly, start=False)
    ask = ["snapshot", "status", "--json", "--config", str(captured.path)]

    def told() -> dict[str, Any]:
        assert exit_code(ask) == 0
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        return report

    assert (told()["phase"], told()["tables"][0]["stage"]) == (None, "waiting")
    captured.begin()
    report = until(lambda: report if (report := told())["tables"][0]["stage"] == "copying" else None)
    assert 0 < report["tables"][0]["rows"] < report["tables"][0]["rows_estimated"] == 3000
    assert report["rows_per_s"] > 0
    assert report["seconds_left"] > 0
    assert report["wal_retained_bytes"] is not None
    captured.wait_for("streaming from")
    assert told()["tables"][0] == {
        "table": "public.t",
        "stage": "copied",
        "rows": 3000,
        "rows_estimated": None,
        "bytes": None,
    }
