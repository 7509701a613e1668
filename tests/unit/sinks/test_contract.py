"""sinks.contract: versions are cut with all that belongs to them."""

from cdc.model.event import Events
from sinks.contract import TableVersions
from tests.builders import tag, upsert


def test_a_part_of_versions_has_the_operations_and_times_of_its_events() -> None:
    events = [upsert({"id": number, "note": "a"}, number) for number in (1, 2, 3)]
    versions = TableVersions(Events.of(events).tables[0], ["r", "c", "u"], [10, 20, 30], complete_from_ms=5)
    part = versions[1:]
    assert len(part) == 2
    assert (list(part.events.tags), part.operations, part.commit_times_ms) == ([tag(2), tag(3)], ["c", "u"], [20, 30])
    assert part.complete_from_ms == 5
