"""``lockstep state``: what capture and each job have recorded in Kafka and in the sinks.

It asks neither running processes nor the source, so it works even when everything is down. It shows no row's values: of
a copy, neither the key that it has reached nor the keys to be read again.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from cdc.kafka.control_topics import read_progress, read_state
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import PROGRESS, STATE, control_topic
from cdc.model.errors import LockstepError
from cdc.model.lsn import format_lsn
from cdc.model.times import time_text
from cdc.protocol.control_records import CaptureState, ProgressRecord, TableCopy
from jobs.generations.lease import Claimed, claimed
from jobs.generations.status import JobState
from lockstep.config import Config
from lockstep.generations import Description, describe
from sinks.registry import open_sink

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class GenerationState:
    """What a generation's job continues from, and who may be that job."""

    description: Description
    claimed: Claimed

    def to_json(self) -> dict[str, Any]:
        progress = self.description.progress
        job = self.description.job
        return {
            **self.description.to_json(),
            "last_sign_ms": job.last_sign_ms if job.state is JobState.RUNNING else job.since_ms,
            "claim": self.claimed.number,
            "jobs_with_an_entry": self.claimed.jobs,
            "epoch": None if progress is None else progress.epoch,
            "all_applied_as_of_ms": None if progress is None else progress.updated_at_ms,
            "next_offsets": {} if progress is None else _by_topic(progress.next_offsets),
            "left_out": {} if progress is None else _by_topic(progress.skipped),
            "reads_again": {} if progress is None else _by_topic(progress.reads_again),
            "joining": [] if progress is None else list(progress.joining),
        }

    def lines(self, sink: str) -> Iterator[str]:
        described, progress, job = self.description, self.description.progress, self.description.job
        is_live = "live, " if described.generation.is_live else ""
        yield f"  generation {described.generation.number}: {is_live}{described.generation.phase.value}"
        if progress is None:
            yield "    applied: nothing yet"
        else:
            yield (
                f"    applied: everything up to {format_lsn(progress.watermark_lsn)} of epoch {progress.epoch},"
                f" committed at {_at(progress.commit_time_ms)}; {progress.rejected:,} rejected"
            )
            if progress.joining:
                yield f"    not all of it yet: {', '.join(progress.joining)}, which joined"
            if progress.skipped:
                yield f"    left out on purpose: a part of {len(progress.skipped)} partitions"
            if progress.reads_again:
                yield f"    read again: a part of {len(progress.reads_again)} partitions"
        sign = job.last_sign_ms if job.state is JobState.RUNNING else job.since_ms
        yield f"    job: {job.state.value}, last sign of life or end at {_at(sign)}"
        if job.reason is not None:
            yield f"    reason: {job.reason}"
        yield f"    lease: claim {self.claimed.number}, {self.claimed.jobs} jobs with an entry"
        if described.differs:
            yield f"    a rebuild would change: {', '.join(described.differs)}"
        if described.verification is not None:
            generation = None if described.generation.is_live else described.generation.number
            yield f"    {described.verification.sentence('compared', sink=sink, generation=generation)}"


@dataclass(frozen=True, slots=True)
class PipelineState:
    """A LockstepError stands for what couldn't be read. None: capture never ran."""

    pipeline: str
    slot: str
    capture: CaptureState | LockstepError | None
    progress: ProgressRecord | LockstepError | None
    sinks: Mapping[str, list[GenerationState] | LockstepError]

    @property
    def is_whole(self) -> bool:
        return not any(isinstance(each, LockstepError) for each in (self.capture, self.progress, *self.sinks.values()))

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "slot": self.slot,
            "capture": _json(self.capture, _capture_json),
            "progress": _json(self.progress, _progress_json),
            "sinks": {
                name: _json(generations, lambda them: [each.to_json() for each in them])
                for name, generations in self.sinks.items()
            },
        }

    def lines(self) -> Iterator[str]:
        yield f"pipeline {self.pipeline}"
        yield f"capture, by its record for slot {self.slot}"
        if self.capture is None:
            yield "  nothing: it has never run"
        elif isinstance(self.capture, LockstepError):
            yield f"  not known: {self.capture.message}"
        else:
            yield from _capture_lines(self.capture)
        yield "progress, by its newest record"
        if self.progress is None:
            yield "  nothing was published yet"
        elif isinstance(self.progress, LockstepError):
            yield f"  not known: {self.progress.message}"
        else:
            yield (
                f"  published: everything up to {format_lsn(self.progress.lsn)} of epoch {self.progress.epoch},"
                f" committed at {_at(self.progress.commit_time_ms)}"
            )
            if self.progress.uncopied:
                yield f"  waiting for a copy: {', '.join(self.progress.uncopied)}"
        for name, generations in self.sinks.items():
            yield f"sink {name}"
            if isinstance(generations, LockstepError):
                yield f"  not known: {generations.message}"
            elif not generations:
                yield "  nothing: no job has begun to apply to it"
            else:
                for each in generations:
                    yield from each.lines(name)


def read_pipeline_state(config: Config) -> PipelineState:
    """The whole state, read side by side. What doesn't answer becomes an error in it, and isn't raised."""
    with ThreadPoolExecutor(max_workers=1 + len(config.sinks), thread_name_prefix="state") as threads:
        kafka = threads.submit(_of_kafka, config)

        def epoch() -> int | None:
            """Capture's epoch, None if Kafka doesn't say."""
            capture, _ = kafka.result()
            return None if isinstance(capture, LockstepError) else 0 if capture is None else capture.epoch

        sinks = {
            sink: threads.submit(_or_error, lambda sink=sink: _generations(config, sink, epoch))
            for sink in config.sinks
        }
        return PipelineState(
            config.pipeline.name,
            config.slot,
            *kafka.result(),
            {sink: generations.result() for sink, generations in sinks.items()},
        )


def _of_kafka(config: Config) -> tuple[CaptureState | LockstepError | None, ProgressRecord | LockstepError | None]:
    """What capture's records say. Waits for Kafka once, and doesn't read a topic that doesn't exist."""
    client, name, slot = config.kafka.client(), config.pipeline.name, config.slot
    names = [control_topic(name, kind) for kind in (STATE, PROGRESS)]
    topics = _or_error(lambda: TopicAdmin(client).partition_counts(names))
    if isinstance(topics, LockstepError):
        return topics, topics
    has_state, has_progress = (topic in topics for topic in names)
    return (
        _or_error(lambda: read_state(client, name, slot)) if has_state else None,
        _or_error(lambda: _newest(read_progress(client, name))) if has_progress else None,
    )


def _newest(records: Iterator[ProgressRecord]) -> ProgressRecord | None:
    newest = None
    for newest in records:  # noqa: B007  the last one
        pass
    return newest


def _generations(config: Config, sink: str, epoch: Callable[[], int | None]) -> list[GenerationState]:
    descriptions = describe(config, sink, epoch=epoch)
    opened = open_sink(sink, config.sinks[sink], 1)
    try:
        return [GenerationState(each, claimed(opened.records, each.generation.number)) for each in descriptions]
    finally:
        opened.sink.close()


def _or_error(ask: Callable[[], Answer]) -> Answer | LockstepError:
    try:
        return ask()
    except LockstepError as error:
        return error


def _capture_lines(state: CaptureState) -> Iterator[str]:
    yield f"  phase {state.phase.value}, epoch {state.epoch}, handoff {format_lsn(state.handoff)}"
    yield f"  written last by {state.owner}"
    yield f"  source: database {state.database}, system {state.system_id}, timeline {state.timeline}"
    yield (
        f"  published: change {state.seq} of the transaction at {format_lsn(state.commit_lsn)}, and all of those before"
        f" {format_lsn(state.end_lsn)}, committed at {_at(state.commit_time_ms)}"
    )
    yield f"  tables copied: {len(state.copied)}"
    if state.first_copy_paused:
        yield "  the first copy is paused"
    for table, copy in state.copying.items():
        yield f"  copying {table}: {_copy_text(copy)}"
    for gap in state.gaps:
        to = "now" if gap.is_open else format_lsn(gap.to_lsn)
        yield f"  never came through the slot: {format_lsn(gap.from_lsn)} to {to}, noticed at {_at(gap.noticed_ms)}"


def _copy_text(copy: TableCopy) -> str:
    if not copy.has_begun:
        return "asked for" + (", paused" if copy.paused else "")
    return (
        f"{copy.rows:,} rows since {format_lsn(copy.since)}, pass {copy.passes}, {len(copy.keys)} keys to be read again"
        + (", all rows read" if copy.is_through else "")
        + (", paused" if copy.paused else "")
    )


def _capture_json(state: CaptureState) -> dict[str, Any]:
    return {
        "phase": state.phase.value,
        "owner": state.owner,
        "publication": state.publication,
        "database": state.database,
        "system_id": state.system_id,
        "timeline": state.timeline,
        "epoch": state.epoch,
        "handoff": format_lsn(state.handoff),
        "commit_lsn": format_lsn(state.commit_lsn),
        "seq": state.seq,
        "end_lsn": format_lsn(state.end_lsn),
        "commit_time_ms": state.commit_time_ms,
        "copied": {str(table): rows for table, rows in state.copied.items()},
        "first_copy_paused": state.first_copy_paused,
        "copying": {
            str(table): {
                "since": format_lsn(copy.since) if copy.has_begun else None,
                "rows": copy.rows,
                "pass": copy.passes,
                "keys_to_read_again": len(copy.keys),
                "all_rows_read": copy.is_through,
                "paused": copy.paused,
            }
            for table, copy in state.copying.items()
        },
        "gaps": [
            {
                "from_lsn": format_lsn(gap.from_lsn),
                "to_lsn": None if gap.is_open else format_lsn(gap.to_lsn),
                "noticed_ms": gap.noticed_ms,
            }
            for gap in state.gaps
        ],
        "topics": {
            topic: {"topic_id": identity.topic_id, "partitions": identity.partitions}
            for topic, identity in state.topics.items()
        },
    }


def _progress_json(record: ProgressRecord) -> dict[str, Any]:
    return {
        "epoch": record.epoch,
        "lsn": format_lsn(record.lsn),
        "commit_time_ms": record.commit_time_ms,
        "uncopied": list(record.uncopied),
    }


def _json(answer: Answer | LockstepError | None, document: Callable[[Answer], Any]) -> Any:
    if answer is None:
        return None
    return {"error": answer.message} if isinstance(answer, LockstepError) else document(answer)


def _by_topic(offsets: Mapping[tuple[str, int], int]) -> dict[str, dict[int, int]]:
    topics: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[partition] = offset
    return topics


def _at(ms: int | None) -> str:
    return time_text(ms) if ms else "an unknown time"
