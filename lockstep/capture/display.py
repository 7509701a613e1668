"""How capture shows itself: sentences and an occasional summary in the log, and a bar per table while it copies."""

import logging
import time
from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from cdc.capture.batch import Committed
from cdc.model.log_message import LogMessage
from cdc.model.lsn import format_lsn
from cdc.model.table import TableName
from cdc.stream.slot_watch import HeldWal
from lockstep.capture.run import Observer
from snapshot.copy import CopyProgress

logger = logging.getLogger("lockstep.capture")

_SUMMARY_EVERY_S = 10.0


class _Bars(Progress):
    sentence = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.sentence:
            yield Text(self.sentence)


class _CopyBars:
    """On a terminal, one bar per table above the WAL that is held; elsewhere, one log line per finished table."""

    def __init__(self, console: Console) -> None:
        self._live = console.is_terminal
        self._progress = _Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rows"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._bars: dict[TableName, tuple[TaskID, float]] = {}

    def __call__(self, progress: CopyProgress) -> None:
        task, started = self._bars.get(progress.table, (None, 0.0))
        now = time.monotonic()
        if task is None:
            started = now
            task = self._progress.add_task(f"copy {progress.table}", total=None, rate="")
            self._bars[progress.table] = (task, started)
        if self._live:
            self._progress.start()  # again behind each sentence of the log
        elapsed_s = max(now - started, 1e-6)
        rate = f"{progress.rows / elapsed_s:,.0f} rows/s, {progress.bytes / elapsed_s / 1e6:.1f} MB/s"
        total = progress.rows if progress.finished else max(progress.rows, progress.rows_estimated)
        if self._live:
            self._progress.update(task, completed=progress.rows, total=total, rate=rate)
        elif progress.finished:
            table = str(progress.table)
            logger.info(LogMessage("copied", {"table": table, "rows": progress.rows, "bytes": progress.bytes}))

    def held(self, held: HeldWal) -> None:
        """Show it as long as there are bars."""
        self._progress.sentence = str(held)

    def finish(self) -> None:
        if self._live:
            self._progress.stop()


def observer(console: Console) -> Observer:
    bars = _CopyBars(console)
    events = transactions = 0
    due = time.monotonic() + _SUMMARY_EVERY_S

    def committed(batch: Committed) -> None:
        nonlocal events, transactions, due
        events += batch.events
        transactions += 1
        now = time.monotonic()
        if now >= due:
            if events:
                end_lsn = format_lsn(batch.state.end_lsn)
                logger.info(
                    LogMessage("published", {"events": events, "kafka_transactions": transactions, "end_lsn": end_lsn})
                )
            events = transactions = 0
            due = now + _SUMMARY_EVERY_S

    def say(sentence: str) -> None:
        bars.finish()
        logger.info("%s", sentence)

    return Observer(say=say, copied=bars, committed=committed, held=bars.held)
