from cdc.model.errors import PositionMismatch, Unavailable
from jobs.streams.job import stream_error


def test_records_that_are_gone_name_the_way_out_of_a_stream_query() -> None:
    error = stream_error("sessions", "[KAFKA_DATA_LOSS.PARTITIONS_DELETED] ...")
    assert isinstance(error, PositionMismatch)
    assert "stream query 'sessions'" in error.message
    assert "lockstep streams rebuild sessions" in (error.hint or "")


def test_what_passes_by_itself_is_waited_for() -> None:
    assert isinstance(stream_error("sessions", "Python worker exited unexpectedly (crashed)"), Unavailable)
