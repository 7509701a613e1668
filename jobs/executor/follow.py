"""What a task runs: one loop that reads the log, hands over the records, reports, and ends where its batch ends.

A batch of a few rows costs Spark much more than the rows themselves. So a batch goes on, where possible, with what
comes after its range until the driver ends it. The driver plans the next batch from the task's reports.

Whatever needs more of the driver than taking a report ends the batch, and its result says so: rejections, events that
make earlier ones void, errors, and a backlog, which several tasks read faster.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Final

import pyarrow as pa

from jobs.executor.applier import Applier
from jobs.executor.driver_line import DriverLine, Until
from jobs.executor.log_reader import Client, Polled, Range, forget_reader, load_ranges, reader_for
from jobs.executor.open_sinks import close_sink, freeze_opened
from jobs.executor.result import Failure, Result, to_arrow
from jobs.executor.rows import Rows
from jobs.executor.task_input import Task
from jobs.executor.transactions import Transactions
from jobs.executor.view_shards import of_shard
from jobs.offsets import Offsets
from sinks.contract import TopicPartition

FETCH_WAIT_MS: Final = 200
"""How long the broker holds a request without records. A commit is answered at once: commit to read was 1 ms at the p50
with 20, 100 and 500 ms. With 20 ms an idle task takes four times the processor time. The next batch's first request
waits behind one that is held."""

QUIET_FETCH_WAIT_MS: Final = 2_000
"""The same after ``QUIET_S`` without records: another client asks a tenth as often. Commit to read was 1 ms at the p50
and 9 ms at most, out of 60, with 200 as with 2,000 ms. How soon a batch ends doesn't depend on it."""

QUIET_S: Final = 5.0


def deliver(task: Task, until: Until, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Apply a task's input, and yield the result, for ``mapInArrow``.

    ``batches`` is one row with ranges of the log, as ``jobs.spark.source.range_frame`` writes it. For a task that reads
    whole transactions, the ends of these ranges are the offsets that the sink has stored.

    Raises nothing: an exception would reach the driver as pages of a JVM's trace. Failures are part of the result, and
    the driver raises them. The counts are those not yet reported to the driver.
    """
    result = Result()
    # A worker whose input isn't read to its end is thrown away.
    texts = [text for rows in batches for text in rows.column("ranges").to_pylist()]
    try:
        with _opened_line(until) as line:
            _apply(task, [part for text in texts for part in load_ranges(text)], until, line, result)
        freeze_opened()
    except Exception as error:
        close_sink(task)  # the next attempt starts with a new connection
        result.failures += Failure.all_of(error)
    yield to_arrow(result)


@contextmanager
def _opened_line(until: Until) -> Iterator[DriverLine | None]:
    if until.socket is None:
        yield None
    else:
        with DriverLine(until.socket) as line:
            yield line


def _apply(task: Task, ranges: Sequence[Range], until: Until, line: DriverLine | None, result: Result) -> None:
    assert task.client is not None
    run = partial(follow, task.client, until, line)
    if not task.reads_whole_transactions:
        run(Rows(task, ranges, until, line, result))
        return
    own, stored = of_shard(task, {part.at: part.end for part in ranges})
    if own.view is None:
        with closing(Transactions(own, stored, line, result)) as applier:
            run(applier)
    else:
        # It imports the libraries of a view's state, which executors of a cluster don't have.
        from jobs.executor.view import keep_view

        keep_view(own, stored, until, line, result, run)


def follow(client: Client, until: Until, line: DriverLine | None, applier: Applier) -> None:
    """Read and apply until the batch must end. Raises as ``LogReader.follow`` and the applier."""
    driver = line if until.goes_on else None
    followed = applier.begin()
    read: Offsets = {part.at: part.start for part in followed if part.start is not None}
    waits_ms = (FETCH_WAIT_MS, QUIET_FETCH_WAIT_MS) if until.goes_on else (applier.ending_fetch_wait_ms,)
    is_over = False
    for fetch_wait_ms in waits_ms if followed else ():
        with (
            reader_for(client, followed, fetch_wait_ms=fetch_wait_ms) as reader,
            closing(reader.follow(followed)) as all_polled,
        ):
            for polled in _until_quiet(all_polled, followed, read, fetch_wait_ms=fetch_wait_ms):
                # A task that was frozen in a poll may have been replaced: then its successor applies what was polled.
                is_over = driver is not None and applier.may_end and driver.is_over()
                if is_over:
                    break
                applier.take(polled)
                is_over = applier.needs_driver()
                if is_over:
                    break
                now_s = time.monotonic()
                applier.report(now_s)
                if driver is None:
                    is_over = applier.is_at_end(now_s)
                else:
                    is_over = driver.is_over_within(applier.rest_s) and applier.may_end
                if is_over:
                    break
        if is_over:
            if fetch_wait_ms == QUIET_FETCH_WAIT_MS:
                # It may be over because this client is cut off, and the next range is read by the other client.
                forget_reader(client, fetch_wait_ms=fetch_wait_ms)
            break
        followed = [Range(*at, offset, offset) for at, offset in read.items()]
    applier.end()


def _until_quiet(
    all_polled: Iterable[Polled], followed: Sequence[Range], read: Offsets, *, fetch_wait_ms: int
) -> Iterator[Polled]:
    """What is polled, added to ``read``, until it is time for the client that asks less often."""
    heard_s = time.monotonic()
    for polled in all_polled:
        read.update(polled.ends)
        yield polled
        if polled.ends:
            heard_s = time.monotonic()
        elif is_quiet(time.monotonic() - heard_s, followed, read, fetch_wait_ms=fetch_wait_ms):
            return


def is_quiet(
    silent_s: float, followed: Sequence[Range], read: Mapping[TopicPartition, int], *, fetch_wait_ms: int
) -> bool:
    """Whether to go on with a client that asks less often. Pure."""
    if fetch_wait_ms != FETCH_WAIT_MS or silent_s < QUIET_S:
        return False
    return all(part.at in read for part in followed)
