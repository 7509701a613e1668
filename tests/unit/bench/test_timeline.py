"""What a reader makes of the topic of a timeline, and how long its changes took."""

import pytest

from bench.timeline import Load, TopicRows, differing, row_of
from cdc.model.errors import LockstepError

OURS = b'{"follower_id":3,"tweet_id":7,"name":"Ann","body":"hello","created_at":"2026-01-01T00:00:01.5Z"}'
FLINKS = b'{"follower_id":3,"tweet_id":7,"name":"Ann","body":"hello","created_at":"2026-01-01T00:00:01.500Z"}'


def key(follower: int, tweet: int) -> bytes:
    return b'{"follower_id":%d,"tweet_id":%d}' % (follower, tweet)


def test_a_row_is_the_same_whoever_writes_its_time() -> None:
    assert row_of(OURS) == row_of(FLINKS) == ("Ann", "hello", 1767225601.5)


def test_the_newest_record_of_a_key_is_its_row_and_a_tombstone_takes_it_away() -> None:
    topic = TopicRows()
    topic.take(key(3, 7), OURS.replace(b"hello", b"hell"), now=1.0)
    topic.take(key(3, 7), OURS, now=2.0)
    topic.take(key(3, 8), OURS, now=3.0)
    topic.take(key(3, 8), None, now=4.0)
    topic.take(key(3, 9), None, now=5.0)
    assert topic.rows() == {(3, 7): row_of(OURS)}
    assert topic.first_seen == {(3, 7): 1.0, (3, 8): 3.0}
    assert (topic.records, topic.last_at) == (5, 5.0)


def test_rows_differ_that_are_missing_too_many_or_others() -> None:
    row = row_of(OURS)
    assert differing({(1, 1): row}, {(1, 1): row}) == 0
    assert differing({(1, 1): row, (2, 2): row}, {(1, 1): ("Bob", *row[1:]), (3, 3): row}) == 3


def test_a_tweet_is_visible_when_the_last_of_its_followers_has_it() -> None:
    load = Load(tweets={7: (10.0, [1, 2]), 8: (20.0, []), 9: (30.0, [1])})
    assert load.seconds_until_seen({(1, 7): 10.5, (2, 7): 10.75, (1, 9): 30.25, (5, 5): 1.0}) == [0.75, 0.25]


def test_a_tweet_that_some_follower_never_got_is_an_error() -> None:
    with pytest.raises(LockstepError, match="tweet 7 is missing in 1 timelines"):
        Load(tweets={7: (10.0, [1, 2])}).seconds_until_seen({(1, 7): 10.5})
