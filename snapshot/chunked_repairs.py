"""Repairs: reads the rows of chosen keys and publishes them again, in chunks, without stopping the stream."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final

import psycopg

from cdc.capture.loop import Pause
from cdc.capture.published_table import PublishedTable
from cdc.model.errors import LockstepError
from cdc.model.lsn import format_lsn
from cdc.model.table import TableName
from cdc.postgres.connection import connection_error
from cdc.protocol.control_records import CaptureState
from cdc.protocol.walsender import Frame
from cdc.stream.repair_requests import RepairRequests
from snapshot.chunk_session import Answer, ChunkSession, Look
from snapshot.chunks import PendingChunk
from snapshot.keys import key_texts
from snapshot.preparation import require_keys

_LATER_S: Final = 5.0
"""When a repair is tried again after somebody had to act first."""


@dataclass(slots=True)
class _Repaired:
    """What was published so far of one table's repair, and why keys of it were not."""

    rows: int = 0
    deletes: int = 0
    problems: Counter[str] = field(default_factory=Counter)


class ChunkedRepairs:
    def __init__(self, session: ChunkSession, repairs: RepairRequests) -> None:
        self._session = session
        self._repairs = repairs
        self._repaired: dict[TableName, _Repaired] = {}
        self._waits_for = ""

    def next(self, state: CaptureState) -> TableName | None:
        """A table with rows to read again. A table that lacks its copy gets that instead."""
        names = (
            name for name in self._repairs.tables() if name in state.copied and not self._session.waits.for_table(name)
        )
        return next(names, None)

    def repair(self, name: TableName, frame: Frame | None) -> Pause | None:
        """Publish what the source has of the waiting keys. An obstacle is reported and delays only this repair, which
        is tried again later."""
        loop = self._session.loop
        problems = Counter[str]()
        try:
            if not self._session.sees_all(name):
                return Pause(loop.state, frame)
            asked = self._repairs.keys(name)[: self._session.keys_at_once]
            with self._session.looking(name) as look:
                published = self._repairable(name, look)
                if look is None or published is None:
                    return Pause(loop.state, frame)
                texts = []
                for key in asked:
                    try:
                        texts.append(key_texts(look.shape, key))
                    except ValueError as error:
                        problems[str(error)] += 1
                found, unreadable = self._session.reading().find_readable(look.shape, texts)
                rows = self._session.rows_of(published, found)
                self._session.note_partitions(name, look.point.oid)
        except (LockstepError, psycopg.Error) as raised:
            waits_for = connection_error(raised) if isinstance(raised, psycopg.Error) else raised
            if waits_for.message != self._waits_for:
                self._waits_for = waits_for.message
                self._session.say(f"warning: a repair waits: {waits_for.message}")
            self._session.waits.later(name, _LATER_S)
            return Pause(loop.state, frame)
        types = ", ".join(f"{column.name} {column.type_name}" for column in look.shape.key_columns)
        for _, why in unreadable:
            problems[f"PostgreSQL doesn't take them for a key ({types}): {why}"] += 1
        answer = Answer(
            published, look.point.lsn, loop.state, rows, [published.encoder.key(key.fields) for key in found]
        )
        chunk = PendingChunk(published.topic, look.point.snapshot, answer.events)
        pause = self._session.publish_up_to(look.point.lsn, frame, chunk)
        if pause is None:
            return None
        if not self._has_shape(name, look):
            return Pause(loop.state, pause.frame)
        self._session.send_answer(self._session.assembler.relations.tables[name], answer, chunk)
        self._session.adopt(name, None, look.point.lsn)
        loop.commit()  # if the session is lost before, the next one answers the request
        self._repairs.done_keys(name, asked)
        self._session.take_more_keys()
        self._session.waits.over(name)
        self._waits_for = ""
        repaired = self._repaired.setdefault(name, _Repaired())
        repaired.problems += problems
        repaired.rows += sum(value is not None for value in chunk.events.values())
        repaired.deletes += sum(value is None for value in chunk.events.values())
        if name not in self._repairs.tables():
            self._say_repaired(name, look)
        return Pause(loop.state, pause.frame)

    def _say_repaired(self, name: TableName, look: Look) -> None:
        repaired = self._repaired.pop(name)
        self._session.say(
            f"{name}: published {repaired.rows} rows and {repaired.deletes} deletes again at"
            f" {format_lsn(look.point.lsn)}, for a repair"
        )
        for reason, count in repaired.problems.items():
            self._session.say(f"warning: keys of a repair of {name} are ignored ({count}): {reason}")

    def _repairable(self, name: TableName, look: Look | None) -> PublishedTable | None:
        """The table as published in its present shape; None if it can't be repaired like this."""
        if look is None:
            self._ignore(name, f"it isn't in publication {self._session.pipeline.publication} under this name")
            return None
        known = self._session.assembler.relations.tables.get(name)
        if known is None or known.table.key != look.shape.key:
            self._ignore(name, "its key is another one by now")
            return None
        require_keys(self._session.pipeline, [look.shape])
        recorded = self._session.loop.state.memberships.get(name)
        whole = "it lacks its copy" if recorded is None else look.membership.since(recorded).whole
        if whole:
            self._session.say(f"{name}: {whole}; copying it again instead of a repair")
            self._session.loop.adopt(self._session.loop.state.to_be_copied([name]))
            return None
        if known.table.schema_id == look.shape.schema_id:
            return known
        return self._session.stream.tables.of(replace(look.shape, epoch=known.table.epoch))

    def _has_shape(self, name: TableName, look: Look) -> bool:
        """Whether the stream is at the shape of the chunk. A shape without a row in the stream is recorded first."""
        loop, assembler = self._session.loop, self._session.assembler
        if name not in loop.state.copied or name not in assembler.relations.tables:
            return False
        known = assembler.relations.tables[name]
        if known.table.schema_id != look.shape.schema_id:
            relation = self._session.stream.shapes.current_relation(name)
            adopted = self._session.stream.shapes.adopt(relation, known) if relation is not None else None
            if adopted is not None and adopted.table.schema_id == look.shape.schema_id:  # else altered again since
                assembler.rows.envelopes.record_shape(adopted)
                loop.commit()
            known = assembler.relations.tables[name]
            if known.table.schema_id != look.shape.schema_id:
                loop.adopt(loop.state.to_be_copied([name]))
        return name in loop.state.copied  # else it is copied first, and repaired after that

    def _ignore(self, name: TableName, why: str) -> None:
        self._session.say(f"warning: a repair of {name} is ignored: {why}")
        self._repairs.done(name)
        self._repaired.pop(name, None)
