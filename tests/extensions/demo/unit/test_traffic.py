"""What the demo says while servers don't answer."""

from types import SimpleNamespace
from typing import Any

from cdc.model.errors import Unavailable
from extensions.demo.lag_facts import lag_sentence, slowest_sink
from extensions.demo.pace import TrafficPace
from extensions.demo.traffic import Traffic, pace_sentence
from extensions.demo.writer import Counts
from monitor.lag import LagReport, SinkFacts, SourceFacts, report


def _rebuild(steps: list[str]) -> Any:
    return SimpleNamespace(next=lambda _: steps[0], is_under_way=False)


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
        rebuild=_rebuild([""]),
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
    assert traffic.facts(None).trouble == "the source at h:1 is silent"
    assert traffic.facts(None).lag is known
    traffic.look()
    assert traffic.facts(None).trouble == ""


def test_each_step_of_the_demo_says_what_comes_next() -> None:
    unknown = report(SourceFacts(1000, None, None, None, True, 0), [SinkFacts("cache", 1, True, 0, 0, 0, 0)], now_ms=0)
    copied = report(SourceFacts(1000, 900, 900, 0, True, 0), [SinkFacts("cache", 1, True, 0, 0, 0, 0)], now_ms=0)
    applied = report(SourceFacts(1000, 900, 900, 0, True, 0), [SinkFacts("cache", 1, True, 900, 0, 0, 0)], now_ms=0)
    reports = [unknown, copied, applied]
    collector: Any = SimpleNamespace(collect=lambda: reports.pop(0))
    nobody: Any = None
    steps = ["search is rebuilt", ""]
    traffic = Traffic(
        nobody,
        collector,
        nobody,
        demo_began=0.0,
        counts=Counts,
        rebuild=_rebuild(steps),
        pace=TrafficPace(50, now_s=0),
        on_pace=lambda _: None,
    )
    traffic.look()
    assert "copied to Kafka" in traffic.facts(60).next
    assert traffic.sentence() == "0 transactions written; nothing is published yet"
    traffic.look()
    assert traffic.facts(60).next.startswith("Spark starts")
    assert traffic.sentence().endswith("; nothing yet: cache")
    traffic.look()
    assert traffic.facts(60).next == "search is rebuilt"
    assert not traffic.is_over(0), "the rebuild isn't done"
    del steps[0]
    assert "the writer stops, and every row" in traffic.facts(60).next
    assert "try the queries" in traffic.facts(None).next
    assert traffic.is_over(0)


def test_capture_is_as_far_as_kafka_has_it_whatever_its_sinks_read() -> None:
    sink = SinkFacts("cache", 1, True, 0, 0, 0, 0)
    known = report(SourceFacts(1000, 900, 900, 0, True, 0), [sink], now_ms=1_500)
    assert lag_sentence(known) == "behind: capture 1.5 s; nothing yet: cache"


def test_the_writer_goes_by_the_slowest_sink_once_all_have_begun() -> None:
    def at(*applied: tuple[str, int]) -> LagReport:
        sinks = [SinkFacts(name, 1, True, lsn, 0, 0, 0) for name, lsn in applied]
        return report(SourceFacts(1000, 900, 900, 0, True, 0), sinks, now_ms=60_000)

    assert slowest_sink(at()) is None
    slowest = slowest_sink(at(("cache", 1000), ("search", 500)))
    assert slowest is not None
    assert slowest[0] == "search"
    pace = TrafficPace(50, now_s=0)
    rate = "10 of 50 transactions a second from now on"
    assert pace_sentence(pace, ("search", 4.26), is_building=True) == f"search is 4.3 s behind: {rate}"
    assert pace_sentence(pace, ("search", 1.0), is_building=False) == f"all sinks are within 3 s: {rate}"
    assert pace_sentence(pace, None, is_building=True) == f"a sink is built anew: {rate}"
