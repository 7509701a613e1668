"""Collects the facts of the lag report: asks the source, Kafka and every sink, over connections that stay open."""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import psycopg
from rich.console import Group
from rich.table import Table
from rich.text import Text

from cdc.kafka.control_topics import ProgressReader
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import REJECTED, control_topic
from cdc.kafka.topic_reader import TopicReader
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.lsn import format_lsn, parse_lsn
from cdc.model.table import TableName
from cdc.pipeline import Pipeline
from cdc.postgres.connection import connect, connection_error
from jobs.dead_letters.record import DeadLetter, read_dead_letter
from jobs.generations.record import Generation, list_generations
from monitor.lag import LagReport, SinkFacts, SourceFacts, report
from sinks.contract import OpenedSink, Progress
from sinks.registry import SinkSettings, definition, open_sink, with_definition

APPLICATION = "lockstep lag"

_LIST_EVERY_S = 2.0
"""How often the sinks are asked which generations they have."""

_PATIENCE_S = 10.0
"""How long the report waits for the sinks' answers."""

_NOT_BEGUN = Generation(1, True, None)

_KIB, _MIB = 1024, 1024 * 1024

_Progresses = list[tuple[Generation, Progress | None]]
_Answer = _Progresses | LockstepError


@dataclass(frozen=True, slots=True)
class Lag(LagReport):
    """The report, and what else there is to know of the sinks. By the label of the generation, where it applies to one:

    ``open_rejections`` counts the rejected rows that nothing has replaced yet, ``rejected`` every rejection there ever was.
    ``rebuild_needed`` names the settings that a live generation was built otherwise with than the configuration says today.
    ``unanswered`` are the sinks that couldn't be asked, by name, and why; their stages are there, with nothing known.
    """

    open_rejections: Mapping[str, int] = field(default_factory=dict)
    rebuild_needed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unanswered: Mapping[str, LockstepError] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return LagReport.to_json(self) | {
            "open_rejections": dict(self.open_rejections),
            "rebuild_needed": {label: list(names) for label, names in self.rebuild_needed.items()},
            "unanswered": {name: error.message for name, error in self.unanswered.items()},
        }


class _Question:
    """A question to a sink, asked in a thread that nobody has to wait for."""

    def __init__(self, ask: Callable[[], _Progresses]) -> None:
        self._ask = ask
        self._answer: _Answer | None = None
        self._bug: BaseException | None = None
        self._asked_at = time.monotonic()
        self._thread = threading.Thread(target=self._work, name="lag", daemon=True)
        self._thread.start()

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._asked_at

    def wait(self, seconds: float) -> _Answer | None:
        """The answer, or the error in its place; None when it hasn't come in time."""
        self._thread.join(seconds)
        if self._bug is not None:
            raise self._bug
        return self._answer

    def _work(self) -> None:
        try:
            self._answer = self._ask()
        except LockstepError as error:
            self._answer = error
        except BaseException as error:
            self._bug = error


class LagCollector:
    """Ask it again and again; close it at the end. A source or Kafka that is down is an error of ``collect``, a sink is told of in
    the report: the others go on without it."""

    def __init__(self, pipeline: Pipeline, sinks: Mapping[str, SinkSettings]) -> None:
        """``sinks`` are the settings of every sink by its name."""
        self._pipeline = pipeline
        self._settings = sinks
        self._closing = contextlib.ExitStack()
        self._connection: psycopg.Connection[Any] | None = None
        self._cluster = TopicAdmin(pipeline.kafka.client())
        self._progress: ProgressReader | None = None
        self._published: tuple[int, int] | None = None
        self._sinks: dict[tuple[str, int], OpenedSink] = {}
        self._questions: dict[str, _Question] = {}
        self._listed: dict[str, tuple[float, list[Generation]]] = {}
        self._known: dict[str, list[Generation]] = {}
        self._open = _OpenRejections(pipeline, self._cluster)

    def collect(self) -> Lag:
        """The lag now. Raises Unavailable or LockstepError."""
        # Against the flow: what is asked first can't be beyond what is asked later.
        answers = self._ask_sinks()
        sinks = [facts for name, answer in answers.items() for facts in self._facts(name, answer)]
        published = self._newest_progress()
        open_rejections = self._open.counts()
        found = report(self._source(published), sinks, now_ms=time.time_ns() // 1_000_000)
        unanswered = {name: answer for name, answer in answers.items() if isinstance(answer, LockstepError)}
        return Lag(
            found.stages,
            found.slot_active,
            found.retained_bytes,
            {one.label: one.rejected for one in sinks if one.name not in unanswered},
            {one.label: open_rejections.get((one.name, one.generation), 0) for one in sinks},
            {one.label: names for one in sinks if (names := self._differs(one))},
            unanswered,
        )

    def _ask_sinks(self) -> dict[str, _Answer]:
        """All sinks at once, each in a thread of its own: a server that hangs keeps nobody waiting for long."""
        for name in self._settings:
            if name not in self._questions:
                self._questions[name] = _Question(partial(self._ask, name))
        deadline = time.monotonic() + _PATIENCE_S
        answers: dict[str, _Answer] = {}
        for name in self._settings:
            answer = self._questions[name].wait(max(0.0, deadline - time.monotonic()))
            if answer is None:
                answers[name] = Unavailable(f"its server hasn't answered for {self._questions[name].age_s:.0f} s")
                continue
            del self._questions[name]
            answers[name] = answer
            if not isinstance(answer, LockstepError):
                self._known[name] = [generation for generation, _ in answer]
        return answers

    def _ask(self, name: str) -> _Progresses:
        """How far a sink's generations are. Raises Unavailable or LockstepError."""
        generations = self._generations(name)
        for generation in generations:
            if generation.record is not None:
                # What today's settings can't be shaped to is told of this sink, and the others go on.
                with_definition(self._settings[name], generation.record.definition)
        return [
            (generation, self._opened(name, generation.number).generations.load_progress())
            for generation in generations
        ]

    def close(self) -> None:
        for (name, _), opened in list(self._sinks.items()):  # a late answer may open one more
            if name not in self._questions:  # a connection on which somebody waits goes with the process
                opened.sink.close()
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _source(self, newest: tuple[int | None, int | None]) -> SourceFacts:
        row = self._query(
            "select pg_current_wal_insert_lsn()::text, s.active, r.write_lsn::text,"
            " pg_wal_lsn_diff(pg_current_wal_insert_lsn(), s.restart_lsn)::bigint"
            " from (select 1) one left join pg_replication_slots s on s.slot_name = %s"
            " left join pg_stat_replication r on r.pid = s.active_pid",
            self._pipeline.slot,
        )
        wal_end, active, received, retained = row
        published, commit_time_ms = newest
        return SourceFacts(
            parse_lsn(wal_end),
            parse_lsn(received) if received else None,
            published,
            commit_time_ms,
            bool(active),
            retained,
        )

    def _query(self, sql: str, *parameters: str) -> tuple[Any, ...]:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = connect(self._pipeline.source, application=APPLICATION)
                self._closing.callback(self._connection.close)
            row = self._connection.execute(sql.encode(), parameters).fetchone()
        except psycopg.OperationalError as error:
            raise connection_error(error) from error
        assert row is not None
        return tuple(row)

    def _newest_progress(self) -> tuple[int | None, int | None]:
        if self._progress is None:
            name = self._pipeline.name
            topics = tuple(self._pipeline.topics().values())
            if not set(topics) <= self._cluster.partition_counts().keys():
                return None, None  # capture has never run
            self._progress = ProgressReader(self._pipeline.kafka.client(), name, topics)
            self._closing.callback(self._progress.close)
        for record in self._progress.new_records():
            self._published = (record.lsn, record.commit_time_ms)
        return self._published or (None, None)

    def _generations(self, name: str) -> list[Generation]:
        """A sink's generations, what readers see first. One that nobody has begun yet counts as the first."""
        listed_at, found = self._listed.get(name, (-math.inf, []))
        if time.monotonic() - listed_at > _LIST_EVERY_S:
            found = list_generations(self._opened(name, 1)) or [_NOT_BEGUN]
            found.sort(key=lambda generation: not generation.is_live)
            self._listed[name] = time.monotonic(), found
        return found

    def _opened(self, name: str, number: int) -> OpenedSink:
        opened = self._sinks.get((name, number))
        if opened is None:
            opened = self._sinks[name, number] = open_sink(name, self._settings[name], number)
        return opened

    def _facts(self, name: str, answer: _Answer) -> Iterator[SinkFacts]:
        """Of a sink's generations. Of one that couldn't be asked, nothing but those that were there last."""
        known = self._known.get(name, [_NOT_BEGUN])
        if isinstance(answer, LockstepError):
            for generation in known:
                is_live = generation.is_live or len(known) == 1
                yield SinkFacts(name, generation.number, is_live, 0, 0, None, 0)
            return
        for generation, progress in answer:
            # A sink's only generation is what it is about, also before readers see it.
            is_live = generation.is_live or len(answer) == 1
            read = {} if progress is None else dict(progress.next_offsets)
            yield SinkFacts(
                name,
                generation.number,
                is_live,
                0 if progress is None else progress.watermark_lsn,
                0 if progress is None else progress.commit_time_ms,
                self._records_behind(self._tables(name, generation), read),
                0 if progress is None else progress.rejected,
            )

    def _differs(self, facts: SinkFacts) -> tuple[str, ...]:
        """The settings that the generation which readers see was built otherwise with than the configuration says."""
        known = self._known.get(facts.name, [])
        record = next((one.record for one in known if one.number == facts.generation), None)
        if not facts.is_live or record is None:
            return ()
        settings = self._settings[facts.name]
        today, held = definition(settings), definition(with_definition(settings, record.definition))
        return tuple(sorted(key for key in today if today[key] != held[key]))

    def _tables(self, name: str, generation: Generation) -> Sequence[TableName]:
        settings = self._settings[name]
        if generation.record is not None:
            settings = with_definition(settings, generation.record.definition)
        return [TableName.parse(table) for table in settings.tables] or self._pipeline.source.keyed_names

    def _records_behind(self, tables: Sequence[TableName], next_offsets: dict[tuple[str, int], int]) -> int | None:
        topics = self._pipeline.topics()
        read = [topics[table] for table in tables if table in topics]
        counts = self._cluster.partition_counts()
        partitions = [(topic, p) for topic in read for p in range(counts.get(topic, 0))]
        if not partitions:
            return None
        ends = self._cluster.end_offsets(partitions)
        return sum(max(0, end - next_offsets.get(at, 0)) for at, end in ends.items())


class _OpenRejections:
    """Counts the rows with an open rejection, by sink and generation. What was read of the dead-letter topic isn't read again."""

    def __init__(self, pipeline: Pipeline, cluster: TopicAdmin) -> None:
        self._reader = TopicReader(pipeline.kafka.client())
        self._cluster = cluster
        self._topic = control_topic(pipeline.name, REJECTED)
        self._letters: dict[bytes, DeadLetter] = {}
        self._next = 0

    def counts(self) -> Mapping[tuple[str, int], int]:
        """Raises Unavailable."""
        self._read()
        # A row may have several letters, of which the newest counts.
        rows = {letter.row: (letter.sink, letter.generation) for letter in self._letters.values()}
        found: dict[tuple[str, int], int] = {}
        for generation in rows.values():
            found[generation] = found.get(generation, 0) + 1
        return found

    def _read(self) -> None:
        if not self._cluster.partition_counts().get(self._topic):
            self._letters, self._next = {}, 0
            return
        (end,) = self._cluster.end_offsets([(self._topic, 0)]).values()
        if end < self._next:  # the topic was made anew
            self._letters, self._next = {}, 0
        if end == self._next:
            return
        for record in self._reader.records(self._topic, {0: self._next}):
            self._letters.pop(record.key, None)
            if record.value is not None:
                letter = read_dead_letter(record.key, record.value, record.offset)
                if isinstance(letter, DeadLetter):
                    self._letters[record.key] = letter
        self._next = end


def lag_table(lag: LagReport) -> Group:
    """The report for the terminal: a table, and below it what has to be known of single sinks."""
    table = Table(title=None, expand=False)
    for heading in ("stage", "LSN", "bytes behind", "seconds behind", "events behind"):
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    for stage in lag.stages:
        table.add_row(
            stage.name,
            "-" if stage.lsn is None else format_lsn(stage.lsn),
            "-" if stage.bytes_behind is None else readable_bytes(stage.bytes_behind),
            "-" if stage.seconds_behind is None else f"{stage.seconds_behind:.1f}",
            "-" if stage.events_behind is None else f"{stage.events_behind:,}",
        )
    return Group(table, *(Text(line, style=style) for line, style in (_remarks(lag) if isinstance(lag, Lag) else ())))


def _remarks(lag: Lag) -> Iterator[tuple[str, str]]:
    """Sentences about sinks, each with its style."""
    for name, error in lag.unanswered.items():
        yield f"{name} can't be asked: {error}", "red"
    for label, names in lag.rebuild_needed.items():
        yield (
            f"{label}: rebuild needed, it was built with other {', '.join(names)}: lockstep rebuild {label} --switch",
            "yellow",
        )
    for label, count in lag.open_rejections.items():
        ever = lag.rejected.get(label, 0)
        if count:
            yield f"{label}: {count:,} rejections open, {ever:,} ever: lockstep rejections list", "red"
        elif ever:
            yield f"{label}: no rejection open, {ever:,} ever", "dim"


def readable_bytes(count: int) -> str:
    if count < _KIB:
        return f"{count} B"
    return f"{count / _KIB:.1f} KiB" if count < _MIB else f"{count / _MIB:.1f} MiB"


def wait_for_lsn(
    collector: LagCollector, lsn: int, *, timeout_s: float, sinks: tuple[str, ...] = (), sleep: Callable[[float], None]
) -> bool:
    """Wait until readers of the sinks (all, when none is named) see everything up to ``lsn``; False at the time-out.

    Raises LockstepError when one of them can't be asked and somebody has to act.
    """
    began = time.monotonic()
    while True:
        with contextlib.suppress(Unavailable):
            lag = collector.collect()
            for name, error in lag.unanswered.items():
                if not sinks or name in sinks:
                    raise error
            stages = [
                stage
                for stage in lag.stages
                if stage.sink is not None and stage.sink.is_live and (not sinks or stage.sink.name in sinks)
            ]
            if all(stage.lsn is not None and stage.lsn >= lsn for stage in stages):
                return True
        waited_s = time.monotonic() - began
        if waited_s > timeout_s:
            return False
        # What takes long is asked for less often: the answer costs those who are waited for, too.
        sleep(min(0.5, max(0.1, waited_s / 20)))
