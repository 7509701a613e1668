"""Looks at the pipeline once a second, for all readers together, and keeps the last hour of each sink's lag.

Alerts see each lag report too: they are the watcher.
"""

import collections
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cdc.kafka.topic_admin import TopicAdmin, partitions_of
from cdc.model.errors import LockstepError
from lockstep.config import Config, load
from lockstep.dashboard.documents import APPLIED, Rates, Subject, label_of, pipeline_state
from lockstep.dashboard.model import LogEntry, PipelineState
from monitor.collector import LagCollector
from monitor.lag import LagReport

logger = logging.getLogger("lockstep.dashboard")

EVERY_S: Final = 1.0
_ENDS_EVERY_S: Final = 2.0
_LOOKS: Final = 6
"""Rates are measured over so many looks at the topics' ends."""

_POINT_EVERY_S: Final = 10.0
_POINTS: Final = int(3600 / _POINT_EVERY_S)
_ENTRIES: Final = 500

Watcher = Callable[[LagReport | LockstepError], object]
"""Gets each report, or the error that came in its place."""
Ends = Mapping[str, int]


class Log:
    """What happened since the server started; the oldest entries go."""

    def __init__(self) -> None:
        self._entries: collections.deque[LogEntry] = collections.deque(maxlen=_ENTRIES)

    def add(self, kind: str, message: str) -> None:
        """Keep it for the page."""
        self._entries.appendleft(LogEntry(time_ms=now_ms(), kind=kind, message=message))

    def newest(self) -> tuple[LogEntry, ...]:
        """Newest first."""
        return tuple(self._entries)


class Sampler:
    """One thread that looks. ``state`` is its newest document, at once and at any time; None before the first look.

    ``report`` is what it was made from; None where that look failed.
    """

    def __init__(self, config: Config, subject: Subject, log: Log, *, path: Path | None = None) -> None:
        """Nothing is looked at before ``start``. ``path`` is the file of the configuration, which may change."""
        self._config = config
        self._path = path
        self._written_ns = self._file_time_ns()
        self._subject = subject
        self._log = log
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dashboard", daemon=True)
        self._points: dict[str, collections.deque[tuple[int, float | None]]] = {}
        self._pointed_s = 0.0
        self._looks: collections.deque[tuple[float, Ends, Mapping[str, int | None]]] = collections.deque(maxlen=_LOOKS)
        self._on_state: Callable[[PipelineState], object] = lambda _: None
        self._watcher: Watcher = lambda _: None
        self.report: LagReport | None = None
        self.state: PipelineState | None = None
        self.lag: dict[str, Any] = {}
        self.rates = Rates()

    def start(
        self, on_state: Callable[[PipelineState], object] = lambda _: None, watcher: Watcher = lambda _: None
    ) -> None:
        """Begin to look. Both are called after each look, in the thread. A watcher that fails is logged."""
        self._on_state, self._watcher = on_state, watcher
        self._thread.start()

    def stop(self, *, wait_s: float = 0.3) -> None:
        """Let it end after the look that it is at. A server that hangs isn't waited for: the thread ends with us."""
        self._stopping.set()
        self._thread.join(wait_s)

    def look_once(self) -> PipelineState:
        """One look, instead of ``start``. What needs two, such as a rate, isn't known then."""
        with LagCollector(self._config.as_pipeline(), self._config.sinks) as collector:
            self._look(collector, TopicAdmin(self._config.kafka.client()))
        assert self.state is not None
        return self.state

    def last_hour(self, sink: str) -> tuple[tuple[int, float | None], ...]:
        """(seconds since 1970, seconds behind) of a sink's live generation; None where it wasn't known."""
        return tuple(self._points.get(sink, ()))

    @property
    def ends(self) -> Ends:
        """How many records each sink's topics have, by the sink's name."""
        if not self._looks:
            return {}
        ends = self._looks[-1][1]
        topics = self._config.topics()
        return {
            name: sum(ends.get(topics[table], 0) for table in self._config.sink_tables(settings) if table in topics)
            for name, settings in self._config.sinks.items()
        }

    def _run(self) -> None:
        while not self._stopping.is_set():
            with LagCollector(self._config.as_pipeline(), self._config.sinks) as collector:
                cluster = TopicAdmin(self._config.kafka.client())
                while not self._stopping.is_set() and not self._has_other_configuration():
                    began = time.monotonic()
                    self._look(collector, cluster)
                    self._stopping.wait(max(0.05, began + EVERY_S - time.monotonic()))

    def _has_other_configuration(self) -> bool:
        """Whether the file was changed, and is taken up: what a rebuild has built is compared with today's settings."""
        written_ns = self._file_time_ns()
        if self._path is None or written_ns == self._written_ns:
            return False
        self._written_ns = written_ns
        try:
            self._config = load(self._path)
        except LockstepError:  # it is being written, or wrong: who starts the next process is told
            return False
        self._looks.clear()
        self._log.add("state", "the configuration has changed")
        return True

    def _file_time_ns(self) -> int | None:
        try:
            return None if self._path is None else self._path.stat().st_mtime_ns
        except OSError:
            return None

    def _look(self, collector: LagCollector, cluster: TopicAdmin) -> None:
        trouble: str | None = None
        report: LagReport | None = None
        seen: LagReport | LockstepError | None = None
        try:
            seen = report = collector.collect()
            self._measure(cluster, report)
        except LockstepError as error:
            trouble = error.message
            seen = seen or error
        except Exception:
            # A bug of ours or of a client library must not end the page: it says so, and the next look tries again.
            logger.exception("the pipeline couldn't be looked at")
            trouble = "the dashboard failed to look at the pipeline, and its log says why"
        self.report = report
        self.lag = {} if report is None else report.to_json()
        if report is None:
            self._looks.clear()
            self.rates = Rates()
        state = pipeline_state(self._subject, self.lag, self.rates, sampled_ms=now_ms(), trouble=trouble)
        self._note_changes(self.state, state)
        self.state = state
        self._keep_point(state)
        self._on_state(state)
        if seen is None:
            return
        try:
            self._watcher(seen)
        except Exception:
            logger.exception("what watches the pipeline has failed, and is called again at the next look")

    def _measure(self, cluster: TopicAdmin, report: LagReport) -> None:
        """Of topics by their ends; of a sink by how much less it is behind than they have grown."""
        now = time.monotonic()
        if self._looks and now - self._looks[-1][0] < _ENDS_EVERY_S:
            return
        counts = cluster.partition_counts()
        # Before capture has run for the first time there are none.
        partitions = partitions_of(set(self._config.topics().values()) & counts.keys(), counts)
        ends: dict[str, int] = collections.Counter()
        for (topic, _), end in cluster.end_offsets(partitions).items():
            ends[topic] += end
        behind = {stage.name.removeprefix(APPLIED): stage.events_behind for stage in report.stages if stage.sink}
        self._looks.append((now, ends, behind))
        self.rates = rates_of(self._looks[0], self._looks[-1], self._topics_by_label(report))

    def _topics_by_label(self, report: LagReport) -> Mapping[str, Sequence[str]]:
        topics = self._config.topics()
        return {
            stage.sink.label: [
                topics[table]
                for table in self._config.sink_tables(self._config.sinks[stage.sink.name])
                if table in topics
            ]
            for stage in report.stages
            if stage.sink is not None
        }

    def _note_changes(self, before: PipelineState | None, after: PipelineState) -> None:
        known = {} if before is None else {problem.where: problem.state for problem in before.problems}
        for problem in after.problems:
            if known.get(problem.where) != problem.state:
                self._log.add("state", f"{problem.where} is {problem.state}: {problem.reason}")
        for where in known.keys() - {problem.where for problem in after.problems}:
            self._log.add("state", f"{where} is well again")
        if before is None:
            return
        generations = {label_of(sink) for sink in before.sinks}
        for sink in after.sinks:
            if label_of(sink) not in generations:
                self._log.add("state", f"generation {sink.generation} of {sink.name} is new here")

    def _keep_point(self, state: PipelineState) -> None:
        now_s = state.sampled_ms / 1000
        if now_s - self._pointed_s < _POINT_EVERY_S:
            return
        self._pointed_s = now_s
        behind = {sink.name: sink.seconds_behind for sink in state.sinks if sink.live}
        for name in self._config.sinks:
            points = self._points.setdefault(name, collections.deque(maxlen=_POINTS))
            points.append((int(now_s), behind.get(name)))


def rates_of(
    first: tuple[float, Ends, Mapping[str, int | None]],
    last: tuple[float, Ends, Mapping[str, int | None]],
    topics_by_label: Mapping[str, Sequence[str]],
) -> Rates:
    """Between two looks: a time, the topics' ends, and how many events each generation is behind. Pure."""
    elapsed = last[0] - first[0]
    if elapsed <= 0:
        return Rates()
    topics = {topic: max(0, end - first[1].get(topic, end)) / elapsed for topic, end in last[1].items()}
    sinks: dict[str, float | None] = {}
    for label, behind in last[2].items():
        earlier = first[2].get(label)
        if behind is None or earlier is None:
            sinks[label] = None
            continue
        grown = sum(topics.get(topic, 0.0) for topic in topics_by_label.get(label, ()))
        sinks[label] = max(0.0, grown - (behind - earlier) / elapsed)
    return Rates(topics, sinks)


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
