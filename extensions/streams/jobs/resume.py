"""Whether a query may go on: its checkpoint, its result and its topics must belong together. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

import orjson

from cdc.model.errors import ConfigurationError, LockstepError, PositionMismatch
from cdc.model.event import JsonValue
from extensions.streams.jobs.records import figures_name
from jobs.offsets import Offsets

FIRST_STATE_FORM: Final = 1
"""The form of Spark's own state for a query in SQL."""

PATTERN_STATE_FORM: Final = 2
"""The form of the state for a pattern: the variables of ``extensions.streams.executor.pattern_state`` and their
content. Increase it with each change of these: Spark 4.2 silently accepts a checkpoint with variables of other names,
and their content would be missing.
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a query has done, as of the end of ``batch``. Stored with the result.

    ``watermark_ms`` is that of the batch, in milliseconds since 1970; None before there is one. ``results`` counts
    written rows, ``late`` and the following records on the side topic, both over the result's life. ``state_rows``
    counts rows in Spark's state. ``offsets`` are the next to be read, ``starts`` the first of ``batch``, which is done
    again if its job is killed before Spark commits it.
    """

    batch: int = -1
    watermark_ms: int | None = None
    at_ms: int = 0
    results: int = 0
    late: int = 0
    malformed: int = 0
    refused: int = 0
    state_rows: int = 0
    offsets: Offsets = field(default_factory=dict)
    starts: Offsets = field(default_factory=dict)

    def to_json(self) -> dict[str, JsonValue]:
        return {
            "batch": self.batch,
            "watermark_ms": self.watermark_ms,
            "at_ms": self.at_ms,
            "results": self.results,
            "late": self.late,
            "malformed": self.malformed,
            "refused": self.refused,
            "state_rows": self.state_rows,
            "offsets": _listed(self.offsets),
            "starts": _listed(self.starts),
        }

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """From a coordination record; all zero without one."""
        if text is None:
            return cls()
        known = orjson.loads(text)
        offsets = _offsets(known.pop("offsets"))
        starts = _offsets(known.pop("starts"))
        return cls(**known, offsets=offsets, starts=starts)

    def text(self) -> str:
        return orjson.dumps(self.to_json()).decode()

    def after(self, done: "Figures") -> "Figures":
        """The figures after another batch. A batch that is in them already was repeated after a kill."""
        if done.batch <= self.batch:
            return self
        return replace(
            done,
            results=self.results + done.results,
            late=self.late + done.late,
            malformed=self.malformed + done.malformed,
            refused=self.refused + done.refused,
        )


def load_figures(load: Callable[[str], str | None], generation: int) -> Figures:
    """The figures of a build, with ``load`` of its coordination records. Raises what ``load`` raises."""
    return Figures.parse(load(figures_name(generation)))


def _listed(offsets: Offsets) -> list[JsonValue]:
    return [[topic, partition, offset] for (topic, partition), offset in sorted(offsets.items())]


def _offsets(listed: Iterable[tuple[str, int, int]]) -> Offsets:
    return {(topic, partition): offset for topic, partition, offset in listed}


@dataclass(frozen=True, slots=True)
class Begun:
    """What a result was begun with: the query, its streams, the topics' ids, and the first offsets to be read.
    ``topic_ids`` includes the result's topic, if there is one. ``state_form`` is the form of Spark's state, in the
    version that began it.
    """

    definition: Mapping[str, JsonValue]
    topic_ids: Mapping[str, str]
    start: Offsets
    state_form: int

    def text(self) -> str:
        start = [[topic, partition, offset] for (topic, partition), offset in sorted(self.start.items())]
        return orjson.dumps(
            {
                "definition": dict(self.definition),
                "topic_ids": dict(self.topic_ids),
                "start": start,
                "state_form": self.state_form,
            }
        ).decode()

    @classmethod
    def parse(cls, text: str) -> Self:
        known = orjson.loads(text)
        return cls(
            known["definition"],
            known["topic_ids"],
            {(topic, partition): offset for topic, partition, offset in known["start"]},
            known["state_form"],
        )


def check_definition(query: str, begun: Begun, definition: Mapping[str, JsonValue]) -> None:
    """Raise ConfigurationError if the configured query differs from the one that Spark's state belongs to. Order
    counts: Spark stores the values of a stream's columns by position.
    """
    changed = sorted(
        name
        for name in {**begun.definition, **definition}
        if orjson.dumps(definition.get(name)) != orjson.dumps(begun.definition.get(name))
    )
    if changed:
        raise ConfigurationError(
            f"stream query {query!r} was begun with other settings: {', '.join(changed)}",
            hint=f"put them back, or build the result again: lockstep streams rebuild {query}",
        )


def check_state_form(query: str, begun: Begun, *, form: int) -> None:
    """Raise LockstepError if another version of Lockstep wrote Spark's state in another form."""
    if begun.state_form != form:
        raise LockstepError(
            f"another version of Lockstep wrote the Spark state of stream query {query!r}, in another form",
            hint=f"start that version again, or build the result again: lockstep streams rebuild {query}",
        )


def unfinished_batch(figures: Figures, *, planned: int | None) -> int | None:
    """The last planned batch of a build if it isn't done; otherwise None."""
    return planned if planned is not None and planned > figures.batch else None


def check_new_topic(query: str, topic: str, *, end: int) -> None:
    """Raise PositionMismatch if the topic of a new build has had records, up to offset ``end``. They belong to another
    build of this number, which happens when the store was recreated.
    """
    if end > 0:
        raise PositionMismatch(
            f"topic {topic} of stream query {query!r} has rows of another build",
            hint=f"build the result again, which gets a topic of its own: lockstep streams rebuild {query}",
        )


def check_checkpoint(
    query: str, figures: Figures, *, planned: int | None, committed: int | None, ends: Offsets | None
) -> None:
    """Raise LockstepError if the result wasn't written from this checkpoint.

    ``planned`` is the newest batch of the checkpoint, ``committed`` the newest that Spark has finished and never runs
    again; None if there is none. ``ends`` are the checkpoint's offsets of the result's last batch; None if it lacks
    them. Batches divided differently may give other results, since the watermark moves from batch to batch.
    """
    reason = None
    if figures.batch < 0:
        if committed is not None or (planned is not None and planned > 0):
            reason = "its result has lost what was written, and its checkpoint is ahead of it"
    elif planned is None:
        reason = "its checkpoint is gone, and with it the events that it had kept"
    elif planned < figures.batch or ends != figures.offsets:
        reason = "its checkpoint is an earlier one than its result, or another one's"
    elif planned > figures.batch + 1 or (committed is not None and committed > figures.batch):
        reason = "its result has lost what was written last, and its checkpoint is ahead of it"
    if reason is not None:
        raise LockstepError(
            f"stream query {query!r} can't go on: {reason}",
            hint="put both back to the same moment, or build the result again from what the topics still hold:"
            f" lockstep streams rebuild {query}",
        )
