"""What the demo says while servers don't answer."""

from types import SimpleNamespace
from typing import Any

from cdc.model.errors import Unavailable
from lockstep.demo.traffic import Traffic
from lockstep.demo.writer import Counts
from monitor.lag import LagReport, SinkFacts, SourceFacts, report


def test_a_server_that_is_silent_is_named_and_what_was_known_before_counts() -> None:
    sink = SinkFacts("cache", 1, True, 900, 0, 0, 0)
    known = report(SourceFacts(1000, 900, 900, 0, True, 0), [sink], now_ms=0)
    silent = LagReport((), None, None, {}, silent_servers={"source": Unavailable("the source at h:1 is silent")})
    reports = [silent, known, silent, known]
    collector: Any = SimpleNamespace(collect=lambda: reports.pop(0))
    nobody: Any = None
    traffic = Traffic(nobody, collector, nobody, demo_began=0.0, counts=Counts, is_rebuilding=lambda: False)
    traffic.look()
    assert traffic.elapsed_s is None, "no sink follows because none is known"
    assert "the source at h:1 is silent" in traffic.sentence()
    traffic.look()
    assert traffic.elapsed_s is not None
    assert "100 bytes behind" in traffic.sentence()
    traffic.look()
    assert traffic.facts(None).waiting == "the source at h:1 is silent"
    assert traffic.facts(None).lag is known
    traffic.look()
    assert traffic.facts(None).waiting == ""
