"""The lag report: positions in, distances out."""

from dataclasses import replace
from functools import partial

from cdc.protocol.control_records import Gap
from monitor.lag import has_all_of_kafka, report
from monitor.visible import Visible
from tests.lag import sink_facts, source_facts

NOW_MS = 1_700_000_010_000

_source = partial(
    source_facts,
    received_lsn=900,
    published_lsn=800,
    published_commit_time_ms=NOW_MS - 2000,
    retained_bytes=500,
)
_sink = partial(sink_facts, watermark_lsn=600, commit_time_ms=NOW_MS - 5000, records_behind=7)


def test_each_stage_is_measured_against_the_end_of_the_wal() -> None:
    stages = report(_source(), [_sink()], now_ms=NOW_MS).stages
    assert [(stage.name, stage.bytes_behind, stage.seconds_behind, stage.events_behind) for stage in stages] == [
        ("WAL end", 0, 0.0, None),
        ("received", 100, 2.0, None),
        ("in Kafka", 200, 2.0, None),
        ("read: cache", 400, 5.0, 7),
        ("applied: cache", 400, 5.0, 7),
    ]


def test_a_sink_that_lacks_rows_of_a_table_that_joined_does_not_have_all_of_kafka() -> None:
    source = _source(complete_lsn=900, complete_ms=NOW_MS)
    whole = _sink(watermark_lsn=800, records_behind=0)
    assert has_all_of_kafka(source, whole)
    joining = replace(whole, joining=("shop.public.late",))
    assert not has_all_of_kafka(source, joining)
    (*_, stage) = report(source, [joining], now_ms=NOW_MS).stages
    assert (stage.lsn, stage.seconds_behind) == (800, 5.0)


def test_a_sink_without_a_watermark_is_unknown_not_zero() -> None:
    (*_, sink) = report(_source(), [_sink(watermark_lsn=0)], now_ms=NOW_MS).stages
    assert (sink.lsn, sink.bytes_behind, sink.seconds_behind, sink.events_behind) == (None, None, None, 7)


def test_a_generation_that_readers_do_not_see_has_its_number_with_it() -> None:
    lag = report(_source(), [_sink(), _sink(generation=2, is_live=False, rejected=4)], now_ms=NOW_MS)
    names = ["read: cache", "applied: cache", "read: cache g2", "applied: cache g2"]
    assert [stage.name for stage in lag.stages[3:]] == names
    assert lag.rejected == {"cache": 0, "cache g2": 4}
    *_, stage = lag.to_json()["stages"]
    assert (stage["sink"], stage["generation"], stage["live"]) == ("cache", 2, False)


def test_json_holds_lsns_as_postgresql_writes_them() -> None:
    document = report(_source(wal_end=0x1_0000_00FF), [_sink(rejected=3)], now_ms=NOW_MS).to_json()
    assert document["stages"][0]["lsn"] == "1/FF"
    assert document["rejected"] == {"cache": 3}


def test_what_keeps_capture_from_ever_going_on_is_reported() -> None:
    def broken(**changes: object) -> tuple[str, ...]:
        return report(_source(**changes), [], now_ms=NOW_MS).broken

    assert broken() == broken(wal_status="unreserved") == ()
    (gone,) = broken(wal_status=None)
    assert gone == "the slot is gone: changes after 0/320 can't be read any more"
    (lost,) = broken(wal_status="lost")
    assert "held back too much WAL" in lost
    (back,) = broken(wal_end=700)
    assert back.startswith("the source's WAL ends at 0/2BC, but 0/320 was published")
    assert broken(wal_status=None, published_lsn=None) == (), "capture hasn't begun"
    (of_first_copy,) = broken(wal_status=None, published_lsn=None, copied_from_lsn=800)
    assert of_first_copy == gone
    (other,) = broken(elsewhere=("database was a, is b",), wal_status=None, wal_end=700)
    assert other == "the source isn't the database that capture published from: database was a, is b"


def test_a_gap_is_in_the_document_also_when_it_is_closed() -> None:
    assert report(_source(), [], now_ms=NOW_MS).to_json()["gap"] is None
    gap = Gap(0x320, 0x400, 5, "slot s is gone")
    told = {"from_lsn": "0/320", "to_lsn": "0/400", "noticed_ms": 5, "reason": "slot s is gone"}
    assert report(_source(gap=gap), [], now_ms=NOW_MS).to_json()["gap"] == told
    assert report(_source(gap=gap._replace(to_lsn=0)), [], now_ms=NOW_MS).to_json()["gap"] == told | {"to_lsn": None}


def test_wal_that_has_nothing_for_us_puts_nobody_behind() -> None:
    """Capture has said that everything before the WAL's end is in Kafka, and the sink has all of Kafka."""
    idle = _source(complete_lsn=1000)
    has_all = _sink(watermark_lsn=800, records_behind=0)
    stages = report(idle, [has_all], now_ms=NOW_MS).stages
    assert [(stage.bytes_behind, stage.seconds_behind) for stage in stages] == [(0, 0.0)] * 5
    assert stages[-1].lsn == 1000, "everything that committed up to there is applied"


def test_what_a_stage_lacks_is_no_older_than_the_look_that_found_it_complete() -> None:
    source = _source(complete_lsn=900, complete_ms=NOW_MS - 300)
    late = _sink(complete_ms=NOW_MS - 1300)
    _, received, in_kafka, _, applied = report(source, [late], now_ms=NOW_MS).stages
    assert (received.seconds_behind, in_kafka.seconds_behind, applied.seconds_behind) == (0.3, 0.3, 1.3)
    assert in_kafka.lsn == 900
    (*_, applied) = report(source, [_sink(watermark_lsn=800, records_behind=0)], now_ms=NOW_MS).stages
    assert (applied.lsn, applied.seconds_behind) == (900, 0.3)


def test_what_capture_said_before_it_was_published_to_anybody_says_nothing_of_a_sink() -> None:
    none_published = _source(published_lsn=None, published_commit_time_ms=None, complete_lsn=1000)
    _, _, in_kafka, _, applied = report(none_published, [_sink(records_behind=0)], now_ms=NOW_MS).stages
    assert (in_kafka.lsn, applied.lsn) == (None, 600)


def test_what_a_job_has_read_and_not_applied_lies_with_it() -> None:
    sink = _sink(read_lsn=700, read_commit_time_ms=NOW_MS - 3000, in_hand=5)
    *_, read, applied = report(_source(), [sink], now_ms=NOW_MS).stages
    assert (read.name, read.lsn, read.bytes_behind, read.seconds_behind, read.events_behind) == (
        "read: cache", 700, 300, 3.0, 2,
    )  # fmt: skip
    assert (applied.lsn, applied.events_behind) == (600, 7)
    assert (read.sink, applied.sink) == (None, sink), "each generation comes once"
    (told,) = [stage for stage in report(_source(), [sink], now_ms=NOW_MS).to_json()["stages"] if "job" in stage]
    assert told["stage"] == "applied: cache"


def test_what_queries_do_not_find_yet_is_a_stage_of_its_own() -> None:
    waits = _sink(visible=Visible(False, 550, NOW_MS - 6000, unseen=3))
    *_, applied, visible = report(_source(), [waits], now_ms=NOW_MS).stages
    assert (visible.name, visible.lsn, visible.bytes_behind, visible.seconds_behind, visible.events_behind) == (
        "visible: cache", 550, 450, 6.0, 10,
    )  # fmt: skip
    *_, applied, visible = report(_source(), [_sink(visible=Visible(True, 600, unseen=0))], now_ms=NOW_MS).stages
    assert (visible.lsn, visible.seconds_behind, visible.events_behind) == (
        applied.lsn, applied.seconds_behind, applied.events_behind,
    )  # fmt: skip
    *_, visible = report(_source(), [_sink(visible=Visible(False))], now_ms=NOW_MS).stages
    assert (visible.lsn, visible.seconds_behind, visible.events_behind) == (None, None, None), "nobody knows"
    building = _sink(visible=Visible(True), is_live=False, generation=2)
    assert report(_source(), [building], now_ms=NOW_MS).stages[-1].name == "applied: cache g2", "nobody queries it"
