"""A first snapshot that was interrupted, and tables that change their shape before it goes on."""

import json
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from cdc.capture.batch_size import BatchSize
from cdc.model.table import TableName
from cdc.protocol.control_records import SnapshotPhase
from lockstep.cli.main import exit_code
from stack.stack import Endpoints
from tests.captured import Captured, StartCapture
from tests.databases import Database, until
from tests.dying_publisher import Killed, dying
from tests.pipeline import Pipeline

pytestmark = [pytest.mark.live, pytest.mark.soak]

COPIED, LACKING = TableName("public", "t"), TableName("public", "u")


@pytest.fixture
def interrupted(database: Database, capture: StartCapture) -> Captured:
    """One table is in the ledger. The other has 40 of 50 rows."""
    for table in ("t", "u"):
        database.execute(
            f"create table {table} (id int primary key, a text, big text)",
            f"alter table {table} alter big set storage external",
            f"insert into {table} select n, 'x' from generate_series(1, 49) n",
            f"insert into {table} values (50, 'x', repeat('b', 9000))",
        )
    captured = capture(str(COPIED), str(LACKING), copy_batch=BatchSize(20, 1 << 20), start=False)
    # Before the commit that would put the second table into the ledger; some of its rows are committed by then.
    captured.begin(wrap_publisher=dying(lambda commit: LACKING in commit.state.copied, before=True))
    with pytest.raises(Killed):
        captured.wait_for("streaming from")
    captured.stop()
    state = captured.state()
    assert (state.phase, list(state.copied)) == (SnapshotPhase.COPYING, [COPIED])
    assert len(captured.events(str(LACKING))) == 40
    return captured


_CHANGES = {
    "a default": "alter table {} add b int default 7",
    "a default, and it is renamed": "alter table {0} add b int default 7; alter table {0} rename b to c",
    "a default for each row": "alter table {} add b uuid default gen_random_uuid()",
    "another name": "alter table {} rename a to c",
    "another type": "alter table {} alter a type int using id",
    "another key": "alter table {0} add b int; update {0} set b = -id; alter table {0} drop constraint {0}_pkey;"
    " alter table {0} add primary key (b)",
    "one column less": "alter table {} drop a",
    "another table": "drop table {0}; create table {0} (id int primary key, z int); insert into {0} values (3, 3);"
    " alter publication {1} add table {0}",
}


@pytest.mark.parametrize("change", _CHANGES)
@pytest.mark.parametrize("written", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_shape_that_changed_before_the_copy_goes_on(
    database: Database, interrupted: Captured, change: str, written: bool
) -> None:
    for table in ("t", "u"):
        if written:
            database.execute(f"delete from {table} where id = 1", f"update {table} set a = '5' where id = 2")
        database.execute(*_CHANGES[change].format(table, interrupted.config.publication).split("; "))
        if written:
            database.execute(f"delete from {table} where id = 3", f"update {table} set id = 100 where id = 4")
    interrupted.start()
    interrupted.wait_quiet()
    interrupted.assert_equal()


def test_a_large_value_of_a_row_that_is_gone_before_it_was_copied(database: Database, interrupted: Captured) -> None:
    """The stream has the row's update without the value, which was never published."""
    database.execute("update u set a = 'y' where id = 50", "delete from u where id = 50", "update u set a = 'z'")
    interrupted.start()
    interrupted.wait_quiet()
    interrupted.assert_equal()


def test_a_first_copy_whose_capture_was_killed_is_absent_and_needs_somebody(
    endpoints: Endpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = {"snapshot": "rows_per_s = 100"}
    with closing(Pipeline(endpoints, tmp_path, f"left_{uuid.uuid4().hex[:8]}", more=slow)) as pipeline:
        with pipeline.sql() as connection:
            connection.execute(f"insert into {pipeline.name}.account (id) select * from generate_series(1, 20000)")
        process = pipeline.start_capture()

        def received() -> tuple[int, str, bool]:
            code = exit_code(["lag", "--config", str(pipeline.path), "--json"])
            lag = json.loads(capsys.readouterr().out)
            return code, lag["stages"][1]["state"], lag["first_copy_left"]

        until(lambda: "handoff at" in process.output())
        until(lambda: received() == (0, "building", False))
        process.kill()
        process.wait()
        until(lambda: received() == (1, "absent", True))
