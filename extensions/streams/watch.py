"""Stream queries for the page, alerts and metrics."""

from collections.abc import Iterator, Sequence
from typing import Final

from extensions.streams.configured import queries_of
from extensions.streams.queries import stream_query_plans
from extensions.streams.status import RECEIVER_STEP, STATES, UNKNOWN, WAITING, StreamQueryCollector, StreamQueryStatus
from lockstep.config import Config
from monitor.conditions import Condition, Severity
from monitor.metrics.definitions import Definition, Kind, Part, dashboard_gauge
from monitor.watching import Figure, Found, Panel, PanelRow

_SINK: Final = ("sink", "generation")


def _counted(name: str, kind: Kind, unit: str, meaning: str) -> Definition:
    return Definition(f"lockstep_stream_query_{name}", kind, Part.APPLY, unit, meaning, _SINK)


_OF_JOBS: Final = (
    _counted("results_total", Kind.COUNTER, "1", "Rows that the query's batches have written."),
    _counted("late_total", Kind.COUNTER, "1", "Late events that went to the side topic."),
    _counted("malformed_total", Kind.COUNTER, "1", "Records that are no events and went to the side topic."),
    _counted("refused_total", Kind.COUNTER, "1", "Rows that the result can't have."),
    _counted("state_rows", Kind.GAUGE, "1", "Rows that Spark keeps for the query."),
    _counted("watermark_timestamp_seconds", Kind.GAUGE, "s", "Results are final up to it."),
)
_JOB: Final = dashboard_gauge(
    "stream_query_job", "", "1 for its job's state, 0 for others; unknown stands alone.", (*_SINK, "state")
)
_IN_HAND: Final = dashboard_gauge(
    "stream_query_in_hand_events", "1", "Records it has read without a result yet.", _SINK
)
_UNDELIVERED: Final = dashboard_gauge(
    "stream_query_undelivered_rows", "1", "Rows that the webhook hasn't taken yet.", _SINK
)

_STOPPED: Final = "stream-query-stopped"
_UNDELIVERED_ROWS: Final = "stream-query-undelivered"
_UNREACHABLE: Final = "stream-query-unreachable"


_WATERMARK: Final = "watermark"


def metrics() -> Sequence[Definition]:
    return (*_OF_JOBS, _JOB, _IN_HAND, _UNDELIVERED)


def found_of(statuses: Sequence[StreamQueryStatus]) -> Found:
    """The conditions, figures and panel of these builds. Pure."""
    return Found(
        tuple(_conditions(statuses)),
        tuple(figure for status in statuses for figure in _figures(status)),
        frozenset(
            (name, status.label)
            for status in statuses
            if status.problem is not None
            for name in (_STOPPED, _UNDELIVERED_ROWS)
        ),
        panel_of(statuses),
    )


def _conditions(statuses: Sequence[StreamQueryStatus]) -> Iterator[Condition]:
    unreachable = {status.name: status for status in statuses if status.problem is not None}
    for name, status in unreachable.items():
        sentence = f"the result of stream query {name} can't be looked at: {status.reason}"
        yield Condition(_UNREACHABLE, name, Severity.CRITICAL, sentence, status.hint, passes=True)
    for status in statuses:
        if status.problem is None and status.why_undelivered:
            yield Condition(
                _UNDELIVERED_ROWS,
                status.label,
                Severity.CRITICAL,
                f"rows of stream query {status.label} don't get to its webhook: {status.why_undelivered}",
                RECEIVER_STEP,
                status.posted.since_ms,
                passes=True,
            )
        if status.problem is None and status.needs_somebody:
            yield Condition(
                _STOPPED,
                status.label,
                Severity.CRITICAL,
                f"stream query {status.label} isn't run any more: {status.reason}",
                status.hint,
                status.since_ms,
                passes=True,
            )


def _figures(status: StreamQueryStatus) -> Iterator[Figure]:
    if status.generation is None and status.problem is None:
        return
    labels = status.name, "" if status.generation is None else str(status.generation)
    if status.in_hand is not None:
        yield Figure(_IN_HAND, status.in_hand, labels)
    for state in [UNKNOWN] if status.state == UNKNOWN else STATES:
        yield Figure(_JOB, float(status.state == state), (*labels, state))
    if status.problem is None:
        yield Figure(_UNDELIVERED, status.posted.waiting, labels)


def panel_of(statuses: Sequence[StreamQueryStatus]) -> Panel | None:
    """The builds as a table; None if there are none. Pure."""
    columns = (_WATERMARK, "results", "late", "malformed", "refused", "kept rows")
    rows = tuple(map(_row, statuses))
    times = frozenset({_WATERMARK})
    return Panel("stream_queries", "Stream queries", "stream query", columns, rows, times) if rows else None


def _row(status: StreamQueryStatus) -> PanelRow:
    known = status.figures
    return PanelRow(
        status.label,
        "unanswered" if status.problem is not None else status.state,
        (known.watermark_ms, known.results, known.late, known.malformed, known.refused, known.state_rows),
        status.to_json(),
        status.reason,
        status.hint if status.reason else "",
        status.since_ms,
        needs_somebody=status.needs_somebody,
        is_reported=status.needs_somebody or status.state == WAITING,
    )


class StreamQueriesWatch:
    def __init__(self, config: Config) -> None:
        self._collector = StreamQueryCollector(stream_query_plans(config))

    def look(self) -> Found:
        return found_of(self._collector.look())

    def close(self) -> None:
        self._collector.close()


def panel_now(config: Config) -> Panel | None:
    """The panel for a command. Asks only the stores."""
    if not queries_of(config):
        return None
    with StreamQueryCollector(stream_query_plans(config)) as collector:
        return panel_of(collector.look())
