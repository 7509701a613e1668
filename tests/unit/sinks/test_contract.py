"""sinks.contract: versions are cut with all that belongs to them."""

from cdc.model.event import Events
from sinks.contract import Batch, TableVersions
from tests.builders import tag, upsert


def test_a_part_of_versions_has_the_operations_and_times_of_its_events() -> None:
    events = [upsert({"id": number, "note": "a"}, number) for number in (1, 2, 3)]
    versions = TableVersions(Events.of(events).tables[0], ["r", "c", "u"], [10, 20, 30], complete_from_ms=5)
    part = versions[1:]
    assert len(part) == 2
    assert (list(part.events.tags), part.operations, part.commit_times_ms) == ([tag(2), tag(3)], ["c", "u"], [20, 30])
    assert part.complete_from_ms == 5


def test_a_batch_replaces_no_equal_tag_unless_it_says_so() -> None:
    batch = Batch([upsert({"id": 1, "note": "a"}, 1)])
    assert (batch.overwrite_equal_tags, batch.as_stored, batch.fence, batch.versions) == (False, False, 0, ())
