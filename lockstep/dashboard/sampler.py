"""Looks at the pipeline for all readers together, and keeps the last hour of each sink's lag.

It looks once a second while somebody watches, else every three seconds: a look asks each store several things. The
watcher for alerts gets each lag report too.
"""

import collections
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cdc.kafka.topic_admin import TopicAdmin, partitions_of
from cdc.model.errors import LockstepError
from lockstep.config import Config, followed
from lockstep.dashboard.captured_tables import CapturedTables
from lockstep.dashboard.documents import Rates, Subject, label_of, pipeline_state
from lockstep.dashboard.memory import give_back
from lockstep.dashboard.model import LogEntry, PipelineState
from monitor.collector import LagCollector
from monitor.lag import LagReport
from monitor.watching import Panel

logger = logging.getLogger("lockstep.dashboard")

EVERY_S: Final = 1.0
_UNWATCHED_EVERY_S: Final = 3.0
_ENDS_EVERY_S: Final = 2.0
_SETTLED_S: Final = 5.0
_GIVE_BACK_S: Final = 600.0
"""When free memory goes back to the system: once the clients of all stores are loaded, and now and then."""

_LOOKS: Final = 6
"""Rates are measured over this many looks at the topics' ends."""

_POINT_EVERY_S: Final = 10.0
_POINTS: Final = int(3600 / _POINT_EVERY_S)
_ENTRIES: Final = 500

Watcher = Callable[[LagReport | LockstepError], object]
"""Gets each report, or the error that came in its place."""
Ends = Mapping[str, int]


class Log:
    """What happened since the server started. The oldest entries are dropped."""

    def __init__(self) -> None:
        self._entries: collections.deque[LogEntry] = collections.deque(maxlen=_ENTRIES)

    def add(self, kind: str, message: str) -> None:
        self._entries.appendleft(LogEntry(time_ms=now_ms(), kind=kind, message=message))

    def newest(self) -> tuple[LogEntry, ...]:
        return tuple(self._entries)


class Sampler:
    """One thread that looks. Any thread may read ``state``, its newest document; None before the first look. ``report``
    is what it was made from; None if that look failed."""

    def __init__(
        self,
        config: Config,
        subject: Subject,
        log: Log,
        *,
        open_alerts: Callable[[], int] = lambda: 0,
        panels: Callable[[], Sequence[Panel]] = tuple,
        is_watched: Callable[[], bool] = lambda: True,
    ) -> None:
        """Nothing is looked at before ``start``. ``open_alerts`` counts them, ``panels`` returns what is known of
        extensions, and ``is_watched`` says whether a page is open.

        ``config`` may have unresolved patterns: each look finds out which tables they match by then.
        """
        self._config = config
        self.tables = CapturedTables(config)
        self._subject = subject
        self._log = log
        self._open_alerts = open_alerts
        self._panels = panels
        self._is_watched = is_watched
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dashboard", daemon=True)
        self._opened: tuple[LagCollector, TopicAdmin] | None = None
        self._points: dict[str, collections.deque[tuple[int, float | None]]] = {}
        self._pointed_s = 0.0
        self._looks: collections.deque[tuple[float, Ends, Mapping[str, int | None]]] = collections.deque(maxlen=_LOOKS)
        self._on_state: Callable[[PipelineState], object] = lambda _: None
        self._watcher: Watcher = lambda _: None
        self._on_failure: Callable[[], object] = lambda: None
        self._has_watcher_failed = False
        self.report: LagReport | None = None
        self.state: PipelineState | None = None
        self._reported: PipelineState | None = None  # with the problems that nobody can look at now
        self.lag: dict[str, Any] = {}
        self.rates = Rates()

    def start(
        self,
        on_state: Callable[[PipelineState], object],
        watcher: Watcher,
        on_failure: Callable[[], object],
    ) -> None:
        """Begin to look. The first two are called after each look, in the thread. A watcher that fails is logged, and
        called again. ``on_failure`` is called if a bug ends the thread, since nothing would be looked at any more."""
        self._on_state, self._watcher, self._on_failure = on_state, watcher, on_failure
        self._thread.start()

    def stop(self, *, wait_s: float = 0.3) -> None:
        """Make it end after the current look. A server that hangs isn't waited for: the thread ends with us."""
        self._stopping.set()
        self._woken.set()
        self._thread.join(wait_s)

    def look_soon(self) -> None:
        """Somebody begins to watch. Called in any thread."""
        self._woken.set()

    def look_once(self) -> PipelineState:
        """One look, instead of ``start``. What needs two looks, such as a rate, is missing."""
        try:
            return self._look()
        finally:
            self._close()

    def last_hour(self, sink: str) -> tuple[tuple[int, float | None], ...]:
        """(seconds since 1970, seconds behind) of a sink's live generation; None for an unknown lag."""
        return tuple(self._points.get(sink, ()))

    def live_generation(self, sink: str) -> int | None:
        """The generation that readers see, as of the last look; None if it isn't known."""
        sinks = () if self.state is None else self.state.sinks
        return next((one.generation for one in sinks if one.name == sink and one.live), None)

    @property
    def ends(self) -> Ends:
        """How many records each sink's topics have, by the sink's name."""
        config = self.tables.known
        if not self._looks or config is None:
            return {}
        ends = self._looks[-1][1]
        topics = config.topics()
        return {
            name: sum(ends.get(topics[table], 0) for table in config.sink_tables(settings) if table in topics)
            for name, settings in config.sinks.items()
        }

    def _run(self) -> None:
        give_back_at = time.monotonic() + _SETTLED_S
        try:
            while not self._stopping.is_set():
                began = time.monotonic()
                self._look()
                if began >= give_back_at:
                    give_back()
                    give_back_at = began + _GIVE_BACK_S
                every_s = EVERY_S if self._is_watched() else _UNWATCHED_EVERY_S
                self._woken.wait(max(0.05, began + every_s - time.monotonic()))
                self._woken.clear()
        except Exception:
            logger.exception("a bug has ended the thread that looks at the pipeline")
            self._on_failure()
        finally:
            self._close()

    def _open(self) -> tuple[LagCollector, TopicAdmin]:
        """What looks, opened by the first look that can. Raises LockstepError, as for a missing password."""
        if self._opened is None:
            cluster = TopicAdmin(self._config.kafka.client())
            collector = LagCollector(
                self._config.as_pipeline(), self._config.sinks, resolve=followed, others=self._config.added_stores
            )
            self._opened = collector, cluster
        return self._opened

    def _close(self) -> None:
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None

    def _look(self) -> PipelineState:
        trouble: str | None = None
        report: LagReport | None = None
        seen: LagReport | LockstepError | None = None
        try:
            collector, cluster = self._open()
            seen = report = collector.collect()
            if collector.pipeline.source.is_resolved:
                self.tables.found(collector.pipeline)
                self._measure(cluster, self.tables.config(), report)
        except LockstepError as error:
            trouble = error.message
            seen = seen or error
        except Exception:
            # A bug of ours or of a client library must not end the page: it says so, and the next look tries again.
            logger.exception("the pipeline couldn't be looked at")
            trouble = "the dashboard failed to look at the pipeline, and its log says why"
            seen = seen or LockstepError(trouble)
        self.report = report
        self.lag = {} if report is None else report.to_json()
        if trouble is not None:
            self._forget_rates()
        state = pipeline_state(
            replace(self._subject, topics=self._count_topics()),
            self.lag,
            self.rates,
            sampled_ms=now_ms(),
            trouble=trouble,
            open_alerts=self._open_alerts(),
            panels=self._panels(),
        )
        reported = with_out_of_sight(self._reported, state)
        for change in changes(self._reported, reported):
            self._log.add("state", change)
        self._reported, self.state = reported, state
        self._keep_point(state)
        self._on_state(state)
        self._send_to_watcher(seen)
        return state

    def _send_to_watcher(self, seen: LagReport | LockstepError) -> None:
        has_failed = False
        try:
            self._watcher(seen)
        except Exception as error:
            has_failed = True
            if not self._has_watcher_failed:
                logger.exception("the reporter of conditions has failed, and is called again at each look")
                why = error.message if isinstance(error, LockstepError) else "the server's log says why"
                self._log.add("alert", f"the reporter of conditions fails: {why}")
        if self._has_watcher_failed and not has_failed:
            self._log.add("alert", "the reporter of conditions works again")
        self._has_watcher_failed = has_failed

    def _forget_rates(self) -> None:
        self._looks.clear()
        self.rates = Rates()

    def _count_topics(self) -> int | None:
        config = self.tables.known
        return None if config is None else len(config.topics())

    def _measure(self, cluster: TopicAdmin, config: Config, report: LagReport) -> None:
        """Of topics by their ends; of a sink by how much less it is behind than its topics have grown."""
        if "kafka" in report.silent_servers:
            self._forget_rates()
            return
        now = time.monotonic()
        if self._looks and now - self._looks[-1][0] < _ENDS_EVERY_S:
            return
        counts = cluster.partition_counts(config.topics().values())
        # Before capture has run for the first time there are none.
        partitions = partitions_of(counts, counts)
        ends: dict[str, int] = collections.Counter()
        for (topic, _), end in cluster.end_offsets(partitions).items():
            ends[topic] += end
        behind = {
            stage.sink.label: stage.events_behind if stage.sink.has_begun else None
            for stage in report.stages
            if stage.sink is not None
        }
        self._looks.append((now, ends, behind))
        self.rates = rates_of(self._looks[0], self._looks[-1], _topics_by_label(config, report))

    def _keep_point(self, state: PipelineState) -> None:
        now_s = state.sampled_ms / 1000
        if now_s - self._pointed_s < _POINT_EVERY_S:
            return
        self._pointed_s = now_s
        behind = {sink.name: sink.seconds_behind for sink in state.sinks if sink.live}
        for name in self._config.sinks:
            points = self._points.setdefault(name, collections.deque(maxlen=_POINTS))
            points.append((int(now_s), behind.get(name)))


def _topics_by_label(config: Config, report: LagReport) -> Mapping[str, Sequence[str]]:
    topics = config.topics()
    return {
        stage.sink.label: [
            topics[table] for table in config.sink_tables(config.sinks[stage.sink.name]) if table in topics
        ]
        for stage in report.stages
        if stage.sink is not None
    }


def with_out_of_sight(before: PipelineState | None, after: PipelineState) -> PipelineState:
    """The state with earlier problems that nobody can look at now, since they aren't over because of that. Pure. If a
    sink doesn't answer, these are its own problems; if anything else doesn't, all problems."""
    silent = {problem.where for problem in after.problems if problem.state == "unanswered"}
    if before is None or not silent:
        return after
    sinks = {label_of(sink) for sink in (*before.sinks, *after.sinks)} | {sink.name for sink in before.sinks}
    seen = {(problem.where, problem.state) for problem in after.problems}
    hidden = [
        problem
        for problem in before.problems
        if problem.state != "unanswered"
        and (problem.where, problem.state) not in seen
        and (not silent <= sinks or any(problem.where == at or problem.where.endswith(f" in {at}") for at in silent))
    ]
    return after.model_copy(update={"problems": (*after.problems, *hidden)})


def changes(before: PipelineState | None, after: PipelineState) -> Iterator[str]:
    """What changed since the look before, a sentence each. Pure."""
    known = set() if before is None else {(problem.where, problem.state) for problem in before.problems}
    open_now = {(problem.where, problem.state): problem for problem in after.problems}
    for key, problem in open_now.items():
        if key not in known:
            yield f"{problem.where} is {problem.state}: {problem.reason}"
    still = {problem.where for problem in after.problems}
    for where, state in sorted(known - open_now.keys()):
        if where in still:
            yield f"{where} isn't {state} any more"
    for where in sorted({where for where, _ in known} - still):
        yield f"{where} is well again"
    if before is not None:
        generations = {label_of(sink) for sink in before.sinks}
        for sink in after.sinks:
            if label_of(sink) not in generations:
                yield f"generation {sink.generation} of {sink.name} is new here"


def rates_of(
    first: tuple[float, Ends, Mapping[str, int | None]],
    last: tuple[float, Ends, Mapping[str, int | None]],
    topics_by_label: Mapping[str, Sequence[str]],
) -> Rates:
    """The rates between two looks. A look has a time, the topics' ends, and each generation's events behind. Pure."""
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
    return time.time_ns() // 1_000_000
