"""Shows the report of copies on a terminal."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from cdc.stream.slot_watch import wal_size
from monitor.copies import CopyReport, CopyStage

_STAGES = {
    CopyStage.COPIED: "copied",
    CopyStage.COPYING: "being copied",
    CopyStage.WAITING: "waits",
    CopyStage.IN_STREAM: "waits, or is being copied in the stream",
    CopyStage.PAUSED: "paused, until `lockstep snapshot resume`",
}


def copies_table(report: CopyReport) -> Group:
    """A line per table, and below it the rate, the time left and the WAL that is held back."""
    table = Table(title=None, expand=False)
    for heading in ("table", "copy", "done", "rows", "of about", "bytes"):
        table.add_column(heading, justify="left" if heading in ("table", "copy") else "right")
    for copy in report.tables:
        is_copied = copy.stage is CopyStage.COPIED
        total = max(1, copy.rows, copy.rows_estimated or 0)
        table.add_row(
            str(copy.table),
            _STAGES[copy.stage],
            "100 %" if is_copied else f"{100 * copy.rows // total} %",
            f"{copy.rows:,}",
            "-" if copy.rows_estimated is None else f"{copy.rows_estimated:,}",
            "-" if copy.size is None else wal_size(copy.size),
        )
    return Group(table, *map(Text, _remarks(report)))


def _remarks(report: CopyReport) -> list[str]:
    remarks = []
    if report.phase is None:
        remarks.append("capture has never run: `lockstep capture` copies every table first")
    if report.rows_per_s is not None and report.bytes_per_s is not None:
        left = report.seconds_left
        remarks.append(
            f"{report.rows_per_s:,.0f} rows/s, {wal_size(report.bytes_per_s)}/s"
            + ("" if left is None else f", about {_duration(left)} left")
        )
    if report.is_slot_lost:
        remarks.append("the slot is lost or gone, so nothing is copied any more: `lockstep doctor` says what to do")
    elif report.held is not None:
        remarks.append(str(report.held))
    return remarks


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
