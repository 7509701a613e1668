"""What results look like on a terminal of 80 columns, and in a pipe."""

import io
import re
from collections.abc import Callable, Sequence

import pytest
from rich.console import RenderableType
from rich.table import Table

from cdc.model.errors import LockstepError
from cdc.model.lsn import parse_lsn
from cdc.model.table import TableName
from cdc.protocol.control_records import SnapshotPhase
from jobs.generations.record import Generation
from jobs.generations.status import JobState, JobStatus
from lockstep.generations import Description, generations_table
from lockstep.terminal import WholeTexts
from lockstep.verify.report import Difference, Kind, TableReport, VerifyReport, verify_table
from monitor.copies import CopyReport, CopyStage, TableCopyStatus
from monitor.copies_table import copies_table
from monitor.lag import LagReport, SinkFacts, Stage
from monitor.lag_table import lag_table
from sinks.contract import Progress

ADDRESS = "host=127.0.0.1 port=25833 dbname=app user=postgres passfile=/srv/lockstep/postgres-18.3.pgpass"
LSN = parse_lsn("16/B374D848")


def _printed(renderable: RenderableType, *, columns: int | None) -> list[str]:
    """The lines on a terminal of so many columns, or in a pipe."""
    file = io.StringIO()
    how = {} if columns is None else {"width": columns, "force_terminal": True, "color_system": None}
    WholeTexts(file=file, **how).print(renderable)
    return re.sub(r"\x1b[^m]*m", "", file.getvalue()).splitlines()


def _servers() -> Table:
    table = Table()
    for heading in ("server", "state", "address"):
        table.add_column(heading)
    table.add_column("rows\nthere", justify="right")
    table.add_row("postgres", "running", ADDRESS, "16,000,000")
    table.add_row("kafka [0]", "stopped", "127.0.0.1:9092", "7")
    return table


def _lag() -> RenderableType:
    facts = SinkFacts("search", 2, False, LSN, 0, 0, 0)
    stage = Stage(f"applied: {facts.label}", LSN, 5_000_000_000, 86_400.5, 16_000_000, facts)
    return lag_table(LagReport((stage,), True, 0, {}, unanswered={"cache": LockstepError("refuses", hint="look")}))


def _generations() -> RenderableType:
    progress = Progress({}, LSN, 0, 0, {}, rejected=1_234_567)
    differs = ("computed", "exclude", "fields", "index_settings", "names", "tables", "where")
    return generations_table(
        "search", [Description(Generation(12, True, None), progress, differs, JobStatus(JobState.RUNNING))]
    )


def _comparison() -> RenderableType:
    differences = (Difference(Kind.MISSING, b'{"id":1}'),)
    tables = tuple(
        TableReport(TableName("public", name), 16_000_000, 16_000_000, differences=differences)
        for name in ("orders", "a_table_with_a_name_that_is_longer_than_others_are")
    )
    return verify_table(VerifyReport("a_sink_of_a_long_name", 1, "source", LSN, tables))


def _copies() -> RenderableType:
    orders = TableCopyStatus(TableName("public", "orders"), CopyStage.COPYING, 1_234_567, 16_000_000, 5_000_000)
    return copies_table(CopyReport(SnapshotPhase.COPYING, [orders], None, None, None))


ALL: dict[str, tuple[Callable[[], RenderableType], Sequence[str]]] = {
    "status": (_servers, ("postgres", "running", "16,000,000")),
    "lag": (_lag, ("applied: search g2", "86400.5", "16,000,000", "4768.4 MiB", "16/B374D848")),
    "generations": (_generations, ("12", "live", "16/B374D848", "index_settings")),
    "copies": (_copies, ("public.orders", "7 %", "1,234,567", "16,000,000")),
    "verify": (_comparison, ("public.orders", "16,000,000", "differs")),
}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("columns", [80, 60, 40])
def test_a_terminal_shows_every_cell_whole_within_its_width(name: str, columns: int) -> None:
    renderable, cells = ALL[name]
    lines = _printed(renderable(), columns=columns)
    assert [line for line in lines if len(line) > columns or "…" in line] == []
    assert [cell for cell in cells if not any(cell in line for line in lines)] == []


@pytest.mark.parametrize("name", ALL)
def test_a_pipe_gets_a_line_for_each_row_without_borders(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    renderable, cells = ALL[name]
    lines = _printed(renderable(), columns=None)
    assert [cell for cell in cells if not any(cell in line for line in lines)] == []
    assert [line for line in lines if any(border in line for border in "│┃─━…") or line != line.rstrip()] == []


def test_columns_of_a_pipe_stand_below_their_headings() -> None:
    assert _printed(_servers(), columns=None) == [
        f"server     state    {'address':{len(ADDRESS)}}  rows there",
        f"postgres   running  {ADDRESS}  16,000,000",
        f"kafka [0]  stopped  {'127.0.0.1:9092':{len(ADDRESS)}}           7",
    ]


def test_a_text_that_is_too_long_for_a_terminal_is_folded_and_numbers_are_not() -> None:
    lines = _printed(_servers(), columns=80)
    shown = "".join(re.sub(r"[│ ]", "", line) for line in lines)
    assert all(part in shown for part in ("host=127.0.0.1", "passfile=/srv/lockstep/postgres-18.3.pgpass"))
    assert "│ 16,000,000 │" in next(line for line in lines if "postgres " in line)


def test_where_not_even_the_numbers_fit_a_row_is_a_paragraph() -> None:
    lines = _printed(_servers(), columns=30)
    assert lines[:2] == ["postgres", "    state: running"]
    assert "    rows there: 16,000,000" in lines


@pytest.mark.parametrize("columns", [None, 80, 20])
def test_control_characters_of_a_cell_reach_neither_a_terminal_nor_a_pipe(columns: int | None) -> None:
    table = Table()
    table.add_column("name")
    table.add_row("a\x1b[2Jb")
    assert "\x1b[2J" not in "".join(_printed(table, columns=columns))
