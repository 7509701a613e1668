"""Whether the LSNs that sinks have stored can be compared with those of the source as it is now."""

from dataclasses import dataclass
from typing import Any, Final

import psycopg

from cdc.kafka.control_topics import ProgressReader, read_state
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import STATE, control_topic
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.lsn import parse_lsn
from cdc.pipeline_settings import Pipeline
from cdc.postgres.connection import connect, connection_error
from cdc.postgres.slot import emit_heartbeat, system_identifier
from cdc.protocol.control_records import CaptureState, ProgressRecord, selection_of
from monitor.lag import SourceFacts, elsewhere, report

APPLICATION: Final = "lockstep wait"


@dataclass(frozen=True, slots=True)
class Captures:
    """What capture goes on with: the ``epoch`` that LSNs are of, and the ``selection`` of tables that it captures.

    The latter is as ``ProgressRecord`` has it.
    """

    epoch: int
    selection: str = ""


class Line:
    """The source and what capture has published of it, over connections that stay open. For one thread at a time."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._connection: psycopg.Connection[Any] | None = None
        self._identity: tuple[str | None, str] = None, ""
        self._progress: ProgressReader | None = None
        self._newest: ProgressRecord | None = None
        self._state: tuple[Captures | None, CaptureState | None] = None, None

    def heartbeat(self) -> int:
        """Have the source commit something, and return an LSN after it. Raises LockstepError, or Unavailable."""
        self.check()
        try:
            return emit_heartbeat(self._connected())
        except psycopg.Error as error:
            raise connection_error(error) from error

    def check(self) -> Captures:
        """What capture goes on with now. Raises LockstepError when the source isn't the one that is captured, or
        capture can't ever go on, Unavailable when the source or Kafka doesn't answer, or a named table isn't captured.
        """
        newest = self._newest_progress()
        if newest is None:
            raise Unavailable("capture hasn't published anything yet")
        captures = Captures(newest.epoch, newest.selection)
        # After Kafka: the WAL of the same server can't end before what was published by then.
        wal_end, is_active, wal_status = self._ask_source()
        facts = SourceFacts(
            wal_end=wal_end,
            received_lsn=None,
            published_lsn=newest.lsn or None,
            published_commit_time_ms=None,
            slot_active=is_active,
            retained_bytes=None,
            wal_status=wal_status,
            elsewhere=self._elsewhere(captures),
        )
        broken = report(facts, (), now_ms=0).broken
        if broken:
            raise LockstepError(broken[0], hint="`lockstep doctor` says what to do")
        self._require_named(captures)
        return captures

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._progress is not None:
            self._progress.close()

    def __enter__(self) -> "Line":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask_source(self) -> tuple[int, bool, str | None]:
        """Where the WAL ends, whether the slot is read, and its state in PostgreSQL's words."""
        try:
            row = (
                self._connected()
                .execute(
                    "select pg_current_wal_insert_lsn()::text, s.active,"
                    " case when s.slot_name is not null then coalesce(s.wal_status, 'reserved') end"
                    " from (select 1) one left join pg_replication_slots s on s.slot_name = %s",
                    (self._pipeline.slot,),
                )
                .fetchone()
            )
        except psycopg.Error as error:
            raise connection_error(error) from error
        assert row is not None
        return parse_lsn(row[0]), bool(row[1]), row[2]

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._pipeline.source, application=APPLICATION)
            self._identity = system_identifier(self._connection), self._connection.info.dbname
        return self._connection

    def _newest_progress(self) -> ProgressRecord | None:
        client = self._pipeline.kafka.client()
        if self._progress is None:
            topics = tuple(self._pipeline.topics().values())
            if not set(topics) <= TopicAdmin(client).partition_counts(topics, must_see=True).keys():
                self._require_all_captured(self._recorded())
                return None
            self._progress = ProgressReader(client, self._pipeline.name, topics)
        for record in self._progress.new_records():
            self._newest = record
        return self._newest

    def _require_named(self, captures: Captures) -> None:
        """Raise Unavailable where capture was started without a table that this configuration names.

        Nobody knows of that table whether sinks have it, whatever their watermarks say.
        """
        known, state = self._state
        if state is None or not captures.selection:
            return  # an earlier version of capture, which doesn't tell
        if known != captures:
            raise Unavailable("capture has just begun with other tables")
        self._require_all_captured(state)

    def _require_all_captured(self, state: CaptureState | None) -> None:
        if state is None or state.captured is None:
            return
        captured = set(state.captured)
        lacking = [str(name) for name in self._pipeline.source.named if name not in captured]
        if lacking:
            raise Unavailable(
                f"capture was started without {', '.join(lacking)}, which source.tables names: start `lockstep capture`"
                " or `lockstep run` again with this configuration"
            )

    def _recorded(self) -> CaptureState | None:
        """What capture has recorded; None where it never began."""
        client, name = self._pipeline.kafka.client(), self._pipeline.name
        if not TopicAdmin(client).exists(control_topic(name, STATE)):
            return None
        return read_state(client, name, self._pipeline.slot)

    def _elsewhere(self, captures: Captures) -> tuple[str, ...]:
        """How the source isn't the one that this epoch is of, a phrase each."""
        self._connected()
        if self._state[0] != captures:
            state = read_state(self._pipeline.kafka.client(), self._pipeline.name, self._pipeline.slot)
            found = None if state is None else Captures(state.epoch, selection_of(state.captured))
            self._state = (captures if found == captures else None), state
        state = self._state[1]
        if state is None:
            return ()
        system_id, database = self._identity
        return elsewhere(state, system_id=system_id, database=database)
