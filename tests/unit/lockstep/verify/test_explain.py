"""What is known of a difference besides the rows: rejections, and tags that nothing can replace."""

from lockstep.verify.explain import explained
from lockstep.verify.report import Difference, Kind
from tests.builders import tag


def test_a_rejection_explains_a_missing_row():
    difference = explained(Difference(Kind.MISSING, b"{}"), tag(7), "a field is too long")

    assert (difference.topic_tag, difference.note) == (tag(7), "rejected: a field is too long")


def test_a_tag_beyond_the_topic_cannot_be_repaired():
    difference = Difference(Kind.DIFFERENT, b"{}", ("a",), tag(8))

    assert "rebuild" in explained(difference, tag(7), None).note
    assert explained(difference, tag(8), None).note == ""
    assert explained(difference, None, None).note == ""


def test_what_was_known_before_is_kept():
    difference = Difference(Kind.EXTRA, b"{}", sink_tag=tag(8), note="a second copy of the row")

    assert explained(difference, tag(8), "too long").note == "a second copy of the row; rejected: too long"
