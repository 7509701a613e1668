"""lockstep.doctor.streams"""

from lockstep.doctor.streams import unread_streams


def test_a_stream_that_no_query_reads_is_told_of() -> None:
    read = {"sessions": ["searches"]}
    (finding,) = unread_streams(["searches", "clicks"], ["sessions"], read)
    assert (finding.subject, finding.what) == ("stream clicks", "no stream query reads it")
    assert "[streams.clicks]" in finding.fix


def test_where_a_query_is_wrong_nobody_knows_what_it_reads() -> None:
    assert unread_streams(["searches", "clicks"], ["sessions", "joined"], {"sessions": ["searches"]}) == []
