"""What the demo says while servers don't answer."""

from types import SimpleNamespace
from typing import Any

from cdc.model.errors import Unavailable
from lockstep.demo.lag_facts import slowest_sink
from lockstep.demo.pace import TrafficPace
from lockstep.demo.traffic import Traffic, pace_sentence
from lockstep.demo.writer import Counts
from monitor.lag import LagReport, SinkFacts, SourceFacts, report


def test_a_server_that_is_silent_is_named_and_what_was_known_before_counts() -> None:
    sink = SinkFacts("cache", 1, True, 900, 0, 0, 0)
    known = report(SourceFacts(1000, 900, 900, 0, True, 0), [sink], now_ms=0)
    silent = LagReport((), None, None, {}, silent_servers={"source": Unavailable("the source at h:1 is silent")})
    reports = [silent, known, silent, known]
    collector: Any = SimpleNamespace(collect=lambda: reports.pop(0))
    nobody: Any = None
    traffic = Traffic(
        nobody,
        collector,
        nobody,
        demo_began=0.0,
        counts=Counts,
        is_rebuilding=lambda: False,
        pace=TrafficPace(50, now_s=0),
        on_pace=lambda _: None,
    )
    traffic.look()
    assert traffic.elapsed_s is None, "no sink follows because none is known"
    assert "the source at h:1 is silent" in traffic.sentence()
    traffic.look()
    assert traffic.elapsed_s is not None
    assert traffic.sentence().startswith("0 transactions written; behind: capture ")
    assert ", cache " in traffic.sentence()
    assert len(traffic.sentence()) < 80
    traffic.look()
    assert traffic.facts(None).waiting == "the source at h:1 is silent"
    assert traffic.facts(None).lag is known
    traffic.look()
    assert traffic.facts(None).waiting == ""


def test_the_writer_goes_by_the_slowest_sink_once_all_have_begun() -> None:
    def at(*applied: tuple[str, int]) -> LagReport:
        sinks = [SinkFacts(name, 1, True, lsn, 0, 0, 0) for name, lsn in applied]
        return report(SourceFacts(1000, 900, 900, 0, True, 0), sinks, now_ms=60_000)

    assert slowest_sink(at()) is None
    slowest = slowest_sink(at(("cache", 1000), ("search", 500)))
    assert slowest is not None
    assert slowest[0] == "search"
    pace = TrafficPace(50, now_s=0)
    assert pace_sentence(pace, "search", 4.26) == "search is 4.3 s behind: 10 of 50 transactions a second from now on"
    assert pace_sentence(pace, "search", 1.0).startswith("all sinks are within 3 s: 10 of 50 ")
