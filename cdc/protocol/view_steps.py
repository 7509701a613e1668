"""The record for reading the topic of a view's rows in whole steps: ``__views``, key: view and generation. A step
brings the result from one LSN to the next. Its rows lie below ``end``, and all of them exist once ``is_complete``. A
step of many rows is written in parts, each with a record that isn't complete."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import orjson

from cdc.model.tag import EPOCH_MAX
from cdc.protocol.record_fields import FORMAT, parse_record


@dataclass(frozen=True, slots=True)
class ViewStep:
    """The last write. With all records below offset ``end`` of the rows' topic, the rows are those as of ``lsn``.
    ``run`` wrote it: the state of another run may lack what is there. ``offsets`` are those that the result was
    computed from, by topic and partition. ``topic_id`` is Kafka's id of the rows' topic."""

    view: str
    generation: int
    epoch: int
    lsn: int
    end: int
    run: str
    is_complete: bool
    offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)
    topic_id: str = ""

    def key(self) -> bytes:
        return step_key(self.view, self.generation)

    def to_bytes(self) -> bytes:
        return orjson.dumps(
            {
                "format": FORMAT,
                "view": self.view,
                "generation": self.generation,
                "epoch": self.epoch,
                "lsn": self.lsn,
                "end": self.end,
                "run": self.run,
                "complete": self.is_complete,
                "offsets": [[topic, partition, offset] for (topic, partition), offset in sorted(self.offsets.items())],
                "topic_id": self.topic_id,
            }
        )

    @classmethod
    def from_bytes(cls, value: bytes | None, what: str) -> Self:
        """Raises as ``parse_record``, and ForeignRecord."""
        fields = parse_record(value, what)
        offsets = fields.rows("offsets", str, int, int)
        return cls(
            fields.text("view"),
            fields.number("generation"),
            fields.number("epoch", 0, most=EPOCH_MAX),
            fields.number("lsn"),
            fields.number("end"),
            fields.text("run"),
            fields.flag("complete"),
            {(topic, partition): offset for topic, partition, offset in offsets},
            fields.text("topic_id"),
        )


def step_key(view: str, generation: int) -> bytes:
    return orjson.dumps([view, generation])
