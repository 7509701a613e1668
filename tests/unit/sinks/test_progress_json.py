"""sinks.progress_json"""

from sinks.progress_json import dump_progress, load_progress
from tests.builders import progress


def test_progress_survives_its_json() -> None:
    reached = {("a.b:c", 0): 1, ("a.b:c", 12): 2**60}
    saved = progress(0xFFFF_FFFF_FFFF_FFFF, next_offsets=reached, topic_ids={}, shards=(reached, {}))
    assert load_progress(dump_progress(saved)) == saved
