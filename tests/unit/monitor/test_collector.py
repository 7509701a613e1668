"""What reports of ``lag --watch`` keep from one look to the next."""

from types import SimpleNamespace
from typing import Any

import pytest

from monitor.collector import LagCollector
from monitor.lag import SinkFacts, SourceFacts


def _complete_ms(collector: LagCollector, *, watermark: int, behind: int, now_ms: int, epoch: int = 1) -> int:
    """As of when the sink has everything, with Kafka complete up to LSN 800."""
    source = SourceFacts(1000, 900, 800, 0, slot_active=True, retained_bytes=0, complete_ms=now_ms)
    facts = SinkFacts("cache", 1, True, watermark, 0, behind, 0)
    return collector._since_when_complete(source, facts, epoch).complete_ms


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> LagCollector:
    monkeypatch.setattr("monitor.collector.TopicAdmin", lambda *_: None)
    monkeypatch.setattr("monitor.collector.OpenRejections", lambda *_: None)
    pipeline: Any = SimpleNamespace(kafka=SimpleNamespace(client=dict))
    return LagCollector(pipeline, {})


def test_a_sink_keeps_the_time_as_of_which_it_had_everything(collector: LagCollector) -> None:
    assert _complete_ms(collector, watermark=800, behind=0, now_ms=5_000) == 5_000
    assert _complete_ms(collector, watermark=800, behind=3, now_ms=6_000) == 5_000
    assert _complete_ms(collector, watermark=900, behind=3, now_ms=7_000) == 5_000
    assert _complete_ms(collector, watermark=900, behind=0, now_ms=8_000) == 8_000


def test_a_sink_whose_store_was_put_back_does_not_look_up_to_date(collector: LagCollector) -> None:
    assert _complete_ms(collector, watermark=800, behind=0, now_ms=5_000) == 5_000
    assert _complete_ms(collector, watermark=300, behind=90, now_ms=6_000) == 0
    assert _complete_ms(collector, watermark=700, behind=9, now_ms=7_000) == 0
    assert _complete_ms(collector, watermark=800, behind=2, now_ms=8_000) == 5_000, "it has it all again"


def test_what_a_sink_had_of_another_epoch_counts_for_nothing(collector: LagCollector) -> None:
    assert _complete_ms(collector, watermark=800, behind=0, now_ms=5_000) == 5_000
    assert _complete_ms(collector, watermark=900, behind=9, now_ms=6_000, epoch=2) == 0
