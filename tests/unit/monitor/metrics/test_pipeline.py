"""The lag report as gauges."""

from dataclasses import replace

from cdc.model.errors import Unavailable
from monitor.lag import LagReport, SourceFacts, report
from monitor.metrics.pipeline import gauges_of


def _shown(lag: LagReport) -> dict[str, float]:
    return {sample.name: sample.value for metric in gauges_of(lag, now_s=1.0) for sample in metric.samples}


def test_nothing_old_is_said_of_the_slot_while_the_source_is_silent() -> None:
    lag = report(SourceFacts(1000, 900, 900, 0, True, 50), [], now_ms=0)
    assert _shown(lag)["lockstep_slot_active"] == 1.0
    silent = _shown(replace(lag, silent_servers={"source": Unavailable("no answer")}))
    assert [name for name in silent if name.startswith("lockstep_slot")] == []
    assert silent["lockstep_look_timestamp_seconds"] == 1.0
