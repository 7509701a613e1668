"""Whether the LSNs that sinks have stored can be compared with those of the present source."""

from dataclasses import dataclass
from typing import Final

from cdc.kafka.control_topics import ProgressReader, read_state
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import STATE, control_topic
from cdc.model.closing import Closing
from cdc.model.errors import LockstepError, Unavailable
from cdc.pipeline_settings import Pipeline
from cdc.protocol.control_records import CaptureState, ProgressRecord, selection_of
from monitor.lag import SourceFacts, broken
from monitor.source_look import SourceLook

APPLICATION: Final = "lockstep wait"


@dataclass(frozen=True, slots=True)
class Captures:
    """What capture goes on with: its LSNs' ``epoch``, and its tables' ``selection``, as in ``ProgressRecord``."""

    epoch: int
    selection: str = ""


class Line(Closing):
    """The source and what capture has published of it, over connections that stay open. For one thread at a time."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._source = SourceLook(pipeline.source, pipeline.slot, application=APPLICATION)
        self._progress: ProgressReader | None = None
        self._newest: ProgressRecord | None = None
        self._state: tuple[Captures | None, CaptureState | None] = None, None

    def heartbeat(self) -> int:
        """Have the source commit something, and return an LSN after it. Raises as ``check``."""
        self.check()
        return self._source.emit()

    def check(self) -> Captures:
        """What capture goes on with now. Raises LockstepError if the source isn't the captured one, or capture can
        never go on; Unavailable if the source or Kafka doesn't answer, or a named table isn't captured."""
        newest = self._newest_progress()
        if newest is None:
            raise Unavailable("capture hasn't published anything yet")
        captures = Captures(newest.epoch, newest.selection)
        # After Kafka: the same server's WAL can't end before what was published by then.
        wal_end, is_active, wal_status = self._source.position()
        elsewhere = self._source.elsewhere(self._state_of(captures))
        facts = SourceFacts(wal_end, None, newest.lsn or None, None, is_active, None, wal_status, elsewhere=elsewhere)
        for sentence in broken(facts):
            raise LockstepError(sentence, hint="`lockstep doctor` says what to do")
        self._require_named(captures)
        return captures

    def close(self) -> None:
        self._source.close()
        if self._progress is not None:
            self._progress.close()

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
        """Raise Unavailable if capture was started without a table that this configuration names. Whether sinks have
        that table is unknown, whatever their watermarks say."""
        known, state = self._state
        if state is not None and known != captures:
            raise Unavailable("capture has just begun with other tables")
        self._require_all_captured(state)

    def _require_all_captured(self, state: CaptureState | None) -> None:
        if state is None or state.captured is None:
            return
        lacking = [str(name) for name in self._pipeline.source.named if name not in state.captured]
        if lacking:
            raise Unavailable(
                f"capture was started without {', '.join(lacking)}, which source.tables names: start `lockstep capture`"
                " or `lockstep run` again with this configuration"
            )

    def _recorded(self) -> CaptureState | None:
        """Capture's recorded state; None if it never began."""
        client, name = self._pipeline.kafka.client(), self._pipeline.name
        if not TopicAdmin(client).exists(control_topic(name, STATE)):
            return None
        return read_state(client, name, self._pipeline.slot)

    def _state_of(self, captures: Captures) -> CaptureState | None:
        """Capture's state, read again if it isn't known to be of this epoch and selection."""
        if self._state[0] != captures:
            state = read_state(self._pipeline.kafka.client(), self._pipeline.name, self._pipeline.slot)
            found = None if state is None else Captures(state.epoch, selection_of(state.captured))
            self._state = (captures if found == captures else None), state
        return self._state[1]
