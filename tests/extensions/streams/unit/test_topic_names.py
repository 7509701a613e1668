"""Names of the topics of stream queries."""

from extensions.streams.topic_names import stream_query_topic, stream_result_generation, stream_result_topic


def test_the_generation_of_a_result_is_read_from_its_topic_and_from_no_other() -> None:
    topic = stream_result_topic("shop", "recent.logins", 12)
    assert stream_result_generation("shop", "recent.logins", topic) == 12
    assert stream_result_generation("shop", "recent", topic) is None
    assert stream_result_generation("shop", "recent.logins", stream_query_topic("shop", "recent.logins")) is None
    assert stream_result_generation("shop", "recent.g1", stream_query_topic("shop", "recent.g1")) is None
