"""Progress as JSON, for destinations that store it as one document (pure)."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from sinks.contract import Progress, TopicPartition


def dump_progress(progress: Progress) -> bytes:
    return orjson.dumps(
        {
            "next_offsets": _triples(progress.next_offsets),
            "epoch": progress.epoch,
            "watermark_lsn": progress.watermark_lsn,
            "commit_time_ms": progress.commit_time_ms,
            "updated_at_ms": progress.updated_at_ms,
            "topic_ids": dict(progress.topic_ids),
            "rejected": progress.rejected,
            "skipped": _triples(progress.skipped),
            "left_at_ms": dict(progress.left_at_ms),
            "read_at_ms": progress.read_at_ms,
            "joining": list(progress.joining),
            "selection": progress.selection,
            "shards": [_triples(offsets) for offsets in progress.shards],
            "log_epoch": progress.log_epoch,
            "reads_again": _triples(progress.reads_again),
        }
    )


def load_progress(text: bytes | str) -> Progress:
    value = orjson.loads(text)
    return Progress(
        next_offsets=_offsets(value["next_offsets"]),
        watermark_lsn=value["watermark_lsn"],
        commit_time_ms=value["commit_time_ms"],
        updated_at_ms=value["updated_at_ms"],
        topic_ids=value["topic_ids"],
        rejected=value["rejected"],
        skipped=_offsets(value["skipped"]),
        left_at_ms=value["left_at_ms"],
        epoch=value["epoch"],
        read_at_ms=value["read_at_ms"],
        joining=tuple(value["joining"]),
        selection=value["selection"],
        shards=tuple(map(_offsets, value["shards"])),
        log_epoch=value["log_epoch"],
        reads_again=_offsets(value["reads_again"]),
    )


def _triples(offsets: Mapping[TopicPartition, int]) -> list[list[Any]]:
    """Offsets as a list: pairs can't be JSON keys, and a topic's name may hold any separator."""
    return [[topic, partition, next_] for (topic, partition), next_ in offsets.items()]


def _offsets(triples: Iterable[Any]) -> dict[TopicPartition, int]:
    return {(topic, partition): next_ for topic, partition, next_ in triples}
