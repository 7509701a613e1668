"""What capture counts: per Kafka transaction, never per row."""

from dataclasses import replace
from pathlib import Path

from cdc.capture.batch import Committed
from cdc.kafka.topic_names import table_topic
from lockstep.capture.run import Observer
from monitor.metrics.meters import Meters
from snapshot.copy import CopyProgress


def measured(observer: Observer, meters: Meters, *, values: Path, pipeline: str) -> Observer:
    """The observer, which counts as well. ``values`` is the directory of the store of large values. ``pipeline`` is
    only the name, since the captured tables change while capture runs."""
    meters.ask("lockstep_capture_values_bytes", lambda: disk_of(values))

    def committed(batch: Committed) -> None:
        for topic, records in batch.records.items():
            meters.add("lockstep_capture_records_published_total", records, {"topic": topic})
        meters.add("lockstep_capture_commits_total", 1)
        meters.observe("lockstep_capture_commit_seconds", batch.commit_s)
        meters.set("lockstep_capture_commit_interval_seconds", batch.interval_s)
        meters.set("lockstep_capture_published_lsn", batch.state.end_lsn)
        if batch.state.commit_time_ms:
            meters.set("lockstep_capture_published_commit_timestamp_seconds", batch.state.commit_time_ms / 1000)
        observer.committed(batch)

    def copying(progress: CopyProgress) -> None:
        of_table = {"table": str(progress.table)}
        meters.add("lockstep_capture_copied_rows_total", progress.new.rows, of_table)
        meters.add("lockstep_capture_copied_bytes_total", progress.new.bytes, of_table)
        topic = {"topic": table_topic(pipeline, progress.table)}
        meters.add("lockstep_capture_records_published_total", progress.new.records, topic)
        observer.copied(progress)

    def restarted() -> None:
        meters.add("lockstep_capture_restarts_total", 1)
        observer.restarted()

    return replace(observer, committed=committed, copied=copying, restarted=restarted)


def disk_of(directory: Path) -> int:
    """The disk space of the files below a directory, in bytes. A file that vanishes meanwhile counts as nothing."""
    taken = 0
    for path in directory.rglob("*"):
        try:
            taken += path.stat().st_blocks * 512  # a file of the store is as large as it may get, and mostly a hole
        except FileNotFoundError:
            continue
    return taken
