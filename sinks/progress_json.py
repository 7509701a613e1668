"""Progress as JSON, for destinations that keep it as one document (pure)."""

import orjson

from sinks.contract import Progress


def dump_progress(progress: Progress) -> bytes:
    """Progress -> JSON."""
    return orjson.dumps(
        {
            # Pairs are no JSON keys, and a topic's name may hold any separator.
            "next_offsets": [[topic, partition, next_] for (topic, partition), next_ in progress.next_offsets.items()],
            "epoch": progress.epoch,
            "watermark_lsn": progress.watermark_lsn,
            "commit_time_ms": progress.commit_time_ms,
            "updated_at_ms": progress.updated_at_ms,
            "topic_ids": dict(progress.topic_ids),
            "rejected": progress.rejected,
            "skipped": [[topic, partition, next_] for (topic, partition), next_ in progress.skipped.items()],
            "left_at_ms": dict(progress.left_at_ms),
            "read_at_ms": progress.read_at_ms,
            "joining": list(progress.joining),
            "selection": progress.selection,
        }
    )


def load_progress(text: bytes | str) -> Progress:
    """JSON of ``dump_progress`` -> Progress."""
    value = orjson.loads(text)
    return Progress(
        next_offsets={(topic, partition): next_ for topic, partition, next_ in value["next_offsets"]},
        watermark_lsn=value["watermark_lsn"],
        commit_time_ms=value["commit_time_ms"],
        updated_at_ms=value["updated_at_ms"],
        topic_ids=value["topic_ids"],
        rejected=value["rejected"],
        skipped={(topic, partition): next_ for topic, partition, next_ in value.get("skipped", ())},
        left_at_ms=value.get("left_at_ms", {}),
        epoch=value.get("epoch", 0),
        read_at_ms=value.get("read_at_ms", 0),
        joining=tuple(value.get("joining", ())),
        selection=value.get("selection", ""),
    )
