"""What goes into the meters comes out of the endpoint, by the same names."""

import contextlib
import socket
import urllib.request

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from jobs.report import BatchApplied, Report, SinkFailed, SinkStarted, SinkStopped, SinkWaiting, WatermarkRaised
from lockstep.capture import metrics as of_capture
from lockstep.capture.run import Observer
from monitor.lag import SinkFacts, SourceFacts, report
from monitor.metrics import sinks as of_sinks
from monitor.metrics.definitions import DEFINITIONS, Part
from monitor.metrics.endpoint import CONNECTIONS_MAX, exposition, open_meters
from monitor.metrics.meters import Meters
from monitor.metrics.pipeline import gauges_of
from monitor.metrics.settings import MetricsSettings
from snapshot.copy import Copied, CopyProgress
from stack.ports import pick
from tests.databases import until

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def _samples(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _scraped(address: str) -> Samples:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        return _samples(answer.read().decode())


@pytest.fixture
def address() -> str:
    return f"127.0.0.1:{pick(None, taken=())}"


def test_the_jobs_reports_become_figures(address: str) -> None:
    settings = MetricsSettings(apply=address)
    told: list[Report] = []
    with open_meters(settings, Part.APPLY) as opened:
        assert opened is not None
        counted = of_sinks.measured(told.append, opened)
        reports = [
            SinkStarted("search", 2),
            WatermarkRaised("search", 2, 3000, 1_700_000_001_000),
            BatchApplied("search", 2, 7, 10, 8, 1, 1, 1500, 4096, 0),
            BatchApplied("search", 2, 8, 5, 5, 0, 0, 20, 9000, 1_700_000_001_500),
            SinkWaiting("search", "away", 1.0),
        ]
        for one in reports:
            counted(one)
        of = (("generation", "2"), ("sink", "search"))
        found = _scraped(address)
        assert found["lockstep_sink_rows_read_total", of] == 15
        assert found["lockstep_sink_rows_applied_total", of] == 13
        assert found["lockstep_sink_rows_stale_total", of] == 1
        assert found["lockstep_sink_rows_rejected_total", of] == 1
        assert found["lockstep_sink_batch_seconds_count", of] == 2
        assert found["lockstep_sink_batch_seconds_sum", of] == pytest.approx(1.52)
        assert found["lockstep_sink_watermark_lsn", of] == 9000
        assert found["lockstep_sink_watermark_timestamp_seconds", of] == 1_700_000_001.5
        assert found["lockstep_sink_running", of] == 1
        assert found["lockstep_sink_waits_total", (("sink", "search"),)] == 1
        counted(SinkFailed("search", None, LockstepError("full")))
        assert _scraped(address)["lockstep_sink_running", of] == 0
        assert _scraped(address)["lockstep_sink_failures_total", (("sink", "search"),)] == 1
        counted(SinkStarted("search", 2))
        counted(SinkStopped("search", 2))
        assert _scraped(address)["lockstep_sink_running", of] == 0
        assert told[: len(reports)] == reports
    with pytest.raises(OSError, match="refused"):
        _scraped(address)


def _copied(rows: int, new: Copied, *, finished: bool = False) -> CopyProgress:
    return CopyProgress(TableName("public", "orders"), rows, 100, 10 * rows, finished, new)


def test_copies_count_what_this_process_has_published(tmp_path_factory: pytest.TempPathFactory) -> None:
    meters = Meters(Part.CAPTURE)
    directory = tmp_path_factory.mktemp("values")
    (directory / "large").write_bytes(b"x" * 10_000)
    again: list[str] = []
    observer = of_capture.measured(
        Observer(restarted=lambda: again.append("said")),
        meters,
        values=directory,
        pipeline="shop",
    )
    observer.copied(_copied(500, Copied(20, 200, 20)))  # it goes on with what an earlier process has copied
    observer.copied(_copied(530, Copied(30, 300, 30), finished=True))
    observer.copied(_copied(7, Copied(7, 70)))  # the next copy of the same table, in chunks: batches count its records
    observer.restarted()
    table, topic = {"table": "public.orders"}, {"topic": "shop.public.orders"}
    assert meters.registry.get_sample_value("lockstep_capture_copied_rows_total", table) == 57
    assert meters.registry.get_sample_value("lockstep_capture_copied_bytes_total", table) == 570
    assert meters.registry.get_sample_value("lockstep_capture_records_published_total", topic) == 50
    assert meters.registry.get_sample_value("lockstep_capture_restarts_total") == 1
    assert meters.registry.get_sample_value("lockstep_capture_values_bytes") == pytest.approx(10_000, abs=4096)
    assert again == ["said"]


def test_a_look_at_the_pipeline_has_what_is_known_and_nothing_else() -> None:
    source = SourceFacts(1000, 900, 800, 1_700_000_000_000, True, 500, safe_wal_bytes=None)
    facts = [
        SinkFacts("search", 1, True, 600, 1_700_000_000_000, 7, 3),
        SinkFacts("cache", 1, True, 0, 0, None, 0),
    ]
    found = _samples(exposition(gauges_of(report(source, facts, now_ms=1_700_000_002_000), now_s=5.0)).decode())
    search = (("generation", "1"), ("sink", "search"), ("stage", "applied"))
    cache = (("generation", "1"), ("sink", "cache"), ("stage", "applied"))
    assert found["lockstep_stage_behind_bytes", search] == 400
    assert found["lockstep_stage_behind_seconds", search] == 2.0
    assert found["lockstep_stage_behind_events", search] == 7
    assert ("lockstep_stage_behind_bytes", cache) not in found
    states = {
        dict(labels)["state"]: value
        for (name, labels), value in found.items()
        if name == "lockstep_stage_state" and set(search) <= set(labels)
    }
    assert sum(states.values()) == 1
    assert found["lockstep_slot_retained_bytes", ()] == 500
    assert ("lockstep_slot_safe_bytes", ()) not in found
    assert found["lockstep_look_timestamp_seconds", ()] == 5.0
    assert {name for name, _ in found} <= DEFINITIONS.keys()


def test_nobody_asks_so_nothing_is_counted() -> None:
    with open_meters(MetricsSettings(), Part.CAPTURE) as opened:
        assert opened is None


def test_a_process_whose_address_is_taken_goes_on_and_serves_once_it_is_free(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("monitor.metrics.endpoint.AGAIN_S", 0.01)
    settings = MetricsSettings(capture=address)
    name = "lockstep_capture_commits_total"
    with contextlib.ExitStack() as first:
        first.enter_context(open_meters(settings, Part.CAPTURE))
        with open_meters(settings, Part.CAPTURE) as opened:
            assert opened is not None
            opened.add(name, 7)
            assert f"can't listen on {address}" in caplog.text
            assert _scraped(address)[name, ()] == 0
            first.close()
            until(lambda: _answers(address))
            assert _scraped(address)[name, ()] == 7
    assert not _answers(address)


def test_strangers_with_many_connections_keep_nobody_from_scraping_and_cost_few_descriptors(address: str) -> None:
    host, port = address.split(":")
    with contextlib.ExitStack() as closing:
        closing.enter_context(open_meters(MetricsSettings(capture=address), Part.CAPTURE))
        before = psutil.Process().num_fds()
        many = 3 * CONNECTIONS_MAX
        for _ in range(many):
            closing.enter_context(socket.create_connection((host, int(port)))).sendall(b"GET / HT")
        assert _scraped(address)
        assert psutil.Process().num_fds() - before - many <= CONNECTIONS_MAX + 1


def _answers(address: str) -> bool:
    try:
        return bool(_scraped(address))
    except OSError:
        return False


@pytest.mark.parametrize("wrong", ["9464", ":9464", "localhost", "127.0.0.1:port", "127.0.0.1:70000"])
def test_what_is_no_address_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="must be host:port"):
        MetricsSettings(capture=wrong)
