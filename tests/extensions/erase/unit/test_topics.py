"""extensions.erase.topics: what records of a key are, and when a compaction takes something away"""

from dataclasses import replace

from extensions.erase.forced_compaction import Compacted, Mark, Pass, TopicRecord
from extensions.erase.key_records import KeyRecord
from extensions.erase.report import Report
from extensions.erase.topics import TopicRules, judged, leftovers_of, needs_compaction
from lockstep.erasing import Place, RecordWords

RULES = TopicRules(is_compacted=True, delete_retention_ms=1_000, min_compaction_lag_ms=0, retention_ms=-1)
EVENT = KeyRecord(2, 5, 100, is_tombstone=False)
TOMBSTONE = KeyRecord(2, 6, 100, is_tombstone=True)
NOTHING = TopicRecord()
COMPACTED = TopicRecord(passes=(Pass(500, {2: 6}), Pass(600, {2: 9}), Pass(700, {2: 20})))


def test_a_tombstone_stays_for_a_while_after_the_first_compaction_that_came_by_it() -> None:
    (left,) = leftovers_of([TOMBSTONE], RULES, COMPACTED, now_ms=900)
    assert (left.has_values, left.until_ms) == (False, 1_600)
    assert needs_compaction([TOMBSTONE], RULES, COMPACTED, now_ms=900) == set()


def test_one_whose_time_is_over_or_that_was_never_compacted_goes_with_a_compaction() -> None:
    assert needs_compaction([TOMBSTONE], RULES, COMPACTED, now_ms=1_601) == {2}
    assert needs_compaction([TOMBSTONE], RULES, NOTHING, now_ms=900) == {2}
    for remembered, now_ms in ((COMPACTED, 1_601), (NOTHING, 900)):
        assert leftovers_of([TOMBSTONE], RULES, remembered, now_ms=now_ms)[0].until_ms is None


def test_an_event_goes_with_a_compaction_unless_it_is_too_young_for_one() -> None:
    assert needs_compaction([EVENT], RULES, COMPACTED, now_ms=900) == {2}
    assert leftovers_of([EVENT], RULES, COMPACTED, now_ms=900)[0].until_ms is None
    lagging = replace(RULES, min_compaction_lag_ms=5_000)
    assert leftovers_of([EVENT], lagging, COMPACTED, now_ms=900)[0].until_ms == 5_900
    assert leftovers_of([EVENT], lagging, COMPACTED, now_ms=9_900)[0].until_ms is None


def test_where_records_have_to_stay_a_mark_behind_them_says_until_when() -> None:
    lagging = replace(RULES, min_compaction_lag_ms=5_000)
    marked = TopicRecord(marks=(Mark(800, {2: 4}), Mark(850, {2: 9}), Mark(899, {2: 20})))
    event, tombstone = leftovers_of([EVENT, TOMBSTONE], lagging, marked, now_ms=900)
    assert (event.until_ms, tombstone.until_ms) == (5_850, 6_850)
    # It was old enough, and the compaction that was asked for didn't come.
    event, tombstone = leftovers_of([EVENT, TOMBSTONE], lagging, marked, now_ms=5_851)
    assert (event.until_ms, tombstone.until_ms) == (None, None)


def test_tombstones_of_other_keys_may_have_values_of_the_row_in_theirs() -> None:
    words = RecordWords(with_what="with earlier rows", of_many=True)
    event, tombstones = leftovers_of([EVENT, TOMBSTONE, TOMBSTONE], RULES, COMPACTED, now_ms=900, words=words)
    assert (event.what, event.has_values) == ("records with earlier rows", True)
    assert (tombstones.what, tombstones.has_values) == ("tombstones with keys of rows that are gone", True)


def test_a_topic_that_is_not_compacted_keeps_records_for_its_retention() -> None:
    kept = replace(RULES, is_compacted=False, retention_ms=2_000)
    assert needs_compaction([EVENT], kept, NOTHING, now_ms=900) == set()
    (left,) = leftovers_of([EVENT], kept, NOTHING, now_ms=900)
    assert (left.has_values, left.until_ms) == (True, 2_900)
    assert leftovers_of([EVENT], replace(kept, retention_ms=-1), NOTHING, now_ms=900)[0].until_ms is None


def test_settings_are_read_as_brokers_write_them() -> None:
    config = {
        "cleanup.policy": "compact",
        "delete.retention.ms": "1000",
        "min.compaction.lag.ms": "0",
        "retention.ms": "604800000",
    }
    assert TopicRules.of(config) == RULES
    assert TopicRules.of(config | {"cleanup.policy": "compact,delete"}).retention_ms == 604_800_000


def test_where_old_enough_records_are_not_compacted_younger_ones_behind_them_prove_nothing() -> None:
    """A view's topic that changes all the time has a young mark behind its newest records with each run."""
    hour_ms = 3_600_000
    rules = TopicRules(True, hour_ms, hour_ms, -1)
    words = RecordWords(with_what="of earlier rows of the view", of_many=True)
    remembered = NOTHING
    for run in range(4):
        now_ms = 10**12 + run * (hour_ms + 60_000)
        newest = 100 + 1_000 * run
        is_old_enough = remembered.ripe_marks([0], before_ms=now_ms - hour_ms) == {0: newest - 1_000 + 10}
        assert is_old_enough == (run > 0)
        remembered = remembered.with_mark(Mark(now_ms, {0: newest + 10}), before_ms=now_ms - hour_ms)
        records = [KeyRecord(0, newest, now_ms - 500, False), KeyRecord(0, newest - 1, now_ms - 500, True)]
        left = leftovers_of(records, rules, remembered, now_ms=now_ms, words=words)
        place = Place("topic t", left, left)
        outcome = Compacted.LATE if is_old_enough else Compacted.NOTHING_RIPE
        report = Report("public.t", [judged(place, rules, outcome, timeout_s=120)], [])
        assert report.exit_code == (1 if is_old_enough else 5)
        assert ("until an unknown time" in " ".join(report.lines())) == is_old_enough
        assert ("didn't compact it within 120 s" in " ".join(" ".join(report.lines()).split())) == is_old_enough
        assert Report("public.t", [judged(place, rules, Compacted.DONE, timeout_s=120)], []).exit_code == 5


def test_what_is_gone_all_the_same_is_proven() -> None:
    assert judged(Place("topic t"), RULES, Compacted.LATE, timeout_s=120).is_proven
