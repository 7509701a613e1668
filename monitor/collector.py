"""Collects the facts of the lag report: asks the source, Kafka and every sink, over connections that stay open."""

import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from cdc.machine_load import machine_slowdown
from cdc.model.closing import Closing
from cdc.model.errors import LockstepError, Unavailable
from cdc.pipeline_settings import Pipeline
from cdc.protocol.control_records import CaptureState
from monitor.background_question import Asking
from monitor.kafka_look import KafkaLook, OfKafka
from monitor.lag import APPLIED, IN_KAFKA, RECEIVED, VISIBLE, LagReport, SinkFacts, SourceFacts, report
from monitor.sink_look import Answer, SinkLook
from monitor.source_look import SourceLook
from monitor.stalls import Look, Stalls, unreachable
from sinks.registry import SinkSettings, load_client

T = TypeVar("T")


class LagCollector(Closing):
    """Collects reports, one after the other, until it is closed. The report names a server that is down or hangs, and
    its stages are unknown. If that is Kafka, the report still has what the source and the sinks say. Each stage's state
    depends on what earlier reports have seen of it."""

    def __init__(
        self,
        pipeline: Pipeline,
        sinks: Mapping[str, SinkSettings],
        *,
        resolve: Callable[[Pipeline], Pipeline] = lambda pipeline: pipeline,
        others: Collection[str] = (),
    ) -> None:
        """``sinks`` are the settings of the reported sinks, by name. ``others`` are names that extensions write to:
        their rejections are counted.

        ``resolve`` finds out which tables are captured, and raises LockstepError as ``collect``. It is needed for
        unresolved patterns, and called repeatedly: tables may join, and named ones leave.
        """
        self._settings = sinks
        self._others = others
        self._source = SourceLook(pipeline.source, pipeline.slot)
        self._kafka = KafkaLook(pipeline, resolve)
        self._sinks = {name: SinkLook(name, settings, pipeline.name) for name, settings in sinks.items()}
        self._has_loaded_clients = False
        self._stalls = Stalls()
        self._asking_source = Asking[Any]()
        self._last: LagReport | None = None
        self._most_read: dict[str, int] = {}  # by sink and generation, as reported by their jobs

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline with the tables of the last report. Until one has found them, its patterns are unresolved."""
        return self._kafka.pipeline

    def collect(self, *, with_jobs: bool = True) -> LagReport:
        """The lag now. Raises LockstepError if the source or Kafka refuses. ``with_jobs`` also says for each sink
        whether a job applies to it. That takes seconds for a job that was killed."""
        try:
            self._last = self._collect(with_jobs=with_jobs)
        except Unavailable as silent:
            last = self._last or LagReport((), None, None, {})
            stages = unreachable(self._last, self._settings, silent.message, now_ms=time.time_ns() // 1_000_000)
            self._last = replace(last, stages=stages, silent_servers={})
            return replace(self._last, silent_servers={"source": silent})
        return self._last

    def _collect(self, *, with_jobs: bool) -> LagReport:
        """Raises Unavailable if the source doesn't answer in time."""
        self._ask_source(partial(self._begin, with_jobs=with_jobs))
        # Against the flow: a stage that is asked earlier can't be ahead of one that is asked later.
        answers = self._ask_sinks(with_jobs=with_jobs)
        complete_lsn, is_slot_lost = self._ask_source(self._source.complete_lsn)
        kafka: OfKafka | None = None
        silent: Unavailable | None = None
        try:
            kafka = self._kafka.ask(lambda pipeline: self._topics(answers, pipeline), is_slot_lost=is_slot_lost)
        except Unavailable as error:
            silent = error
        # If Kafka is silent, the last published record that is known counts.
        published = self._kafka.published if kafka is None else kafka.published
        copying = None if kafka is None else kafka.copying
        epoch = 0 if published is None else published.epoch
        source = self._ask_source(partial(self._source.facts, published, complete_lsn, copying, self._kafka.state))
        if kafka is None and source.published_lsn is None:
            source = replace(source, published_lsn=complete_lsn)
        sinks = [
            self._sinks[facts.name].since_when_complete(source, facts, epoch)
            for facts in self._facts(answers, epoch, None if kafka is None else kafka.ends)
        ]
        lag = self._report(source, sinks, answers, epoch)
        if kafka is not None:
            lag = replace(
                lag,
                open_rejections={
                    facts.label: kafka.open_rejections.get((facts.name, facts.generation), 0) for facts in sinks
                },
                unreadable_dead_letters=self._kafka.rejections.unreadable,
                refused_rows=self._kafka.rejections.of(self._others),
                paused_copies=_paused_copies(copying),
                first_copy_paused=copying is not None and copying.first_copy_paused,
            )
        look = self._look(source, answers, is_copying=copying is not None)
        if silent is not None:
            lag, look = replace(lag, silent_servers={"kafka": silent}), replace(look, silent_kafka=silent.message)
        return self._stalls.judge(lag, look)

    def _ask_source(self, ask: Callable[[], T]) -> T:
        asking: Asking[T] = self._asking_source
        return asking.ask(ask, self._source.server)

    def _begin(self, *, with_jobs: bool) -> None:
        self._source.begin()
        if with_jobs:
            published = self._kafka.published
            self._source.heartbeat(0 if published is None else published.commit_time_ms)

    def _facts(
        self, answers: Mapping[str, Answer], epoch: int, ends: Mapping[tuple[str, int], int] | None
    ) -> list[SinkFacts]:
        return [
            facts
            for name, answer in answers.items()
            for facts in self._sinks[name].facts(answer, self.pipeline, epoch, ends)
        ]

    def _topics(self, answers: Mapping[str, Answer], pipeline: Pipeline) -> list[str]:
        """The topics that any of these sinks reads."""
        return [
            topic
            for name, answer in answers.items()
            if not isinstance(answer, LockstepError)
            for of in answer
            for topic in self._sinks[name].topics(of.generation, pipeline)
        ]

    def _report(
        self, source: SourceFacts, sinks: Sequence[SinkFacts], answers: Mapping[str, Answer], epoch: int
    ) -> LagReport:
        """The part of the report that doesn't come from Kafka."""
        unanswered = {name: answer for name, answer in answers.items() if isinstance(answer, LockstepError)}
        return replace(
            report(source, sinks, now_ms=time.time_ns() // 1_000_000),
            rejected={facts.label: facts.rejected for facts in sinks if facts.name not in unanswered},
            rebuild_needed={
                facts.label: names for facts in sinks if (names := self._sinks[facts.name].changed_settings(facts))
            },
            unanswered=unanswered,
            verified={
                facts.label: verification.in_epoch(epoch)
                for facts in sinks
                if facts.is_live and (verification := self._sinks[facts.name].verified) is not None
            },
        )

    def _look(self, source: SourceFacts, answers: Mapping[str, Answer], *, is_copying: bool) -> Look:
        """What this look has seen move, and what holds others up."""
        signs: dict[str, Hashable] = {}
        in_kafka = source.published_lsn, source.complete_lsn, sum(self._kafka.ends.values())
        signs[IN_KAFKA] = in_kafka
        signs[RECEIVED] = source.received_lsn, in_kafka
        left_out: set[str] = set()
        blocked: dict[str, str] = {}
        for name, answer in answers.items():
            if isinstance(answer, LockstepError):
                continue
            for of in answer:
                label = self._sinks[name].unknown(of.generation, len(answer)).label
                if of.progress is not None:
                    # A job that begins again reports less, or nothing: that is no move.
                    reported = 0 if of.job is None or of.job.read is None else of.job.read.records
                    read = self._most_read[label] = max(reported, self._most_read.get(label, 0))
                    offsets = sum(of.progress.next_offsets.values())
                    signs[f"{APPLIED}{label}"] = offsets, of.progress.watermark_lsn, read
                    if of.progress.skipped:
                        left_out.add(label)
                if of.visible is not None:
                    signs[f"{VISIBLE}{label}"] = of.visible
                if of.blocked_by is not None:
                    blocked[label] = of.blocked_by
        return Look(
            time.monotonic(),
            time.time_ns() // 1_000_000,
            source,
            signs,
            self.pipeline.slot,
            is_copying,
            frozenset(left_out),
            blocked,
            {
                name: settings.visible_after_s
                for name, settings in self._settings.items()
                if settings.visible_after_s is not None
            },
            slowdown=machine_slowdown(),
        )

    def _ask_sinks(self, *, with_jobs: bool) -> dict[str, Answer]:
        """Ask all sinks at once, each in its own thread, so that one that hangs delays the report little."""
        if not self._has_loaded_clients:  # so that this time isn't blamed on a server
            for settings in self._settings.values():
                load_client(settings)
            self._has_loaded_clients = True
        for sink in self._sinks.values():
            sink.begin(with_jobs=with_jobs)
        began = time.monotonic()
        return {name: sink.answer(began) for name, sink in self._sinks.items()}

    def close(self) -> None:
        for sink in self._sinks.values():
            sink.close()
        self._kafka.close()
        if not self._asking_source.is_open:  # a connection that a thread waits on ends with the process
            self._source.close()


def _paused_copies(state: CaptureState | None) -> tuple[str, ...]:
    copying = {} if state is None else state.copying
    return tuple(str(name) for name, copy in copying.items() if copy.paused)
