"""What happens to capture, its servers, its slot and its topics in a round of random statements."""

import random
import shutil
import time
from collections.abc import Callable
from typing import Any, Protocol

from confluent_kafka.admin import AdminClient, NewPartitions

from cdc.kafka.topic_admin import TopicAdmin, table_topic_plan
from cdc.kafka.topic_names import MESSAGES, PROGRESS, SCHEMA, STATE, control_topic
from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from cdc.postgres.repair_messages import request_repair
from cdc.postgres.slot import find_slot
from snapshot.request import request_copies
from tests.captured import Captured
from tests.databases import Database, until
from tests.dying_publisher import Commit, Killed, dying
from tests.random_operator import Operator
from tests.random_tables import LOG, TABLES
from tests.topics import configure

_DIES_S = 3.0
"""How long a capture may take to reach the point where it is to die; it may never get there."""


class Servers(Protocol):
    def stop(self, name: str) -> None: ...

    def kill(self, name: str) -> None: ...

    def start(self, name: str) -> None: ...

    def freeze(self, name: str) -> None: ...

    def thaw(self, name: str) -> None: ...


class _DyingStream:
    def __init__(self, stream: Any, frames: int) -> None:
        self._stream = stream
        self._left = frames

    def receive(self) -> bytes | None:
        frame: bytes | None = self._stream.receive()
        self._left -= frame is not None
        if self._left < 0:
            raise Killed
        return frame

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


class Faults:
    """Causes one fault after the other. ``work`` runs some statements. ``servers`` are restarted, if the round has its
    own."""

    def __init__(
        self,
        chance: random.Random,
        database: Database,
        captured: Captured,
        operator: Operator,
        *,
        servers: Servers | None,
        work: Callable[[int], None],
    ) -> None:
        self._random = chance
        self._database = database
        self._captured = captured
        self._operator = operator
        self._servers = servers
        self._work = work

    def strike(self) -> None:
        kinds: list[tuple[Callable[[], None], int]] = [
            (self._stops, 20),
            (self._killed, 25),
            (self._killed_at_a_frame, 8),
            (self._slot_lost, 5),
            (self._slot_advanced, 3),
            (self._sender_ended, 4),
            (self._topic_lost, 8),
            (self._topic_widened, 2),
            (self._control_topic_lost, 4),
            (self._compacted, 4),
            (self._values_lost, 4),
            (self._table_taken_out, 4),
            (self._copies_asked_for, 5),
            *([(self._server_restarted, 8)] if self._servers is not None else []),
        ]
        kind = self._random.choices(*zip(*kinds, strict=True))[0]
        self._operator.done[kind.__name__.lstrip("_").replace("_", " ")] += 1
        kind()
        self._operator.go_on()

    # Capture itself.

    def _stops(self) -> None:
        self._operator.say("capture stops")
        self._captured.stop()
        self._work(self._random.choice([0, 3, 10, 30]))

    def _killed(self) -> None:
        number = self._random.randrange(1, 5)
        topic = self._captured.topic(f"public.{self._random.choice(TABLES)}")
        copied: list[int] = []

        def copy_ends(commit: Commit) -> bool:
            copied.append(len(commit.state.copied))
            return copied[-1] > copied[0]

        what, dies = self._random.choice(
            [
                (f"commit {number}", lambda commit: commit.number == number),
                ("a new shape", lambda commit: bool(commit.schemas)),
                (f"rows of {topic}", lambda commit: topic in commit.topics),
                ("the middle of a transaction", lambda commit: commit.state.begun is not None),
                ("the end of a copy", copy_ends),
            ]
        )
        before = self._random.random() < 0.5
        self._operator.say(f"capture is killed {'before' if before else 'after'} {what}")
        self._run_to_death(wrap_publisher=dying(dies, before=before))

    def _killed_at_a_frame(self) -> None:
        frames = self._random.choice([1, 3, 10, 40])
        self._operator.say(f"capture is killed at frame {frames}")
        self._run_to_death(wrap_stream=lambda stream: _DyingStream(stream, frames))

    def _run_to_death(self, **wrappers: Any) -> None:
        self._captured.stop()
        self._captured.begin(**wrappers)
        self._work(self._random.choice([3, 10, 20]))
        deadline = time.monotonic() + _DIES_S
        while self._captured.error is None and time.monotonic() < deadline:
            time.sleep(0.02)
        self._captured.stop()

    def _values_lost(self) -> None:
        self._operator.say("the store of large values is lost")
        self._captured.stop()
        shutil.rmtree(self._captured.config.as_pipeline().values_directory, ignore_errors=True)
        self._work(5)

    def _table_taken_out(self) -> None:
        names = self._captured.config.source.tables
        out = self._random.choice(names)
        self._operator.say(f"{out} isn't configured for a while")
        self._captured.stop()
        self._captured.configure(tables=tuple(name for name in names if name != out))
        try:
            self._work(5)
            self._operator.go_on()
            self._work(10)
        finally:
            self._captured.stop()
            self._captured.configure(tables=names)

    def _copies_asked_for(self) -> None:
        table = f"public.{self._random.choice(TABLES)}"
        self._operator.say(f"copies of {table} are asked for")
        pipeline = self._captured.config.as_pipeline()
        try:
            if self._random.random() < 0.5:
                request_copies(pipeline, [table])
            else:
                keys = [{"id": self._random.randrange(30)} for _ in range(5)]
                request_repair(self._database.connection, TableName.parse(table), keys, slot=pipeline.slot)
        except LockstepError as error:
            self._operator.say(f"they were refused: {error}")
        self._work(5)

    # The source.

    def _slot_lost(self) -> None:
        self._operator.say("the slot is lost")
        self._captured.stop()
        self._work(self._random.choice([0, 3]))
        self._database.drop_slot(self._captured.config.slot)
        self._operator.lost = True
        self._work(self._random.choice([0, 3, 10]))

    def _slot_advanced(self) -> None:
        self._operator.say("the slot is advanced")
        self._captured.stop()
        self._work(5)
        slot = self._captured.config.slot
        until(lambda: not self._is_read())
        self._database.connection.execute("select pg_replication_slot_advance(%s, pg_current_wal_lsn())", (slot,))
        self._operator.lost = True

    def _is_read(self) -> bool:
        slot = find_slot(self._database.connection, self._captured.config.slot)
        return slot is not None and slot.active_pid is not None

    def _sender_ended(self) -> None:
        self._operator.say("the sender of the stream is ended")
        self._database.execute(
            "select pg_terminate_backend(active_pid) from pg_replication_slots where active_pid is not null"
            f" and slot_name = '{self._captured.config.slot}'"
        )
        self._work(5)

    def _server_restarted(self) -> None:
        assert self._servers is not None
        name = self._random.choice(["postgres", "postgres", "kafka"])
        how = self._random.choice(["stop", "kill", "freeze"])
        self._operator.say(f"{name}: {how}")
        if how == "freeze":
            self._servers.freeze(name)
            time.sleep(1.0)
            self._servers.thaw(name)
        else:
            if self._random.random() < 0.3:
                self._captured.stop()
            getattr(self._servers, how)(name)
            if name == "kafka":
                self._work(5)
            self._servers.start(name)
            self._database.reconnect()
        self._work(5)

    # Topics.

    def _topic_lost(self) -> None:
        topic = self._captured.topic(f"public.{self._random.choice(TABLES)}")
        recreated = self._random.choice([0, 0, 2, 2, 3])
        self._operator.say(f"{topic} is deleted" + (f", and comes with {recreated} partitions" if recreated else ""))
        if self._random.random() < 0.5:
            self._captured.stop()
        self._operator.delete([topic])
        if recreated:
            settings = self._captured.config.kafka.topics.model_copy(update={"partitions": recreated})
            is_log = topic == self._captured.topic(f"public.{LOG}")
            TopicAdmin(self._captured.client).create([table_topic_plan(topic, settings, append_only=is_log)])
        self._work(5)

    def _compacted(self) -> None:
        self._operator.say("topics are compacted")
        present = TopicAdmin(self._captured.client).all_partition_counts()
        topics = [topic for topic in self._captured.config.topics().values() if topic in present]
        # Deletes are kept as long as by default: no sink is away longer.
        settings = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.001", "min.compaction.lag.ms": "0"}
        configure(
            self._captured.client,
            set(topics) & TopicAdmin(self._captured.client).all_partition_counts().keys(),
            settings,
        )
        self._work(5)

    def _topic_widened(self) -> None:
        topic = self._captured.topic(f"public.{self._random.choice(TABLES)}")
        self._operator.say(f"{topic} gets more partitions")
        admin = AdminClient(dict(self._captured.client))
        more = TopicAdmin(self._captured.client).partition_counts([topic])[topic] + 1
        admin.create_partitions([NewPartitions(topic, more)])[topic].result(300)
        until(lambda: TopicAdmin(self._captured.client).partition_counts([topic])[topic] == more)
        self._work(5)

    def _control_topic_lost(self) -> None:
        name = self._random.choice([STATE, SCHEMA, PROGRESS, MESSAGES])
        topic = control_topic(self._captured.name, name)
        self._operator.say(f"{topic} is deleted")
        if self._random.random() < 0.5:
            self._captured.stop()
        self._operator.delete([topic])
        self._operator.lost |= name in (STATE, MESSAGES)
        self._work(5)
