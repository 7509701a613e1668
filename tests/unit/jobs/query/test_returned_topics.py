"""By which time a topic is judged that is read again."""

import pytest

from cdc.model.errors import PositionMismatch
from cdc.protocol.control_records import ProgressRecord
from jobs.query.returned_topics import ReturnedTopics
from jobs.query.watermark import Watermark
from tests.keepers import log_of


def returned(mark: Watermark) -> ReturnedTopics:
    return ReturnedTopics("s", log_of("a", "b", retention_ms=500), {"b": 400, "gone": 300}, mark)


def test_a_topic_is_judged_by_when_it_left_until_it_has_caught_up() -> None:
    topics = returned(Watermark(["a", "b"]))
    assert (topics.resuming, topics.complete_at_ms(900)) == ({"b"}, 400)
    topics.check_deletes(["a"], others_at_ms=900, now_ms=901)
    with pytest.raises(PositionMismatch, match="topic b keeps tombstones"):
        topics.check_deletes(["a", "b"], others_at_ms=900, now_ms=901)
    topics.note(has_all=False)
    assert topics.resuming == {"b"}
    topics.note(has_all=True)
    assert (topics.resuming, topics.left_at_ms, topics.complete_at_ms(900)) == (set(), {"gone": 300}, 900)
    topics.check_deletes(["b"], others_at_ms=900, now_ms=901)


def test_a_topic_has_caught_up_once_the_watermark_is_true_of_it() -> None:
    mark = Watermark(["a", "b"], lsn=100, joining=["b"])
    topics = returned(mark)
    topics.note(has_all=False)
    assert topics.resuming == {"b"}
    mark.add(ProgressRecord(200, 0, {"b": (3,)}), learned_at_ms=0)
    mark.advance({("b", 0): 3})
    topics.note(has_all=False)
    assert topics.resuming == set()
