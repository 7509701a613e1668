"""extensions.demo.page"""

import pytest
from pydantic import ValidationError

from extensions.demo.page import Follow, OneTweet, Tweet


@pytest.mark.parametrize("body", ["", "   ", "a\0b", "x" * 281])
def test_a_tweet_that_the_table_would_refuse_is_not_asked_for(body):
    with pytest.raises(ValidationError):
        Tweet(user=1, body=body)


@pytest.mark.parametrize("body", ["x", "two\nlines 🚚", "x" * 280])
def test_a_tweet_is_what_its_user_has_written(body):
    assert Tweet(user=1, body=body).body == body


@pytest.mark.parametrize("number", [0, -1, 1 << 63])
def test_a_number_that_is_no_key_is_refused(number):
    with pytest.raises(ValidationError):
        OneTweet(user=1, tweet=number)
    with pytest.raises(ValidationError):
        Follow(user=number, followee=1)
