"""A first copy that is paused and goes on: nothing is open meanwhile, and each row is there in the end."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from cdc.capture.batch_size import BatchSize
from cdc.kafka.control_topics import read_copied_ranges
from cdc.model.errors import PositionMismatch
from cdc.protocol.control_records import SnapshotPhase
from lockstep.cli.main import exit_code
from lockstep.config import load
from monitor.collector import LagCollector
from tests.captured import Captured, StartCapture
from tests.databases import Database, until

pytestmark = [pytest.mark.live, pytest.mark.soak]

ROWS = 2000
FILL = f"insert into t select n, repeat('x', 100) || n from generate_series(1, {ROWS}) n"
SLOWLY = """
[snapshot]
rows_per_s = 400
workers = {}
"""
LOG = "[source.options.'public.t']\nappend_only = true"

Make = Callable[..., Captured]


@pytest.fixture
def make(capture: StartCapture) -> Make:
    """Makes a capture of table ``t`` that copies slowly, not started."""

    def of(*, workers: int = 0, source: str = "") -> Captured:
        return capture(
            "public.t",
            sections=SLOWLY.format(workers),
            source=source,
            batch=BatchSize(20_000, 32_768),
            copy_batch=BatchSize(100, 1 << 20),
            start=False,
        )

    return of


def _begin(captured: Captured) -> None:
    """Start it, and wait until it is in the middle of the copy."""
    captured.begin()
    captured.wait_for("copying 1 tables")
    until(lambda: len(read_copied_ranges(captured.client, captured.name, captured.config.slot)) >= 2)


def _restart_quickly(captured: Captured) -> None:
    """Stop it, and start it without a limit, still paused."""
    captured.stop()
    captured.path.write_text(captured.path.read_text().replace("rows_per_s = 400", "rows_per_s = 0"))
    captured.config = load(captured.path)
    captured.begin()
    captured.wait_for("the first copy is paused")


def _order(captured: Captured, *words: str) -> int:
    return exit_code(["snapshot", *words, "--config", str(captured.path)])


def _ids(captured: Captured) -> Counter[int]:
    """How often each row was copied."""
    return Counter(
        event.after["id"] for event in captured.events("public.t") if event.value is not None and event.op == "r"
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_a_paused_copy_waits_over_a_restart_and_goes_on(
    database: Database, make: Make, workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    database.execute("create table t (id int primary key, a text)", FILL)
    captured = make(workers=workers)
    _begin(captured)
    assert _order(captured, "pause") == 0
    told = capsys.readouterr().err
    assert "the first copy is paused, until `lockstep snapshot resume`; the slot makes the server keep" in told
    assert any("the first copy is paused" in line and "of WAL" in line for line in captured.said)
    copied = _ids(captured)
    assert 0 < len(copied) < ROWS
    # No snapshot and no lock is held.
    database.execute("set lock_timeout = '10s'", "alter table t set (fillfactor = 90)")
    database.execute("update t set a = 'paused' where id % 10 = 1", "delete from t where id % 10 = 2")
    database.execute(f"insert into t values ({ROWS + 1}, 'new')")

    _restart_quickly(captured)
    assert _order(captured, "status", "--json") == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (report["tables"][0]["stage"], report["seconds_left"]) == ("paused", None)
    assert report["wal_bytes_per_s"] > 0
    assert _ids(captured) == copied

    assert _order(captured, "resume") == 0
    assert "the first copy may go on" in capsys.readouterr().err
    captured.wait_for("streaming from")
    captured.assert_equal()
    state = captured.state()
    assert (state.phase, state.first_copy_paused) == (SnapshotPhase.DONE, False)
    # Only the range that was under way at the pause comes again.
    assert sum(_ids(captured).values()) < 1.5 * ROWS


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_of_an_append_only_table_come_once(database: Database, make: Make, workers: int) -> None:
    """A part of a range that was sent when the order came is never committed."""
    database.execute("create table t (id int, a text)", FILL)
    captured = make(workers=workers, source=LOG)
    _begin(captured)
    assert _order(captured, "pause") == 0
    assert 0 < len(_ids(captured)) < ROWS
    assert not any("has ended" in line for line in captured.said)
    _restart_quickly(captured)
    assert _order(captured, "resume") == 0
    captured.wait_for("streaming from")
    captured.settle()
    assert _ids(captured) == Counter(range(1, ROWS + 1))


def test_a_copy_that_waits_ends_with_its_slot(
    database: Database, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """Waiting would be in vain, and everybody who is asked says so."""
    database.execute("create table t (id int primary key, a text)", FILL)
    captured = make()
    _begin(captured)
    assert _order(captured, "pause") == 0
    with LagCollector(captured.config.as_pipeline(), {}) as collector:
        lag = collector.collect()
        assert (lag.first_copy_paused, lag.broken) == (True, ())
        database.execute(f"select pg_drop_replication_slot('{captured.config.slot}')")
        for restarted in (False, True):
            if restarted:
                captured.begin()
            error = captured.wait_error()
            assert isinstance(error, PositionMismatch)
            assert "is gone" in error.message
            assert "lockstep recover" in (error.hint or "")
        (broken,) = collector.collect().broken
        assert "the slot is gone" in broken
    capsys.readouterr()
    assert _order(captured, "status", "--json") == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (report["slot_lost"], report["tables"][0]["stage"]) == (True, "paused")
    assert _order(captured, "resume") == 1
    assert "the slot was dropped" in capsys.readouterr().err

    assert exit_code(["recover", "--yes", "--config", str(captured.path)]) == 0
    captured.begin()
    captured.wait_for("streaming from")
    captured.assert_equal()
